"""The answer to `aliquot usage`, which anybody may ask for, of a file that anybody's runs fill."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from aliquot.model.usage import IDLE, OTHERS, Payer, Spent, UsageRow
from aliquot.services.runtime.usage.report import MOST_ENTRIES, answer_usage, usage_report

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

        billing: Any = SimpleNamespace(rows=read, asking=asyncio.Lock())
        asked = [asyncio.create_task(answer_usage(billing, {"since": 0})) for _ in range(5)]
        turns, began = 0, time.monotonic()
        while not all(task.done() for task in asked):
            await asyncio.sleep(0.001)
            turns += 1
        for task in asked:
            assert len((await task)["entries"]) <= MOST_ENTRIES + 2
        return turns / (time.monotonic() - began)

    assert asyncio.run(act()) > 5, "turns of the loop in a second"
    assert most == 1
