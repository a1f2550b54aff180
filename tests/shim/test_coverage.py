"""Every function of the driver, by NVIDIA's cuda.h of each major release: hooked, harmless by its verb, or explained.

A list has names, and whether a function may name memory of a card or a stream; tests/shim/cuda/extract.py makes it of a
wheel of NVIDIA's.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from shim.cuda.extract import base, facts, names

HERE = Path(__file__).parent / "cuda"
ROOT = Path(__file__).parents[2]
LINES = {path.stem: [line.split() for line in path.read_text().splitlines()] for path in HERE.glob("[0-9]*.txt")}
RELEASES = {release: frozenset(line[0] for line in lines) for release, lines in LINES.items()}
KINDS = {
    symbol: kind
    for kind, symbol in re.findall(
        r"^(GATE|NOTE|COPY|WAIT|QUERY|TOUCH|WORD|BODY)\((cu\w+),",
        (ROOT / "shim" / "hooks.def").read_text(),
        re.MULTILINE,
    )
}
HOOKED = frozenset(KINDS)
SOURCE = "".join(path.read_text() for path in sorted((ROOT / "shim").glob("*.c")))


def explained(path: Path) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in path.read_text().splitlines() if not line.startswith("#"))


EXCEPTIONS = explained(HERE / "exceptions.txt")
PARKING = explained(HERE / "parking.txt")
# Who asks, ends, waits or sets something takes nothing of a card.
HARMLESS = re.compile(
    r"Get|Destroy|Query|Unregister|Free|Unload|Unmap|Unbind|Pop|Push|Detach|Close|Elapsed|CanAccess|Supported|Wait|Update"
    r"|Enable|Disable|SetAttribute|SetParams|SetFlags|SetAccess|SetCacheConfig|SetSharedMem|Occupancy|Capture|Record"
    r"|Release|Profiler|Synchronize"
)


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


def waits_for_parked_memory(symbol: str) -> bool:
    kind = KINDS.get(re.sub(r"_pt[sd][zs]$", "", symbol))
    if kind != "BODY":
        return kind in {"GATE", "NOTE", "COPY", "TOUCH", "WORD"}
    body = re.search(rf"^int alq_{symbol}\(.*?^}}", SOURCE, re.MULTILINE | re.DOTALL)
    return body is not None and re.search(r"alq_enter\(|ALQ_INSIDE\(", body[0]) is not None


@pytest.mark.parametrize("release", sorted(RELEASES))
def test_every_function_that_may_name_memory_or_a_stream_waits_for_parked_memory_or_is_explained(release: str) -> None:
    named = {line[0] for line in LINES[release] if len(line) > 1}
    assert len(named) > 100
    missing = sorted(
        symbol
        for symbol in named
        if not waits_for_parked_memory(re.sub(r"_pt[sd][zs]$", "", symbol))
        and not any(fnmatchcase(symbol, pattern) or fnmatchcase(symbol, f"{pattern}_pt?z") for pattern in PARKING)
    )
    assert not missing, f"CUDA {release}: hook them in shim/hooks.def, or explain them in tests/shim/cuda/parking.txt"


def test_every_exception_of_parking_is_needed() -> None:
    named = {line[0] for lines in LINES.values() for line in lines if len(line) > 1}
    for pattern in PARKING:
        matched = {symbol for symbol in named if fnmatchcase(symbol, pattern)}
        assert matched, f"{pattern} names no memory and no stream in any release"
        assert not all(map(waits_for_parked_memory, matched)), f"{pattern} waits for parked memory: no exception"


def test_facts_know_pointers_in_structures() -> None:
    header = """
    typedef struct Inner_st { unsigned n; CUdeviceptr p; } Inner_v1;
    typedef Inner_v1 Inner;
    typedef struct Outer_st { union { Inner a; int b; } u; } Outer;
    CUresult CUDAAPI cuDeep_v2(const Outer *o, CUstream s);
    CUresult CUDAAPI cuOnly(CUstream s);
    CUresult CUDAAPI cuNone(int n);
    """
    assert facts(header) == {"cuDeep": "memory", "cuOnly": "stream"}


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
