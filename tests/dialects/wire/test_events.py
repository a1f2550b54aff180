"""How events are written. tests/services tests when they are sent and how they are counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects.wire.events import Form, ObjectRef, Occurrence, events_path, render_event, render_repeat, shorten
from aliquot.model.refusal import Invalid

POD = ObjectRef("Pod", "web", "team", "uid-1")
SEEN = Occurrence(POD, "Waiting", "no room", "Warning", "Place", "aliquot", "one", "2026-01-01T12:00:00.250000Z")


def test_unknown_fields_of_event_object_are_omitted() -> None:
    assert ObjectRef("Node", "n1").render() == {"apiVersion": "v1", "kind": "Node", "name": "n1"}


@pytest.mark.parametrize(
    ("form", "root"), [(Form.EVENTS, "/apis/events.k8s.io/v1"), (Form.CORE, "/api/v1")], ids=["events.k8s.io", "core"]
)
def test_event_namespace_is_that_of_its_object(form: Form, root: str) -> None:
    assert events_path(form, SEEN) == f"{root}/namespaces/team/events"
    assert events_path(form, SEEN, one=True) == f"{root}/namespaces/team/events/{SEEN.name}"
    assert events_path(form, replace(SEEN, about=ObjectRef("Node", "n1"))) == f"{root}/namespaces/default/events"


def test_event_names_are_stable_per_occurrence() -> None:
    assert replace(SEEN).name == SEEN.name
    others = [replace(SEEN, note="x"), replace(SEEN, at="x"), replace(SEEN, reason="x"), replace(SEEN, instance="x")]
    assert len({SEEN.name, *(other.name for other in others)}) == 5


def test_event_name_is_never_too_long() -> None:
    assert len(replace(SEEN, about=replace(POD, name="a" * 253)).name) == 253


def test_core_event_times_have_whole_seconds() -> None:
    assert render_event(Form.CORE, SEEN)["firstTimestamp"] == "2026-01-01T12:00:00Z"
    assert render_repeat(Form.CORE, 2, SEEN.at) == {"count": 2, "lastTimestamp": "2026-01-01T12:00:00Z"}
    assert render_repeat(Form.EVENTS, 2, SEEN.at) == {"series": {"count": 2, "lastObservedTime": SEEN.at}}


@given(st.text(st.characters(), max_size=2000))
def test_event_note_is_truncated_and_valid(note: str) -> None:
    cut = shorten(note)
    assert len(cut.encode()) <= 1024
    assert shorten(cut) == cut


def test_note_of_an_event_steers_no_terminal() -> None:
    assert shorten("a\x1b[2J\r\n\u202e\ud800") == r"a\x1b[2J\r\n\u202e\ud800"


@pytest.mark.parametrize("before", range(8))
def test_event_note_is_not_cut_within_an_escape(before: int) -> None:
    for note in ("b" * before + "\u202e" * 400, "b" * before + r"\u202e" * 400):
        cut = shorten(note)
        assert 1000 < len(cut) <= 1024
        body = cut.removeprefix("b" * before).removesuffix("...")
        assert body == r"\u202e" * (len(body) // 6)


def test_event_about_a_value_of_control_characters_still_says_what_is_allowed() -> None:
    note = shorten(Invalid("spec.x", "\U000e0041" * 1000, "whole GiB").sentence())
    assert note.endswith("is not allowed: whole GiB")
    assert len(note) < 200
