"""Memory for large answers."""

from __future__ import annotations

import errno
import mmap
import re
from pathlib import Path

import pytest

from aliquot.adapters.kubernetes import privatememory
from aliquot.adapters.kubernetes.privatememory import private_memory

MIB = 1 << 20


def resident() -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.parametrize("size", [1, 4096, 3 * MIB])
def test_it_is_written_and_read_as_any_other(size: int) -> None:
    memory = private_memory(size)
    memory[:] = b"a" * size
    assert len(memory) == size
    assert memory.find(b"b") == -1


def test_it_is_private_so_that_it_may_have_huge_pages() -> None:
    memory = private_memory(64 * MIB)
    memory[:1] = b"a"
    shared = re.findall(
        r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+ +/dev/zero", Path("/proc/self/maps").read_text(), re.M
    )
    assert [span for span in shared if int(span[1], 16) - int(span[0], 16) >= 64 * MIB] == []


def test_what_is_not_written_takes_no_memory_and_all_goes_back_at_once() -> None:
    before = resident()
    memory = private_memory(256 * MIB)
    assert resident() - before < 8 * MIB
    memory[: 64 * MIB] = bytes(64 * MIB)
    assert resident() - before > 60 * MIB
    del memory
    assert resident() - before < 16 * MIB


def test_a_kernel_without_huge_pages_has_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(errno.EINVAL, "no such advice")

    monkeypatch.setattr(privatememory, "mmap", Refusing)
    assert private_memory(4 * MIB)[:2] == b"\0\0"
