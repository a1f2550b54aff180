"""The dashboard of one machine, made of its status."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from aliquot.arbiter.timeline import Came, Record, Taken
from aliquot.model.device import Card
from aliquot.model.node import Node, Offer
from aliquot.model.status.dashboard import SERIES
from aliquot.model.status.machine import Status
from aliquot.placement.board import Board
from aliquot.placement.policies.waste import Waste
from aliquot.services.dashboard.contract import FREE, MIXED, OUT, WHOLE
from aliquot.services.machine.dashboard import MachineView
from kit.machines.fakedaemon import machine_status
from kit.machines.fakeview import JsonView, texts

GIB = 1 << 30
Json = dict[str, Any]


def a_card(index: int = 0, **other: Any) -> Json:
    card = {
        "index": index,
        "uuid": f"GPU-{index}",
        "model": "A30",
        "memory_bytes": 24 * GIB,
        "memory_used_bytes": 3 * GIB,
        "memory_booked_bytes": 0,
        "core_booked": 0.0,
        "tenants": 0,
        "utilisation": 0.5,
    }
    return {**card, **other}


def on(index: int = 0, gib: int = 6, core: float | None = 30.0, **other: Any) -> Json:
    fields = {
        "index": index,
        "uuid": f"GPU-{index}",
        "exclusive": False,
        "greedy": False,
        "core": core,
        "memory_limit_bytes": gib * GIB,
        "state": "running",
        "level": "hardware",
        "share": 0.25,
        "memory_used_bytes": GIB,
        "pids": [7],
        "preemptions": 2,
        "paused_seconds": 1.5,
        "refused_allocations": 0,
    }
    return {**fields, **other}


def a_tenant(name: str, app_class: str = "normal", *cards: Json) -> Json:
    return {
        "id": f"id-{name}",
        "name": name,
        "class": app_class,
        "uid": 0,
        "pid": 7,
        "command": ["python", "train.py"],
        "created": 900.0,
        "age_seconds": 100.0,
        "log": None,
        "cards": [*cards] or [on()],
    }


WAITS = {
    "name": "big",
    "position": 1,
    "of": 1,
    "kept_for": None,
    "refusals": [
        {"card": 0, "reason": "memory", "wanted": 20480, "had": 1024},
        {"card": 1, "reason": "memory", "wanted": 20480, "had": 18432},
    ],
    "class": "online",
    "uid": 0,
    "pid": 8,
    "gpus": 1,
    "core": 50,
    "memory_bytes": 20 * GIB,
    "waited_seconds": 12.0,
    "command": ["serve"],
    "log": None,
}


class Machine:
    """What the status says, and what the cards' loops traced."""

    def __init__(self, **status: Any) -> None:
        self.status: Json = {
            "daemon": {"pid": 1, "simulated": "2x24GiB"},
            "rules": {"policy": "burst-share", "release_delay_seconds": 0.1},
            "cards": [a_card(0), a_card(1)],
            "tenants": [],
            "queue": [],
            "findings": [],
            **status,
        }
        self.records: dict[str, list[Record]] = {}
        self.asked = 0
        board = Board()
        board.set_node(Node("here", (Card(0, 24 << 10), Card(1, 24 << 10)), frozenset({Offer.ANY})))
        self.view = JsonView(MachineView(self._status, Waste(board), self._records, clock=lambda: 100.0))

    def _status(self) -> Status:
        self.asked += 1
        return machine_status(self.status)

    def _records(self) -> dict[str, list[Record]]:
        fields, self.records = self.records, {}
        return fields

    def node(self, name: str) -> Json | None:
        return self.view.node(name, 1000.0)


def bytes_of(state: Json, name: str) -> list[int]:
    return [*b64decode(state["cards"][name])]


def test_machine_is_one_node_unless_it_simulates_several() -> None:
    state = Machine().view.state(1000.0)
    assert (state["kind"], state["simulated"], state["nodes"]["cards"]) == ("machine", "2x24GiB", [2])
    assert state["kinds"] == [{"offers": [], "policy": "burst-share", "model": "A30", "cards": 2, "memory_mib": 24576}]
    nodes = [{"name": f"node-{at}", "offers": ["qgpu"], "policy": "fixed-share", "cards": []} for at in (0, 1)]
    both = Machine(nodes=nodes, cards=[a_card(0, node="node-0"), a_card(0, uuid="GPU-9", node="node-1")])
    state = both.view.state(1000.0)
    assert state["nodes"]["names"] == ["node-0", "node-1"]
    assert [node["cards"][0]["uuid"] for node in state["live"]["nodes"]] == ["GPU-0", "GPU-9"]


