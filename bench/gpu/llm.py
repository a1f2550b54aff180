"""What LLM engines do with a card, with and without the shim: prints PASS or FAIL for every case, and ends by itself.

    python bench/gpu/llm.py [--quota GIB] [--limit SECONDS]

Every case runs twice, bare and as `aliquot run --memory QUOTA`, in a daemon of its own, and must have the same result.
Needs PyTorch and, for the decoder, transformers, on a machine with a card; nothing is downloaded: weights are random.
"""
# mypy: ignore-errors

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback

# the allocator of PyTorch: the cases that it runs
CASES = {
    "native": ("decoder", "graph", "compiled", "nccl", "ipc", "loader", "quota"),
    "expandable_segments:True": ("decoder", "graph", "quota"),
    "backend:cudaMallocAsync": ("decoder", "quota"),
}


def decoder() -> str:
    """A transformers decoder with random weights and a static cache generates tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000, hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8
    )
    model = LlamaForCausalLM(config).to("cuda", torch.float32).eval()
    start = torch.arange(8, device="cuda").reshape(1, 8)
    with torch.no_grad():
        found = model.generate(
            start, max_new_tokens=16, do_sample=False, cache_implementation="static", disable_compile=True
        )
    return str(found.tolist())


def graph() -> str:
    """A captured CUDA graph is replayed."""
    import torch

    torch.manual_seed(0)
    layer, given = torch.nn.Linear(256, 256).cuda(), torch.ones(16, 256, device="cuda")
    side = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(side):
        layer(given)
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(captured):
        made = layer(given)
    for _ in range(100):
        captured.replay()
    torch.cuda.synchronize()
    return f"{made.sum().item():.4f}"


def compiled() -> str:
    """torch.compile: Triton's kernels."""
    import torch

    @torch.compile
    def work(x):
        return torch.nn.functional.gelu(x * 2).sum()

    return f"{work(torch.ones(4096, device='cuda')).item():.3f}"


def nccl() -> str:
    """torch.distributed over NCCL, world size 1, with cuMem."""
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "NCCL_CUMEM_ENABLE": "1"}
    dist.init_process_group("nccl", rank=0, world_size=1)
    data = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(data)
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return str(data.sum().item())


def _add_one(queue, done) -> None:
    tensor = queue.get()
    tensor += 1
    import torch

    torch.cuda.synchronize()
    done.set()
    time.sleep(0.5)


def ipc() -> str:
    """A tensor goes to another process by CUDA IPC."""
    import torch
    import torch.multiprocessing as mp

    context = mp.get_context("spawn")
    queue, done = context.Queue(), context.Event()
    child = context.Process(target=_add_one, args=(queue, done))
    child.start()
    tensor = torch.ones(1024, device="cuda")
    queue.put(tensor)
    if not done.wait(40):
        child.kill()
        raise RuntimeError("the other process did not answer")
    child.join(20)
    return str(tensor.sum().item())


class _Numbers:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, at: int):
        import torch

        return torch.full((1024,), float(at))


def loader() -> str:
    """DataLoader workers with pinned memory."""
    import torch

    batches = torch.utils.data.DataLoader(_Numbers(), batch_size=8, num_workers=2, pin_memory=True)
    return str(sum(batch.cuda(non_blocking=True).sum().item() for batch in batches))


def quota() -> str:
    """Under the shim the card looks as large as the quota, and more is refused with PyTorch's own error."""
    import torch

    limit = os.environ.get("LLM_QUOTA")
    if limit is None:
        return "same"
    free, total = torch.cuda.mem_get_info()
    if not free <= total <= int(limit):
        raise RuntimeError(f"cuMemGetInfo says {total} bytes, the quota is {limit}")
    torch.cuda.empty_cache()
    try:
        torch.empty(int(limit) + (1 << 28), dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return "same"
    raise RuntimeError("more than the quota was granted")


def child(names: list[str]) -> None:
    """One line of JSON for each case."""
    for name in names:
        try:
            answer = {"case": name, "result": globals()[name]()}
        except Exception as error:
            traceback.print_exc()
            answer = {"case": name, "error": f"{type(error).__name__}: {error}"[:300]}
        print("CASE " + json.dumps(answer), flush=True)


def run(words: list[str], env: dict[str, str], limit: float) -> dict[str, dict[str, str]]:
    """What the child answered; nothing for cases that it did not reach."""
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(words, env=env, stdout=out, stderr=subprocess.STDOUT)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            code = "time limit"
            process.wait()
        out.seek(0)
        text = out.read()
    found = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("CASE ")]
    if code or any("error" in answer for answer in found):
        print(f"--- {' '.join(words[-3:])} ended with {code}:\n{text[-2500:]}\n---", flush=True)
    return {answer["case"]: answer for answer in found}


def main() -> int:
    """The exit code: 1 if a case failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quota", type=int, default=20, metavar="GIB")
    parser.add_argument("--limit", type=float, default=150.0, metavar="SECONDS")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child.split(","))
        return 0
    end, failed = time.monotonic() + options.limit, 0
    home = tempfile.mkdtemp(prefix="alq")
    aliquot = [sys.executable, "-P", "-m", "aliquot"]
    own = {**os.environ, "ALIQUOT_HOME": home}
    try:
        for allocator, names in CASES.items():
            words = [sys.executable, os.path.abspath(__file__), "--child", ",".join(names)]
            env = {**own, **({} if allocator == "native" else {"PYTORCH_CUDA_ALLOC_CONF": allocator})}
            bare = run(words, env, max(1.0, end - time.monotonic()))
            limited = {**env, "LLM_QUOTA": str(options.quota << 30)}
            wrapped = [*aliquot, "run", "--class", "online", "--memory", str(options.quota), "--", *words]
            shimmed = run(wrapped, limited, max(1.0, end - time.monotonic()))
            for name in names:
                without, with_it = bare.get(name, {}), shimmed.get(name, {})
                if "result" not in without:
                    verdict, why = "SKIP", f"fails without the shim too: {without.get('error', 'no answer')}"
                elif with_it.get("result") == without["result"]:
                    verdict, why = "PASS", ""
                else:
                    verdict, why = "FAIL", with_it.get("error") or f"{with_it.get('result', 'no answer')[:80]}"
                    failed += 1
                print(f"{verdict} {allocator} {name} {why}".rstrip(), flush=True)
    finally:
        subprocess.run([*aliquot, "down"], env=own, timeout=30, check=False)
    print(f"{failed} failed, {options.limit - (end - time.monotonic()):.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
