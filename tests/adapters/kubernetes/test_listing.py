"""Pages that may come as protobuf: the caller gets JSON, whatever form the API server has or sends."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from aliquot.adapters.kubernetes import listing, protobuf
from aliquot.adapters.kubernetes.kube import ApiError, Kube
from aliquot.adapters.kubernetes.listing import request_pages
from kit.clusters.gowriting import blank, page

JSON, EITHER = "application/json", "application/vnd.kubernetes.protobuf, application/json"
LAST = b'{"metadata":{"resourceVersion":"7"},"items":[]}'


def a_page(token: str = "") -> bytes:
    pods = [blank("Pod", metadata=blank("ObjectMeta", name=f"before-{token}"))]
    return page("PodList", blank("PodList", metadata=blank("ListMeta", **{"continue": token}), items=pods))


class Answering:
    """Answers in order; an exception is raised."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, str]] = []  # the token, the forms

    async def get(self, path: str, *, params: dict[str, str], accept: str = JSON, **_: Any) -> bytes:
        self.asked.append((params.get("continue", ""), accept))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def taken(server: Answering, *, form: bool = True) -> list[Any]:
    """All pages, read as JSON."""

    async def scene() -> list[Any]:
        pages, found = request_pages(cast(Kube, server), "/api/v1/pods", limit=5, protobuf=form), []
        while (raw := await pages.take()) is not None:
            found.append(json.loads(raw))
        return found

    return asyncio.run(asyncio.wait_for(scene(), 20))


def names(pages: list[Any]) -> list[list[str]]:
    return [[item["metadata"]["name"] for item in found["items"]] for found in pages]


def test_pages_come_as_protobuf_and_are_taken_as_json() -> None:
    server = Answering(a_page("a"), a_page("b"), a_page())
    assert names(taken(server)) == [["before-a"], ["before-b"], ["before-"]]
    assert server.asked == [("", EITHER), ("a", EITHER), ("b", EITHER)]


def test_pages_are_converted_beside_what_the_loop_does(monkeypatch: pytest.MonkeyPatch) -> None:
    where: list[bool] = []

    def as_json(raw: bytes) -> bytes:
        where.append(threading.current_thread() is threading.main_thread())
        return protobuf.as_json(raw)

    monkeypatch.setattr(listing, "as_json", as_json)
    assert names(taken(Answering(a_page("a"), a_page()))) == [["before-a"], ["before-"]]
    assert where == [False, False]


def test_a_server_that_answers_json_is_understood() -> None:
    server = Answering(LAST)
    assert taken(server) == [json.loads(LAST)]
    assert server.asked == [("", EITHER)]


def test_a_server_that_has_no_such_form_is_asked_for_json(caplog: pytest.LogCaptureFixture) -> None:
    server = Answering(ApiError(406, "NotAcceptable", "only JSON"), LAST)
    assert taken(server) == [json.loads(LAST)]
    assert server.asked == [("", EITHER), ("", JSON)]
    assert [(one.message, one.data["why"]) for one in cast(list[Any], caplog.records)] == [
        ("list_not_protobuf", "406 NotAcceptable: only JSON")
    ]


def test_a_page_that_cannot_be_read_is_asked_for_again_as_json_and_so_are_those_after_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    again = b'{"metadata":{"continue":"b"},"items":[{"metadata":{"name":"again"}}]}'
    server = Answering(a_page("a"), a_page("b")[:-20], again, LAST)
    assert names(taken(server)) == [["before-a"], ["again"], []]
    assert server.asked == [("", EITHER), ("a", EITHER), ("a", JSON), ("b", JSON)]
    (record,) = cast(list[Any], caplog.records)
    assert (record.message, record.data["path"]) == ("list_not_protobuf", "/api/v1/pods")
    assert record.data["why"].startswith("byte ")


def test_another_refusal_is_passed_on() -> None:
    server = Answering(ApiError(410, "Expired", "too old"))
    with pytest.raises(ApiError, match="410"):
        taken(server)
    assert server.asked == [("", EITHER)]


def test_what_may_not_be_listed_is_refused_in_words() -> None:
    server = Answering(ApiError(403, "Forbidden", "pods is forbidden"))
    with pytest.raises(ApiError, match="pods is forbidden"):
        taken(server)
    assert server.asked == [("", EITHER)]


def test_a_python_without_ctypes_is_served_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    server = Answering(a_page(), LAST)
    assert taken(server) == [json.loads(LAST)]
    assert server.asked == [("", EITHER), ("", JSON)]


def test_json_alone_is_asked_for_unless_protobuf_is_wanted() -> None:
    server = Answering(LAST)
    taken(server, form=False)
    assert server.asked == [("", JSON)]


def test_json_alone_is_asked_for_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(protobuf, "_LIBRARY", tmp_path / "liblists.so")
    server = Answering(LAST)
    taken(server)
    assert server.asked == [("", JSON)]
