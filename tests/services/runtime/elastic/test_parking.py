"""Memory that leaves the card and returns, on a simulated card of 24 GiB: shim, daemon and mover as in life."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.services.runtime.elastic.parking import ROOM_WAIT
from kit.cards.movers import PATIENCE, Mover, pooled_node, residency, until
from kit.cards.runtime import GIB, Node
from simgpu.rig import ROOT

OUT_OF_MEMORY = 2  # CUDA's code


@pytest.fixture
def node() -> Iterator[Node]:
    with pooled_node(12 * GIB) as made:
        yield made


def await_mover(node: Node) -> None:
    """It has its context: what is allocated next may fill the card to the last byte."""

    def is_there() -> bool:
        mover = node.ask("mover")
        return any(group.pid == mover for group in node.player.card().groups)

    until(is_there, "the mover is ready for the card")


def test_three_tenants_on_a_card_that_holds_two_take_turns_and_lose_nothing(node: Node) -> None:
    movers = [Mover(node, node.tenant("offline", memory=11 * GIB), 10) for _ in range(3)]
    for mover in movers:
        mover.ready()

    def left() -> bool:
        return all(residency(node, mover.name).get("moves", 0) >= 1 for mover in movers)

    until(left, "each has been away once")
    results = [mover.end() for mover in movers]
    assert [(result["wrong"], result["error"]) for result in results] == [(0, 0)] * 3, results
    assert all(result["steps"] for result in results), results


def test_online_allocation_gets_room_and_a_killed_tenant_gives_back_the_pool(node: Node) -> None:
    first, second = (Mover(node, node.tenant("offline", memory=11 * GIB), 10) for _ in range(2))
    first.ready()
    second.ready()
    await_mover(node)
    online = Mover(node, node.tenant("online", memory=11 * GIB), 10)
    online.ready()
    parked = [mover for mover in (first, second) if residency(node, mover.name)["parked"]]
    assert len(parked) == 1
    until(lambda: residency(node, parked[0].name)["parked"] == 10 * GIB, "all of it has left")
    parked[0].kill()
    assert node.pool is not None
    pool = node.pool / "parked"
    until(lambda: not list(pool.iterdir()), "what was kept for it is forgotten")
    assert online.end()["error"] == 0  # what cannot leave has no contents on a simulated card
    left = first if parked[0] is second else second
    assert left.end()["wrong"] == 0


ASK = """
import json, sys, time
from simgpu.driver import CudaError, Session
session, took = Session(), []
print("up", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    began = time.monotonic()
    try:
        session.allocate(int(sys.argv[1]) << 30)
        error = 0
    except CudaError as refused:
        error = refused.code
    took.append((error, time.monotonic() - began))
print(json.dumps(took))
"""


class Asker:
    """A program that allocates so many GiB in one piece, so many times, once it is told to."""

    def __init__(self, node: Node, name: str, gib: int, times: int = 1) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ASK, str(gib), str(times)],
            env=node.environment(name),
            cwd=ROOT / "tests",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n"

    def ask(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answers(self) -> list[tuple[int, float]]:
        """CUDA's code and the seconds of each allocation."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0
        return [tuple(answer) for answer in json.loads(output)]


def test_allocation_for_which_nothing_can_leave_fails_at_once(node: Node) -> None:
    """As without us: a program that tries how much there is must not wait 30 s for each answer."""
    holder = Mover(node, node.tenant("normal", memory=20 * GIB), 16)
    holder.ready()
    asker = Asker(node, node.tenant("normal", memory=12 * GIB), 10, times=3)
    asker.ask()
    tries = asker.answers()
    assert [error for error, _ in tries] == [OUT_OF_MEMORY] * 3
    assert sum(seconds for _, seconds in tries) < 3 * ROOM_WAIT / 2, tries
    assert holder.end()["error"] == 0


def test_large_allocations_of_several_tenants_wait_while_another_leaves(node: Node) -> None:
    """Each is made piece by piece, so what is free by the driver's figure comes and goes meanwhile."""
    holder = Mover(node, node.tenant("normal", memory=13 * GIB), 12)
    leaver = Mover(node, node.tenant("offline", memory=5 * GIB), 4)
    holder.ready()
    leaver.ready()
    leaver.hold()
    askers = [Asker(node, node.tenant("offline", memory=9 * GIB), 8) for _ in range(2)]
    for asker in askers:
        asker.ask()
    assert [error for asker in askers for error, _ in asker.answers()] == [0, 0]
    assert leaver.end()["wrong"] == 0
    assert holder.end()["error"] == 0  # what cannot leave has no contents on a simulated card


def test_stream_ordered_memory_leaves_and_returns_while_the_program_frees_and_allocates(node: Node) -> None:
    ordered = Mover(node, node.tenant("normal", memory=4 * GIB, park_after=600.0), 2, kind="ordered")
    ordered.ready()
    until(lambda: residency(node, ordered.name), "it is known")

    def left() -> bool:
        node.ask("request_move", name=ordered.name, leave=True)
        return bool(residency(node, ordered.name).get("moves", 0) >= 3)

    until(left, "it has left three times")
    ended = ordered.end()
    assert (ended["wrong"], ended["error"]) == (0, 0), ended


def test_tenant_with_memory_of_the_drivers_pools_stays_and_says_why(node: Node) -> None:
    """Also where another needs the room; its memory has no contents on a simulated card."""
    pooled = Mover(node, node.tenant("offline", memory=11 * GIB), 10, kind="limited")
    pooled.ready()
    found = until(lambda: residency(node, pooled.name), "it is known")
    assert (found["where"], found["parked"], found["why"]) == ("resident", 0, "stream-ordered")
    assert "stream-ordered" in node.ask("request_move", name=pooled.name, leave=True)
    assert pooled.end()["error"] == 0


def parked_sleeper(node: Node, gib: int) -> Mover:
    """A program that does nothing, all of whose memory has left the card."""
    sleeper = Mover(node, node.tenant("normal", memory=11 * GIB, park_after=600.0), gib)
    sleeper.ready()
    sleeper.hold()
    until(lambda: residency(node, sleeper.name), "it is known")
    until(lambda: node.ask("request_move", name=sleeper.name, leave=True) is None, "it is asked")
    until(lambda: residency(node, sleeper.name)["parked"] == gib * GIB, "all of it has left")
    return sleeper


def test_parked_memory_is_known_without_waking_and_a_written_word_wakes(node: Node) -> None:
    sleeper = parked_sleeper(node, 2)
    known = sleeper.look("ask")
    middle = known["p"] + (128 << 20)
    assert {key: known[key] for key in ("2", "3", "9")} == {"2": 2, "3": middle, "9": 0}
    assert (known["11"], known["12"]) == (known["base"], known["size"]) == (known["p"], 256 << 20)
    assert known["7"] >> 63 == 1
    assert residency(node, sleeper.name)["parked"] == 2 * GIB
    assert sleeper.look("write") == 0
    until(lambda: residency(node, sleeper.name)["parked"] == 0, "it is back")
    assert sleeper.look("ask") == known
    result = sleeper.end()
    assert (result["wrong"], result["error"]) == (0, 0)


def test_daemon_and_mover_may_die_while_a_tenant_is_parked(node: Node) -> None:
    sleeper = parked_sleeper(node, 4)
    mover = node.ask("mover")
    node.kill_daemon()
    os.kill(mover, signal.SIGKILL)
    node.restart_daemon()
    until(lambda: node.standing(sleeper.name).get("processes"), "it registered again")
    assert residency(node, sleeper.name).get("where", "parked") == "parked"
    until(lambda: residency(node, sleeper.name).get("where") == "parked", "its memory was seen")
    assert node.ask("arrivals") == []  # it left before this daemon came
    result = sleeper.end()
    assert (result["wrong"], result["error"]) == (0, 0)


def test_allocation_waits_for_room_while_the_daemon_is_replaced(node: Node) -> None:
    """The daemon is killed or upgraded: it cannot make room meanwhile, and the next daemon does."""
    sleeper = Mover(node, node.tenant("offline", memory=13 * GIB), 12)
    sleeper.ready()
    sleeper.hold()
    until(lambda: residency(node, sleeper.name), "it is known")
    asker = Asker(node, node.tenant("online", memory=12 * GIB), 10)
    node.kill_daemon()
    time.sleep(1.0)  # its last sign of life is too old
    asker.ask()
    time.sleep(1.5)
    node.restart_daemon()
    assert [error for error, _ in asker.answers()] == [0]
    assert sleeper.end()["wrong"] == 0


def test_killed_mover_comes_back_to_a_full_card_and_memory_moves_on(node: Node) -> None:
    """Its context takes 64 MiB of the card, as each piece does: without a reserve the tenant that waits takes them."""
    sleeper = Mover(node, node.tenant("normal", memory=13 * GIB, park_after=600.0), 12)
    sleeper.ready()
    sleeper.hold()
    until(lambda: residency(node, sleeper.name), "it is known")
    before = until(lambda: node.ask("mover"), "there is a mover")
    eager = Mover(node, node.tenant("offline", memory=13 * GIB), 12, piece_mib=64)
    until(lambda: node.standing(eager.name).get("memory_used", 0) >= 10 * GIB, "the card is almost full")
    os.kill(before, signal.SIGKILL)
    until(lambda: node.ask("mover") not in (None, before), "there is another mover")
    assert node.ask("request_move", name=sleeper.name, leave=True) is None
    eager.ready()
    assert [mover.end()["wrong"] for mover in (eager, sleeper)] == [0, 0]


def test_memory_that_is_lost_is_an_error_and_never_zeros(node: Node) -> None:
    sleeper = parked_sleeper(node, 2)
    assert node.pool is not None
    os.kill(node.ask("mover"), signal.SIGKILL)
    (node.pool / "memory").unlink()
    result = sleeper.end()
    assert (result["wrong"], result["error"]) == (0, 999)


def test_full_pool_refuses_to_park_and_nothing_is_lost(node: Node) -> None:
    node.configure(oversubscribe=2.0, host_pool=1 * GIB)
    sleeper = Mover(node, node.tenant("normal", memory=11 * GIB, park_after=600.0), 4)
    sleeper.ready()
    sleeper.hold()
    until(lambda: residency(node, sleeper.name) and node.ask("mover"), "it is known")
    assert node.ask("request_move", name=sleeper.name, leave=True) == "the host pool is full"
    found = residency(node, sleeper.name)
    assert (found["where"], found["parked"]) == ("resident", 0)
    assert sleeper.end() | {"steps": 0, "longest": 0} == {"steps": 0, "wrong": 0, "longest": 0, "error": 0}


def test_copy_that_fails_leaves_memory_where_it_is(node: Node) -> None:
    """On its way out it stays on the card; on its way back it stays in the pool, and comes when copies work again."""
    broken = Path(node.player.socket + ".copies-fail")
    sleeper = Mover(node, node.tenant("normal", memory=11 * GIB, park_after=600.0), 2)
    sleeper.ready()
    sleeper.hold()
    until(lambda: residency(node, sleeper.name), "it is known")
    broken.touch()
    assert node.ask("request_move", name=sleeper.name, leave=True) is None
    until(lambda: residency(node, sleeper.name)["why"] == "failed", "its way out failed")
    assert residency(node, sleeper.name)["where"] == "resident"
    broken.unlink()

    def parked() -> bool:
        node.ask("request_move", name=sleeper.name, leave=True)
        return bool(residency(node, sleeper.name)["parked"] == 2 * GIB)

    until(parked, "it has left after all")
    broken.touch()
    assert node.ask("request_move", name=sleeper.name, leave=False) is None
    until(lambda: residency(node, sleeper.name)["why"] == "failed", "its way back failed")
    assert residency(node, sleeper.name)["parked"] == 2 * GIB
    broken.unlink()
    assert node.ask("request_move", name=sleeper.name, leave=False) is None
    result = sleeper.end()
    assert (result["wrong"], result["error"]) == (0, 0)


def test_tenant_that_is_woken_by_hand_comes_back_without_a_call(node: Node) -> None:
    sleeper = parked_sleeper(node, 2)
    (left,) = until(lambda: node.ask("arrivals"), "its way out was noted")
    assert node.ask("request_move", name=sleeper.name, leave=False) is None
    until(lambda: residency(node, sleeper.name)["parked"] == 0, "it is back")
    (back,) = until(lambda: node.ask("arrivals"), "its way back was noted")
    seen = [(one["tenant"], one["where"], one["size"], one["why"], one["took"] > 0) for one in (left, back)]
    assert seen == [
        (sleeper.name, "parked", 2 * GIB, "asked", True),
        (sleeper.name, "resident", 2 * GIB, None, True),
    ]
    assert back["away"] > 0
    assert sleeper.end()["wrong"] == 0


def test_stopped_tenant_is_passed_over_for_another_and_is_intact_later(node: Node) -> None:
    """As by Ctrl-Z. It is the one that would leave first: the smaller."""
    stopped = Mover(node, node.tenant("offline", memory=11 * GIB), 8)
    other = Mover(node, node.tenant("offline", memory=12 * GIB), 10)
    stopped.ready()
    other.ready()
    await_mover(node)
    os.kill(stopped.process.pid, signal.SIGSTOP)
    try:
        online = Mover(node, node.tenant("online", memory=11 * GIB), 8)
        online.ready()
        assert residency(node, other.name)["parked"]
        assert not residency(node, stopped.name)["parked"]
    finally:
        os.kill(stopped.process.pid, signal.SIGCONT)
    assert online.end()["error"] == 0
    assert [mover.end()["wrong"] for mover in (stopped, other)] == [0, 0]
