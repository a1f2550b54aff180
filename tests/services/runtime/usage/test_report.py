"""The answer to `aliquot usage`: every user may ask for it, and the runs of all users fill its file."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from aliquot.arbiter.bill import HOUR
from aliquot.model.status.requests import UsageRequest
from aliquot.model.usage import IDLE, OTHERS, Payer, Spent, UsageRow
from aliquot.services.runtime.usage.report import MOST_ENTRIES, MOST_PLACES, answer_usage, usage_report

ANNA, BERT = 70001, 70002


def rows(count: int) -> list[UsageRow]:
    small = [
        UsageRow(0, "GPU-0", Payer(name=f"run-{at}", app_class="normal", user=ANNA), Spent(0.5)) for at in range(count)
    ]
    large = UsageRow(0, "GPU-0", Payer(name="train", app_class="normal", user=BERT), Spent(3600.0))
    return [*small, large, UsageRow(0, "GPU-0", IDLE, Spent(0.1))]


def test_usage_of_very_many_names_has_few_entries_and_all_of_the_time() -> None:
    entries = usage_report(rows(4 * MOST_ENTRIES), 0.0, 1.0).entries
    assert len(entries) <= MOST_ENTRIES + 2
    assert sum(entry.gpu_seconds for entry in entries if entry.user == ANNA) == 2.0 * MOST_ENTRIES
    assert [entry.name for entry in entries if entry.user == BERT] == ["train"]
    assert [entry.gpu_seconds for entry in entries if entry.kind == "idle"] == [0.1]
    assert OTHERS in [entry.name for entry in entries]


def test_usage_of_few_names_has_them_all() -> None:
    assert len(usage_report(rows(MOST_ENTRIES - 2), 0.0, 1.0).entries) == MOST_ENTRIES


def test_usage_of_very_many_names_keeps_the_namespaces_with_most_time() -> None:
    """A user's Pods may be in many namespaces, also made up: those without much time share one row."""
    pods = [
        UsageRow(0, "GPU-0", Payer("", "team", f"pod-{at}", "main", "normal", ANNA), Spent(0.5))
        for at in range(2 * MOST_ENTRIES)
    ]
    strewn = [
        UsageRow(0, "GPU-0", Payer("", f"other-{at}", "pod", "main", "normal", ANNA), Spent(0.25))
        for at in range(2 * MOST_ENTRIES)
    ]
    entries = usage_report([*pods, *strewn], 0.0, 1.0).entries
    assert sum(entry.gpu_seconds for entry in entries if entry.namespace == "team") == 1.0 * MOST_ENTRIES
    assert sum(entry.gpu_seconds for entry in entries) == 1.5 * MOST_ENTRIES
    assert len(entries) <= MOST_ENTRIES + MOST_PLACES + 1
    assert [entry.name for entry in entries if not entry.namespace] == [OTHERS]


def test_requests_for_usage_share_the_answer_that_is_being_made() -> None:
    read: list[float] = []

    async def act() -> None:
        async def slowly(since: float) -> list[UsageRow]:
            read.append(since)
            await asyncio.sleep(0.05)
            return rows(3)

        billing: Any = SimpleNamespace(rows=slowly, asking=asyncio.Lock(), answered=None)
        hours = [HOUR + 1, HOUR + 2.5, HOUR + 3, 5 * HOUR]
        first, *others, later = await asyncio.gather(*(answer_usage(billing, UsageRequest(since)) for since in hours))
        assert others == [first, first]
        assert later.since == 5 * HOUR
        assert read == [HOUR + 1, 5 * HOUR]
        await answer_usage(billing, UsageRequest(5 * HOUR))  # asked when that is ready: what happened since counts
        assert read == [HOUR + 1, 5 * HOUR, 5 * HOUR]

    asyncio.run(act())


def test_answers_about_usage_are_made_one_after_the_other_beside_the_loop() -> None:
    """Each may take hundreds of megabytes and seconds, and a user may have 256 connections."""
    made = most = 0
    there = rows(3 * MOST_ENTRIES)

    async def act() -> float:
        async def read(since: float) -> list[UsageRow]:
            nonlocal made, most
            made += 1
            most = max(most, made)
            await asyncio.sleep(0.01)
            made -= 1
            return there

        billing: Any = SimpleNamespace(rows=read, asking=asyncio.Lock(), answered=None)
        asked = [asyncio.create_task(answer_usage(billing, UsageRequest(HOUR * at))) for at in range(5)]
        turns, began = 0, time.monotonic()
        while not all(task.done() for task in asked):
            await asyncio.sleep(0.001)
            turns += 1
        for task in asked:
            assert len((await task).entries) <= MOST_ENTRIES + 2
        return turns / (time.monotonic() - began)

    assert asyncio.run(act()) > 5, "turns of the loop in a second"
    assert most == 1
