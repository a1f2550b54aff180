"""Writes the names of the driver's functions, as NVIDIA's cuda.h declares them, and which of them may name memory of a
card or a stream: facts for tests/shim/test_coverage.py.

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


def types_with_pointers(code: str) -> set[str]:
    """CUdeviceptr, and every structure that has one, however deep."""
    found = {"CUdeviceptr"}
    structures = []
    for match in re.finditer(r"typedef\s+(?:struct|union)\s*(\w*)\s*\{", code):
        at, depth = match.end(), 1
        while depth:
            depth += {"{": 1, "}": -1}.get(code[at], 0)
            at += 1
        name = re.match(r"\s*(\w+)", code[at:])
        structures.append((frozenset({match[1], name[1] if name else ""} - {""}), code[match.end() : at]))
    aliases = re.findall(r"typedef\s+(?:struct\s+|union\s+)?(\w+)\s*\*?\s*(\w+)\s*;", code)
    before = 0
    while before < len(found):
        before = len(found)
        for named, body in structures:
            if found & set(re.findall(r"\w+", body)):
                found |= named
        found |= {alias for known, alias in aliases if known in found}
    return found


def facts(header: str) -> dict[str, str]:
    """By function without version and stream kind: `memory` where a call of it may name memory of a card by its address
    or by a handle, `stream` where it names a stream only."""
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", header, flags=re.DOTALL)
    memory = types_with_pointers(code) | {"CUmemGenericAllocationHandle"}
    found: dict[str, str] = {}
    for name, parameters in re.findall(r"CUresult\s+CUDAAPI\s+(cu\w+)\s*\(([^;]*?)\)\s*;", code):
        words = set(re.findall(r"\w+", parameters))
        if words & memory:
            found[base(name)] = "memory"
        elif "CUstream" in words:
            found.setdefault(base(name), "stream")
    return found


def base(symbol: str) -> str:
    """Without its version and stream kind."""
    return re.sub(r"(_v\d+)?(_pt[sd][zs])?$", "", symbol)


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
            header = archive.read(path).decode(errors="replace")
        (version, found), about = names(header), facts(header)
        lines = [f"{name} {about.get(base(name), '')}".rstrip() for name in found]
        (HERE / f"{version}.txt").write_text("\n".join(lines) + "\n")
        print(f"{version}: {len(found)} functions")


if __name__ == "__main__":
    main()
