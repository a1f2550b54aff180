"""Device plugins: what is offered is what the kubelet has, through its restarts, and refusals reach the user."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from aliquot.dialects.wire.advertising import MOST_DEVICES, Token
from aliquot.model.containers.edits import Mount
from aliquot.services.agent.devices import plugins
from aliquot.services.agent.devices.plugins import (
    ALLOCATE,
    PRESTART,
    Allocation,
    AllocationHandler,
    Plugins,
    Refused,
    timed,
)
from aliquot.services.daemon.calls import Calls
from kit.agents.kubelet import Client, FakeKubelet, a_folder, a_kubelet, play, until

CORE, MEMORY = "tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"


def some(number: int, *, healthy: bool = True, numa: int | None = None) -> tuple[Token, ...]:
    return tuple(Token(f"GPU-1-_-{j}", healthy, numa) for j in range(number))


class FakeHandler:
    """Gives the answer it is set to, and records the calls."""

    def __init__(self) -> None:
        self.allocated: list[tuple[str, frozenset[str]]] = []
        self.prepared: list[tuple[str, frozenset[str]]] = []
        self.answer = Allocation()
        self.failure: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.inside = 0

    def allocate(self, resource: str, ids: frozenset[str]) -> Allocation:
        self.allocated.append((resource, ids))
        if self.failure is not None:
            raise self.failure
        return self.answer

    async def prepare(self, resource: str, ids: frozenset[str]) -> None:
        self.inside += 1
        if self.gate is not None:
            await self.gate.wait()
        self.prepared.append((resource, ids))
        if self.failure is not None:
            raise self.failure


@contextlib.asynccontextmanager
async def running(
    folder: Path, offer: Mapping[str, Sequence[Token]], handler: FakeHandler | None = None
) -> AsyncIterator[Plugins]:
    plugins = Plugins(folder, handler or FakeHandler())
    plugins.offer(offer)
    task = asyncio.create_task(plugins.run())
    try:
        yield plugins
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def ours(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("aliquot-*"))


async def offered(kubelet: FakeKubelet, *names: str) -> None:
    await until(lambda: kubelet.resources == set(names))


# --- what is offered -------------------------------------------------------------------------------------------------


def test_each_resource_is_a_plugin_that_requires_prestart() -> None:
    async def scene() -> None:
        async with a_kubelet() as kubelet, running(kubelet.folder, {CORE: some(100), MEMORY: some(16)}) as plugins:
            await offered(kubelet, CORE, MEMORY)
            assert {name: len(client.devices) for name, client in kubelet.clients.items()} == {CORE: 100, MEMORY: 16}
            assert all(client.options.pre_start_required for client in kubelet.clients.values())
            await until(lambda: plugins.registered == {CORE, MEMORY})
            assert len(kubelet.registrations) == 2

    play(scene())


def test_devices_have_health_and_numa_node() -> None:
    async def scene() -> None:
        offer = {CORE: [Token("a", True, 1), Token("b", False, None)]}
        async with a_kubelet() as kubelet, running(kubelet.folder, offer):
            await offered(kubelet, CORE)
            assert kubelet.clients[CORE].devices == {"a": ("Healthy", (1,)), "b": ("Unhealthy", ())}

    play(scene())


def test_changed_devices_are_published_at_once() -> None:
    async def scene() -> None:
        async with a_kubelet() as kubelet, running(kubelet.folder, {CORE: some(3)}) as plugins:
            await offered(kubelet, CORE)
            client = kubelet.clients[CORE]
            plugins.offer({CORE: some(3)})
            plugins.offer({CORE: some(3, healthy=False)})
            await until(lambda: {health for health, _ in client.devices.values()} == {"Unhealthy"})
            assert (client.lists, len(kubelet.registrations)) == (2, 1)

    play(scene())


def test_later_resource_is_registered_beside_the_others() -> None:
    async def scene() -> None:
        async with a_kubelet() as kubelet, running(kubelet.folder, {CORE: some(1)}) as plugins:
            await offered(kubelet, CORE)
            plugins.offer({CORE: some(1), MEMORY: some(1)})
            await offered(kubelet, CORE, MEMORY)
            assert [resource for resource, _ in kubelet.registrations] == [CORE, MEMORY]

    play(scene())


def test_withdrawn_resource_publishes_an_empty_list_and_removes_its_socket() -> None:
    async def scene() -> None:
        async with a_kubelet() as kubelet, running(kubelet.folder, {CORE: some(5), MEMORY: some(5)}) as plugins:
            await offered(kubelet, CORE, MEMORY)
            leaving = kubelet.clients[MEMORY]
            plugins.offer({CORE: some(5)})
            await offered(kubelet, CORE)
            assert (leaving.devices, leaving.lists) == ({}, 2)
            await until(lambda: len(ours(kubelet.folder)) == 1)
            assert plugins.registered == {CORE}

    play(scene())


def test_withdrawn_resource_may_come_back() -> None:
    async def scene() -> None:
        async with a_kubelet() as kubelet, running(kubelet.folder, {CORE: some(5)}) as plugins:
            await offered(kubelet, CORE)
            plugins.offer({})
            await until(lambda: not ours(kubelet.folder))
            plugins.offer({CORE: some(6)})
            await until(lambda: CORE in kubelet.clients and len(kubelet.clients[CORE].devices) == 6)

    play(scene())


def test_as_many_devices_as_we_offer_pass_in_both_directions() -> None:
    async def scene() -> None:
        handler = FakeHandler()
        tokens = tuple(Token(f"GPU-8f3a0f5e-6a3c-4f0a-9d1f-0123456789ab-_-{j}", True, 0) for j in range(MOST_DEVICES))
        async with a_kubelet() as kubelet, running(kubelet.folder, {MEMORY: tokens}, handler):
            await offered(kubelet, MEMORY)
            every = kubelet.clients[MEMORY].devices.keys()
            assert len(every) == MOST_DEVICES
            await kubelet.allocate(MEMORY, every)
            await kubelet.prepare(MEMORY, every)
            assert handler.allocated == handler.prepared == [(MEMORY, frozenset(every))]

    play(scene())


# --- the kubelet restarts --------------------------------------------------------------------------------------------


def test_restarted_kubelet_gets_every_resource_from_new_sockets() -> None:
    async def scene() -> None:
        async with a_kubelet() as kubelet, running(kubelet.folder, {CORE: some(7), MEMORY: some(7)}) as plugins:
            await offered(kubelet, CORE, MEMORY)
            before = ours(kubelet.folder)
            await kubelet.kill()
            await kubelet.start()
            await offered(kubelet, CORE, MEMORY)
            assert len(kubelet.clients[CORE].devices) == 7
            assert len(ours(kubelet.folder)) == 2
            assert not set(before) & set(ours(kubelet.folder))
            await until(lambda: plugins.registered == {CORE, MEMORY})

    play(scene())


def test_nothing_is_registered_while_the_kubelet_is_away() -> None:
    async def scene() -> None:
        async with a_kubelet() as kubelet, running(kubelet.folder, {CORE: some(1)}) as plugins:
            await until(lambda: plugins.registered == {CORE})
            await kubelet.kill()
            await until(lambda: not plugins.registered)
            await kubelet.start()
            await until(lambda: plugins.registered == {CORE})

    play(scene())


def test_restarts_of_the_kubelet_are_counted() -> None:
    async def scene() -> None:
        async with a_kubelet() as kubelet, running(kubelet.folder, {CORE: some(1)}) as plugins:
            await until(lambda: plugins.registered == {CORE})
            assert plugins.restarts == 0
            await kubelet.kill()
            await until(lambda: not plugins.registered)
            await kubelet.start()
            await until(lambda: plugins.registered == {CORE})
            assert plugins.restarts == 1

    play(scene())


def test_plugins_may_start_before_the_kubelet_and_its_folder() -> None:
    async def scene() -> None:
        with a_folder() as parent:
            kubelet = FakeKubelet(parent / "device-plugins")
            async with running(kubelet.folder, {CORE: some(1)}) as plugins:
                await asyncio.sleep(0)
                kubelet.folder.mkdir()
                await kubelet.start()
                await until(lambda: plugins.registered == {CORE})
            await kubelet.kill()

    play(scene())


def test_missing_kubelet_is_logged_once_with_what_to_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plugins, kubelet = Plugins(tmp_path, FakeHandler()), tmp_path / "kubelet.sock"
    for now in (0.0, 4.0):
        plugins._renew(now)
    kubelet.touch()
    plugins._renew(4.5)  # it was restarted, which takes a moment
    kubelet.unlink()
    for now in (5.0, 9.0):
        plugins._renew(now)
    assert caplog.records == []
    for now in (10.0, 11.0):
        plugins._renew(now)
    (record,) = caplog.records
    assert "--kubelet-dir" in record.data["fix"]  # type: ignore[attr-defined]  # logs.py's


def test_deleted_sockets_are_replaced_and_registered_again() -> None:
    async def scene() -> None:
        async with a_kubelet() as kubelet, running(kubelet.folder, {CORE: some(4)}) as plugins:
            await until(lambda: plugins.registered == {CORE})
            (wiped,) = ours(kubelet.folder)
            (kubelet.folder / wiped).unlink()
            await until(lambda: kubelet.registrations[-1][1] != wiped and plugins.registered)
            # The kubelet may mix up the old connection with the new one; in the end it has the new one.
            await until(lambda: CORE in kubelet.resources)
            assert await kubelet.allocate(CORE, ["GPU-1-_-0"])

    play(scene())


def test_dropped_plugin_registers_again() -> None:
    async def scene() -> None:
        async with a_kubelet() as kubelet, running(kubelet.folder, {CORE: some(1)}) as plugins:
            await until(lambda: plugins.registered == {CORE})
            await offered(kubelet, CORE)
            await kubelet.clients.pop(CORE).channel.close()
            await offered(kubelet, CORE)
            assert len(kubelet.registrations) == 2
            assert len({endpoint for _, endpoint in kubelet.registrations}) == 1

    play(scene())


def test_refused_registration_is_retried_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        async with a_kubelet() as kubelet:
            kubelet.refusals = ["not yet", "not yet"]
            async with running(kubelet.folder, {CORE: some(1)}) as plugins:
                await until(lambda: plugins.registered == {CORE})
                assert len(kubelet.registrations) == 3

    play(scene())
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert record.data["why"].endswith("kubelet.sock: UNKNOWN: not yet")  # type: ignore[attr-defined]  # logs.py's


def test_unexpected_registration_error_is_retried_with_backoff(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[float] = []

    async def fails(*_: object, **__: object) -> None:
        tries.append(asyncio.get_running_loop().time())
        raise OSError(28, "No space left on device")

    async def scene() -> None:
        async with a_kubelet() as kubelet, running(kubelet.folder, {CORE: some(1)}):
            await until(lambda: len(tries) == 3)

    monkeypatch.setattr(plugins, "register", fails)
    play(scene())
    assert tries[1] - tries[0] >= plugins._FIRST_RETRY
    assert tries[2] - tries[1] >= 2 * plugins._FIRST_RETRY
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "OSError: [Errno 28]" in record.data["why"]  # type: ignore[attr-defined]  # logs.py's


def test_sockets_of_an_earlier_agent_and_own_sockets_are_removed() -> None:
    async def scene() -> None:
        async with a_kubelet() as kubelet:
            (kubelet.folder / "aliquot-gone-1.sock").touch()
            (kubelet.folder / "nvidia-gpu.sock").touch()
            async with running(kubelet.folder, {CORE: some(1)}):
                await offered(kubelet, CORE)
                assert ours(kubelet.folder) == ["aliquot-qgpu-core-1.sock"]
            assert ours(kubelet.folder) == []
            assert (kubelet.folder / "nvidia-gpu.sock").exists()

    play(scene())


# --- what the kubelet asks -------------------------------------------------------------------------------------------


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


# --- timed

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


# --- whoever else comes ----------------------------------------------------------------------------------------------


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
