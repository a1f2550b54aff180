"""How much memory a container has: by the limit of its cgroup, of either version."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.adapters.host.hostmemory import host_memory_mib


@pytest.mark.parametrize("at", [0, 1])
def test_limit_of_either_version_counts(tmp_path: Path, at: int) -> None:
    files = [tmp_path / "v2", tmp_path / "v1"]
    files[at].write_text(f"{64 << 20}\n")
    assert host_memory_mib([str(file) for file in files]) == 64


@pytest.mark.parametrize("text", ["max", str(0x7FFFFFFFFFFFF000), ""])
def test_no_limit_leaves_the_machine_s_memory(tmp_path: Path, text: str) -> None:
    (tmp_path / "limit").write_text(text)
    assert host_memory_mib([str(tmp_path / "limit")]) == host_memory_mib([]) > 0
