"""How much host memory a process can still take, by its cgroups and the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aliquot.adapters.host import hostmemory
from aliquot.adapters.host.hostmemory import Room, room_of
from aliquot.adapters.host.process.cgroups import pod_folders

GIB = 1 << 30


class Host:
    """Files as of /proc and /sys/fs/cgroup."""

    def __init__(self, folder: Path, available_gib: int = 64) -> None:
        self.proc, self.root = folder / "proc", folder / "cgroup"
        self._write(
            self.proc / "meminfo", f"MemTotal: 1 kB\nMemAvailable: {available_gib << 20} kB\nHugePages_Total: 0\n"
        )
        self.root.mkdir()
        self.now = 1000.0

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def process(self, text: str) -> None:
        self._write(self.proc / "7" / "cgroup", text)

    def unified(self) -> None:
        self._write(self.root / "cgroup.controllers", "cpu memory\n")

    def cgroup(
        self, path: str, limit: str, used: int, cache: int = 0, names: tuple[str, str] = ("max", "current")
    ) -> None:
        folder = self.root / path
        self._write(folder / f"memory.{names[0]}", limit)
        self._write(folder / f"memory.{names[1]}", str(used))
        self._write(folder / "memory.stat", f"anon 5\ninactive_file {cache}\n")

    def room(self) -> Room | None:
        return room_of(7, proc=self.proc, root=self.root, clock=lambda: self.now)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_machine_is_the_limit_where_no_cgroup_is(host: Host) -> None:
    host.unified()
    host.process("0::/user/one\n")
    host.cgroup("user/one", "max\n", 3 * GIB)
    assert host.room() == Room(64 * GIB, False)


def test_own_cgroup_and_those_above_it_limit(host: Host) -> None:
    host.unified()
    host.process("0::/pods/one\n")
    host.cgroup("pods/one", f"{16 * GIB}\n", 4 * GIB)
    assert host.room() == Room(12 * GIB, True)
    host.cgroup("pods", f"{20 * GIB}\n", 19 * GIB)
    assert host.room() == Room(1 * GIB, True)


def test_page_cache_counts_as_free_and_nothing_is_less_than_none(host: Host) -> None:
    host.unified()
    host.process("0::/one\n")
    host.cgroup("one", str(8 * GIB), 8 * GIB, cache=3 * GIB)
    assert host.room() == Room(3 * GIB, True)
    host.cgroup("one", str(8 * GIB), 9 * GIB)
    assert host.room() == Room(0, True)


def test_version_1(host: Host) -> None:
    names = ("limit_in_bytes", "usage_in_bytes")
    host.process("12:cpu,cpuacct:/x\n5:memory:/docker/one\n0::/docker/one\n")
    host.cgroup("memory/docker/one", str(2 * GIB), GIB, names=names)
    host.cgroup("memory/docker", str(1 << 62), GIB, names=names)
    assert host.room() == Room(GIB, True)


def test_cgroup_that_cannot_be_seen_is_not_known(host: Host) -> None:
    host.unified()
    host.process("0::/../pods/one\n")
    assert host.room() is None


def test_process_that_is_gone_is_not_known(host: Host) -> None:
    assert host.room() is None


POD = "kubepods-burstable-pod0ddba11e_0000_4000_8000_00000000000a.slice"


def test_pod_is_found_from_a_cgroup_namespace_of_our_own_where_the_hosts_cgroups_are_mounted(host: Host) -> None:
    """The agent's own is kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podX.slice/cri-Y.scope."""
    host.unified()
    host.process(f"0::/../../../kubepods-burstable.slice/{POD}/cri-1.scope\n")
    pod = f"kubepods.slice/kubepods-burstable.slice/{POD}"
    assert host.room() is None  # only our own are mounted
    host.now += 10
    host.cgroup(f"{pod}/cri-1.scope", "max\n", GIB)
    host.cgroup(pod, f"{6 * GIB}\n", 2 * GIB)
    assert host.room() == Room(4 * GIB, True)
    host.cgroup("kubepods.slice", f"{3 * GIB}\n", GIB)
    assert host.room() == Room(2 * GIB, True)


def test_cgroups_are_walked_through_rarely(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arbiter waits meanwhile."""
    walks = []

    def walk(*, root: Path) -> dict[str, Path]:
        walks.append(root)
        return pod_folders(root=root)

    monkeypatch.setattr(hostmemory, "pod_folders", walk)
    host.unified()
    host.process(f"0::/../{POD}/cri-1.scope\n")
    for _ in range(10):
        assert host.room() is None
    assert len(walks) == 1  # that it is not there is remembered for a while
    host.cgroup(f"kubepods.slice/{POD}/cri-1.scope", f"{2 * GIB}\n", GIB)
    host.now += 10
    for _ in range(10):
        assert host.room() == Room(GIB, True)
        host.now += 10
    assert len(walks) == 2
    (host.root / "kubepods.slice" / POD).rename(host.root / POD)
    assert host.room() == Room(GIB, True)  # its cgroup is another by now
    assert len(walks) == 3


@pytest.mark.parametrize("path", ["/../../system.slice/one.service", "/.."])
def test_process_in_no_pod_is_not_found_from_a_cgroup_namespace_of_our_own(host: Host, path: str) -> None:
    host.unified()
    host.process(f"0::{path}\n")
    host.cgroup("system.slice/one.service", "max\n", GIB)
    assert host.room() is None


def test_this_process_has_some() -> None:
    room = room_of(os.getpid())
    assert room is None or room.free > 0
