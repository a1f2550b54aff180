"""ResourceClaims as they are read from the API server, and read again after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from aiohttp import web

from aliquot.dialects.dra import CLAIMS
from aliquot.dialects.dra.claims import ClaimObject
from aliquot.services.daemon.tasks import run_forever
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.dashboard import resourceclaims
from aliquot.services.scheduler.dashboard.resourceclaims import ResourceClaims
from kit.agents.draclaims import a_request, a_waiting_claim
from kit.clusters.anyserver import client_of
from kit.clusters.claimworld import BY_CLAIMS, Json, World
from kit.clusters.watchobjects import a_cluster, live_node
from kit.running.waiting import until


async def follow(cluster: Cluster, status: int, *, label_later: bool = False) -> tuple[ResourceClaims, list[str]]:
    """Until the claims of an API server that answers with this status are known, or cannot be."""
    asked: list[str] = []
    ended = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        if status != 200:
            return web.json_response({"kind": "Status", "code": status}, status=status)
        if request.query.get("watch"):
            await ended.wait()
        items = [a_waiting_claim("train", a_request(), namespace="ns")]
        return web.json_response({"metadata": {"resourceVersion": "9"}, "items": items})

    async with client_of(answer) as kube:
        claims = ResourceClaims(kube, cluster)
        running = asyncio.create_task(claims.run())
        try:
            if label_later:
                await asyncio.sleep(0.05)
                assert not asked
                cluster.set_node(live_node("n1", labels=BY_CLAIMS))
            async with asyncio.timeout(60):
                await claims.answered.wait()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            ended.set()
    return claims, asked


def test_claims_are_read_from_the_api_server() -> None:
    world = World()
    world.add_pod("p", "train")
    claims, asked = asyncio.run(follow(world.cluster, 200))
    assert [*claims.known.waiting()] == ["uid-p"]
    assert {*asked} == {CLAIMS}


def test_nothing_is_asked_before_a_node_is_labelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resourceclaims, "_LOOK", 0.01)
    _, asked = asyncio.run(follow(a_cluster(live_node("n1")), 200, label_later=True))
    assert {*asked} == {CLAIMS}


def test_without_the_right_to_read_claims_there_are_none(caplog: pytest.LogCaptureFixture) -> None:
    """Rights help only where the API server has claims: before Kubernetes 1.34 it has not."""
    fixes = {403: "helm upgrade with dra.enabled=true", 404: "Kubernetes 1.34 and newer serve it"}
    for status, fix in fixes.items():
        caplog.clear()
        world = World()
        world.add_pod("p", "train")
        claims, _ = asyncio.run(follow(world.cluster, status))
        assert not claims.known.waiting()
        (line,) = (record for record in caplog.records if record.message.startswith("resource_claims_not_"))
        assert fix in line.data["fix"]  # type: ignore[attr-defined]


class ClaimServer:
    """An API server with these claims, which are listed as they are then; a watch gets `event`, once."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.event = asyncio.Queue[Json]()
        self.ended = asyncio.Event()
        self.faults: list[int] = []  # statuses of the next answers
        self.version = 9

    def claim(self, name: str) -> Json:
        made = a_waiting_claim(name, a_request(), namespace="ns")
        made["metadata"]["resourceVersion"] = "5"
        return made

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.faults:
            status = self.faults.pop(0)
            return web.json_response({"kind": "Status", "code": status}, status=status)
        if not request.query.get("watch"):
            items = [self.claim(name) for name in self.names]
            return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})
        answer = web.StreamResponse()
        await answer.prepare(request)
        event = asyncio.ensure_future(self.event.get())
        await asyncio.wait({event, asyncio.ensure_future(self.ended.wait())}, return_when=asyncio.FIRST_COMPLETED)
        if event.done():
            await answer.write(msgspec.json.encode({"type": "MODIFIED", "object": event.result()}) + b"\n")
        event.cancel()
        return answer

    async def play(self, scene: Callable[[ResourceClaims], Awaitable[None]]) -> None:
        """The scene, with claims that are followed as the scheduler follows them."""
        async with client_of(self.answer) as kube:
            claims = ResourceClaims(kube, a_cluster(live_node("n1", 16, labels=BY_CLAIMS)))
            running = asyncio.create_task(run_forever(claims.run))
            try:
                async with asyncio.timeout(30):
                    await scene(claims)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                self.ended.set()


def fail_once(claims: ResourceClaims, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next claim that comes cannot be taken in."""
    put = claims.known.put

    def failing(item: ClaimObject) -> None:
        monkeypatch.setattr(claims.known, "put", put)
        raise RuntimeError("made to fail")

    monkeypatch.setattr(claims.known, "put", failing)


def test_claims_deleted_while_their_follower_starts_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ClaimServer("train", "eval")

    async def scene(claims: ResourceClaims) -> None:
        await claims.answered.wait()
        assert sorted(claims.known._by_key) == ["ns/eval", "ns/train"]
        fail_once(claims, monkeypatch)
        server.names, server.version = ["train"], 12
        changed = server.claim("train")
        changed["metadata"]["resourceVersion"] = "10"
        server.event.put_nowait(changed)
        await until(lambda: sorted(claims.known._by_key) == ["ns/train"])

    asyncio.run(server.play(scene))


def test_claims_are_read_again_where_the_first_list_could_not_be_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(claims: ResourceClaims) -> None:
        fail_once(claims, monkeypatch)
        await until(lambda: sorted(claims.known._by_key) == ["ns/train"])

    asyncio.run(ClaimServer("train").play(scene))


def test_api_server_that_is_overloaded_is_asked_again_at_once() -> None:
    server = ClaimServer("train")
    server.faults = [503, 429, 500]

    async def scene(claims: ResourceClaims) -> None:
        await claims.answered.wait()
        assert sorted(claims.known._by_key) == ["ns/train"], "the first list was not refused"

    asyncio.run(server.play(scene))
