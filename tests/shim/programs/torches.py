"""Programs of on_card_programs.py over PyTorch, CuPy and JAX: `torches.py NAME` prints the same with and without it.

Where a library is not installed the program says so and ends with 0.
"""
# mypy: ignore-errors

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable

PROGRAMS: dict[str, Callable[[], object]] = {}


def program(function: Callable[[], object]) -> Callable[[], object]:
    PROGRAMS[function.__name__] = function
    return function


def moment() -> None:
    """Here its memory leaves the card, when it runs so."""
    path = os.environ.get("PROGRAM_MOMENT")
    if not path:
        return
    open(path + ".at", "w").close()
    limit = time.monotonic() + 40
    while not os.path.exists(path + ".go") and time.monotonic() < limit:
        time.sleep(0.01)


def say(*words: object) -> None:
    print(*words, flush=True)


def quota() -> int:
    return int(os.environ.get("PROGRAM_QUOTA", "0"))


def net(torch, seed: int = 0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64)).cuda()


def steps(torch, model, count: int = 5, start: int = 0) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(start, start + count):
        torch.manual_seed(step)
        x = torch.randn(64, 256, device="cuda")
        loss = model(x).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        say("loss", f"{loss.item():.5f}")


@program
def train() -> None:
    import torch

    model = net(torch)
    steps(torch, model)
    held = [torch.full((1 << 24,), float(at), device="cuda") for at in range(8)]
    torch.cuda.synchronize()
    moment()
    steps(torch, model, start=5)
    say(*(float(one.sum()) for one in held))
    say("sum", f"{sum(float(p.sum()) for p in model.parameters()):.4f}")


@program
def churn() -> None:
    """The allocator's life: many sizes, empty_cache, statistics, a snapshot."""
    import torch

    torch.cuda.memory._record_memory_history(max_entries=10000)
    generator = torch.Generator().manual_seed(1)
    held, total = {}, 0.0
    for at in range(400):
        n = int(torch.randint(1, 1 << 22, (1,), generator=generator))
        held[at % 37] = torch.full((n,), 1.0, device="cuda")
        if at % 50 == 49:
            total += float(sum(one.sum() for one in held.values()))
            torch.cuda.empty_cache()
        if at == 200:
            moment()
    say("total", total)
    say("allocated", torch.cuda.memory_allocated() > 0, torch.cuda.memory_reserved() >= torch.cuda.memory_allocated())
    snapshot = torch.cuda.memory._snapshot()
    say("snapshot", len(snapshot["segments"]) > 0)
    free, whole = torch.cuda.mem_get_info()
    say("info", free < whole, not quota() or whole == quota())
    say("properties", not quota() or torch.cuda.get_device_properties(0).total_memory == quota())
    say(torch.cuda.get_device_name())
    held.clear()
    torch.cuda.empty_cache()
    say("left", torch.cuda.memory_allocated())


@program
def oom() -> None:
    import torch

    held = []
    limit = quota() or (6 << 30)
    if not quota():
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.mem_get_info()[1])
    try:
        while len(held) < 100:
            held.append(torch.zeros(256 << 18, device="cuda"))
    except torch.cuda.OutOfMemoryError as error:
        say(type(error).__name__, "out of memory" in str(error))
    say("most of it", limit - (len(held) << 28) < 2 << 30)
    held.pop()  # a sum needs a little more
    moment()
    say(float(sum(one.sum() for one in held[:8])))
    del held
    gc.collect()
    torch.cuda.empty_cache()
    say(float(torch.ones(256 << 18, device="cuda").sum()))
    try:
        torch.zeros(1 << 50, device="cuda", dtype=torch.int8)
    except (torch.cuda.OutOfMemoryError, RuntimeError) as error:
        say(type(error).__name__)


@program
def pools() -> None:
    import torch

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        a = torch.full((1 << 22,), 2.0, device="cuda")
    b = torch.full((1 << 22,), 3.0, device="cuda")
    torch.cuda.synchronize()
    moment()
    say(float(a.sum()), float(b.sum()))
    del a
    del pool
    torch.cuda.empty_cache()
    say(float(b.sum()))


