"""A task that fails is logged and started again; a task that ends or is cancelled is not."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from aliquot.services.daemon.tasks import run_forever


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds it would have waited."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr("asyncio.sleep", sleep)
    return waited


def test_run_forever_logs_a_failure_and_starts_again_after_a_second(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    left = [ValueError("first"), KeyError("second")]

    async def work() -> None:
        if left:
            raise left.pop(0)

    asyncio.run(run_forever(work))
    assert pauses == [1.0, 1.0]
    assert caplog.text.count("task_failed") == 2
    assert "ValueError: first" in caplog.text


def test_run_forever_does_not_start_again_after_a_cancellation(pauses: list[float]) -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    async def scene() -> None:
        task = asyncio.create_task(run_forever(work))
        for _ in range(3):
            await asyncio.tasks.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(scene())
    assert pauses == []
