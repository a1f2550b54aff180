"""The Pods of one node: from the watch, or read in doubt. The end of a Pod is reported once, whatever its name was."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web

from aliquot.adapters.kubernetes.kube import ApiError, Unreachable
from aliquot.adapters.kubernetes.reflector import Reflector
from aliquot.dialects.wire.objects import PodObject
from aliquot.services.agent.podcache import PodCache
from kit.clusters.apiserver import PATH, ApiServer, hang_up, status
from kit.clusters.fakeapi import Api
from kit.running.waiting import until

Scene = Callable[[ApiServer, PodCache, list[str]], Awaitable[None]]


def a_pod(name: str, uid: str, phase: str = "Running") -> PodObject:
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": "ml", "uid": uid}, "status": {"phase": phase}}, PodObject
    )


class TestWatch:
    def setup_method(self) -> None:
        self.said: list[str] = []
        self.pod_cache = PodCache(
            Api().kube,
            "n1",
            on_ended=lambda uid: self.said.append(f"{uid} ended"),
            on_running=lambda uid: self.said.append(f"{uid} runs"),
        )

    def test_pod_is_found_by_name_and_uid(self) -> None:
        self.pod_cache.changed(pod := a_pod("web-0", "u1"))
        assert self.pod_cache.named("ml", "web-0") is self.pod_cache.by_uid("u1") is pod
        assert list(self.pod_cache) == [pod]

    def test_unknown_pod_is_none(self) -> None:
        assert self.pod_cache.named("ml", "web-0") is None
        assert self.pod_cache.by_uid("u1") is None

    def test_deleted_pod_has_ended(self) -> None:
        self.pod_cache.changed(a_pod("web-0", "u1"))
        self.pod_cache.gone("ml/web-0")
        assert self.said == ["u1 runs", "u1 ended"]
        assert self.pod_cache.by_uid("u1") is None

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    def test_finished_pod_has_ended_and_stays_cached(self, phase: str) -> None:
        self.pod_cache.changed(a_pod("job", "u1", phase))
        assert self.said == ["u1 ended"]
        assert self.pod_cache.by_uid("u1") is not None

    def test_replaced_pod_has_ended_and_the_new_one_runs(self) -> None:
        self.pod_cache.changed(a_pod("web-0", "u1"))
        self.pod_cache.changed(new := a_pod("web-0", "u2"))
        assert self.said == ["u1 runs", "u1 ended", "u2 runs"]
        assert self.pod_cache.named("ml", "web-0") is new
        assert self.pod_cache.by_uid("u1") is None

    def test_deletion_of_an_unknown_pod_is_ignored(self) -> None:
        self.pod_cache.gone("ml/web-0")
        assert self.said == []


# --- with a real reflector and a real connection ----------------------------------------------------------------------


def pod_event(name: str, uid: str, version: int, node: str = "n1") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ml", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"nodeName": node}}


def put(server: ApiServer, name: str, uid: str, *, quietly: bool = False) -> None:
    server.put(f"ml/{name}", quietly=quietly, **pod_event(name, uid, server.version + 1))


def answer(pod: dict[str, Any]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def said(request: web.Request) -> web.StreamResponse:
        assert request.path == f"/api/v1/namespaces/ml/pods/{pod['metadata']['name']}"
        return web.json_response(pod)

    return said


def play(scene: Scene) -> None:
    """A pods that follows a real API server."""

    async def played() -> None:
        said: list[str] = []
        async with ApiServer() as server, server.kube() as kube:
            put(server, "web-0", "u1")
            pods = PodCache(
                kube, "n1", on_ended=lambda uid: said.append(uid), on_running=lambda uid: None, patience=0.05
            )
            pods.reflector = Reflector(kube, PATH, PodObject, pods)
            task = asyncio.create_task(pods.reflector.run())
            await until(lambda: server.watching)
            await scene(server, pods, said)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(played(), 30))


class TestFetch:
    def test_fetched_pod_is_cached(self) -> None:
        async def scene(server: ApiServer, pods: PodCache, said: list[str]) -> None:
            server.faults.append(answer(pod_event("web-1", "u2", server.version + 1)))
            assert (await pods.fetch("ml", "web-1")).metadata.uid == "u2"
            assert pods.by_uid("u2") is not None

        play(scene)

    def test_fetched_pod_of_another_node_is_not_cached(self) -> None:
        """The watch, which is of this node, would never tell of its end."""

        async def scene(server: ApiServer, pods: PodCache, said: list[str]) -> None:
            server.faults.append(answer(pod_event("web-1", "u2", server.version + 1, node="n2")))
            assert (await pods.fetch("ml", "web-1")).metadata.uid == "u2"
            assert pods.by_uid("u2") is None

        play(scene)

    def test_fetched_newer_pod_ends_the_former_pod(self) -> None:
        async def scene(server: ApiServer, pods: PodCache, said: list[str]) -> None:
            server.faults.append(answer(pod_event("web-0", "u2", server.version + 1)))
            await pods.fetch("ml", "web-0")
            assert said == ["u1"]

        play(scene)

    def test_fetched_older_pod_is_not_cached_again(self) -> None:
        async def scene(server: ApiServer, pods: PodCache, said: list[str]) -> None:
            old = dict(server.items["ml/web-0"])
            old = {"metadata": dict(old["metadata"])}
            server.remove("ml/web-0")
            await until(lambda: said == ["u1"])
            server.faults.append(answer(old))
            assert (await pods.fetch("ml", "web-0")).metadata.uid == "u1"
            assert pods.by_uid("u1") is None

        play(scene)

    def test_fetch_raises_errors(self) -> None:
        async def scene(server: ApiServer, pods: PodCache, said: list[str]) -> None:
            server.faults.append(status(404, "NotFound", 'pods "x" not found'))
            with pytest.raises(ApiError, match="not found"):
                await pods.fetch("ml", "x")
            server.faults.append(hang_up)
            server.faults.append(hang_up)
            with pytest.raises(Unreachable):
                await pods.fetch("ml", "x")

        play(scene)


class TestRefresh:
    def test_refresh_lists_what_the_watch_missed(self) -> None:
        async def scene(server: ApiServer, pods: PodCache, said: list[str]) -> None:
            server.remove("ml/web-0", quietly=True)
            put(server, "web-1", "u2", quietly=True)
            pods._patience = 10.0
            await pods.refresh()
            assert said == ["u1"]
            assert pods.by_uid("u2") is not None

        play(scene)

    def test_refresh_gives_up_on_a_slow_api_server(self) -> None:
        async def scene(server: ApiServer, pods: PodCache, said: list[str]) -> None:
            server.faults.append(server.late(asyncio.Event()))  # for ever
            await pods.refresh()
            assert pods.by_uid("u1") is not None
            server.faults.clear()

        play(scene)

    @pytest.mark.parametrize("steps", range(4))
    def test_refresh_ends_when_cancelled_as_the_answer_comes(self, steps: int) -> None:
        async def act() -> None:
            answered = asyncio.Event()
            pods = PodCache(Api().kube, "n1", on_ended=lambda uid: None, on_running=lambda uid: None)
            pods.reflector = cast("Reflector[PodObject]", SimpleNamespace(relist=answered.wait))
            asking = asyncio.create_task(pods.refresh())
            await asyncio.sleep(0.01)
            answered.set()
            for _ in range(steps):
                await asyncio.sleep(0)
            was_there = asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled() is was_there

        asyncio.run(act())

    def test_refresh_without_reflector_does_nothing(self) -> None:
        asyncio.run(PodCache(Api().kube, "n1", on_ended=lambda uid: None, on_running=lambda uid: None).refresh())
