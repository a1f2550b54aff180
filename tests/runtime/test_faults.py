"""A process that dies or hangs leaves no tenant paused."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from aliquot.adapters.gpu.page import HEARTBEAT
from kit.cards.runtime import GIB, Node, near
from runtime.test_mixing import pause_offline, work
from runtime.test_shares import DEEP
from simgpu.rig import wait_until

STOCK = 2048  # microseconds: the driver's own slice
SOON = 3.0  # seconds: tenants notice after 0.6 that the daemon is gone; this machine may be busy


@pytest.mark.parametrize("online_is", ["idle", "busy"])
def test_tenants_go_on_when_the_daemon_is_killed_and_the_next_one_takes_over(node: Node, online_is: str) -> None:
    """Offline work has tiny slices or is paused at that moment: all of it where online work is busy."""
    online = node.puppet(node.tenant("online"))
    names = [node.tenant("offline") for _ in range(2)]
    offline = [node.load(name, "20ms") for name in names]
    node.until_runs(*offline)
    if online_is == "busy":
        work(online, 3000)
        wait_until(lambda: all(node.standing(name)["state"] == "paused" for name in names), "both are paused")
    node.kill_daemon()
    pids = [load.pid for load in offline]
    assert node.goes_on(*pids) < SOON
    assert node.goes_on(*pids) < SOON  # and stay so
    node.restart_daemon()
    states = {"idle": {"running", "waiting"}, "busy": {"paused"}}[online_is]
    wait_until(
        lambda: all(
            stands.get("processes") == [load.pid] and stands["state"] in states and stands["level"] == "hardware"
            for load, name in zip(offline, names, strict=True)
            if (stands := node.standing(name)) is not None
        ),
        "the new daemon has taken over",
    )
    if online_is == "busy":
        (behind,) = node.shares(0.3, tuple(pids))
        assert behind <= 0.02
        online.hear()
    node.goes_on(*pids)
    assert [load.finish()["right"] for load in offline] == [True, True]


def test_shares_stay_as_they_were_while_no_daemon_runs(node: Node) -> None:
    node.configure("burst-share")
    loads = [node.load(node.tenant(core=core), "1ms", *DEEP) for core in (70, 30)]
    node.until_runs(*loads)
    pids = [(load.pid,) for load in loads]
    node.shares_come_to(near([0.7, 0.3], 5), *pids, seconds=1.0)
    node.kill_daemon()
    time.sleep(1.0)  # tenants have noticed
    node.shares_come_to(near([0.7, 0.3], 5), *pids, seconds=1.0)
    node.restart_daemon()
    assert [load.finish()["right"] for load in loads] == [True, True]


def test_a_tenant_that_comes_while_no_daemon_runs_has_the_drivers_own_slice(node: Node) -> None:
    loads = [node.load(node.tenant(), "1ms", *DEEP) for _ in range(2)]
    node.until_runs(*loads)

    def slices() -> list[int]:
        return [node.player.card().compute(load.pid)[0].slice_us for load in loads]

    wait_until(lambda: min(slices()) > STOCK, "each has its stretch")
    node.kill_daemon()
    time.sleep(1.0)  # tenants have noticed
    assert min(slices()) > STOCK
    for tenant in node.tenants.values():
        page = Path(tenant["folder"]) / "page"
        with page.open("r+b") as file:  # as if five minutes had gone by
            file.seek(64 + HEARTBEAT)
            file.write((time.monotonic_ns() - 301 * 10**9).to_bytes(8, "little"))
    wait_until(lambda: slices() == [STOCK, STOCK], "both have the driver's own")


def test_tenants_go_on_while_the_daemon_hangs(node: Node) -> None:
    online = node.puppet(node.tenant("online"))
    names = [node.tenant("offline") for _ in range(2)]
    offline = [node.load(name, "20ms") for name in names]
    node.until_runs(*offline)
    work(online, 3000)
    wait_until(lambda: all(node.standing(name)["state"] == "paused" for name in names), "both are paused")
    node.daemon.send_signal(signal.SIGSTOP)
    pids = [load.pid for load in offline]
    assert node.goes_on(*pids) < SOON
    assert node.goes_on(*pids) < SOON
    node.daemon.send_signal(signal.SIGCONT)
    node.shares_come_to(lambda behind: behind <= 0.02, tuple(pids), seconds=0.2)
    online.hear()
    node.goes_on(*pids)
    assert [load.finish()["right"] for load in offline] == [True, True]


def test_a_paused_tenant_that_is_killed_gives_its_memory_back(node: Node) -> None:
    online = node.puppet(node.tenant("online"))
    name = node.tenant("offline", memory=4 * GIB)
    offline = node.load(name, "20ms", "--memory", "3GiB")
    node.until_runs(offline)
    before = node.player.card().used
    assert before > 3 * GIB
    work(online, 800)
    wait_until(lambda: node.standing(name)["state"] == "paused", "it is paused")
    offline.kill()
    wait_until(lambda: node.player.card().used < before - 3 * GIB, "the card has its memory back")
    wait_until(lambda: node.standing(name)["memory_used"] == 0, "nothing of it is counted")
    heir = node.puppet(name)
    assert heir.ask({"do": "allocate", "mib": 3 * 1024}) == 0
    online.hear()


@pytest.mark.parametrize("policy", ["best-effort", "burst-share", "fixed-share"])
def test_a_stopped_process_does_not_disturb_the_others(node: Node, policy: str) -> None:
    node.configure(policy, release_delay=0)
    node.puppet(node.tenant("online"))
    stopped, going = (node.load(node.tenant("offline", core=50), "20ms") for _ in range(2))
    node.until_runs(stopped, going)
    os.kill(stopped.pid, signal.SIGSTOP)
    enough = 0.45 if policy == "fixed-share" else 0.8
    node.shares_come_to(lambda share: share >= enough, (going.pid,), seconds=0.7)
    os.kill(stopped.pid, signal.SIGCONT)
    node.goes_on(stopped.pid, going.pid)


def test_a_stopped_online_process_does_not_keep_the_card(node: Node) -> None:
    """It was stopped inside a wait for the card, and can not say that the wait is over."""
    online, offline, name = pause_offline(node, 300)
    os.kill(online.pid, signal.SIGSTOP)
    node.shares_come_to(lambda share: share >= 0.9, (offline.pid,), seconds=0.5)
    os.kill(online.pid, signal.SIGCONT)
    online.hear()
    work(online, 300)
    wait_until(lambda: node.standing(name)["state"] == "paused", "it is paused again")
    online.hear()
    node.goes_on(offline.pid)
