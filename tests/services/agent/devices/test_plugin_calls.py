"""Calls of device plugins: Allocate and PreStartContainer, how they are counted, and who may connect."""

from __future__ import annotations

import asyncio
import os
import socket
from itertools import count
from typing import Any

import grpc
import pytest
from grpc import aio

from aliquot.model.containers.edits import Mount
from aliquot.services.agent.devices.plugins import (
    ALLOCATE,
    PRESTART,
    Allocation,
    AllocationHandler,
    Refused,
    timed,
)
from aliquot.services.daemon.calls import Calls
from kit.agents.deviceplugins import CORE, FakeHandler, offered, running, some
from kit.agents.kubelet import Client, FakeKubelet, a_folder, a_kubelet, play
from kit.running.waiting import until


def test_allocate_answers_each_container() -> None:
    async def scene() -> None:
        handler = FakeHandler()
        handler.answer = Allocation(
            cdi=("aliquot.dev/qgpu-core=3f2a",),
            env={"A": "1"},
            mounts=(Mount("/h", "/c"), Mount("/h/page", "/c/page", writable=True)),
        )
        async with a_kubelet() as kubelet, running(kubelet.folder, {CORE: some(4)}, handler):
            await offered(kubelet, CORE)
            first, second = await kubelet.allocate(CORE, ["x", "y"], ["z"])
            assert handler.allocated == [(CORE, frozenset({"x", "y"})), (CORE, frozenset({"z"}))]
            assert first == second
            assert [device.name for device in first.cdi_devices] == ["aliquot.dev/qgpu-core=3f2a"]
            assert dict(first.envs) == {"A": "1"}
            mounted = [(mount.host_path, mount.container_path, mount.read_only) for mount in first.mounts]
            assert mounted == [("/h", "/c", True), ("/h/page", "/c/page", False)]

    play(scene())


def test_prestart_calls_run_concurrently() -> None:
    async def scene() -> None:
        handler = FakeHandler()
        handler.gate = asyncio.Event()
        async with a_kubelet() as kubelet, running(kubelet.folder, {CORE: some(4)}, handler):
            await offered(kubelet, CORE)
            calls = asyncio.gather(*(kubelet.prepare(CORE, [str(j)]) for j in range(8)))
            await until(lambda: handler.inside == 8)
            handler.gate.set()
            await calls

    play(scene())


@pytest.mark.parametrize("call", ["allocate", "prepare"])
def test_refusal_text_reaches_the_kubelet_unchanged(call: str) -> None:
    async def scene() -> None:
        handler = FakeHandler()
        handler.failure = Refused("ns/pod was scheduled past us: set schedulerName")
        async with a_kubelet() as kubelet, running(kubelet.folder, {CORE: some(1)}, handler):
            await offered(kubelet, CORE)
            with pytest.raises(aio.AioRpcError) as refused:
                await getattr(kubelet, call)(CORE, ["x"])
            assert refused.value.details() == "ns/pod was scheduled past us: set schedulerName"
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    play(scene())


