"""Whatever breaks, the agent or what it stands on: who runs must not notice, and who comes gets its own card."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from testbed import objects
from testbed.cards import MEM, QCORE, QMEM
from testbed.judges.inside import (
    DATABASE,
    denied,
    end_container,
    longest_silence,
    recorded,
    restarts,
    soundness,
    wait_offered,
    wait_restarted,
    wait_running,
    wrong_cards,
)
from testbed.processes import wait_until
from testbed.programs.agents import AliquotAgent
from testbed.programs.fleet import GPUSHARE, MIXED, POLICY, Fleet
from testbed.proxy import ALWAYS, Fault, Proxy
from testbed.realnodes.nodes import RealNode, probe

KILLS = 50
GIB = 1 << 30
SMALL = {QCORE: 20, QMEM: 4}
CDI = "/var/run/cdi"


@pytest.fixture
def node(fleet: Fleet) -> RealNode:
    return fleet.nodes[0]


@pytest.fixture
def agent(fleet: Fleet, node: RealNode) -> AliquotAgent:
    return fleet.agents[node.name]


def _pod(node: RealNode, name: str, *words: str, **more: Any) -> dict[str, Any]:
    return probe(name, *words, limits=SMALL, nodeSelector={"kubernetes.io/hostname": node.name}, **more)


def _run(fleet: Fleet, node: RealNode, name: str, *words: str) -> None:
    """Such a Pod runs, on the card it was given."""
    fleet.create(_pod(node, name, *words))
    wait_running(fleet, [name])
    assert wrong_cards(fleet, [name]) == []


def _work(node: RealNode, name: str) -> list[tuple[float, float]]:
    """What a Pod that burns has done, in ms, by the seconds since it began: about one line a second."""
    return [(line["elapsed_s"], line["done_ms"]) for line in node.lines(name) if line["event"] == "burn"]


def _burns_on(node: RealNode, name: str) -> None:
    before = len(_work(node, name))
    wait_until(lambda: len(_work(node, name)) > before + 1, 10, f"{name} goes on", saw=lambda: _work(node, name)[-3:])
    (_, done), (_, more) = _work(node, name)[-2:]
    assert more > done


# The agent


class Churn:
    """Pods come and go on a node, until told to stop. Each that ran saw its own card, or it is told in `wrong`."""

    def __init__(self, fleet: Fleet, node: RealNode) -> None:
        self.fleet, self.node = fleet, node
        self.done = self.right = self.denied = 0
        self.wrong: list[str] = []
        self.broken: list[BaseException] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._keep_on, args=(number,)) for number in range(3)]

    def __enter__(self) -> Churn:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *what: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _keep_on(self, number: int) -> None:
        chance = random.Random(number)
        try:
            for turn in itertools.count():
                if self._over.is_set():
                    return
                self._one(f"churn-{number}-{turn}", chance)
        except BaseException as error:
            self.broken.append(error)

    def _one(self, name: str, chance: random.Random) -> None:
        self.fleet.create(_pod(self.node, name))
        if chance.random() < 0.2:
            time.sleep(chance.random())  # it is deleted wherever it is just then
        elif self._runs(name):
            wrong = wrong_cards(self.fleet, [name])
            self.wrong += wrong
            self.right += not wrong
        else:
            self.denied += 1
            time.sleep(0.5)  # as a client that makes Pods by the dozen would wait
        self.fleet.plane.api("DELETE", f"/api/v1/namespaces/default/pods/{name}", {"gracePeriodSeconds": 1})
        self.done += 1

    def _runs(self, name: str) -> bool:
        """Once it does; False: the kubelet turned it away while no agent was there."""

        def decided() -> str:
            pod = objects.get_pod(self.fleet.plane, name)
            return "runs" if pod["status"]["phase"] == "Running" else "denied" if denied(pod) else ""

        events = partial(objects.events_of, self.fleet.plane, name)
        return wait_until(decided, 180, f"{name} runs", saw=events) == "runs"


def test_an_agent_killed_fifty_times_while_pods_come_and_go_gives_each_pod_its_card_and_stops_none(
    fleet: Fleet, node: RealNode, agent: AliquotAgent
) -> None:
    """The one that burns has a fifth of its card, and is paused for the rest: it must go on after every kill."""
    chance = random.Random(5)
    fleet.label(node.name, {**MIXED, POLICY: "fixed-share"})
    _run(fleet, node, "burns", "burn", "0", "5")
    with Churn(fleet, node) as churn:
        for kill in range(KILLS):
            if kill % 2:  # the others are killed while they start, or soon after
                agent.wait_ready()
            time.sleep(chance.uniform(0.0, 0.8))
            agent.restart(wait=False)
        agent.wait_ready()
        reached = churn.done
        wait_until(lambda: churn.broken or churn.done >= reached + 6, 200, "Pods come and go still")
    assert churn.broken == []
    assert churn.wrong == []
    print(f"{churn.right} of {churn.done} Pods ran, {churn.denied} came while the kubelet had no agent")
    assert churn.right >= 10
    # A new agent leaves it alone for 0.3 s, which at a fifth of the card it pays for with 1.2 s.
    assert longest_silence(_work(node, "burns")) < 3
    assert restarts(fleet, "burns") == 0
    assert soundness(node) == "ok"
    wait_until(lambda: recorded(node) == ["burns"], 20, "nothing is left of the others", saw=lambda: recorded(node))


def test_an_agent_that_hangs_for_five_seconds_leaves_no_tenant_paused(
    fleet: Fleet, node: RealNode, agent: AliquotAgent
) -> None:
    """Two that take turns: at any moment one of them is paused."""
    fleet.label(node.name, {**MIXED, POLICY: "fixed-share"})
    names = ["one", "other"]
    limits = {QCORE: 50, QMEM: 4}
    only = {"kubernetes.io/hostname": node.name}
    fleet.create(*(probe(name, "burn", "0", "5", limits=limits, nodeSelector=only) for name in names))
    wait_running(fleet, names)
    wait_until(lambda: all(len(_work(node, name)) > 1 for name in names), 10, "both burn")
    agent.program.signal(signal.SIGSTOP)
    time.sleep(5)
    agent.program.signal(signal.SIGCONT)
    for name in names:
        _burns_on(node, name)
        assert longest_silence(_work(node, name)) < 3
    _run(fleet, node, "later")


# The kubelet and containerd


@pytest.mark.parametrize("kill", [False, True], ids=["ended", "killed"])
def test_when_the_kubelet_is_restarted_pods_run_on_and_new_ones_start(
    fleet: Fleet, node: RealNode, agent: AliquotAgent, kill: bool
) -> None:
    _run(fleet, node, "stays", "burn", "0", "5")
    node.restart_kubelet(kill=kill)
    agent.wait_ready()
    _run(fleet, node, "later")
    _burns_on(node, "stays")
    assert restarts(fleet, "stays") == 0
    end_container(node, "stays")
    wait_restarted(fleet, "stays", 0)
    assert wrong_cards(fleet, ["stays", "later"]) == []


def test_when_containerd_is_killed_pods_run_on_and_new_ones_start(fleet: Fleet, node: RealNode) -> None:
    _run(fleet, node, "stays", "burn", "0", "5")
    node.restart_containerd(kill=True)
    _run(fleet, node, "later")
    _burns_on(node, "stays")
    end_container(node, "later")
    wait_restarted(fleet, "later", 0)
    assert wrong_cards(fleet, ["stays", "later"]) == []


# The database


def _remove_database(node: RealNode) -> None:
    for more in ("", "-wal", "-shm"):
        node.path(DATABASE + more).unlink(missing_ok=True)


def _is_enforced(fleet: Fleet, node: RealNode, name: str) -> None:
    """The Pod, started again, still gets the memory it was given and no more."""
    before = restarts(fleet, name)
    end_container(node, name)
    wait_restarted(fleet, name, before)

    def filled() -> list[int]:
        return [line["bytes"] for line in node.lines(name) if line["event"] == "filled" and line["start"] > before]

    assert 3 * GIB < wait_until(filled, 10, f"{name} has filled it")[-1] <= 4 * GIB


def test_a_database_deleted_under_a_running_agent_is_written_anew(
    fleet: Fleet, node: RealNode, agent: AliquotAgent
) -> None:
    _run(fleet, node, "stays", "fill")
    _remove_database(node)
    wait_until(lambda: recorded(node) == ["stays"], 10, "it is written anew")
    agent.restart()
    assert [tenant["pod"] for tenant in agent.status()["tenants"]] == ["stays"]
    _run(fleet, node, "later")
    _is_enforced(fleet, node, "stays")


def _scribble(node: RealNode) -> None:
    """Its log too, from which SQLite would mend it."""
    for more in ("", "-wal"):
        node.path(DATABASE + more).write_bytes(random.Random(1).randbytes(8192))


def _put_aside(node: RealNode) -> list[Path]:
    return list(node.path(DATABASE).parent.glob("state.db.damaged-*"))


@pytest.mark.parametrize("damage", [_remove_database, _scribble], ids=["deleted", "damaged"])
def test_an_agent_that_finds_no_sound_database_knows_and_holds_those_who_run_all_the_same(
    fleet: Fleet, node: RealNode, agent: AliquotAgent, damage: Callable[[RealNode], None]
) -> None:
    _run(fleet, node, "stays", "fill", "burn", "0", "5")
    agent.program.kill()
    damage(node)
    agent.start()
    assert bool(_put_aside(node)) == (damage is _scribble)
    (tenant,) = agent.status()["tenants"]
    assert (tenant["pod"], tenant["cards"][0]["memory_limit_bytes"]) == ("stays", 4 * GIB)
    assert recorded(node) == ["stays"]
    fleet.label(node.name, {**MIXED, **GPUSHARE, POLICY: "fixed-share"})
    share = 0.2
    wait_until(lambda: _recent_share(node, "stays") < share * 1.5, 15, "the policy reaches it")
    _run(fleet, node, "later")
    _is_enforced(fleet, node, "stays")


def _recent_share(node: RealNode, name: str) -> float:
    """Of its card, in the last second that it told of; all of it while it told of none."""
    work = [(0.0, 0.0), *_work(node, name)]
    (before, did), (now, has) = work[-2:] if len(work) > 2 else ((0.0, 0.0), (1.0, 1e3))
    return (has - did) / 1e3 / (now - before)


# Files


def test_an_emptied_cdi_folder_is_filled_again_when_a_container_restarts(fleet: Fleet, node: RealNode) -> None:
    _run(fleet, node, "stays")
    for file in node.path(CDI).iterdir():
        file.unlink()
    end_container(node, "stays")
    wait_restarted(fleet, "stays", 0)
    assert wrong_cards(fleet, ["stays"]) == []


@contextmanager
def _disk_full(node: RealNode) -> Iterator[None]:
    """Not a byte more fits onto the disk with the agent's state."""
    disk = "/var/lib/aliquot"
    stuffing = f"{disk}/stuffing"
    stats = os.statvfs(node.path(disk))
    used = (stats.f_blocks - stats.f_bfree) * stats.f_frsize
    _mount_anew(node, disk, used + (1 << 20))
    script = f"import os; f = os.open({stuffing!r}, os.O_CREAT | os.O_WRONLY)\nwhile True: os.write(f, bytes(65536))"
    filled = node.call([sys.executable, "-c", script])
    assert "No space left" in filled.stderr, filled.stderr
    yield
    node.path(stuffing).unlink()
    _mount_anew(node, disk, stats.f_blocks * stats.f_frsize)


