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
from kit.agents.kubelet import FakePodResources, a_folder, play
from kit.running.waiting import until

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


def test_holders_have_devices_by_resource() -> None:
    async def scene() -> None:
        async with asking() as (kubelet, ours):
            kubelet.hold("pod", "main", {CORE: ["a", "b"], MEMORY: ["c"]})
            held = {CORE: frozenset({"a", "b"}), MEMORY: frozenset({"c"})}
            assert await ours.holders() == [Holder("ns", "pod", "main", held)]

    play(scene())


def test_holders_leave_out_containers_without_devices() -> None:
    async def scene() -> None:
        async with asking() as (kubelet, ours):
            kubelet.hold("pod", "main", {})
            assert await ours.holders() == []

    play(scene())


def test_holders_of_forty_thousand_devices() -> None:
    async def scene() -> None:
        async with asking() as (kubelet, ours):
            ids = [f"GPU-8f3a0f5e-6a3c-4f0a-9d1f-0123456789ab-_-{j}" for j in range(20_000)]
            kubelet.hold("pod", "main", {CORE: ids, MEMORY: ids})
            (holder,) = await ours.holders()
            assert {resource: len(held) for resource, held in holder.devices.items()} == {CORE: 20_000, MEMORY: 20_000}

    play(scene())


def test_holders_retry_with_backoff_on_rate_limit() -> None:
    async def scene() -> None:
        pauses = Pauses()
        async with asking(sleep=pauses, chance=lambda: 1.0) as (kubelet, ours):
            kubelet.failures = [BUSY, BUSY, AWAY]
            assert await ours.holders() == []
            assert pauses == [0.02, 0.04, 0.08]

    play(scene())


def test_holders_give_up_and_start_afresh() -> None:
    async def scene() -> None:
        pauses = Pauses()
        async with asking(sleep=pauses, chance=lambda: 1.0) as (kubelet, ours):
            kubelet.failures = [BUSY] * 10
            with pytest.raises(KubeletError, match="RESOURCE_EXHAUSTED: rejected by rate limit"):
                await ours.holders()
            assert sum(pauses) < 10
            assert await ours.holders() == []

    play(scene())


def test_holders_raise_other_errors_at_once_with_the_socket() -> None:
    async def scene() -> None:
        async with asking(sleep=Pauses()) as (kubelet, ours):
            kubelet.failures = [NO]
            with pytest.raises(KubeletError, match=r"at .*/kubelet\.sock: UNIMPLEMENTED"):
                await ours.holders()
            assert kubelet.calls == 1

    play(scene())


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x0a\x7f\x0a", b"\x0a\x04\x0a\x02\xff\xfe"])
def test_holders_raise_kubelet_error_if_the_answer_cannot_be_read(garbage: bytes) -> None:
    """Not protobuf, cut off, and a name that is no UTF-8, as a kubelet passes on from another device plugin."""

    async def scene() -> None:
        async with asking() as (kubelet, ours):
            kubelet.garbage = garbage
            with pytest.raises(KubeletError, match=r"at .*/kubelet\.sock: the answer cannot be read"):
                await ours.holders()
            kubelet.garbage = None
            assert await ours.holders() == []

    play(scene())


def test_holders_of_an_absent_kubelet_raise_kubelet_error() -> None:
    async def scene() -> None:
        with a_folder() as folder:
            ours = PodResources(folder / "none.sock", sleep=Pauses())
            with pytest.raises(KubeletError, match="UNAVAILABLE"):
                await ours.holders()
            await ours.close()

    play(scene())


def test_holders_after_a_kubelet_restart_use_its_new_socket() -> None:
    async def scene() -> None:
        async with asking() as (kubelet, ours):
            await ours.holders()
            await kubelet.stop()
            await kubelet.start()
            assert await ours.holders() == []

    play(scene())


def test_concurrent_callers_share_two_calls() -> None:
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


def test_caller_during_a_call_gets_the_result_of_the_next() -> None:
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


def test_cancelled_caller_does_not_cancel_the_others() -> None:
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


def test_failed_call_does_not_fail_later_callers() -> None:
    async def scene() -> None:
        async with asking() as (kubelet, ours):
            kubelet.failures = [NO]
            failing = asyncio.create_task(ours.holders())
            await until(lambda: kubelet.calls == 1)
            assert await ours.holders() == []
            with pytest.raises(KubeletError):
                await failing

    play(scene())


def test_unexpected_error_does_not_fail_later_callers(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_holders_have_the_devices_of_dra_drivers() -> None:
    async def scene() -> None:
        async with asking() as (kubelet, ours):
            kubelet.hold("pod", "main", {})
            claim = kubelet.pods[0].containers[0].dynamic_resources.add().claim_resources.add()
            claim.driver_name, claim.device_name = "gpu.nvidia.com", "gpu-1"
            (holder,) = await ours.holders()
            assert holder.devices == {"DRA driver gpu.nvidia.com": {"gpu-1"}}

    play(scene())
