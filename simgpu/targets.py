"""What is built of the simulated GPU: (output under src/aliquot/lib, sources, extra flags). Read by shim/build.py."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent


def _all(folder: str) -> list[str]:
    return sorted(f"simgpu/{folder}/{path.name}" for path in (HERE / folder).glob("*.c"))


_WIRE = ["simgpu/wire.c", "simgpu/rmcall.c"]

# Calls within a library stay within it, whoever else exports the same names: the shim does.
_LIBRARY = ["-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-Bsymbolic"]

TARGETS: list[tuple[str, list[str], list[str]]] = [
    ("simgpu/libcuda.so.1", [*_all("cuda"), *_WIRE], [*_LIBRARY, "-Wl,-soname,libcuda.so.1", "-pthread"]),
    (
        "simgpu/libnvidia-ml.so.1",
        [*_all("nvml"), "simgpu/wire.c"],
        [*_LIBRARY, "-Wl,-soname,libnvidia-ml.so.1", "-pthread"],
    ),
    ("simgpu/libsimrm.so", ["simgpu/simrm.c", *_WIRE], [*_LIBRARY, "-Wl,-soname,libsimrm.so", "-ldl"]),
    ("simgpu/nvidia-cuda-mps-control", ["simgpu/mps/control.c", *_WIRE], []),
    ("simgpu/player", [*_all("player"), "simgpu/wire.c"], ["-pthread"]),
]
