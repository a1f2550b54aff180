"""`aliquot run --together`: members of a group run side by side, in the time of one tenant. On a simulated card, by its
own accounts of who ran when."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.machines.machine import ALIQUOT, Machine, processes_of
from simgpu.rig import Card, Player

PATIENCE = 90.0
LOAD = (*ALIQUOT, "burn", "load", "--seconds", "600", "--iterations-per-us", "1000")
BLOCK = 8 << 20
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: pod, annotations: {{aliquot.dev/together: team}}}}
spec:
  containers:
  - {{name: a, command: {command}, resources: {{limits: {{aliyun.com/gpu-mem: 1}}}}}}
  - {{name: b, command: {command}, resources: {{limits: {{aliyun.com/gpu-mem: 1}}}}}}
"""
GREEDY = f"""
import ctypes
from simgpu.driver import Session
session, blocks = Session(), 0
while session.cuda.status("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), {BLOCK}) == 0:
    blocks += 1
print(blocks)
"""


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.05)
    return found


class Groups:
    """What a test of groups sees of the machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.folder = machine, machine.home / "g"
        self._player = object.__new__(Player)
        self._player.socket = str(machine.home / "player" / "sock")

    def load(self, name: str, *words: str, kernel: str = "5ms") -> int:
        """A run that computes without end; its process."""
        self.machine.detach("--name", name, "--memory", "1", *words, "--", *LOAD, "--kernel", kernel)
        return int(until(lambda: self._computing(name), f"{name} computes"))

    def _computing(self, name: str) -> int | None:
        pids = [one["pid"] for one in self.machine.status()["tenants"] if one["name"] == name]
        return next((pid for pid in pids if any(group.queued for group in self.card().compute(pid))), None)

    def card(self) -> Card:
        return self._player.card()

    def busy(self, pids: list[int], seconds: float = 1.0) -> list[float]:
        """The part of the card's time in which each of these ran."""
        before = self.card()
        time.sleep(seconds)
        after = self.card()

        def ran(card: Card, pid: int) -> int:
            return sum(group.busy_ns for group in card.compute(pid))

        return [(ran(after, pid) - ran(before, pid)) / (after.now_ns - before.now_ns) for pid in pids]

    def shares(self) -> dict[str, float]:
        """As `aliquot top` shows them, once all of them are held by the driver."""
        tenants = self.machine.status()["tenants"]
        cards = {tenant["name"]: tenant["cards"][0] for tenant in tenants}
        return {name: card["share"] or 0.0 for name, card in cards.items() if card["level"] == "hardware"}

    def control(self) -> int:
        """The process of the only group's control."""
        (record,) = self.folder.glob("*.json")
        return int(json.loads(record.read_text())["pid"])

    def of_groups(self) -> list[str]:
        """Processes of controls and servers."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if (
                    entry.name.isdigit()
                    and f"ALIQUOT_TENANT={self.folder}/".encode() in (entry / "environ").read_bytes()
                ):
                    found.append(entry.name)
            except OSError:
                continue
        return found


@pytest.fixture
def groups(machine: Machine) -> Iterator[Groups]:
    yield Groups(machine)
    machine.clear()


def test_group_shares_the_card_in_space_and_has_one_tenant_s_time_also_after_a_restart(groups: Groups) -> None:
    machine = groups.machine
    pids = [groups.load("a", "--together", "team"), groups.load("b", "--together", "team"), groups.load("c")]

    def fair() -> bool:
        shares = groups.shares()
        return shares.keys() == {"a", "b", "c"} and all(abs(shares[name] - 0.25) < 0.08 for name in "ab")

    until(fair, "the group's time is divided between its members")
    until(lambda: all(abs(part - 0.5) < 0.08 for part in groups.busy(pids)), "all three have half of the card's time")
    for command in (("ps",), ("top", "--once")):
        lines = [line.split() for line in machine.aliquot(*command).stdout.splitlines()]
        assert any("TOGETHER" in line for line in lines)
        assert {line[0] for line in lines if "team" in line} == {"a", "b"}
    control = groups.control()
    machine.kill()
    machine.up()
    assert groups.control() == control
    until(fair, "the next daemon finds the group again")
    groups.load("d", "--together", "team")
    assert groups.control() == control, "a newcomer has the same server"
    until(lambda: "d" in groups.shares(), "the newcomer is held")
    assert not [one for one in machine.status()["findings"] if one["kind"] == "unregistered"]
    for name in "abcd":
        machine.aliquot("stop", name)
    until(lambda: not groups.of_groups() and not any(groups.folder.iterdir()), "the server ends with the last member")


def test_member_that_is_killed_harms_its_group_alone(groups: Groups) -> None:
    victim = groups.load("a", "--together", "team", kernel="60s")  # always in flight
    groups.load("b", "--together", "team")
    other = groups.load("c", "--together", "others")
    os.kill(victim, signal.SIGKILL)
    until(lambda: set(groups.machine.names()) == {"c"}, "the rest of the group fails")
    until(lambda: groups.busy([other])[0] > 0.9, "the other group has the card")
    newcomer = groups.load("d", "--together", "team")
    until(lambda: all(part > 0.4 for part in groups.busy([newcomer, other])), "the group works again")


def test_online_group_takes_the_card_from_an_offline_one(groups: Groups) -> None:
    assert groups.machine.aliquot("policy", "release-delay", "100ms").returncode == 0
    offline = [groups.load(name, "--class", "offline", "--together", "batch") for name in "ab"]
    online = groups.load("c", "--class", "online", "--together", "serve")
    until(lambda: groups.busy([online])[0] > 0.9, "online work has the card")
    until(lambda: max(groups.busy(offline)) < 0.1, "offline members lose it")

    def states() -> set[str]:
        return {one["cards"][0]["state"] for one in groups.machine.status()["tenants"] if one["name"] in "ab"}

    until(lambda: states() == {"paused"}, "both are shown as paused")


def test_control_that_died_is_replaced_for_the_next_member(groups: Groups) -> None:
    groups.load("a", "--together", "team")
    control = groups.control()
    os.kill(control, signal.SIGKILL)
    until(lambda: not os.path.exists(f"/proc/{control}"), "the control ends")
    pid = groups.load("b", "--together", "team")
    assert groups.control() != control
    until(lambda: groups.busy([pid])[0] > 0.4, "the new member computes")


def test_containers_of_a_group_run_side_by_side(groups: Groups, tmp_path: Path) -> None:
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(POD.format(command=json.dumps([*LOAD, "--kernel", "5ms"])))
    said = groups.machine.aliquot("run", "-d", "-f", str(manifest))
    assert said.returncode == 0, said.stderr
    assert "if one of its members dies with work in flight, all of team may fail" in said.stdout + said.stderr

    def computing() -> list[int]:
        runs = [processes_of(f"pod-{name}") for name in "ab"]
        return [pid for pids in runs for pid in pids if any(group.queued for group in groups.card().compute(pid))]

    pids = until(lambda: found if len(found := computing()) == 2 else None, "both compute")
    until(lambda: all(part > 0.8 for part in groups.busy(pids)), "both have the card at the same time")
    assert len(list(groups.folder.glob("*.json"))) == 1, "they have one server"
    assert groups.machine.aliquot("stop", "pod-a", "pod-b").returncode == 0
    until(lambda: not groups.of_groups() and not any(groups.folder.iterdir()), "the server ends with the last of them")


def test_memory_limit_holds_for_each_member(groups: Groups) -> None:
    groups.load("a", "--together", "team")
    said = groups.machine.aliquot("run", "--memory", "1", "--together", "team", "--", sys.executable, "-c", GREEDY)
    assert said.returncode == 0, said.stderr
    assert 100 <= int(said.stdout) <= (1 << 30) // BLOCK
    assert "if one of its members dies with work in flight, all of team may fail" in said.stderr