def test_card_bytes_show_bookings_and_classes() -> None:
    machine = Machine(
        cards=[a_card(0, memory_booked_bytes=12 * GIB, core_booked=100.0), a_card(1, memory_booked_bytes=1), a_card(2)],
        tenants=[
            a_tenant("on", "online"),
            a_tenant("off", "offline"),
            a_tenant("all", "normal", on(1, exclusive=True)),
        ],
    )
    state = machine.view.state(1000.0)
    assert bytes_of(state, "memory") == [100, 1, 0]  # a byte of memory shows
    assert bytes_of(state, "core") == [200, 0, 0]
    assert bytes_of(state, "class") == [MIXED, WHOLE, FREE]


def test_card_out_is_counted_and_explained() -> None:
    machine = Machine(cards=[a_card(0, healthy=False, why_out="Xid 79", xid=79), a_card(1)])
    state = machine.view.state(1000.0)
    assert bytes_of(state, "class") == [OUT, FREE]
    assert texts(state["nodes"]["trouble"]["0"]) == ["1 card out"]
    assert (state["totals"]["cards_free"], state["totals"]["cards_out"]) == (1, 1)
    assert state["live"]["nodes"][0]["cards"][0]["why_out"] == {
        "code": "xid",
        "text": "Xid 79",
        "number": 79,
        "detail": "Xid 79",
    }


def test_card_shows_tenants_with_promise_and_use() -> None:
    machine = Machine(tenants=[a_tenant("off", "offline", on(1, 8, 60.0, greedy=True))])
    card = machine.view.state(1000.0)["live"]["nodes"][0]["cards"][1]
    assert card["greedy_booked"] == 60.0
    assert card["tenants"] == [
        {
            "key": "off",
            "class": "offline",
            "dialect": "run",
            "memory_mib": 8192,
            "memory_used_mib": 1024,
            "core": 60.0,
            "greedy": True,
            "exclusive": False,
            "share": 0.25,
            "state": "running",
            "preemptions": 2,
            "paused_seconds": 1.5,
            "paused_by": None,
            "where": None,
            "parked_mib": 0,
            "moves": 0,
            "why_parked": None,
            "latency_seconds": None,
            "latency_missed_seconds": 0,
            "together": None,
            "users": None,
        }
    ]


def test_tenant_names_the_group_with_which_it_runs_side_by_side() -> None:
    machine = Machine(tenants=[{**a_tenant("left", "normal", on(1, 8)), "together": "pair"}])
    (tenant,) = machine.view.state(1000.0)["live"]["nodes"][0]["cards"][1]["tenants"]
    assert tenant["together"] == "pair"


def test_card_shows_what_is_parked() -> None:
    residency = {
        "where": "parked", "resident_bytes": 0, "parked_bytes": 4 * GIB, "moves": 1, "moved_bytes": 4 * GIB,
        "last_out_seconds": 1.0, "last_in_seconds": None, "why": "idle",
    }  # fmt: skip
    machine = Machine(tenants=[a_tenant("off", "offline", on(1, 8, residency=residency))])
    (tenant,) = machine.view.state(1000.0)["live"]["nodes"][0]["cards"][1]["tenants"]
    assert (tenant["parked_mib"], tenant["why_parked"]) == (4096, "idle")


def test_waiting_run_shows_what_the_nearest_card_lacks() -> None:
    (entry,) = Machine(queue=[WAITS]).view.state(1000.0)["waiting"]["pods"]
    assert entry == {
        "key": "big",
        "class": "online",
        "dialect": "run",
        "since": 988.0,
        "reason": {
            "code": "no-room",
            "text": "card 1 has 18 GiB free, needs 20 GiB; 1 other card has no room either",
            "count": 1,
            "refusals": [
                {
                    "reason": "memory",
                    "text": "card 1 has 18 GiB free, needs 20 GiB",
                    "nodes": 1,
                    "example": None,
                    "wanted": 20480,
                    "had": 18432,
                    "card": 1,
                }
            ],
        },
        "wants": {"text": "20 GiB, 50%", "requests": [{"memory_mib": 20480, "core": 50.0}]},
    }


def test_run_shows_where_and_why() -> None:
    pod = Machine(tenants=[a_tenant("train")]).view.pod("train", 1000.0)
    assert pod is not None
    assert (pod["kind"], pod["phase"], pod["since"]) == ("run", "Running", 900.0)
    assert pod["cards"][0]["memory_mib"] == 6144
    assert texts(pod["why"])[0] == "Promised 6 GiB of the card, and at least 30% of the compute (burst-share)."