@program
def graph() -> None:
    import torch

    model = net(torch)
    x = torch.randn(64, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(3))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = model(x) * 2
    captured.replay()
    say(f"{float(y.sum()):.4f}")
    torch.cuda.synchronize()
    moment()
    x.add_(1)
    captured.replay()
    say(f"{float(y.sum()):.4f}")
    called = torch.cuda.make_graphed_callables(net(torch, 1), (torch.zeros(8, 256, device="cuda"),))
    out = called(torch.ones(8, 256, device="cuda"))
    out.sum().backward()
    say(f"{float(out.sum()):.4f}")
    captured.reset()


@program
def compiled() -> None:
    import torch

    @torch.compile(mode="reduce-overhead")
    def f(x, y):
        return torch.relu(x @ y + 1).sum(0)

    x = torch.arange(256 * 256, device="cuda", dtype=torch.float32).view(256, 256) / 65536
    for _ in range(4):
        out = f(x, x).clone()
    say(f"{float(out.sum()):.2f}")
    torch.cuda.synchronize()
    moment()
    say(f"{float(f(x, x).clone().sum()):.2f}")


@program
def triton_kernel() -> None:
    import torch
    import triton_program

    x = torch.arange(1 << 22, device="cuda", dtype=torch.float32)
    out = triton_program.double(x)
    torch.cuda.synchronize()
    moment()
    say(float(triton_program.double(out)[77]), float(out[-1]))


@program
def loader() -> None:
    import loader_program
    import torch

    torch.zeros(1, device="cuda")
    total = torch.zeros((), device="cuda")
    for start in ("fork", "spawn"):
        data = torch.utils.data.DataLoader(
            loader_program.Numbers(), 16, num_workers=2, pin_memory=True, multiprocessing_context=start
        )
        for at, batch in enumerate(data):
            total += batch.cuda(non_blocking=True).sum()
            if at == 2 and start == "fork":
                torch.cuda.synchronize()
                moment()
    say(float(total))


@program
def shared_tensors() -> None:
    """A tensor goes to another process and is changed there."""
    import loader_program
    import torch

    context = torch.multiprocessing.get_context("spawn")
    x = torch.ones(1 << 22, device="cuda")
    torch.cuda.synchronize()
    moment()
    queue, back = context.Queue(), context.Queue()
    child = context.Process(target=loader_program.add, args=(queue, back))
    child.start()
    queue.put(x)
    say(back.get(timeout=40))
    torch.cuda.synchronize()
    say(float(x.sum()))
    queue.put(None)
    child.join(20)
    say(child.exitcode)
    del x
    torch.cuda.ipc_collect()


def _group(backend: str) -> None:
    import torch

    os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", WORLD_SIZE="1")
    torch.distributed.init_process_group(
        backend, init_method="file://" + os.path.join(os.environ["PROGRAM_FOLDER"], "group"), rank=0, world_size=1
    )
    x = torch.ones(1 << 22, device="cuda")
    torch.distributed.all_reduce(x)
    torch.distributed.broadcast(x, 0)
    torch.cuda.synchronize()
    moment()
    torch.distributed.all_reduce(x)
    model = torch.nn.parallel.DistributedDataParallel(net(torch))
    steps(torch, model, 2)
    say(float(x.sum()))
    torch.distributed.destroy_process_group()


@program
def nccl() -> None:
    _group("nccl")


@program
def gloo() -> None:
    _group("gloo")


@program
def streams() -> None:
    import torch

    many = [torch.cuda.Stream(priority=-(at % 2)) for at in range(16)]
    x = torch.ones(1 << 22, device="cuda")
    host = torch.empty(1 << 22, pin_memory=True)
    torch.cuda.synchronize()
    outs = []
    for stream in many:
        with torch.cuda.stream(stream):
            out = x * 2
            out.record_stream(torch.cuda.default_stream())
            outs.append(out)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    moment()
    host.copy_(x, non_blocking=True)
    end.record()
    torch.cuda.synchronize()
    say(begin.elapsed_time(end) >= 0, float(host.sum()), float(sum(out.sum() for out in outs)))
    torch.cuda.profiler.start()
    torch.cuda.profiler.stop()