def _mount_anew(node: RealNode, disk: str, size: int) -> None:
    done = node.call(["mount", "-o", f"remount,size={size}", disk])
    assert done.returncode == 0, done.stderr


def test_while_the_disk_is_full_a_pod_is_refused_with_the_reason_and_starts_when_there_is_room(
    fleet: Fleet, node: RealNode
) -> None:
    _run(fleet, node, "stays")
    with _disk_full(node):
        fleet.create(_pod(node, "refused"))
        fleet.wired.await_event("refused", "GPURefused", "state.db", "free some space")
        assert objects.get_pod(fleet.plane, "refused")["status"]["phase"] == "Pending"
    wait_running(fleet, ["refused"])
    assert wrong_cards(fleet, ["stays", "refused"]) == []


# The API server


def test_containers_start_again_while_the_api_server_is_away(fleet: Fleet, node: RealNode) -> None:
    _run(fleet, node, "stays", "burn", "0", "5")
    reports = len([line for line in node.lines("stays") if line["event"] == "report"])
    uid = objects.get_pod(fleet.plane, "stays")["metadata"]["uid"]
    fleet.plane.stop_apiserver(kill=True)
    try:
        end_container(node, "stays", uid=uid)
        wait_until(
            lambda: len([line for line in node.lines("stays") if line["event"] == "report"]) > reports,
            20,
            "it is started again",
        )
        time.sleep(5)
        _burns_on(node, "stays")
    finally:
        fleet.plane.start_apiserver()
    wait_until(lambda: restarts(fleet, "stays") == 1, 30, "the API server hears of it")
    assert wrong_cards(fleet, ["stays"]) == []
    _run(fleet, node, "later")


