"""Events: one object per thing that happens, a count for what repeats, and no flood whatever happens."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from aliquot.adapters.kubernetes.kube import ApiError, Unreachable
from aliquot.services.daemon import events as module
from aliquot.services.daemon.events import Events, ObjectRef
from kit.clusters.fakeapi import Api, Clock, forbidden
from kit.running.logged import logged

POD = ObjectRef("Pod", "web", "team", "uid-1")
NODE = ObjectRef("Node", "n1", uid="uid-n1")
MODERN, CORE = "/apis/events.k8s.io/v1/namespaces/team/events", "/api/v1/namespaces/team/events"


class Rig:
    """Events over an API that is not there."""

    def __init__(self, **settings: Any) -> None:
        self.api, self.clock = Api(), Clock()
        self.events = Events(self.api.kube, "aliquot-scheduler", self.clock, instance="one", **settings)

    def say(self, message: str = "no room", about: ObjectRef = POD, reason: str = "Waiting") -> None:
        self.events.emit(about, reason, message)

    def step(self, after: float = 0.0) -> float:
        self.clock.sleep(after)
        return asyncio.run(self.events.step())


def test_an_event_is_written_whole() -> None:
    rig = Rig()
    rig.say()
    rig.step()
    ((path, body),) = rig.api.sent("create")
    assert path == MODERN
    assert body["metadata"]["namespace"] == "team"
    assert body["metadata"]["name"].startswith("web.")
    del body["metadata"]
    assert body == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "eventTime": "2027-01-15T08:00:00.000000Z",
        "reportingController": "aliquot-scheduler",
        "reportingInstance": "one",
        "action": "Waiting",
        "reason": "Waiting",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": "web", "uid": "uid-1"},
        "note": "no room",
        "type": "Warning",
    }


def test_an_event_about_a_node_is_kept_in_default() -> None:
    rig = Rig()
    rig.say(about=NODE)
    rig.step()
    ((path, body),) = rig.api.sent("create")
    assert path == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert "namespace" not in body["regarding"]


def test_emit_sends_nothing_by_itself() -> None:
    rig = Rig()
    rig.say()
    assert rig.api.calls == []


def test_an_event_note_is_cut_to_the_longest_allowed() -> None:
    rig = Rig()
    rig.say("显存" * 1000)
    rig.step()
    note = rig.api.sent("create")[0][1]["note"]
    assert len(note.encode()) <= 1024
    assert note.endswith("...")


# What repeats.


def test_the_same_message_again_is_one_event_with_a_count() -> None:
    rig = Rig()
    rig.say()
    rig.step()
    for _ in range(5):
        rig.say()
        rig.step(after=1)
    assert rig.api.sent("patch") == []
    rig.step(after=30)
    ((path, body),) = rig.api.sent("patch")
    assert path == f"{MODERN}/{rig.api.sent('create')[0][1]['metadata']['name']}"
    assert body == {"series": {"count": 6, "lastObservedTime": "2027-01-15T08:00:35.000000Z"}}
    assert len(rig.api.sent("create")) == 1


def test_a_repeated_event_is_written_ever_more_seldom() -> None:
    rig = Rig()
    for _ in range(3600):
        rig.say()
        rig.step(after=1)
    assert len(rig.api.sent("create")) == 1
    assert 5 <= len(rig.api.sent("patch")) <= 12


def test_another_message_is_a_new_event_but_not_at_once() -> None:
    rig = Rig()
    rig.say("no room")
    rig.step()
    for free in range(10):
        rig.say(f"{free} GiB free")
        rig.step(after=1)
    assert len(rig.api.sent("create")) == 1
    rig.step(after=5)
    assert [body["note"] for _, body in rig.api.sent("create")] == ["no room", "9 GiB free"]


def test_an_unsent_event_is_replaced_by_a_newer_message() -> None:
    rig = Rig()
    rig.say("no room")
    rig.say("no node")
    rig.step()
    assert [body["note"] for _, body in rig.api.sent("create")] == ["no node"]


def test_an_expired_event_is_created_anew() -> None:
    rig = Rig()
    rig.say()
    rig.step()
    rig.api.objects.clear()
    rig.say()
    rig.step(after=60)
    names = {body["metadata"]["name"] for _, body in rig.api.sent("create")}
    assert len(names) == 2


# How fast.


def test_ten_thousand_waiting_pods_are_no_flood() -> None:
    rig = Rig(per_second=10, burst=50)
    for number in range(4000):
        rig.say(about=ObjectRef("Pod", f"p{number}", "team", str(number)))
    for _ in range(60):
        rig.step(after=1)
    assert len(rig.api.calls) == pytest.approx(650, abs=20)


def test_too_many_event_topics_drop_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_TOPICS", 3)
    rig = Rig(per_second=1000, burst=1000)
    for number in range(20):
        rig.say(about=ObjectRef("Pod", f"p{number}", "team", str(number)))
    rig.step()
    assert [body["regarding"]["name"] for _, body in rig.api.sent("create")] == ["p17", "p18", "p19"]
    assert rig.events.dropped == 17


# What can go wrong.


def test_old_event_topics_are_forgotten_on_the_next_emit() -> None:
    rig = Rig(burst=1000)
    for number in range(100):
        rig.say(about=ObjectRef("Pod", f"web-{number}", "team", f"uid-{number}"))
    rig.step(after=1.0)
    rig.say("still", about=NODE)
    rig.step(after=3590.0)
    assert len(rig.events._topics) == 101
    rig.say("now", about=POD)
    rig.step(after=15.0)
    assert len(rig.events._topics) == 102
    rig.say("now", about=ObjectRef("Pod", "later", "team", "uid-later"))
    assert [about.name for about, _, _ in rig.events._topics] == ["n1", "web", "later"]


def test_unwritten_event_topics_are_not_forgotten() -> None:
    rig = Rig()
    rig.api.refuse = forbidden()
    rig.say()
    rig.step()
    rig.clock.sleep(7200.0)
    rig.say(about=NODE)
    assert len(rig.events._topics) == 2


def test_a_role_with_only_core_events_is_detected_once() -> None:
    rig = Rig()
    rig.api.refuse = forbidden(inside="events.k8s.io")
    rig.say()
    rig.say(about=NODE)
    rig.step()
    assert [path for path, _ in rig.api.sent("create")] == [MODERN, CORE, "/api/v1/namespaces/default/events"]
    body = rig.api.sent("create")[1][1]
    assert (body["message"], body["count"], body["firstTimestamp"]) == ("no room", 1, "2027-01-15T08:00:00Z")
    assert body["source"] == {"component": "aliquot-scheduler", "host": "one"}
    assert body["involvedObject"]["uid"] == "uid-1"
    rig.say()
    rig.step(after=30)
    assert rig.api.sent("patch")[0][1] == {"count": 2, "lastTimestamp": "2027-01-15T08:00:30Z"}


def test_a_role_without_events_is_logged_once_and_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.api.refuse = forbidden()
    with caplog.at_level(logging.WARNING):
        for number in range(20):
            rig.say(about=ObjectRef("Pod", f"p{number}", "team", str(number)))
            rig.step(after=1)
    missing = "create and patch on events, in events.k8s.io or the core group"
    assert logged(caplog) == [("events_forbidden", {"missing_rights": missing})]
    assert len(rig.api.calls) == 2
    rig.api.refuse = lambda verb, path: None
    rig.step(after=600)
    assert rig.events.written == 20


def test_a_403_of_a_terminating_namespace_is_not_a_missing_right() -> None:
    rig = Rig()
    causes = {"causes": [{"reason": "NamespaceTerminating"}]}
    rig.api.refuse = lambda verb, path: (
        ApiError(403, "Forbidden", "is being terminated", causes) if "team" in path else None
    )
    rig.say()
    rig.say(about=NODE)
    rig.step()
    assert [path.split("/")[1] for path, _ in rig.api.sent("create")] == ["apis", "apis"]
    assert rig.events.dropped == 1
    assert rig.events.written == 1


def test_a_lost_answer_makes_no_second_event() -> None:
    rig = Rig()
    lost = iter([Unreachable("cut off")])
    rig.api.refuse = lambda verb, path: next(lost, None)
    rig.say()
    rig.step()
    path, body = rig.api.sent("create")[0]
    rig.api.objects[f"{path}/{body['metadata']['name']}"] = body  # it had happened
    rig.step(after=2)
    assert [path for path, _ in rig.api.sent("create")] == [MODERN, MODERN]
    assert len(rig.api.objects) == 1
    assert rig.events.written == 1


def test_events_are_sent_later_after_an_outage_of_the_api_server() -> None:
    rig = Rig()
    rig.api.refuse = lambda verb, path: Unreachable("refused")
    rig.say("first")
    rig.step()
    rig.step(after=2)
    rig.api.refuse = lambda verb, path: None
    rig.step(after=60)
    assert rig.events.written == 1


def test_an_event_that_the_api_server_refuses_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.api.refuse = lambda verb, path: ApiError(422, "Invalid", "note: too long")
    rig.say()
    rig.step()
    rig.step(after=1000)
    assert len(rig.api.calls) == 1
    assert rig.events.dropped == 1
    ((key, fields),) = logged(caplog)
    assert (key, "note: too long" in fields["why"]) == ("event_refused", True)


def test_events_run_until_cancelled() -> None:
    rig = Rig()

    async def scenario() -> None:
        task = asyncio.create_task(rig.events.run())
        await asyncio.sleep(0)
        rig.say()
        while not rig.api.calls:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert rig.events.written == 1
