"""The judges of the soak see what is wrong: otherwise it would prove nothing."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from kit.values.manifests import QGPU_MEMORY
from soak.checks import differences
from soak.churn import HALF, Shape, Workload, manifest, shapes
from soak.holding import Holdable
from soak.memory import Life, Sample
from testbed.judges.holdings import GRANT
from testbed.objects import pod


def _granted(*cards: str, gib: int = 2) -> dict[str, Any]:
    shares = [{"index": number, "uuid": uuid, "memory_mib": gib * 1024} for number, uuid in enumerate(cards)]
    return pod("p", annotations={GRANT: json.dumps({"containers": [{"name": "main", "cards": shares}]})})


def _report(*cards: str, gib: int = 2) -> dict[str, Any]:
    return {"env": {}, "cuda": {"cards": [{"uuid": uuid, "total": gib << 30} for uuid in cards]}}


def _life(*rss: float, every: float = 5.0) -> Life:
    return Life("agent", "n1", 1, [Sample(number * every, mib, 10) for number, mib in enumerate(rss)])


def test_a_container_that_sees_its_cards_is_all_right_in_whatever_order() -> None:
    assert differences(_granted("a", "b"), _report("b", "a")) == []


def test_a_container_that_sees_anothers_card_is_reported_with_both() -> None:
    (sentence,) = differences(_granted("a"), _report("a", "b"))
    assert "granted ['a'], sees ['a', 'b']" in sentence


def test_a_container_that_sees_more_memory_than_its_own_is_reported() -> None:
    assert differences(_granted("a"), _report("a", gib=3)) == ["granted 2048 MiB of a, sees 3072"]


def test_memory_that_grows_does_so_by_the_slope_of_all_its_samples() -> None:
    assert _life(*(50 + number * 0.1 for number in range(100))).growth(0, 400) == pytest.approx(8.0)


def test_memory_that_wavers_has_not_grown() -> None:
    grown = _life(*(50 + number % 2 for number in range(100))).growth(0, 400)
    assert grown == pytest.approx(0, abs=0.1)


def test_a_process_that_did_not_live_all_that_time_has_no_growth() -> None:
    assert _life(*[50.0] * 20).growth(0, 400) is None


def test_no_pod_wants_more_than_two_fifths_of_a_card_or_half_of_one_in_two_parts() -> None:
    for dialect, of_dialect in shapes(16).items():
        for shape in of_dialect:
            assert 0 < shape.weight <= (HALF if dialect == "two cards" else 0.4)


def test_the_pods_are_of_some_fifty_kinds_and_not_ever_new_ones() -> None:
    """Memory is to be flat once a scheduler has seen them all, within minutes."""
    every = [shape for of_dialect in shapes(16).values() for shape in of_dialect]
    assert 40 <= len(every) <= 60
    assert all(shape not in every[:number] for number, shape in enumerate(every))


class Counting(Holdable):
    def __init__(self) -> None:
        super().__init__("counting")
        self.steps = 0
        self.made = threading.Event()

    def pause(self) -> float:
        return 0.001

    def step(self) -> None:
        self.steps += 1
        self.made.set()


class Falling(Counting):
    def step(self) -> None:
        raise RuntimeError("no such step")


def test_a_thread_that_is_held_makes_no_step_until_it_may_go_on() -> None:
    thread = Counting()
    thread.start()
    assert thread.made.wait(10)
    thread.hold()
    before = thread.steps
    thread.made.clear()
    assert not thread.made.wait(0.1)
    assert thread.steps == before
    thread.go_on()
    assert thread.made.wait(10)
    thread.end()
    assert not thread.is_alive()


def test_an_error_in_a_thread_is_kept_for_the_report_of_the_soak() -> None:
    thread = Falling()
    thread.start()
    thread.join(10)
    assert str(thread.failure) == "no such step"


def test_the_webhook_is_left_to_say_which_scheduler() -> None:
    shape = Shape({QGPU_MEMORY: 1}, {}, 0.1)
    made = manifest(Workload("Job", "j1", shape, 1, 0.0, ("exit", "0")))
    assert "schedulerName" not in made["spec"]["template"]["spec"]
