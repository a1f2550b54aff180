"""Reports of supervisors are merged as far as they are valid."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.containers.localpod import ContainerState, Phase, PodEvent, PodState
from aliquot.services.machine.pods.reports import parse_report, with_report
from kit.values.anyjson import any_json

MAIN = ContainerState("main", "image", ("sleep", "1"), "/log")
STATE = PodState(node="node-0", containers=(MAIN,), events=(PodEvent(1.0, "made"),))


def test_report_sets_containers_and_phase() -> None:
    reported = {"name": "main", "state": "running", "pid": 7, "started": 2.0, "restarts": 1}
    found = with_report(STATE, parse_report({"phase": "Running", "containers": [reported]}), 3.0)
    assert (found.phase, found.started, found.finished) == (Phase.RUNNING, 2.0, None)
    (main,) = found.containers
    assert (main.state, main.pid, main.restarts, main.command) == ("running", 7, 1, ("sleep", "1"))


def test_report_keeps_finish_time() -> None:
    once = with_report(STATE, parse_report({"phase": "Succeeded"}), 3.0)
    assert once.finished == 3.0
    assert with_report(once, parse_report({"phase": "Succeeded"}), 9.0).finished == 3.0


def test_report_keeps_last_twenty_events_once() -> None:
    events = [{"time": 2.0 + at, "text": f"event {at}", "type": "Warning"} for at in range(30)]
    once = with_report(STATE, parse_report({"events": events[:2]}), 3.0)
    assert [event.text for event in once.events] == ["made", "event 0", "event 1"]
    assert with_report(once, parse_report({"events": events[:2]}), 3.0) == once
    assert [event.text for event in with_report(once, parse_report({"events": events}), 3.0).events] == [
        f"event {at}" for at in range(10, 30)
    ]


@pytest.mark.parametrize(
    "report",
    [
        {"phase": "Gone"},
        {"containers": [{"name": "other", "state": "running"}]},
        {"containers": [{"name": "main", "state": "dancing"}]},
        {"events": [{"time": "now", "text": "x"}, {"time": 1}, {"time": float("nan"), "text": "x"}, 3]},
        {"containers": [{"name": [], "state": "running"}, 3]},
    ],
)
def test_invalid_report_changes_nothing(report: dict[str, Any]) -> None:
    assert with_report(STATE, parse_report(report), 3.0) == STATE


_WORDS = ["name", "state", "time", "text", "pid", "started", "main"]


@given(
    st.dictionaries(
        st.sampled_from(["phase", "reason", "containers", "events"]), any_json(keys=_WORDS, most=4, leaves=12)
    )
)
def test_report_of_any_json_never_raises(report: dict[str, Any]) -> None:
    with_report(STATE, parse_report(report), 3.0)


def test_text_of_report_that_cannot_be_encoded_is_replaced() -> None:
    """Every user sees it: half of a surrogate pair in it would break `aliquot top` for all of them."""
    container = {"name": "main", "state": "running", "reason": "b\udc80"}
    events = [{"time": 2.0, "text": "c\udfff"}]
    found = with_report(STATE, parse_report({"reason": "a\ud800", "containers": [container], "events": events}), 3.0)
    assert (found.reason, found.containers[0].reason, found.events[-1].text) == ("a?", "b?", "c?")
