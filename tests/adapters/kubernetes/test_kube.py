"""The Kubernetes client: a refusal is not the same as no answer, and it never repeats a write by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aliquot.adapters.kubernetes.credentials import Credential, ExecPlugin
from aliquot.adapters.kubernetes.kube import ApiError, Kube, Server, Unreachable
from kit.clusters.apiserver import PATH, ApiServer, half_an_answer, hang_up, no_answer, status, text
from kit.running.waiting import until
from kit.values.deepjson import MANAGED, with_deep_fields

POD = "/api/v1/namespaces/ns/pods/p"
Scene = Callable[[ApiServer, Kube], Awaitable[None]]


def play(scene: Scene, credential: Credential | None = None) -> None:
    async def run() -> None:
        async with ApiServer() as server, Kube(Server(server.url, credential=credential or Credential())) as kube:
            await scene(server, kube)

    asyncio.run(asyncio.wait_for(run(), 20.0))


VERBS: dict[str, tuple[Callable[[Kube], Awaitable[Any]], str, str | None]] = {
    "get": (lambda kube: kube.get(POD), "GET", None),
    "create": (lambda kube: kube.create(POD, {"a": 1}), "POST", "application/json"),
    "replace": (lambda kube: kube.replace(POD, {"a": 1}), "PUT", "application/json"),
    "merge": (lambda kube: kube.patch(POD, {"a": 1}), "PATCH", "application/merge-patch+json"),
    "json": (lambda kube: kube.patch(POD, {"a": 1}, form="json"), "PATCH", "application/json-patch+json"),
    "strategic": (
        lambda kube: kube.patch(POD, {"a": 1}, form="strategic"),
        "PATCH",
        "application/strategic-merge-patch+json",
    ),
    "apply": (lambda kube: kube.patch(POD, {"a": 1}, form="apply"), "PATCH", "application/apply-patch+yaml"),
    "delete": (lambda kube: kube.delete(POD), "DELETE", None),
}


@pytest.mark.parametrize(("ask", "method", "form"), VERBS.values(), ids=VERBS)
def test_each_verb_is_the_method_and_the_form_that_the_api_wants(
    ask: Callable[[Kube], Awaitable[Any]], method: str, form: str | None
) -> None:
    async def scene(server: ApiServer, kube: Kube) -> None:
        answer = await ask(kube)
        assert (answer["method"], answer["path"]) == (method, POD)
        if form is not None:
            assert server.calls[0].headers["Content-Type"] == form
            assert json.loads(server.bodies[0]) == {"a": 1}

    play(scene)


def test_parameters_and_the_agents_name_are_sent() -> None:
    async def scene(server: ApiServer, kube: Kube) -> None:
        await kube.get(POD, params={"labelSelector": "a in (b,c)"})
        assert server.calls[0].query["labelSelector"] == "a in (b,c)"
        assert server.calls[0].headers["User-Agent"] == "aliquot"

    play(scene)


@pytest.mark.parametrize("connect", [None, 5.0], ids=["aiohttp", "directly"])
def test_json_is_asked_for(connect: float | None) -> None:
    async def scene(server: ApiServer, kube: Kube) -> None:
        await kube.get(POD, connect=connect)
        await kube.create(POD, {}, connect=connect)
        forms = [call.headers.getall("Accept") for call in server.calls]
        assert forms == [["application/json"], ["application/json"]]

    play(scene)


class Named(msgspec.Struct):
    method: str


def test_an_answer_is_decoded_into_what_is_wanted() -> None:
    async def scene(server: ApiServer, kube: Kube) -> None:
        assert await kube.get(POD, into=Named) == Named("GET")
        assert json.loads(await kube.get(POD, into=bytes))["method"] == "GET"

    play(scene)


def test_apierror_has_status_reason_and_message() -> None:
    async def scene(server: ApiServer, kube: Kube) -> None:
        server.faults.append(status(409, "Conflict", "the object has been modified"))
        with pytest.raises(ApiError) as refused:
            await kube.replace(POD, {})
        error = refused.value
        assert (error.status, error.reason, error.message) == (409, "Conflict", "the object has been modified")
        assert str(error) == "409 Conflict: the object has been modified"

    play(scene)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("<html>bad gateway</html>", "<html>bad gateway</html>"),
        ("", "HTTP 502"),
        ('{"reason":null}', '{"reason":null}'),
    ],
)
def test_apierror_of_a_proxys_answer(body: str, message: str) -> None:
    async def scene(server: ApiServer, kube: Kube) -> None:
        server.faults.append(text(502, body))
        with pytest.raises(ApiError) as refused:
            await kube.get(POD)
        assert (refused.value.status, refused.value.message) == (502, message)

    play(scene)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (hang_up, "Server disconnected"),
        (half_an_answer, "POST"),
        (no_answer, "no answer in time"),
        (text(200, "{"), "an unreadable answer"),
        (text(200, "[]"), "an unreadable answer"),
        (text(200, '{"method":5}'), "an unreadable answer"),
    ],
    ids=["hangs up", "half an answer", "no answer", "broken", "a list", "another form"],
)
def test_unreachable_on_no_answer_or_half_of_one(fault: Any, why: str) -> None:
    async def scene(server: ApiServer, kube: Kube) -> None:
        server.faults.append(fault)
        with pytest.raises(Unreachable, match=why) as silent:
            await kube.create(POD, {}, into=Named, timeout=0.3)
        assert f"POST {POD}" in str(silent.value)
        assert len(server.calls) == 1, "a write is not sent twice by itself"

    play(scene)


def test_a_server_that_is_not_there_is_unreachable() -> None:
    async def scene() -> None:
        async with Kube(Server("http://127.0.0.1:9")) as kube:
            with pytest.raises(Unreachable, match="GET /x"):
                await kube.get("/x")

    asyncio.run(scene())


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_a_token_that_is_not_accepted_is_read_anew_once_and_the_call_made_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")

    async def scene(server: ApiServer, kube: Kube) -> None:
        server.tokens = {"old"}
        await kube.get(POD)
        server.tokens = {"new"}
        file.write_text("new\n")
        await kube.create(POD, {"a": 1})
        assert [call.headers["Authorization"] for call in server.calls] == ["Bearer old", "Bearer old", "Bearer new"]
        assert json.loads(server.bodies[-1]) == {"a": 1}
        server.tokens = {"another"}
        with pytest.raises(ApiError) as refused:
            await kube.get(POD)
        assert refused.value.status == 401
        assert len(server.calls) == 5

    play(scene, Credential(file=file))


def test_a_login_program_runs_in_a_thread_and_once_for_all_requests(tmp_path: Path) -> None:
    program = tmp_path / "login"
    program.write_text(
        f"#!/bin/sh\nsleep 0.3; echo x >> {tmp_path}/asked; n=$(wc -l < {tmp_path}/asked)\n"
        """echo "{\\"status\\":{\\"token\\":\\"t$((n))\\"}}"\n"""
    )
    program.chmod(0o755)

    async def scene(server: ApiServer, kube: Kube) -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.01)
                turns += 1

        beside = asyncio.create_task(others())
        server.tokens = {"t1"}
        await asyncio.gather(*(kube.get(POD) for _ in range(5)))
        server.tokens = {"t2"}
        await asyncio.gather(*(kube.get(POD) for _ in range(5)))
        beside.cancel()
        assert (tmp_path / "asked").read_text() == "x\nx\n"
        assert turns > 20

    play(scene, Credential(plugin=ExecPlugin((str(program),))))


def test_without_a_token_a_401_is_final() -> None:
    async def scene(server: ApiServer, kube: Kube) -> None:
        server.tokens = {"x"}
        with pytest.raises(ApiError):
            await kube.get(POD)
        assert len(server.calls) == 1

    play(scene)


def test_a_token_that_cannot_be_read_is_unreachable(tmp_path: Path) -> None:
    async def scene(server: ApiServer, kube: Kube) -> None:
        with pytest.raises(Unreachable, match=r"token: No such file"):
            await kube.get(POD)
        assert server.calls == []

    play(scene, Credential(file=tmp_path / "token"))


# --- watch -----------------------------------------------------------------------------------------------------------


async def _lines(kube: Kube) -> list[bytes]:
    return [line async for lines in kube.watch(PATH, {"resourceVersion": "100"}) for line in lines]


def test_a_watch_gives_lines_until_the_server_ends_it() -> None:
    async def scene(server: ApiServer, kube: Kube) -> None:
        reading = asyncio.create_task(_lines(kube))
        await until(lambda: server.watching)
        server.say(b"one\ntw")
        server.say(b"o\n\nthree")
        server.end_watches()
        assert await reading == [b"one", b"two", b""]
        assert server.calls[0].query["watch"] == "1"

    play(scene)


def test_a_watch_that_is_refused_or_cut_says_which() -> None:
    async def scene(server: ApiServer, kube: Kube) -> None:
        server.watch_faults.append(status(410, "Expired", "too old"))
        with pytest.raises(ApiError) as refused:
            await _lines(kube)
        assert refused.value.status == 410
        reading = asyncio.create_task(_lines(kube))
        await until(lambda: server.watching)
        server.cut()
        with pytest.raises(Unreachable):
            await reading

    play(scene)


def test_a_watch_that_falls_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aliquot.adapters.kubernetes.kube._SILENCE", 0.1)

    async def scene(server: ApiServer, kube: Kube) -> None:
        with pytest.raises(Unreachable):
            await _lines(kube)

    play(scene)


def test_answer_that_is_nested_very_deep_is_read() -> None:
    async def scene(server: ApiServer, kube: Kube) -> None:
        server.faults.append(
            text(200, with_deep_fields({"metadata": {"name": "p", "managedFields": MANAGED}}).decode())
        )
        assert (await kube.get(POD))["metadata"]["name"] == "p"
        server.faults.append(text(409, with_deep_fields({"reason": "Conflict", "details": "DEEP"}).decode()))
        with pytest.raises(ApiError, match="409 Conflict"):
            await kube.get(POD)
        server.faults.append(text(200, "[" * 100_000))
        with pytest.raises(Unreachable, match="an unreadable answer"):
            await kube.get(POD)

    play(scene)
