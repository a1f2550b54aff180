"""Device plugins: what is offered is what the kubelet has, through its restarts, and refusals reach the user."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aliquot.dialects.wire.advertising import MOST_DEVICES, Token
from aliquot.services.agent.devices import plugins
from aliquot.services.agent.devices.plugins import (
    Plugins,
)
from kit.agents.deviceplugins import CORE, MEMORY, FakeHandler, offered, ours, running, some
from kit.agents.kubelet import FakeKubelet, a_folder, a_kubelet, play
from kit.running.waiting import until

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


@pytest.mark.parametrize("rested", [False, True], ids=["just registered", "long registered"])
def test_killed_kubelet_is_noticed_by_the_end_of_its_watch_and_not_at_the_next_look(
    rested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket's file stays. The scheduler must hear of it before it sends more Pods."""

    async def scene() -> None:
        async with a_kubelet() as kubelet:
            told: list[frozenset[str]] = []
            agents = Plugins(kubelet.folder, FakeHandler(), changed=lambda: told.append(agents.registered))
            agents.offer({CORE: some(1), MEMORY: some(1)})
            task = asyncio.create_task(agents.run())
            await offered(kubelet, CORE, MEMORY)
            await until(lambda: agents.registered == {CORE, MEMORY})
            await asyncio.sleep(1.2 if rested else 0)
            if rested:
                monkeypatch.setattr(agents, "_check", lambda now: None)  # no look comes in time
            await kubelet.kill()
            await until(lambda: told[-1:] == [frozenset()])
            monkeypatch.undo()
            await kubelet.start()
            await until(lambda: agents.registered == {CORE, MEMORY})
            assert told[-1] == {CORE, MEMORY}
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

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
