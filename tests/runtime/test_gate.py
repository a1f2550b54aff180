"""Where the driver refuses slices and pauses, tenants are held at the gate: their next launch waits."""

from __future__ import annotations

from kit.cards.runtime import Node, near
from runtime.test_mixing import work
from simgpu.rig import wait_until


def test_fixed_share_holds_at_the_gate(refusing_node: Node) -> None:
    """What was launched before the gate closed runs on, and is charged."""
    node = refusing_node
    node.configure("fixed-share")
    name = node.tenant(core=30)
    load = node.load(name, "5ms", "--depth", "8")
    node.until_runs(load)
    assert node.standing(name)["level"] == "gate"
    node.shares_come_to(near([0.3], 5), (load.pid,))
    assert node.ask("control") == ["gate", "refused"]
    assert node.player.card().compute(load.pid)[0].slice_us == 2048


def test_burst_share_holds_at_the_gate(refusing_node: Node) -> None:
    node = refusing_node
    node.configure("burst-share")
    loads = [node.load(node.tenant(core=core)) for core in (30, 70)]
    node.until_runs(*loads)
    node.shares_come_to(near([0.3, 0.7], 5), *((load.pid,) for load in loads))


def test_online_work_closes_the_gate_to_offline_work(refusing_node: Node) -> None:
    node = refusing_node
    online = node.puppet(node.tenant("online"))
    name = node.tenant("offline")
    offline = node.load(name)
    node.until_runs(offline)
    work(online, 1500)
    wait_until(lambda: node.standing(name)["state"] == "paused", "offline work waits at the gate")
    assert node.standing(name)["level"] == "gate"
    front, behind = node.shares(0.4, (online.pid,), (offline.pid,))
    assert front >= 0.9
    assert behind <= 0.1
    online.hear()
    node.goes_on(offline.pid)
    assert offline.finish()["right"] is True


def test_half_a_registration_is_reported(node: Node) -> None:
    """A program that speaks with the daemon itself and hides its context: no slice and no gate holds it (an audit saw
    55.9% of a card with a hard cap of 10%), so somebody must hear of it."""
    node.configure("fixed-share")
    name = node.tenant(core=10)
    hostile = node.player.start("half_registered", node.tenants[name]["folder"])
    assert hostile.hear() == "ready"
    wait_until(lambda: node.standing(name).get("level") == "gate", "it does not count as registered")

    def found() -> bool:
        findings = node.ask("findings")
        return [(finding["kind"], finding["pid"]) for finding in findings] == [("unregistered", hostile.pid)]

    wait_until(found, "it is reported")
    assert node.shares(0.3, (hostile.pid,))[0] > 0.5


def test_the_gate_can_be_chosen(shared_node: Node) -> None:
    """Where the driver would obey, too."""
    del shared_node  # only for its skip where the libraries are not built
    node = Node(control="forced")
    try:
        name = node.tenant()
        node.until_runs(node.load(name))
        assert node.standing(name)["level"] == "gate"
        assert node.ask("control") == ["gate", "forced"]
    finally:
        node.close()
