"""Who fills the bill loses names, and nobody else loses anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.storage import usagestore
from aliquot.adapters.storage.usagestore import UsageStore
from aliquot.model.usage import OTHERS, Payer, Spent, UsageRow

CARD = "GPU-0"
HOUR = 3600


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UsageStore]:
    monkeypatch.setattr(usagestore, "MOST_ROWS", 100)
    made = UsageStore(str(tmp_path / "usage.db"), keep_days=30)
    yield made
    made.close()


def run(name: str, user: int, namespace: str = "") -> Payer:
    return Payer("", namespace, name, "", "normal", user)


def rows_of(store: UsageStore) -> dict[Payer, float]:
    return {row.payer: row.spent.gpu for row in store.hours(0)}


def test_rows_of_one_user_do_not_drop_the_bill_of_others(store: UsageStore) -> None:
    good = [UsageRow(hour * HOUR, CARD, run("good", 70002), Spent(gpu=2.0)) for hour in range(1, 21)]
    bad = [
        UsageRow((1 + number % 20) * HOUR, CARD, run(f"r{number}", 70001, f"n{number}"), Spent(gpu=1.0, used=3.0))
        for number in range(500)
    ]
    pods = [
        UsageRow(HOUR, CARD, Payer("", "ml", f"p{number}", "c", "normal", None), Spent(gpu=1.0)) for number in range(9)
    ]
    store.write([*good, *bad, *pods, UsageRow(HOUR, CARD, Payer("idle"), Spent(gpu=7.0))], {}, 0.0, 1.0)
    store.compact(30.0 * HOUR)
    found = rows_of(store)
    assert found[run("good", 70002)] == 40.0
    assert found[run(OTHERS, 70001)] == 500.0
    assert found[Payer("idle")] == 7.0
    assert len(found) == 12
    store.write([UsageRow(HOUR, CARD, run("r1", 70001), Spent(gpu=1.0))], {}, 0.0, 1.0)
    store.compact(30.0 * HOUR)
    assert rows_of(store)[run("r1", 70001)] == 1.0, "there is room again"


def test_namespaces_count_where_there_are_no_users_and_the_oldest_go_last(store: UsageStore) -> None:
    pods = [
        UsageRow(HOUR, CARD, Payer("", namespace, f"p{number}", "c", "normal", None), Spent(gpu=1.0))
        for namespace, count in (("a", 90), ("b", 20))
        for number in range(count)
    ]
    store.write(pods, {}, 0.0, 1.0)
    store.compact(30.0 * HOUR)
    found = rows_of(store)
    assert found[Payer("", "a", OTHERS, "", "normal", None)] == 90.0
    assert len(found) == 21
    many = [UsageRow(hour * HOUR, CARD, run("x", 1), Spent(gpu=1.0)) for hour in range(1, 201)]
    store.write(many, {}, 0.0, 1.0)
    store.compact(300.0 * HOUR)
    assert sum(rows_of(store).values()) == 100.0
