"""The programs that on_card_programs.py runs, and how those in C and CUDA are built."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SOURCES = HERE / "programs"
QUOTA = 6 << 30
ALIQUOT = (sys.executable, "-P", "-m", "aliquot")
WAYS = ("plain", "limited", "moved")
SECONDS = 25.0  # for a program in CUDA; PyTorch may take three times as long
SLOW = ("contexts", "primary_reset", "device_reset", "mem_threads")
FLAGS = {"graphs": ["-rdc=true", "-lcudadevrt"], "work_ptds": ["--default-stream", "per-thread"]}
OF = {"work_ptds": "work"}


@dataclass(slots=True)
class Program:
    name: str
    command: list[str]
    env: dict[str, str] = field(default_factory=dict)
    seconds: float = SECONDS
    ways: tuple[str, ...] = WAYS


def torch_programs() -> list[Program]:
    def one(name: str, label: str = "", **env: str) -> Program:
        return Program(f"torch.{label or name}", [sys.executable, str(SOURCES / "torches.py"), name], env, 3 * SECONDS)

    names = [
        name
        for name in re.findall(r"@program\ndef (\w+)", (SOURCES / "torches.py").read_text())
        if name != "jax_arrays"
    ]
    conf = "PYTORCH_CUDA_ALLOC_CONF"
    variants = {
        "expandable": {conf: "expandable_segments:True"},
        "async": {conf: "backend:cudaMallocAsync"},
        "split": {conf: "garbage_collection_threshold:0.6,max_split_size_mb:64,roundup_power2_divisions:4"},
        "uncached": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        "blocking": {"CUDA_LAUNCH_BLOCKING": "1"},
    }
    more = [
        one(name, f"{name}.{variant}", **variants[variant])
        for name, chosen in {
            "train": variants,
            "churn": ("expandable",),
            "oom": ("expandable", "async"),
            "graph": ("expandable", "async"),
            "shared_tensors": ("expandable",),
        }.items()
        for variant in chosen
    ]
    more += [one("jax_arrays", XLA_PYTHON_CLIENT_PREALLOCATE="false")]  # or it takes three quarters of the card
    more += [one("jax_arrays", "jax_arrays.part", XLA_PYTHON_CLIENT_MEM_FRACTION="0.1")]
    return [*(one(name) for name in names), *more]


def other_programs(binaries: Path, uuid: str) -> list[Program]:
    """Those without CUDA, and programs of CUDA in unusual surroundings."""
    process, memory = str(binaries / "process"), str(binaries / "memory")
    python = sys.executable
    found = [
        Program("bash", ["bash", "-c", "for i in 1 2 3; do echo $i | cat; done; (exit 3); echo $?; kill -9 $$"]),
        Program(
            "threads_only",
            [python, "-c", "import threading as t;a=[t.Thread(target=sum,args=(range(9),)) for _ in range(400)];"
             "[x.start() for x in a];[x.join() for x in a];print(len(a));import subprocess;"
             "print(subprocess.run(['true']))"],
        ),
        Program("ulimit", ["bash", "-c", f"ulimit -s 512; ulimit -n 64; exec {process} devices"]),
        Program("wiped", ["env", "-i", f"LD_LIBRARY_PATH={os.environ.get('LD_LIBRARY_PATH', '')}", process, "devices"],
                ways=("plain", "limited")),
        Program("closed_stdio", ["bash", "-c", f"{process} devices <&- 2>&- | tail -n 3"]),
        Program("nice_background", ["bash", "-c", f"nice -n 5 {process} devices & wait $!"]),
        Program("nobody", ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", process, "devices"],
                ways=("plain", "limited")),
        Program("smi", ["nvidia-smi", "-L"], ways=("plain", "limited")),
        Program("smi_total", ["bash", "-c", "t=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits);"
                f'[ -z "$PROGRAM_QUOTA" ] || [ "$t" = {QUOTA >> 20} ]; echo $?'], ways=("plain", "limited")),
        Program("interposed", ["bash", "-c", f'ODD=1 LD_PRELOAD="{binaries}/libodd.so $LD_PRELOAD" {process} devices']),
        Program("interposed_after",
                ["bash", "-c", f'ODD=1 LD_PRELOAD="$LD_PRELOAD {binaries}/libodd.so" {process} devices']),
        Program("odd", [str(binaries / "odd")]),
        Program("static", [str(binaries / "odd_static")]),
        Program("asan", ["env", "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0", str(binaries / "odd_asan")]),
        Program("memcheck", ["bash", "-c", f"compute-sanitizer --tool memcheck {memory} mem_sizes | grep -v ====="],
                seconds=2 * SECONDS, ways=("plain", "limited")),
        Program("debugger", ["bash", "-c", f"cuda-gdb --batch -q -ex run --args {process} devices 2>&1 | grep -e '->'"],
                seconds=2 * SECONDS, ways=("plain", "limited")),
    ]  # fmt: skip
    for label, value in {
        "uuid": uuid, "short": uuid[:12], "empty": "", "minus": "-1", "absent": "7", "twice": "0,0", "order": "0,-1,0",
        "mig": "MIG-00000000-0000-0000-0000-000000000000", "nonsense": "gpu",
    }.items():  # fmt: skip
        found.append(Program(f"visible.{label}", ["env", f"CUDA_VISIBLE_DEVICES={value}", process, "devices"]))
    for label, env in {
        "blocking": {"CUDA_LAUNCH_BLOCKING": "1"},
        "jit": {"CUDA_FORCE_PTX_JIT": "1", "CUDA_CACHE_DISABLE": "1"},
    }.items():
        for name in ("graphs graph_capture", "work launches", "memory async_pools"):
            binary, inner = name.split()
            found.append(Program(f"{inner}.{label}", [str(binaries / binary), inner], env, 2 * SECONDS))
    return found


def cuda_programs(binaries: Path) -> list[Program]:
    found = []
    for binary in ("memory", "graphs", "work", "work_ptds", "process"):
        text = (SOURCES / f"{OF.get(binary, binary)}.cu").read_text()
        for name in re.findall(r"^PROGRAM\((\w+)\)", text, re.MULTILINE):
            label = f"{name}.ptds" if binary == "work_ptds" else name
            if binary == "work_ptds" and not re.match("launches|callbacks|events|busy", name):
                continue  # these ask nothing of streams
            seconds = 2 * SECONDS if name in SLOW else SECONDS
            found.append(Program(label, [str(binaries / binary), name], seconds=seconds))
    return found


def build(folder: Path) -> list[str]:
    """Everything that is compiled, at the same time; what could not be."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    gcc = shutil.which("gcc") or "cc"
    stubs = f"-L{Path(nvcc).resolve().parent.parent}/lib64/stubs"
    commands = {
        name: [nvcc, "-std=c++17", "-gencode", "arch=compute_90,code=[sm_90,compute_90]", *FLAGS.get(name, []), stubs,
               "-o", str(folder / name), str(SOURCES / f"{OF.get(name, name)}.cu"), "-lcuda", "-ldl", "-lpthread"]
        for name in ("memory", "graphs", "work", "work_ptds", "process")
    }  # fmt: skip
    odd = str(SOURCES / "odd.c")
    commands["libodd.so"] = [gcc, "-shared", "-fPIC", "-o", str(folder / "libodd.so"), odd, "-ldl"]
    for name, flags in {"odd": [], "odd_static": ["-static"], "odd_asan": ["-fsanitize=address"]}.items():
        commands[name] = [gcc, "-DPROGRAM", *flags, "-o", str(folder / name), odd]
    failed = []

    def compile_(item: tuple[str, list[str]]) -> None:
        try:
            done = subprocess.run(item[1], capture_output=True, text=True, timeout=90, check=False)
            if done.returncode:
                failed.append(f"{item[0]}: {(done.stderr + done.stdout)[-500:]}")
        except (OSError, subprocess.TimeoutExpired) as error:
            failed.append(f"{item[0]}: {error}")

    with ThreadPoolExecutor(len(commands)) as pool:
        list(pool.map(compile_, commands.items()))
    return failed