@pytest.mark.parametrize("call", ["allocate", "prepare"])
def test_internal_error_is_reported_and_the_next_call_succeeds(call: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        handler = FakeHandler()
        handler.failure = OSError("no space left on device")
        async with a_kubelet() as kubelet, running(kubelet.folder, {CORE: some(1)}, handler):
            await offered(kubelet, CORE)
            with pytest.raises(aio.AioRpcError, match=r"internal error in .*: OSError: no space left on device"):
                await getattr(kubelet, call)(CORE, ["x"])
            handler.failure = None
            await getattr(kubelet, call)(CORE, ["x"])

    play(scene())
    assert any(record.exc_info for record in caplog.records)


IDS = frozenset({"GPU-a-_-0"})


def timed_handler(handler: FakeHandler) -> tuple[AllocationHandler, Calls]:
    calls, clock = Calls(lambda: "now", (ALLOCATE, PRESTART)), count(0.0, 0.25)
    return timed(handler, calls, lambda: next(clock)), calls


def test_timed_passes_calls_to_the_handler_and_returns_its_answer() -> None:
    handler = FakeHandler()
    handler.answer = Allocation(cdi=("aliquot.dev/gpu-mem=1",))
    front, calls = timed_handler(handler)
    assert front.allocate("gpu-mem", IDS) is handler.answer
    asyncio.run(front.prepare("gpu-mem", IDS))
    assert handler.allocated == handler.prepared == [("gpu-mem", IDS)]
    assert calls.outcomes == {(ALLOCATE, "ok"): 1, (PRESTART, "ok"): 1}


def test_timed_counts_the_seconds_of_each_call() -> None:
    front, calls = timed_handler(FakeHandler())
    asyncio.run(front.prepare("gpu-mem", IDS))
    assert calls.seconds == {ALLOCATE: 0.0, PRESTART: 0.25}


@pytest.mark.parametrize(("error", "outcome"), [(Refused("no card"), "refused"), (OSError("disk"), "error")])
def test_timed_distinguishes_refusals_from_errors_and_raises_both(error: Exception, outcome: str) -> None:
    handler = FakeHandler()
    handler.failure = error
    front, calls = timed_handler(handler)
    with pytest.raises(type(error)):
        front.allocate("gpu-mem", IDS)
    with pytest.raises(type(error)):
        asyncio.run(front.prepare("gpu-mem", IDS))
    assert calls.outcomes == {(ALLOCATE, outcome): 1, (PRESTART, outcome): 1}


def test_only_the_agents_own_user_and_root_may_connect_whatever_the_umask_is() -> None:
    async def scene() -> None:
        before = os.umask(0)
        try:
            async with a_kubelet() as kubelet, running(kubelet.folder, {CORE: some(3)}):
                await offered(kubelet, CORE)
                (path,) = kubelet.folder.glob("aliquot-*")
                assert path.stat().st_mode & 0o777 == 0o600
        finally:
            os.umask(before)

    play(scene())


def test_many_watches_that_never_read_and_huge_requests_leave_the_kubelet_its_own() -> None:
    """Watches, each with a list of devices, were unlimited; an Allocate of 2 MB for a million containers took 17 s."""

    async def scene() -> None:
        async with a_kubelet() as kubelet, running(kubelet.folder, {CORE: some(2000)}) as plugins:
            await until(lambda: plugins.registered == {CORE})
            await offered(kubelet, CORE)
            (path,) = kubelet.folder.glob("aliquot-*")
            stranger = Client(path)
            watch: Any = stranger.channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")
            calls = [watch(b"") for _ in range(300)]
            refused = [call for call in calls if await _code_of(call) is grpc.StatusCode.RESOURCE_EXHAUSTED]
            assert len(refused) > 290
            allocate: Any = stranger.channel.unary_unary("/v1beta1.DevicePlugin/Allocate")
            for request, code in {
                b"\xff" * 1000: grpc.StatusCode.UNKNOWN,
                b"\x0a\x00" * 1_000_000: grpc.StatusCode.INVALID_ARGUMENT,
                bytes(65 << 20): grpc.StatusCode.RESOURCE_EXHAUSTED,
            }.items():
                with pytest.raises(aio.AioRpcError) as error:
                    await allocate(request, timeout=30)
                assert error.value.code() is code
            with socket.socket(socket.AF_UNIX) as garbage:
                garbage.connect(str(path))
                garbage.sendall(b"no HTTP/2" * 100)
            plugins.offer({CORE: some(2000, healthy=False)})
            client = kubelet.clients[CORE]
            await until(lambda: {health for health, _ in client.devices.values()} == {"Unhealthy"})
            for call in calls:
                call.cancel()
            await stranger.channel.close()

    play(scene())


async def _code_of(call: aio.UnaryStreamCall[bytes, bytes]) -> grpc.StatusCode | None:
    """None: it goes on."""
    try:
        async with asyncio.timeout(0.2):
            return await call.code()
    except TimeoutError:
        return None


@pytest.mark.parametrize("put", ["a pipe", "a file", "a folder", "a link to nothing", "a socket that never answers"])
def test_what_is_no_kubelet_in_its_place_is_tried_again_until_it_is(put: str) -> None:
    async def scene() -> None:
        with a_folder() as folder:
            path, silent = folder / "kubelet.sock", socket.socket(socket.AF_UNIX)
            if put == "a pipe":
                os.mkfifo(path)
            elif put == "a file":
                path.write_text("x")
            elif put == "a folder":
                path.mkdir()
            elif put == "a link to nothing":
                path.symlink_to("nothing")
            else:
                silent.bind(str(path))
                silent.listen()
            async with running(folder, {CORE: some(3)}) as plugins:
                await asyncio.sleep(0.5)
                assert not plugins.registered
                path.rmdir() if put == "a folder" else path.unlink()
                silent.close()
                kubelet = FakeKubelet(folder)
                await kubelet.start()
                await until(lambda: plugins.registered == {CORE})
                await kubelet.kill()

    play(scene())