def test_with_a_slow_api_server_pods_start_on_their_cards_all_the_same(
    fleet: Fleet, node: RealNode, agent: AliquotAgent
) -> None:
    with Proxy(fleet.plane) as proxy:
        proxy.add(Fault("(GET|PATCH|POST) .*", times=ALWAYS, late=1.5))
        agent.program.stop()
        program = node.run([*_through(agent, proxy)], name="agent")
        try:
            program.wait_ready(lambda: agent.ask("/readyz")[0] == 200, 40)
            names = [f"slow-{number}" for number in range(4)]
            fleet.create(*(_pod(node, name) for name in names))
            wait_running(fleet, names)
            assert wrong_cards(fleet, names) == []
        finally:
            program.stop()
    agent.start()


def _through(agent: AliquotAgent, proxy: Proxy) -> list[str]:
    return [f"--kubeconfig={proxy.kubeconfig}" if "kubeconfig" in word else word for word in agent.command]


# The node's labels


def test_a_label_taken_away_withdraws_the_resource_and_who_runs_goes_on_until_it_is_back(
    fleet: Fleet, node: RealNode
) -> None:
    _run(fleet, node, "stays", "burn", "0", "5")
    fleet.label(node.name, GPUSHARE)
    wait_offered(fleet, {QCORE: 0, QMEM: 0, MEM: 64}, nodes=[node])
    _burns_on(node, "stays")
    fleet.label(node.name, {**MIXED, **GPUSHARE})
    wait_offered(fleet, {QCORE: 400, QMEM: 64}, nodes=[node])
    _run(fleet, node, "later")
    end_container(node, "stays")
    wait_restarted(fleet, "stays", 0)
    assert wrong_cards(fleet, ["stays", "later"]) == []
    assert fleet.overbooked() == []
