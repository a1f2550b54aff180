"""Writes the names of the driver's functions, as NVIDIA's cuda.h declares them: facts for tests/shim/test_coverage.py.

    pip download --no-deps --dest wheels nvidia-cuda-runtime-cu11==11.8.89 nvidia-cuda-runtime-cu12==12.9.79 \
        nvidia-cuda-runtime==13.4.92
    python tests/shim/cuda/extract.py wheels/*.whl

Each wheel has include/cuda.h; its CUDA_VERSION names the file that is written, VERSION.txt. The headers are not ours to
commit. For a new release of CUDA: run it on that wheel, run the test, and hook or explain what it names.
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parent


def names(header: str) -> tuple[str, list[str]]:
    """The version, and the functions. A macro that gives a name a version (cuMemAlloc_v2) adds that symbol."""
    found = re.search(r"#define CUDA_VERSION (\d+)", header)
    if found is None:
        raise ValueError("no CUDA_VERSION: not NVIDIA's cuda.h")
    number = int(found[1])
    code = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    declared = set(re.findall(r"CUresult\s+CUDAAPI\s+(cu\w+)\s*\(", code))
    versioned = set(re.findall(r"^\s*#\s*define\s+cu\w+\s+(cu\w+_v\d+)\s*$", code, re.MULTILINE))
    return f"{number // 1000}.{number % 1000 // 10}", sorted(declared | versioned)


def main() -> None:
    for wheel in sys.argv[1:]:
        with zipfile.ZipFile(wheel) as archive:
            (path,) = [name for name in archive.namelist() if name.endswith("/include/cuda.h")]
            version, found = names(archive.read(path).decode(errors="replace"))
        (HERE / f"{version}.txt").write_text("\n".join(found) + "\n")
        print(f"{version}: {len(found)} functions")


if __name__ == "__main__":
    main()