def test_paused_run_shows_who_has_the_card() -> None:
    share = on(0, 6, 50.0, greedy=True, state="paused", paused_by="serve")
    machine = Machine(tenants=[a_tenant("train", "offline", share)])
    pod = machine.view.pod("train", 1000.0)
    assert pod is not None
    assert texts(pod["why"])[:2] == [
        "Paused: serve has card 0. Online work took 1s from it in all.",
        "Promised 6 GiB of the card,"
        " and at least 50% of the compute that online work and other quotas leave (burst-share).",
    ]
    assert pod["why"][0] | {"text": ""} == {"code": "paused", "text": "", "card": 0, "name": "serve", "number": 1}


def test_queued_run_shows_what_each_card_lacks() -> None:
    pod = Machine(queue=[WAITS]).view.pod("big", 1000.0)
    assert pod is not None
    assert pod["phase"] == "Pending"
    assert pod["refusals"][0]["text"] == "card 0 has 1 GiB free, needs 20 GiB"


def test_unknown_names_are_none() -> None:
    assert Machine().view.pod("nobody", 1000.0) is None
    assert Machine().node("nowhere") is None


def test_search_finds_runs_and_the_queue() -> None:
    machine = Machine(tenants=[a_tenant("train")], queue=[WAITS])
    found = machine.view.search("", 50)
    assert [(pod["key"], pod["phase"]) for pod in found["pods"]] == [
        ("train", "Running"),
        ("big", "Pending"),
    ]
    assert [pod["key"] for pod in machine.view.search("TRAI", 50)["pods"]] == ["train"]
    assert len(machine.view.search("", 1)["pods"]) == 1


def test_point_has_every_series() -> None:
    machine = Machine(cards=[a_card(0, memory_booked_bytes=12 * GIB, core_booked=30.0), a_card(1)])
    point = machine.view.point(1000.0)
    assert set(point) == {"time", *SERIES}
    assert (point["memory"], point["core"], point["busy"]) == (25.0, 15.0, 50.0)


def test_status_is_read_once_per_moment() -> None:
    machine = Machine()
    machine.view.point(1000.0)
    machine.view.tick(1000.0)
    machine.view.state(1000.0)
    assert machine.asked == 1


def test_tick_has_the_waiting_list_only_when_it_changed() -> None:
    machine = Machine()
    machine.view.state(1000.0)
    first, second = machine.view.tick(1000.5), machine.view.tick(1001.0)
    assert first is not None
    assert second is not None
    assert second["waiting"] is None
    machine.status["queue"] = [WAITS]
    third = machine.view.tick(1001.5)
    assert third is not None
    assert third["waiting"]["count"] == 1


def test_tick_has_the_waiting_list_after_a_state() -> None:
    machine = Machine()
    machine.view.tick(1000.0)
    machine.view.tick(1000.5)
    machine.status["queue"] = [WAITS]
    machine.view.state(1000.7)
    machine.status["queue"] = []
    tick = machine.view.tick(1001.0)
    assert tick is not None
    assert tick["waiting"] == {"count": 0, "pods": []}


def test_tick_is_none_when_policy_or_cards_change() -> None:
    machine = Machine()
    machine.view.state(1000.0)
    assert machine.view.tick(1000.5) is not None
    machine.status["cards"] = [a_card(0)]
    assert machine.view.tick(1001.0) is None
    assert machine.view.tick(1001.5) is not None


def test_timeline_uses_tenant_names_and_the_time_of_day() -> None:
    machine = Machine(tenants=[a_tenant("train", "offline")])
    came, stretch = Came("p", "id-train", offline=True), (99.0, 99.2, {"p": 1.0}, False)
    machine.records = {"GPU-0": [came, stretch, Taken(99.5, "gone", ("id-train",))]}
    node = machine.node(machine.view.state(999.0)["nodes"]["names"][0])
    assert node is not None
    timeline = node["timeline"]
    assert (timeline["until"], timeline["step"], timeline["buckets"]) == (999.7, 0.1, 600)
    (tenant,) = timeline["cards"]["GPU-0"]["tenants"]
    assert (tenant["key"], tenant["class"], tenant["shares"][-8:]) == ("train", "offline", [0, 100, 100, 0, 0, 0, 0, 0])
    assert timeline["cards"]["GPU-0"]["preemptions"] == [{"at": 999.5, "by": "gone", "of": "train"}]
