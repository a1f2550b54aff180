"""`aliquot doctor` on a real node finds what is wrong with it, and nothing where nothing is.

One fault after the other is planted on a node where a Pod runs; when it is taken away again, the doctor is content.
Where a fix can be followed by a test, it is.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from aliquot.adapters.gpu.player import simulation
from kit.values.manifests import T9K_PERCENT
from simgpu import faults
from testbed import objects
from testbed.cards import QCORE, QMEM
from testbed.judges import holdings
from testbed.judges.inside import DATABASE, holders, wait_running, wrong_cards
from testbed.processes import wait_until
from testbed.programs.agents import AliquotAgent
from testbed.programs.doctor import Doctor, FindingJson
from testbed.programs.fleet import GPUSHARE, MIXED, SHARED, Fleet
from testbed.realnodes.nodes import RealNode, probe
from testbed.registries.images import programs

CDI = "/run/cdi"
STATE = "/var/lib/aliquot"
PLAYER = "/run/aliquot/player/sock"
PRELOAD = "/etc/ld.so.preload"
NOBODY = "11111111-2222-3333-4444-555555555555"
CARDS = ("GPU-cc7a231c-d45b-451e-9c87-6e4c9e436e00", "GPU-0eb7a560-9943-43e5-913e-5fa7d0bc4f01")  # made of the name n1


@dataclass(frozen=True, slots=True)
class Case:
    """A node on which all is well, with a Pod on one of its cards."""

    fleet: Fleet
    node: RealNode
    agent: AliquotAgent
    doctor: Doctor

    def path(self, there: str) -> Path:
        return self.node.path(there)

    def shell(self, script: str) -> None:
        done = self.node.call(["sh", "-ec", script])
        assert done.returncode == 0, done.stderr

    def pod(self, name: str, *words: str, core: int = 30, memory: int = 4) -> None:
        """Such a Pod is made for this node; by the scheduler, unless it says otherwise."""
        here = {"kubernetes.io/hostname": self.node.name}
        self.fleet.create(probe(name, *words, limits={QCORE: core, QMEM: memory}, nodeSelector=here))

    def remove(self, name: str) -> None:
        objects.delete_pod(self.fleet.plane, name)

    def holds(self, name: str) -> bool:
        return name in [holder.name for holder in holders(self.node)]

    def spec(self) -> Path:
        """A CDI file of the Pod that is well."""
        return min(self.path(CDI).glob("aliquot.*.yaml"))


@pytest.fixture(scope="module")
def case(whole_fleet: Fleet) -> Iterator[Case]:
    whole_fleet.heal()
    node = whole_fleet.nodes[0]
    made = Case(whole_fleet, node, whole_fleet.agents[node.name], Doctor(node))
    made.pod("well", "burn", "0", "5")
    wait_running(whole_fleet, ["well"])
    yield made
    whole_fleet.heal()
    whole_fleet.tidy()


def test_on_a_node_that_is_well_each_check_says_so(case: Case) -> None:
    case.doctor.quiet()
    done = case.doctor.call()
    assert done.stdout.splitlines()[-1] == "nothing is wrong"
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines() if line.startswith("ok ")]
    by_check = {check: text for _, check, text in lines}
    assert by_check["agent"].endswith("is ready: 4 cards, 1 Pod on them")
    assert by_check["holdings"] == "1 Pod on the cards, each with what it was granted"
    assert {"kubelet", "database", "shim", "cards", "resources", "inventory", "cdi"} < by_check.keys()


# Faults that are planted, and taken away again


def _damaged_spec(case: Case) -> Callable[[], object]:
    spec, text = case.spec(), case.spec().read_text()
    spec.write_text(text.replace(*CARDS))
    return lambda: spec.write_text(text)


def _cdi_read_only(case: Case) -> Callable[[], object]:
    case.shell(f"mount -o remount,ro {CDI}")
    return lambda: case.shell(f"mount -o remount,rw {CDI}")


def _disk_full(case: Case) -> Callable[[], object]:
    stats = os.statvfs(case.path(STATE))
    used = (stats.f_blocks - stats.f_bfree) * stats.f_frsize
    half = 1 << 19  # the agent may write a page meanwhile: what is left is rounded down
    case.shell(f"mount -o remount,size={used + (1 << 20) + half} {STATE}")
    return lambda: case.shell(f"mount -o remount,size={stats.f_blocks * stats.f_frsize} {STATE}")


def _host_loads_the_shim(case: Case) -> Callable[[], object]:
    case.path(PRELOAD).write_text("/usr/local/lib/aliquot/libaliquot.so\n")
    return case.path(PRELOAD).unlink


def _card_out(case: Case) -> Callable[[], object]:
    player = str(case.path(PLAYER))
    faults.lose(player, 2)
    wait_until(lambda: not case.agent.status()["cards"][2]["healthy"], 10, "it is out")
    return lambda: faults.restore(player, 2)


def _stranger(case: Case) -> Callable[[], object]:
    driver = {"ALIQUOT_SIMGPU": PLAYER, "LD_LIBRARY_PATH": simulation(), "LD_PRELOAD": f"{simulation()}/libsimrm.so"}
    program = case.node.run([programs()["probe"], "alloc", "1GiB"], environment=driver)
    wait_until(lambda: case.agent.status()["findings"], 10, "the agent sees it", every=0.02)
    return program.kill


def _placed_past_us(case: Case) -> Callable[[], object]:
    case.fleet.create(probe("past", limits={QCORE: 30, QMEM: 4}, node=case.node.name))
    wait_until(lambda: case.holds("past"), 20, "it has devices")
    return lambda: case.remove("past")


def _given_twice(case: Case) -> Callable[[], object]:
    grant = json.loads(objects.get_pod(case.fleet.plane, "well")["metadata"]["annotations"][holdings.GRANT])
    grant["containers"][0]["cards"][0] |= {"memory_mib": 14 << 10, "core_milli": 600}
    pod = probe("twice", limits={QCORE: 60, QMEM: 14}, node=case.node.name)
    pod["metadata"]["annotations"] = {holdings.GRANT: json.dumps(grant)}
    case.fleet.create(pod)
    wait_until(lambda: case.holds("twice"), 20, "it has devices")
    return lambda: case.remove("twice")


def _agent_hangs(case: Case) -> Callable[[], object]:
    case.agent.program.signal(signal.SIGSTOP)
    return lambda: case.agent.program.signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("plant", "check", "words", "fix"),
    [
        pytest.param(
            _agent_hangs,
            "agent",
            "holds the agent's lock, but does not answer",
            "restart the agent (kubectl get pods -A --field-selector spec.nodeName=n1",
            id="an-agent-that-hangs",
        ),
        pytest.param(
            _damaged_spec,
            "cdi",
            f"NVIDIA_VISIBLE_DEVICES={CARDS[1]}, but it was granted {CARDS[0]}",
            "kubectl delete pod well -n default",
            id="a-spec-of-another-card",
        ),
        pytest.param(
            _cdi_read_only, "cdi", "/var/run/cdi cannot be written", "writable", id="a-folder-that-is-read-only"
        ),
        pytest.param(_disk_full, "disk", "its disk is full (1 MiB left)", f"df -h {STATE}", id="a-disk-that-is-full"),
        pytest.param(
            _host_loads_the_shim,
            "shim",
            "every program of the *host* loads it",
            f"take that line out of the host's {PRELOAD}",
            id="a-host-that-loads-the-shim",
        ),
        pytest.param(_card_out, "cards", "is out: Xid 79, it fell off the bus", "gpu-reset", id="a-card-that-is-out"),
        pytest.param(
            _stranger,
            "processes",
            "on card 0: process",
            "end it, or run it as a Pod",
            id="a-process-that-is-nobodys",
        ),
        pytest.param(
            _placed_past_us,
            "allocations",
            "container main holds",
            "kubectl delete pod past -n default once kube-scheduler asks Aliquot",
            id="a-pod-placed-past-us",
        ),
        pytest.param(
            _given_twice,
            "over-allocated",
            "18 GiB of 16 GiB are allocated",
            "default/twice",
            id="a-card-that-was-given-twice",
        ),
    ],
)
def test_a_fault_is_found_with_what_to_do_and_when_it_is_gone_nothing_is(
    case: Case, plant: Callable[[Case], Callable[[], object]], check: str, words: str, fix: str
) -> None:
    undo = plant(case)
    try:
        found = case.doctor.wrong()
    finally:
        undo()
    (it,) = [finding for finding in found if finding["check"] == check and words in finding["what"]]
    assert fix in it["fix"]
    assert {finding["check"] for finding in found} <= {check, "extender"}, found
    case.doctor.quiet()


# Faults that the doctor's own words mend


def test_what_pods_that_are_gone_have_left_is_found_and_swept_out_by_a_restart(case: Case) -> None:
    spec, name = case.spec(), f"aliquot.dev-qgpu-core-{'0' * 24}.yaml"
    uid = objects.get_pod(case.fleet.plane, "well")["metadata"]["uid"]
    text = spec.read_text().replace(uid, NOBODY).replace(spec.stem.rpartition("-")[2], "0" * 24)
    spec.with_name(name).write_text(text)
    case.path(f"/run/aliquot/t/{NOBODY}").mkdir()
    case.path("/run/aliquot/a/link").symlink_to(f"/run/aliquot/t/{NOBODY}")
    found = {finding["about"][0]: finding for finding in case.doctor.wrong()}
    assert {about: finding["check"] for about, finding in found.items()} == {
        f"/var/run/cdi/{name}": "cdi",
        f"/run/aliquot/t/{NOBODY}": "tenants",
        "/run/aliquot/a/link": "tenants",
    }
    assert all(
        "of a Pod that is gone" in finding["what"] or "which is gone" in finding["what"] for finding in found.values()
    )
    assert all("rm " in finding["fix"] and "restart the agent" in finding["fix"] for finding in found.values())
    case.agent.restart()
    case.doctor.quiet()


def test_a_shim_that_was_deleted_is_found_and_installed_by_a_restart(case: Case) -> None:
    case.path(f"{STATE}/shim").joinpath(os.readlink(case.path(f"{STATE}/shim/current")), "libaliquot.so").unlink()
    found = case.doctor.wrong()
    assert {finding["check"] for finding in found} == {"shim", "cdi"}
    assert all("libaliquot.so" in finding["what"] and "restart the agent" in finding["fix"] for finding in found)
    case.agent.restart()
    case.doctor.quiet()


def test_a_cdi_folder_that_is_gone_is_found_and_so_is_a_runtime_that_lost_sight_of_it(case: Case) -> None:
    """It is a mount of its own here, and of the end of a mount containerd does not hear."""
    case.shell(f"umount {CDI}; rmdir {CDI}")
    try:
        (gone,) = case.doctor.wrong()
        case.shell(f"mkdir {CDI}; mount -t tmpfs -o mode=755 node {CDI}")
        case.pod("blind")
        case.fleet.wired.await_event("blind", "Failed", "unresolvable CDI devices")
        (blind,) = wait_until(case.doctor.wrong, 10, "the kubelet tells of it")
    finally:
        case.shell(f"mkdir -p {CDI}; mountpoint -q {CDI} || mount -t tmpfs -o mode=755 node {CDI}")
        case.node.restart_containerd()
    assert (gone["check"], gone["what"]) == ("cdi", "no container with a card can start: /var/run/cdi is not there")
    assert gone["fix"].startswith("mkdir -p /var/run/cdi on the host")
    assert (blind["check"], blind["about"]) == ("cdi", ["default/blind"])
    assert "the runtime does not see what the agent wrote into /var/run/cdi" in blind["what"]
    assert "restart containerd" in blind["fix"]
    wait_running(case.fleet, ["blind"])
    assert wrong_cards(case.fleet, ["blind"]) == []
    case.doctor.quiet()
    case.remove("blind")


# Faults beside others


def test_without_a_kubelet_processes_that_outlived_their_pod_are_found_and_both_end_with_its_return(case: Case) -> None:
    case.pod("lives", "burn", "0", "5")
    wait_running(case.fleet, ["lives"])
    case.node.stop_kubelet()
    case.remove("lives")
    wait_until(lambda: any(tenant["ended"] for tenant in case.agent.status()["tenants"]), 10, "the agent hears of it")
    found = {finding["check"]: finding for finding in case.doctor.wrong()}
    assert found.keys() - {"agent", "labels", "resources"} == {"kubelet", "holdings"}
    assert "the kubelet does not run" in found["kubelet"]["what"]
    assert "systemctl status kubelet" in found["kubelet"]["fix"]
    assert "Pod default/lives is over, but processes of it still hold its cards: " in found["holdings"]["what"]
    case.node.start_kubelet()
    case.node.wait_ready()
    case.doctor.quiet()


@contextmanager
def _away(case: Case) -> Iterator[None]:
    case.agent.program.kill()
    yield
    case.agent.start()


def _label(case: Case) -> Callable[[], object]:
    case.fleet.label(case.node.name, {**MIXED, **GPUSHARE, **SHARED})
    return lambda: case.fleet.label(case.node.name, {**MIXED, **GPUSHARE})


def _annotation(value: str | None) -> Callable[[Case], Callable[[], object]]:
    def plant(case: Case) -> Callable[[], object]:
        before = objects.get_node(case.fleet.plane, case.node.name)["metadata"]["annotations"][holdings.INVENTORY]
        case.fleet.wired.annotate_node(case.node.name, {holdings.INVENTORY: value})
        return lambda: case.fleet.wired.annotate_node(case.node.name, {holdings.INVENTORY: before})

    return plant


def _database(make: Callable[[Case], object]) -> Callable[[Case], Callable[[], object]]:
    def plant(case: Case) -> Callable[[], object]:
        aside = case.path("/run/aside")
        aside.mkdir()
        for more in ("", "-wal", "-shm"):
            shutil.move(case.path(DATABASE + more), aside)
        make(case)

        def undo() -> None:
            case.path(DATABASE).unlink(missing_ok=True)
            for file in aside.iterdir():
                shutil.move(file, case.path(STATE))
            aside.rmdir()

        return undo

    return plant


_OTHERS = "import sqlite3; sqlite3.connect({!r}).execute('CREATE TABLE theirs (x)')"
_WITHOUT_AGENT = {
    "a label that nobody heeds": (_label, "labels", T9K_PERCENT, "is the node agent (or device plugin) running"),
    "an inventory that is gone": (_annotation(None), "inventory", holdings.INVENTORY, "the agent writes it"),
    "an inventory that is none": (_annotation("[]"), "nodes", holdings.INVENTORY, "kubectl edit node n1"),
    "no database": (_database(lambda case: None), "database", "is not there", "nothing is lost"),
    "a database that is damaged": (
        _database(lambda case: case.path(DATABASE).write_bytes(b"x" * 8192)),
        "database",
        "is damaged: file is not a database",
        "nothing is lost",
    ),
    "a database of another program": (
        _database(lambda case: case.node.call([sys.executable, "-c", _OTHERS.format(DATABASE)])),
        "database",
        "is the state of another program",
        "move it away",
    ),
}


def test_that_no_agent_runs_is_found_and_what_else_is_wrong_beside_that(case: Case) -> None:
    with _away(case):
        wait_until(lambda: _checks(case.doctor.wrong()) == {"agent", "labels"}, 20, "the kubelet has noticed")
        (alone,) = [finding for finding in case.doctor.wrong() if finding["check"] == "agent"]
        assert alone["what"].startswith("no agent runs: no program listens on /run/aliquot/control.sock")
        assert "kubectl logs --previous" in alone["fix"]
        for name, (plant, check, words, fix) in _WITHOUT_AGENT.items():
            undo = plant(case)
            try:
                found = case.doctor.wrong()
            finally:
                undo()
            it = [finding for finding in found if finding["check"] == check and words in finding["what"]]
            assert [fix in finding["fix"] for finding in it] == [True], (name, found)
        assert _checks(case.doctor.wrong()) == {"agent", "labels"}
    case.doctor.quiet()


def _checks(found: list[FindingJson]) -> set[str]:
    return {finding["check"] for finding in found}
