"""The scheduler's HTTP endpoints: every verb under every prefix, 200 for any input, and only the leader binds."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import aliquot
from aliquot.adapters.kubernetes.kube import Unreachable
from aliquot.dialects.wire.extender import Binding
from aliquot.services.daemon.calls import Calls
from aliquot.services.daemon.http import listen, make_runner
from aliquot.services.scheduler.binder import Binder, Refused
from aliquot.services.scheduler.ports import http as module
from aliquot.services.scheduler.ports.http import Extender
from aliquot.services.scheduler.ports.verbserver import VerbServer
from aliquot.services.scheduler.verbs import COARSE, FINE
from kit.clusters.podgroups import add_members, set_group
from kit.clusters.watchobjects import a_cluster, live_node, live_pod, pod_json
from kit.values.manifests import MEM, Json

PREFIXES = ("/aliquot", "/gpushare-scheduler", "/scheduler")
BINDING = {"PodName": "p", "PodNamespace": "ns", "PodUID": "uid-p", "Node": "n1"}


class Rig:
    """An extender over a cluster of two nodes, with a binder that only notes."""

    def __init__(self) -> None:
        self.cluster = a_cluster(live_node("n1"), live_node("n2", 2))
        self.synced = self.leading = True
        self.leader: str | None = None
        self.bound: list[Binding] = []
        self.outcome: Exception | None = None
        self.now = 100.0
        self.calls = Calls(lambda: "now")
        self.extender = Extender(
            self.cluster,
            cast(Binder, self),
            self.calls,
            synced=lambda: self.synced,
            leading=lambda: self.leading,
            leader_address=lambda: self.leader,
            clock=lambda: self.now,
        )
        self.client: aiohttp.ClientSession

    async def bind(self, binding: Binding) -> None:
        self.bound.append(binding)
        if self.outcome is not None:
            raise self.outcome

    async def post(self, path: str, body: object) -> Any:
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        async with self.client.post(path, data=data) as answer:
            assert (answer.status, answer.content_type) == (200, "application/json")
            return await answer.json()

    async def get(self, path: str) -> tuple[int, str]:
        async with self.client.get(path) as answer:
            return answer.status, await answer.text()


def serve(scene: Callable[[Rig], Awaitable[None]]) -> Rig:
    rig = Rig()

    async def run() -> None:
        limits = rig.extender.limits
        runner = make_runner(rig.extender.app(), limits)
        await runner.setup()
        assert runner.server is not None
        listener = socket.create_server(("127.0.0.1", 0))
        verbs = VerbServer(rig.extender.answers(), runner.server, limits, largest=module.LARGEST_BODY)
        accepting = listen(runner, listener, limits, server=verbs)
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{listener.getsockname()[1]}") as rig.client:
                await scene(rig)
        finally:
            accepting.close()
            await verbs.close()
            await runner.cleanup()

    asyncio.run(run())
    return rig


def question(**more: Any) -> Json:
    return {"Pod": pod_json(), "Nodes": None, "NodeNames": ["n1", "n2"], **more}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_verbs_are_served_under_prefix(prefix: str) -> None:
    async def scene(rig: Rig) -> None:
        assert (await rig.post(f"{prefix}/filter", question()))["NodeNames"] == ["n1"]
        for path, top in (("prioritize", COARSE), ("priorities", COARSE), ("rank", FINE)):
            assert (await rig.post(f"{prefix}/{path}", question()))[0] == {"Host": "n1", "Score": top}
        assert await rig.post(f"{prefix}/bind", BINDING) == {"Error": ""}
        victims = {"n1": {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}}
        answer = await rig.post(f"{prefix}/preempt", {"Pod": pod_json(), "NodeNameToMetaVictims": victims})
        assert answer == {"NodeNameToMetaVictims": victims}

    rig = serve(scene)
    assert rig.bound == [Binding(**BINDING)]
    assert {verb: calls.count for verb, calls in rig.calls.status().items()} == {
        "filter": 1,
        "prioritize": 3,
        "bind": 1,
        "preempt": 1,
        "review": 0,
    }


BROKEN = [b"", b"{", b"\xff\xff", b"[]", b"null", b'{"Pod":1}', b'{"Pod":{"metadata":{}}}', b"[" * 50_000]


@pytest.mark.parametrize("body", BROKEN, ids=lambda body: body[:12].decode(errors="replace"))
def test_bad_body_gets_200_with_error(body: bytes) -> None:
    async def scene(rig: Rig) -> None:
        assert (await rig.post("/aliquot/filter", body))["Error"].startswith("aliquot: ")
        assert (await rig.post("/aliquot/bind", body))["Error"].startswith("aliquot: ")
        assert await rig.post("/aliquot/prioritize", body) == []
        assert isinstance(await rig.post("/aliquot/preempt", body), dict)

    rig = serve(scene)
    assert rig.bound == []
    assert rig.calls.outcomes["filter", "error"] == 1


def test_oversized_body_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST_BODY", 1 << 20)

    async def scene(rig: Rig) -> None:
        answer = await rig.post("/aliquot/filter", b" " * ((1 << 20) + 1))
        assert answer["Error"] == "aliquot: the body is larger than 1 MiB"

    serve(scene)


def test_verbs_and_readyz_refuse_before_sync() -> None:
    async def scene(rig: Rig) -> None:
        rig.synced = False
        assert "has not read the cluster yet" in (await rig.post("/aliquot/filter", question()))["Error"]
        assert "has not read the cluster yet" in (await rig.post("/aliquot/bind", BINDING))["Error"]
        assert await rig.get("/readyz") == (503, "the cluster is not read yet\n")
        assert await rig.get("/livez") == (200, "ok\n")
        rig.synced = True
        assert await rig.get("/readyz") == (200, "ok\n")
        rig.extender.stopping = True
        assert (await rig.get("/readyz"))[0] == 503
        assert (await rig.get("/livez"))[0] == 200
        assert "is shutting down" in (await rig.post("/aliquot/bind", BINDING))["Error"]

    assert serve(scene).bound == []


@pytest.mark.parametrize(
    ("outcome", "said", "counted"),
    [
        (Refused("it no longer fits on n1"), "aliquot: it no longer fits on n1", "refused"),
        (Unreachable("no answer in time"), "aliquot: no answer in time", "error"),
        (RuntimeError("a bug"), "aliquot: internal error; see the log of aliquot scheduler", "error"),
    ],
    ids=["refused", "no API server", "a bug"],
)
def test_failed_bind_reports_reason(outcome: Exception, said: str, counted: str) -> None:
    async def scene(rig: Rig) -> None:
        rig.outcome = outcome
        assert await rig.post("/aliquot/bind", BINDING) == {"Error": said}
        assert rig.calls.outcomes["bind", counted] == 1

    serve(scene)


def test_prioritize_holds_cards_on_leader_only() -> None:
    async def scene(rig: Rig) -> None:
        await rig.post("/aliquot/prioritize", question())
        assert set(rig.cluster.held) == {"uid-p"}
        rig.leading = False
        await rig.post("/aliquot/filter", question())
        assert not rig.cluster.held
        await rig.post("/aliquot/prioritize", question())
        assert not rig.cluster.held

    serve(scene)


def test_filter_with_one_candidate_holds_cards() -> None:
    async def scene(rig: Rig) -> None:
        await rig.post("/aliquot/filter", question())
        assert set(rig.cluster.held) == {"uid-p"}

    serve(scene)


# --- who does not lead -----------------------------------------------------------------------------------------------


def test_standby_answers_filter_and_forwards_bind() -> None:
    async def scene(standby: Rig) -> None:
        leader = Rig()
        async with TestServer(leader.extender.app()) as server:
            standby.leading, standby.leader = False, f"{server.host}:{server.port}"
            assert (await standby.post("/scheduler/filter", question()))["NodeNames"] == ["n1"]
            assert await standby.post("/scheduler/bind", BINDING) == {"Error": ""}
            assert leader.bound == [Binding(**BINDING)]
            leader.outcome = Refused("no room")
            assert await standby.post("/scheduler/bind", BINDING) == {"Error": "aliquot: no room"}
            leader.leading = False
            leader.leader = standby.leader  # each takes the other for the leader: handed on once, not for ever
            assert "is not the leader" in (await standby.post("/scheduler/bind", BINDING))["Error"]
        assert "does not answer" in (await standby.post("/scheduler/bind", BINDING))["Error"]

    assert serve(scene).bound == []


def test_readyz_waits_for_webhook_but_verbs_answer() -> None:
    async def scene(rig: Rig) -> None:
        rig.extender.awaited = "the webhook does not listen yet"
        assert await rig.get("/readyz") == (503, "the webhook does not listen yet\n")
        assert not (await rig.post("/aliquot/filter", question()))["Error"]
        rig.extender.awaited = ""
        assert await rig.get("/readyz") == (200, "ok\n")

    serve(scene)


def test_standby_forwards_filter_of_members_of_a_group_to_the_leader_who_holds_their_places() -> None:
    async def scene(standby: Rig) -> None:
        leader = Rig()
        for rig in (leader, standby):
            set_group(rig.cluster, needed=2)
            pods = add_members(rig.cluster, "a", "b", limits={MEM: "2"})
        async with TestServer(leader.extender.app()) as server:
            standby.leading, standby.leader = False, f"{server.host}:{server.port}"
            answer = await standby.post("/scheduler/filter", {"Pod": pods[0], "NodeNames": ["n1", "n2"]})
            assert answer["NodeNames"] == [leader.cluster.held["uid-a"].grant.node]
            assert (sorted(leader.cluster.held), standby.cluster.held) == (["uid-a", "uid-b"], {})
            leader.leading, leader.leader = False, standby.leader  # handed on once, not for ever
            answer = await standby.post("/scheduler/filter", {"Pod": pods[0], "NodeNames": ["n1", "n2"]})
            assert not answer.get("Error")

    serve(scene)


def test_forwarded_binds_that_wait_for_each_other_never_wait_for_a_connection() -> None:
    async def scene(standby: Rig) -> None:
        session = standby.extender._session
        assert session is not None
        assert session.connector is not None
        assert session.connector.limit == 0  # none; played for real this takes 100 connections and a quiet machine

    serve(scene)


def test_standby_rejects_foreign_answer_at_leader_address() -> None:
    async def scene(rig: Rig) -> None:
        async with TestServer(web.Application()) as somebody:
            rig.leading, rig.leader = False, f"{somebody.host}:{somebody.port}"
            assert "answered HTTP 404" in (await rig.post("/aliquot/bind", BINDING))["Error"]

    serve(scene)


def test_standby_without_keys_does_not_call_a_leader_with_tls() -> None:
    async def scene(rig: Rig) -> None:
        rig.leading, rig.leader = False, "https://127.0.0.1:9"
        assert "give this instance --tls-port too" in (await rig.post("/aliquot/bind", BINDING))["Error"]

    serve(scene)


def test_standby_without_known_leader_refuses_bind() -> None:
    async def scene(rig: Rig) -> None:
        rig.leading = False
        assert "does not know the leader" in (await rig.post("/aliquot/bind", BINDING))["Error"]

    serve(scene)


# --- what people ask -------------------------------------------------------------------------------------------------


def test_inspect_status_version_and_metrics_are_served() -> None:
    async def scene(rig: Rig) -> None:
        rig.cluster.set_pod(live_pod("a", {MEM: "3"}, on="n1", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"}))
        _, text = await rig.get("/gpushare-scheduler/inspect")
        assert [node["usedGPU"] for node in json.loads(text)["nodes"]] == [3, 0]
        code, text = await rig.get("/gpushare-scheduler/inspect/n1")
        assert (code, [node["name"] for node in json.loads(text)["nodes"]]) == (200, ["n1"])
        code, text = await rig.get("/gpushare-scheduler/inspect/none")
        assert (code, json.loads(text)) == (404, {"error": "no node with GPUs is named none"})
        for path in ("/scheduler/status", "/aliquot/status"):
            status = json.loads((await rig.get(path))[1])
            assert status["leading"] is True
            assert status["calls"]["filter"] == {"count": 0, "last": None}
        assert json.loads((await rig.get("/version"))[1]) == {"version": aliquot.__version__}
        assert (await rig.get("/metrics"))[0] == 404, "it has a port of its own"

    serve(scene)
