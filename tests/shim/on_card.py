"""Not a test of the suite: what of the shim only a real card can show. One command, some seconds:

    python tests/shim/on_card.py

Makes a tenant with 4 GiB of the first card, loads the shim into itself, and prints a line for each thing it looked at.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from shim.on_card_kit import ROOT, check, failures, run_inside

QUOTA = 4 << 30


def lookups() -> None:
    """Every hooked name, by dlsym and by the driver's own lookup at every version, leads into the shim."""
    import ctypes

    from shim.straw import cuda

    class Info(ctypes.Structure):
        _fields_ = (
            ("file", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("name", ctypes.c_char_p),
            ("at", ctypes.c_void_p),
        )

    def where(address: int | None) -> str:
        info = Info()
        ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(info))
        return os.path.basename(info.file or b"?").decode()

    table = (ROOT / "shim" / "hooks.def").read_text()
    hooks = re.findall(r"^(?:GATE|NOTE|COPY|WAIT|QUERY|TOUCH|WORD|BODY)\((cu\w+),\s*(\w+),", table, re.MULTILINE)
    symbols = [
        name + suffix for name, kinds in hooks for suffix in ("", *([f"_pt{kinds.lower()}"] if kinds != "ONE" else []))
    ]
    absent = [name for name in symbols if not hasattr(cuda, name)]
    escaped = [
        name
        for name in symbols
        if name not in absent and where(ctypes.cast(getattr(cuda, name), ctypes.c_void_p).value) != "libaliquot.so"
    ]
    check("dlsym leads to the shim", not escaped, escaped)
    print("      not in this driver:", *absent)
    out, status = ctypes.c_void_p(), ctypes.c_int()
    counted, escaped = 0, []
    for name, _ in hooks:
        base = re.sub(r"_v\d$", "", name)
        for version in (11020, 11080, 12000, 12030, 12080, 13000):
            for flags in (0, 1, 2):
                result = cuda.cuGetProcAddress_v2(
                    base.encode(), ctypes.byref(out), version, ctypes.c_uint64(flags), ctypes.byref(status)
                )
                if result == 0 and out.value:
                    counted += 1
                    if where(out.value) != "libaliquot.so":
                        escaped.append(f"{base}@{version}/{flags}")
    check(
        "cuGetProcAddress leads to the shim",
        counted > 500 and not escaped,
        f"{counted} lookups, escaped: {escaped[:20]}",
    )


def memory() -> None:
    """The quota, by each way to memory."""
    from ctypes import byref, c_size_t, c_uint64

    from shim.straw import GIB, MIB, alloc, alloc_async, alloc_node, cuda, free, free_async, graph, info, piece

    spare, total = info()
    check("cuMemGetInfo answers with the quota", total == QUOTA and spare <= QUOTA, (spare >> 20, total >> 20))

    def fits(n: int) -> bool:
        return info()[0] >= n

    result, p = alloc(3 * GIB)
    check("3 GiB fit", result == 0, result)
    check("2 GiB more do not", alloc(2 * GIB)[0] == 2)
    managed = c_uint64()
    check("nor managed", cuda.cuMemAllocManaged(byref(managed), c_size_t(2 * GIB), 1) == 2)
    check("nor a piece", piece(2 * GIB)[0] == 2)
    check("nor from the pool", alloc_async(2 * GIB)[0] == 2)
    check("nor a node of a graph", alloc_node(graph(), 2 * GIB)[0] == 2)
    check("given back", free(p) == 0 and fits(3 * GIB), info()[0] >> 20)
    for name in ("pool", "piece"):
        result, key = alloc_async(3 * GIB) if name == "pool" else piece(3 * GIB)
        check(f"3 GiB from a {name}", result == 0, info()[0] >> 20)
        if name == "pool":
            free_async(key)
            cuda.cuCtxSynchronize()
        else:
            cuda.cuMemRelease(c_uint64(key))
        check("given back", fits(3 * GIB), info()[0] >> 20)
    began = time.perf_counter()
    for _ in range(200):
        free_async(alloc_async(MIB)[1])
    print(f"      allocating and freeing on a stream: {(time.perf_counter() - began) * 5000:.1f} us a pair")


def inside() -> int:
    """In the tenant."""
    from shim.straw import context, cuda

    context()
    lookups()
    memory()
    time.sleep(0.3)
    threads = [Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in os.listdir("/proc/self/task")]
    check("the link's thread runs: channel groups were seen", "aliquot" in threads, threads)
    cuda.cuCtxSynchronize()
    return failures()


if __name__ == "__main__":
    sys.exit(inside() if "inside" in sys.argv else run_inside(__file__, QUOTA))
