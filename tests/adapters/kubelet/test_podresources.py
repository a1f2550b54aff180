"""PodResources: who holds which devices, however busy the kubelet is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from aliquot.adapters.kubelet import podresources
from aliquot.adapters.kubelet.channel import KubeletError
from aliquot.adapters.kubelet.podresources import Holder, PodResources
from kit.kubelet import FakePodResources, a_folder, play, until

CORE, MEMORY = "tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"
BUSY, AWAY, NO = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED


class Pauses(list[float]):
    """A sleep that notes how long it was to be."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


@asynccontextmanager
async def asking(**more: Any) -> AsyncIterator[tuple[FakePodResources, PodResources]]:
    with a_folder() as folder:
        kubelet = FakePodResources(folder / "kubelet.sock")
        await kubelet.start()
        ours = PodResources(kubelet.socket, **more)
        try:
            yield kubelet, ours
        finally:
            await ours.close()
            await kubelet.stop()


def test_the_devices_of_a_container_are_gathered_by_resource() -> None:
    async def scene() -> None:
        async with asking() as (kubelet, ours):
            kubelet.hold("pod", "main", {CORE: ["a", "b"], MEMORY: ["c"]})
            held = {CORE: frozenset({"a", "b"}), MEMORY: frozenset({"c"})}
            assert await ours.holders() == [Holder("ns", "pod", "main", held)]

    play(scene())


def test_containers_without_devices_are_left_out() -> None:
    async def scene() -> None:
        async with asking() as (kubelet, ours):
            kubelet.hold("pod", "main", {})
            assert await ours.holders() == []

    play(scene())


def test_forty_thousand_devices_are_heard_of() -> None:
    async def scene() -> None:
        async with asking() as (kubelet, ours):
            ids = [f"GPU-8f3a0f5e-6a3c-4f0a-9d1f-0123456789ab-_-{j}" for j in range(20_000)]
            kubelet.hold("pod", "main", {CORE: ids, MEMORY: ids})
            (holder,) = await ours.holders()
            assert {resource: len(held) for resource, held in holder.devices.items()} == {CORE: 20_000, MEMORY: 20_000}

    play(scene())


def test_one_that_is_asked_too_often_is_asked_again_later_each_time() -> None:
    async def scene() -> None:
        pauses = Pauses()
        async with asking(sleep=pauses, chance=lambda: 1.0) as (kubelet, ours):
            kubelet.failures = [BUSY, BUSY, AWAY]
            assert await ours.holders() == []
            assert pauses == [0.02, 0.04, 0.08]

    play(scene())


def test_one_that_never_answers_is_given_up_in_good_time_and_asked_afresh_the_next_time() -> None:
    async def scene() -> None:
        pauses = Pauses()
        async with asking(sleep=pauses, chance=lambda: 1.0) as (kubelet, ours):
            kubelet.failures = [BUSY] * 10
            with pytest.raises(KubeletError, match="RESOURCE_EXHAUSTED: rejected by rate limit"):
                await ours.holders()
            assert sum(pauses) < 10
            assert await ours.holders() == []

    play(scene())


def test_any_other_answer_is_told_at_once_with_the_socket_it_came_from() -> None:
    async def scene() -> None:
        async with asking(sleep=Pauses()) as (kubelet, ours):
            kubelet.failures = [NO]
            with pytest.raises(KubeletError, match=r"at .*/kubelet\.sock: UNIMPLEMENTED"):
                await ours.holders()
            assert kubelet.calls == 1

    play(scene())


def test_a_kubelet_that_is_not_there_is_an_error_of_ours() -> None:
    async def scene() -> None:
        with a_folder() as folder:
            ours = PodResources(folder / "none.sock", sleep=Pauses())
            with pytest.raises(KubeletError, match="UNAVAILABLE"):
                await ours.holders()
            await ours.close()

    play(scene())


def test_a_kubelet_that_restarts_is_asked_again_on_its_new_socket() -> None:
    async def scene() -> None:
        async with asking() as (kubelet, ours):
            await ours.holders()
            await kubelet.stop()
            await kubelet.start()
            assert await ours.holders() == []

    play(scene())


def test_many_who_ask_at_once_share_two_calls() -> None:
    async def scene() -> None:
        async with asking() as (kubelet, ours):
            kubelet.gate = asyncio.Event()
            first = asyncio.create_task(ours.holders())
            await until(lambda: kubelet.calls == 1)
            others = [asyncio.create_task(ours.holders()) for _ in range(50)]
            await asyncio.sleep(0)
            kubelet.gate.set()
            await asyncio.gather(first, *others)
            assert kubelet.calls == 2

    play(scene())


def test_who_asks_while_a_call_is_under_way_gets_what_is_true_after_it() -> None:
    async def scene() -> None:
        async with asking() as (kubelet, ours):
            kubelet.gate = asyncio.Event()
            early = asyncio.create_task(ours.holders())
            await until(lambda: kubelet.calls == 1)
            kubelet.hold("pod", "main", {CORE: ["a"]})  # after the first call was answered, before it was heard
            late = asyncio.create_task(ours.holders())
            await asyncio.sleep(0)
            kubelet.gate.set()
            assert await early == []
            assert [holder.name for holder in await late] == ["pod"]

    play(scene())


def test_one_who_gives_up_takes_nothing_from_those_who_wait_for_the_same_answer() -> None:
    async def scene() -> None:
        async with asking() as (kubelet, ours):
            kubelet.gate = asyncio.Event()
            impatient, patient = asyncio.create_task(ours.holders()), asyncio.create_task(ours.holders())
            await until(lambda: kubelet.calls == 1)
            impatient.cancel()
            kubelet.gate.set()
            assert await patient == []
            assert kubelet.calls == 1

    play(scene())


def test_a_call_that_failed_does_not_fail_those_who_asked_after_it() -> None:
    async def scene() -> None:
        async with asking() as (kubelet, ours):
            kubelet.failures = [NO]
            failing = asyncio.create_task(ours.holders())
            await until(lambda: kubelet.calls == 1)
            assert await ours.holders() == []
            with pytest.raises(KubeletError):
                await failing

    play(scene())


def test_nor_does_one_that_failed_in_a_way_that_nobody_foresaw(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with asking() as (kubelet, ours):
            kubelet.gate = asyncio.Event()
            with monkeypatch.context() as patch:
                patch.setattr(podresources, "_holders", lambda answer: 1 // 0)
                failing = asyncio.create_task(ours.holders())
                await until(lambda: kubelet.calls == 1)
            later = asyncio.create_task(ours.holders())
            await asyncio.sleep(0)
            kubelet.gate.set()
            with pytest.raises(ZeroDivisionError):
                await failing
            assert await later == []
            assert await ours.holders() == []

    play(scene())
