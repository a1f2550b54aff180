"""Which functions the stand-in for libcuda.so.1 has, and how cuGetProcAddress finds them."""

from __future__ import annotations

import re
import struct

import pytest

from simgpu.rig import ROOT, Player, library_folder


def exported(library: str) -> set[str]:
    """Names in the dynamic symbol table of a 64-bit ELF file that are defined there."""
    image = (library_folder() / library).read_bytes()
    (table,) = struct.unpack_from("<Q", image, 40)
    (entry, count) = struct.unpack_from("<HH", image, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, table + i * entry) for i in range(count)]
    symbols = next(s for s in sections if s[1] == 11)  # SHT_DYNSYM
    names = sections[symbols[6]][4]
    found = set()
    for at in range(symbols[4], symbols[4] + symbols[5], 24):
        name, _, _, section = struct.unpack_from("<IBBH", image, at)
        if section and name:
            found.add(image[names + name : image.index(b"\0", names + name)].decode())
    return found


def table() -> list[tuple[str, int, str, str]]:
    """The entries of functions.def: name, version, symbol, suffix of the twin."""
    text = (ROOT / "simgpu" / "cuda" / "functions.def").read_text()
    found = re.findall(r"^(?:PLAIN|TWINNED)\((\w+), (\d+), (\w+)(?:, (\w+))?\)$", text, re.M)
    return [(name, int(version), symbol, suffix) for name, version, symbol, suffix in found]


def test_the_table_names_every_exported_function() -> None:
    symbols = {symbol for _, _, symbol, _ in table()} | {symbol + suffix for _, _, symbol, suffix in table() if suffix}
    assert exported("libcuda.so.1") == symbols


def test_libraries_export_nothing_else() -> None:
    assert exported("libsimrm.so") == {"ioctl"}
    assert all(name.startswith("nvml") for name in exported("libnvidia-ml.so.1"))


@pytest.mark.parametrize(
    ("name", "version", "flags", "symbol"),
    [
        ("cuMemAlloc", 12000, 0, "cuMemAlloc_v2"),
        ("cuLaunchKernel", 12000, 0, "cuLaunchKernel"),
        ("cuLaunchKernel", 12000, 1, "cuLaunchKernel"),
        ("cuLaunchKernel", 12000, 2, "cuLaunchKernel_ptsz"),
        ("cuMemcpyHtoD", 12000, 2, "cuMemcpyHtoD_v2_ptds"),
        ("cuCtxCreate", 11000, 0, "cuCtxCreate_v2"),
        ("cuCtxCreate", 12000, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 13000, 0, "cuCtxCreate_v4"),
        ("cuCtxSynchronize", 12080, 0, "cuCtxSynchronize"),
        ("cuCtxSynchronize", 13000, 0, "cuCtxSynchronize_v2"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
        ("cuGraphAddKernelNode", 11000, 0, "cuGraphAddKernelNode"),
        ("cuGraphAddKernelNode", 12000, 0, "cuGraphAddKernelNode_v2"),
    ],
)
def test_a_program_gets_the_form_it_was_built_for(
    player: Player, name: str, version: int, flags: int, symbol: str
) -> None:
    assert player.run("proc_address", name, version, flags) == [0, 0, symbol]


def test_what_is_not_there_is_said_to_be_so(player: Player) -> None:
    assert player.run("proc_address", "cuNothing", 13000, 0) == [0, 1, None]
    assert player.run("proc_address", "", 13000, 0) == [0, 1, None]
    assert player.run("proc_address", "cuLaunchKernelEx", 11000, 0) == [0, 2, None]
