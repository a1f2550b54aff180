"""Every function of the driver, by NVIDIA's cuda.h of each major release: hooked, harmless by its verb, or explained.

A list has names alone; tests/shim/cuda/extract.py makes it of a wheel of NVIDIA's.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from shim.cuda.extract import names

HERE = Path(__file__).parent / "cuda"
ROOT = Path(__file__).parents[2]
RELEASES = {path.stem: frozenset(path.read_text().split()) for path in HERE.glob("[0-9]*.txt")}
HOOKED = frozenset(
    re.findall(
        r"^(?:GATE|NOTE|COPY|WAIT|QUERY|BODY)\((cu\w+),", (ROOT / "shim" / "hooks.def").read_text(), re.MULTILINE
    )
)
EXCEPTIONS = dict(
    line.split(maxsplit=1) for line in (HERE / "exceptions.txt").read_text().splitlines() if not line.startswith("#")
)
# Who asks, ends, waits or sets something takes nothing of a card.
HARMLESS = re.compile(
    r"Get|Destroy|Query|Unregister|Free|Unload|Unmap|Unbind|Pop|Push|Detach|Close|Elapsed|CanAccess|Supported|Wait|Update"
    r"|Enable|Disable|SetAttribute|SetParams|SetFlags|SetAccess|SetCacheConfig|SetSharedMem|Occupancy|Capture|Record"
    r"|Release|Profiler|Synchronize"
)


def base(symbol: str) -> str:
    """Without its version and stream kind."""
    return re.sub(r"(_v\d+)?(_pt[sd][zs])?$", "", symbol)


BASES = frozenset(map(base, HOOKED))


def is_covered(symbol: str) -> bool:
    if re.sub(r"_pt[sd][zs]$", "", symbol) in HOOKED or any(fnmatchcase(symbol, pattern) for pattern in EXCEPTIONS):
        return True
    # Another version of what is hooked has another ABI, and is a way around the hook.
    return base(symbol) not in BASES and HARMLESS.search(symbol) is not None


@pytest.mark.parametrize("release", sorted(RELEASES))
def test_every_function_that_may_take_memory_or_work_is_hooked_or_explained(release: str) -> None:
    missing = sorted(symbol for symbol in RELEASES[release] if not is_covered(symbol))
    assert not missing, (
        f"CUDA {release}: hook them in shim/hooks.def, or explain them in tests/shim/cuda/exceptions.txt"
    )


def test_lists_of_functions_are_of_the_releases_that_are_supported() -> None:
    assert {release.split(".")[0] for release in RELEASES} == {"11", "12", "13"}
    assert all(len(functions) > 400 for functions in RELEASES.values())


def test_every_exception_is_a_function_that_is_not_hooked_and_has_a_reason() -> None:
    functions = frozenset().union(*RELEASES.values())
    for pattern, reason in EXCEPTIONS.items():
        matched = {symbol for symbol in functions if fnmatchcase(symbol, pattern)}
        assert matched, f"{pattern} is no function of any release"
        assert not matched & HOOKED, f"{pattern} is hooked: {sorted(matched & HOOKED)}"
        assert len(reason) > 4


def test_names_are_taken_from_declarations_and_from_macros_of_versions() -> None:
    header = """
    #define CUDA_VERSION 13040
    #define cuFoo cuFoo_v2
    /* CUresult CUDAAPI cuOnlySaid(void); */
    CUresult CUDAAPI cuFoo(int n);
    """
    assert names(header) == ("13.4", ["cuFoo", "cuFoo_v2"])
