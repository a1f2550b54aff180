"""Online work takes the card from offline work, and gives it back."""

from __future__ import annotations

import time

from kit.cards.runtime import Load, Node
from simgpu.rig import Tenant, wait_until


def work(puppet: Tenant, milliseconds: float) -> None:
    """Work for so long a time alone, and a wait for it: `hear` returns when it is done."""
    assert puppet.ask({"do": "launch", "us": 10 * milliseconds, "count": 100, "slot": 0})
    puppet.say({"do": "synchronize"})


def pause_offline(node: Node, milliseconds: float) -> tuple[Tenant, Load, str]:
    """Online work has paused offline work: both, and the name of the offline one. `online.hear()` waits for its end."""
    online = node.puppet(node.tenant("online"))
    name = node.tenant("offline")
    offline = node.load(name, "20ms")
    node.until_runs(offline)
    work(online, milliseconds)
    wait_until(lambda: node.standing(name)["state"] == "paused", "offline work is paused")
    return online, offline, name


def test_offline_work_has_the_card_while_online_work_is_idle_and_loses_nothing_when_it_is_not(node: Node) -> None:
    node.configure(release_delay=0)
    online = node.puppet(node.tenant("online"))
    name = node.tenant("offline", core=50)
    offline = node.load(name, "20ms")
    node.until_runs(offline)
    node.shares_come_to(lambda share: share >= 0.95, (offline.pid,), seconds=0.7)
    work(online, 1800)
    node.goes_on(online.pid)
    front, behind = node.shares(0.7, (online.pid,), (offline.pid,))
    assert front >= 0.9
    assert behind <= 0.1
    online.hear()
    node.goes_on(offline.pid)
    assert node.standing(name)["preemptions"] >= 1
    assert offline.finish()["right"] is True  # each kernel ran exactly once, those that were cut too


def test_offline_work_stays_paused_for_the_release_delay_after_the_last_online_work(node: Node) -> None:
    delay = 0.3
    node.configure(release_delay=delay)
    online, offline, _ = pause_offline(node, 700)
    online.hear()
    seen = [(0, node.busy(offline.pid))]
    while seen[-1][1] == seen[0][1]:
        card = node.player.card()
        seen.append((card.now_ns, sum(group.busy_ns for group in card.compute(offline.pid))))
        assert len(seen) < 5000, "it was never released"
        time.sleep(0.002)
    _, _, ended = online.ask({"do": "times", "slot": 0})  # when the last online kernel did
    released, _ = seen[-1]
    assert released >= ended + delay * 1e9
    assert released < ended + 3e9


def test_work_that_comes_within_the_release_delay_finds_the_card_still_free(node: Node) -> None:
    """Offline work has nothing of the card from the first request to the release after the last."""
    node.configure(release_delay=1.0)
    online, offline, name = pause_offline(node, 300)
    online.hear()
    before = node.busy(offline.pid)
    for _ in range(5):
        work(online, 1)
        online.hear()
        time.sleep(0.02)
    assert node.busy(offline.pid) == before
    assert node.standing(name)["preemptions"] == 1


def test_several_offline_tenants_beside_idle_online_work_take_turns_and_none_starves(node: Node) -> None:
    node.configure(release_delay=0)
    node.puppet(node.tenant("online"))
    loads = [node.load(node.tenant("offline"), kernel) for kernel in ("1ms", "20ms", "20ms")]
    node.until_runs(*loads)
    tenants = [(load.pid,) for load in loads]
    node.shares_come_to(lambda *shares: min(shares) >= 0.25 and sum(shares) >= 0.9, *tenants)
    node.configure("fixed-share", release_delay=0)
    node.goes_on(*(load.pid for load in loads))


def test_a_newcomer_beside_busy_offline_work_comes_to_its_first_kernel(node: Node) -> None:
    """Those in turn have tiny slices, and two contending ones would stop each other for good."""
    node.configure(release_delay=0)
    server = node.server(node.tenant("online"))
    busy = [node.load(node.tenant("offline"), "20ms") for _ in range(2)]
    node.until_runs(server, *busy)
    for _ in range(3):
        newcomer = node.puppet(node.tenant("offline"))
        work(newcomer, 1)
        newcomer.hear()
    node.goes_on(server.pid, *(load.pid for load in busy))
    assert server.finish()["right"] is True


def test_a_newcomer_gets_on_as_soon_as_busy_online_work_lets_it(node: Node) -> None:
    node.configure(release_delay=0)
    online = node.puppet(node.tenant("online"))
    busy = [node.load(node.tenant("offline"), "20ms") for _ in range(2)]
    node.until_runs(*busy)
    work(online, 600)
    newcomer = node.puppet(node.tenant("offline"))
    work(newcomer, 1)
    online.hear()
    newcomer.hear()
    node.goes_on(*(load.pid for load in busy))