@program
def threads() -> None:
    import torch

    sums: list[float] = []

    def work(at: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            sums.extend(
                float(torch.full((100000 * (step % 5 + 1),), float(at), device="cuda").sum()) for step in range(30)
            )

    all_ = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for one in all_:
        one.start()
    moment()
    for one in all_:
        one.join()
    say(len(sums), sum(sums))


@program
def alive_at_exit() -> None:
    """The interpreter ends with tensors, a stream, a graph and a daemon thread that works."""
    import torch

    builtins = __import__("builtins")
    builtins.kept = [torch.ones(1 << 24, device="cuda"), torch.cuda.Stream(), torch.ones(10, pin_memory=True)]

    def work() -> None:
        while True:
            torch.ones(1000, device="cuda").sum().item()

    threading.Thread(target=work, daemon=True).start()
    moment()
    time.sleep(0.2)
    say("end")
    sys.exit(21)


@program
def transformer() -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=1000, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
    model = GPT2LMHeadModel(config).cuda().eval()
    ids = torch.arange(16, device="cuda")[None]
    say(model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0).tolist())
    moment()
    say(model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0).tolist())


@program
def profiled() -> None:
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        x = torch.ones(1 << 22, device="cuda")
        moment()
        y = (x + 1).sum()
        torch.cuda.synchronize()
    say(float(y), len(found.key_averages()) > 0)


@program
def cupy_arrays() -> None:
    import cupy

    x = cupy.arange(1 << 22, dtype=cupy.float32)
    y = cupy.RawKernel('extern "C" __global__ void k(float *p) { p[blockIdx.x * 256 + threadIdx.x] *= 2; }', "k")
    y((1 << 14,), (256,), (x,))
    cupy.cuda.Device().synchronize()
    moment()
    say(float(x[77]), float(cupy.fft.fft(x[:64]).real.sum()), not quota() or cupy.cuda.Device().mem_info[1] == quota())
    with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc):
        say(float(cupy.ones(1 << 20).sum()))


@program
def jax_arrays() -> None:
    import jax
    import jax.numpy as jnp

    x = jnp.arange(1 << 20, dtype=jnp.float32)
    f = jax.jit(lambda v: (v * 2 + 1).sum())
    say(float(f(x)))
    moment()
    say(float(f(x + 1)))


@program
def devices() -> None:
    """What a program is told of the cards, whatever CUDA_VISIBLE_DEVICES says."""
    import torch

    say(torch.cuda.is_available(), torch.cuda.device_count())
    if torch.cuda.is_available():
        say(float(torch.ones(1 << 22, device="cuda").sum()), torch.cuda.get_device_capability())
        moment()


@program
def pinned() -> None:
    import torch

    x = torch.ones(1 << 24).pin_memory()
    y = x.cuda(non_blocking=True)
    z = torch.empty(1 << 24).share_memory_()
    torch.cuda.cudart().cudaHostRegister(z.data_ptr(), z.numel() * 4, 0)
    z.copy_(y)
    moment()
    say(float(y.sum()), float(z.sum()))
    torch.cuda.cudart().cudaHostUnregister(z.data_ptr())


@program
def broken() -> None:
    """An assertion in a kernel: the error is PyTorch's own, and so is the exit code."""
    import torch

    x = torch.zeros(4, device="cuda")
    say("begin")
    try:
        x[torch.tensor([9], device="cuda")].sum().item()
    except Exception as error:  # whatever it is without the shim
        say(type(error).__name__, "device-side assert" in str(error))
    moment()
    try:
        torch.ones(1 << 22, device="cuda")
        torch.cuda.synchronize()
    except Exception as error:
        say(type(error).__name__)
    sys.exit(22)


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    try:
        PROGRAMS[sys.argv[1]]()
    except ImportError as error:
        say("not here:", error)
