"""The time of a card is divided without a rest, whatever comes, goes and is killed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx  # noqa: PT013

from aliquot.adapters.storage.usagestore import UsageStore
from aliquot.arbiter.account import divide
from aliquot.arbiter.bill import FORGET, HOUR, MOST_NAMES, Bill, CardBill, _by_hour, divide_spending
from aliquot.model.usage import IDLE, UNKNOWN, UNMEASURED, Mark, Payer, Spent, Stretch, as_others, owner_of, place_of

CARD = "GPU-0"
PART = st.floats(0, 1)
SECONDS = st.floats(0.001, 5000)


def payer(name: str) -> Payer:
    return Payer("", "ml", name, "main", "offline", None)


@given(st.dictionaries(st.sampled_from("abcdef"), st.tuples(PART, st.sampled_from(("x", "y", "z"))), max_size=6))
def test_a_second_is_divided_among_tenants_and_idle_and_no_tenant_waits_for_more(
    contexts: dict[str, tuple[float, str]],
) -> None:
    busy = {name: part for name, (part, _) in contexts.items()}
    parts = divide(busy, dict.fromkeys(contexts, 2000), {})
    spent = divide_spending({name: tenant for name, (_, tenant) in contexts.items()}, busy, parts, {})
    card = CardBill()
    card.add(10.0, 11.0, spent)
    taken = card.take()
    assert taken is not None
    assert taken.idle + sum(one.gpu for one in taken.tenants.values()) == approx(1.0)
    assert all(0 <= one.waiting <= 1 for one in taken.tenants.values())


def test_two_tenants_with_work_have_half_each_and_wait_for_the_other_half() -> None:
    spent = divide_spending({"1": "a", "2": "b"}, {"1": 1.0, "2": 1.0}, {"1": 0.5, "2": 0.5}, {})
    assert [(one.gpu, one.waiting) for one in spent.values()] == [(0.5, 0.5), (0.5, 0.5)]


def test_a_preempted_tenant_is_not_also_waiting() -> None:
    spent = divide_spending({"1": "a"}, {"1": 1.0}, {}, {"a": 1.0})
    assert (spent["a"].preempted, spent["a"].waiting) == (1.0, 0.0)


@given(st.lists(st.tuples(SECONDS, st.dictionaries(st.sampled_from("abc"), PART, max_size=1)), min_size=1, max_size=30))
def test_stretches_without_a_gap_add_up_to_the_time_between_their_ends(
    steps: list[tuple[float, dict[str, float]]],
) -> None:
    card, bill, now = CardBill(), Bill("boot", 10.0, {}), 100.0
    for length, parts in steps:
        card.add(now, now + length, {name: Spent(gpu=part) for name, part in parts.items()})
        now += length
        stretch = card.take()
        assert stretch is not None
        bill.add(CARD, stretch, {name: payer(name) for name in "abc"}, wall=1e9 + now)
    assert sum(spent.gpu for spent in bill.counters.values()) == approx(now - 100.0)
    assert sum(row.spent.gpu for row in bill.pending()) == approx(now - 100.0)


@given(st.floats(0, 100_000), st.booleans())
def test_a_gap_is_unmeasured_and_after_a_kill_at_most_one_interval_of_it_is_unknown(gap: float, clean: bool) -> None:
    bill = Bill("boot", 10.0, {CARD: Mark("boot", 50.0, 1e9, clean)})
    bill.add(CARD, Stretch(50.0 + gap, 51.0 + gap, idle=1.0), {}, wall=1e9 + 1 + gap)
    unknown, unmeasured = (bill.counters.get((CARD, one), Spent()).gpu for one in (UNKNOWN, UNMEASURED))
    assert unknown + unmeasured == approx(gap)
    assert unknown == (0 if clean else approx(min(gap, 10.0)))
    assert all(row.spent.gpu <= HOUR + 1e-6 for row in bill.pending())


def test_after_a_reboot_the_wall_clock_gives_the_gap_and_one_that_went_back_gives_none() -> None:
    for wall, gap in ((2000.0, 1000.0), (500.0, 0.0)):
        bill = Bill("now", 10.0, {CARD: Mark("before", 9e9, 1000.0, True)})
        bill.add(CARD, Stretch(3.0, 4.0, idle=1.0), {}, wall=wall + 1)
        assert bill.counters.get((CARD, UNMEASURED), Spent()).gpu == approx(gap)


def test_what_could_not_be_written_is_in_the_next_checkpoint_once() -> None:
    bill = Bill("boot", 10.0, {})
    bill.add(CARD, Stretch(0.0, 4.0, 1.0, {"a": Spent(gpu=3.0)}), {"a": payer("a")}, wall=100.0)
    bill.failed(bill.checkpoint(100.0))
    bill.add(CARD, Stretch(4.0, 5.0, 1.0), {}, wall=101.0)
    rows = bill.checkpoint(101.0).rows
    assert {row.payer: row.spent.gpu for row in rows} == {payer("a"): 3.0, IDLE: 2.0}
    assert bill.pending() == []


def test_counters_of_a_payer_that_is_gone_are_forgotten_after_an_hour() -> None:
    bill = Bill("boot", 10.0, {})
    bill.add(CARD, Stretch(0.0, 1.0, 0.0, {"a": Spent(gpu=1.0)}), {"a": payer("a")}, wall=100.0)
    bill.checkpoint(200.0)
    assert (CARD, payer("a")) in bill.counters
    bill.checkpoint(3800.0)
    assert (CARD, payer("a")) not in bill.counters
    assert (CARD, IDLE) in bill.counters


def test_thirty_minutes_of_churn_with_restarts_and_kills_add_up_to_the_wall_time(tmp_path: Path) -> None:
    """In virtual time: tenants come and go, the daemon is stopped or killed some thirty times, and the bill is read
    back from the disk every time."""
    chance, now, began = random.Random(7), 1000.0, 1000.0
    store = UsageStore(str(tmp_path / "usage.db"), keep_days=30)
    wall = 1.8e9 - now
    kills = 0
    while now < began + 1800:
        bill, card, tenants, written = Bill("boot", 10.0, store.marks()), CardBill(), {}, now
        life = now + chance.uniform(5, 120)
        while now < life:
            if chance.random() < 0.05:
                tenants[f"t{chance.randrange(40)}"] = chance.random()
            if tenants and chance.random() < 0.05:
                tenants.pop(chance.choice(list(tenants)))
            step = chance.uniform(0.001, 1.0)
            parts = divide(tenants, dict.fromkeys(tenants, 1), {})
            card.add(now, now + step, divide_spending({name: name for name in tenants}, tenants, parts, {}))
            now += step
            if now - written >= 10.0:
                written = now
                measured = card.take()
                assert measured is not None
                bill.add(CARD, measured, {f"t{at}": payer(f"t{at}") for at in range(40)}, wall + now)
                checkpoint = bill.checkpoint(wall + now)
                store.write(checkpoint.rows, dict(checkpoint.marks), checkpoint.shown_since, wall + now)
        killed = chance.random() < 0.5
        kills += killed
        if not killed:
            if (rest := card.take()) is not None:
                bill.add(CARD, rest, {f"t{at}": payer(f"t{at}") for at in range(40)}, wall + now)
            checkpoint = bill.checkpoint(wall + now, clean=True)
            store.write(checkpoint.rows, dict(checkpoint.marks), checkpoint.shown_since, wall + now)
        now += chance.uniform(0.5, 20)  # no daemon
    last = Bill("boot", 10.0, store.marks())
    last.add(CARD, Stretch(now, now + 1, 1.0), {}, wall + now + 1)
    rows = [*store.hours(0), *last.pending()]
    store.close()
    by = {
        kind: sum(row.spent.gpu for row in rows if row.payer.kind == kind)
        for kind in ("", "idle", "unknown", "unmeasured")
    }
    assert sum(by.values()) == approx(now + 1 - began, rel=0.01)
    assert kills > 5
    assert by["unknown"] <= 10.0 * kills + 1e-6
    assert by[""] > 100


def test_user_who_starts_any_number_of_runs_gets_few_rows_and_pays_for_all_of_them() -> None:
    """Each name is a row on the disk, a counter in memory and a line of the metrics; rows of others would make room."""
    bill, wall = Bill("boot", 10.0, {}), 10.0 * HOUR
    good = Payer("", "", "good", "", "normal", 1)

    def spend(at: float, *payers: Payer) -> None:
        tenants = {str(number): Spent(gpu=1.0) for number in range(len(payers))}
        bill.add(CARD, Stretch(at, at + 1, tenants=tenants), {str(n): one for n, one in enumerate(payers)}, wall)

    for number in range(5000):
        run = Payer("", f"namespace-{number}", f"run-{number}", "", ("normal", "offline")[number % 2], 70001)
        spend(float(number), run, good)
    assert len(bill.counters) < 300
    assert len(bill.checkpoint(wall).rows) < 300
    paid = [spent.gpu for (_, payer), spent in bill.counters.items() if payer.user == 70001]
    assert sum(paid) == approx(5000)
    assert bill.counters[CARD, good].gpu == approx(5000)
    spend(5000.0, Payer("", "", "late", "", "normal", 2))
    assert (CARD, Payer("", "", "late", "", "normal", 2)) in bill.counters, "others have names as before"

    wall += 2 * HOUR
    bill.checkpoint(wall)
    spend(6000.0, Payer("", "", "next-day", "", "normal", 70001))
    assert (CARD, Payer("", "", "next-day", "", "normal", 70001)) in bill.counters
    assert len(bill._names) < 5


def test_run_on_many_cards_counts_as_one_tenant() -> None:
    """200 tenants of one user are told apart in an hour, however many cards each has."""
    bill, wall, cards = Bill("boot", 10.0, {}), 10.0 * HOUR, [f"GPU-{number}" for number in range(8)]

    def spend(name: str) -> Payer:
        run = Payer("", "", name, "", "normal", 70001)
        for card in cards:
            bill.add(card, Stretch(0.0, 1.0, tenants={"t": Spent(gpu=1.0)}), {"t": run}, wall)
        return run

    runs = [spend(f"run-{number}") for number in range(MOST_NAMES)]
    assert all((card, run) in bill.counters for card in cards for run in runs)
    more = spend("one-more")
    assert all((card, more) not in bill.counters for card in cards)
    assert all(bill.counters[card, as_others(more)].gpu == approx(1.0) for card in cards)

    again = Bill("boot", 10.0, {}, dict(bill.counters), dict(bill.seen))
    assert again._names == bill._names, "the next daemon counts the same"
    wall += 2 * HOUR
    bill.checkpoint(wall)
    assert not bill._names[70001]
    late = spend("late")
    assert all((card, late) in bill.counters for card in cards)


def test_pods_of_a_user_that_are_not_told_apart_keep_a_known_namespace() -> None:
    """`aliquot usage --by namespace` showed their time under no namespace at all."""
    bill, wall = Bill("boot", 10.0, {}), 10.0 * HOUR

    def spend(namespace: str, number: int) -> None:
        pod = Payer("", namespace, f"{namespace}/p-{number}", "main", "normal", 70001)
        bill.add(CARD, Stretch(float(number), number + 1.0, tenants={"t": Spent(gpu=1.0)}), {"t": pod}, wall)

    for number in range(2 * MOST_NAMES):
        spend(("ml", "web")[number % 2], number)
    spend("new", 1000)
    by: dict[str, float] = {}
    for (_, payer), spent in bill.counters.items():
        by[payer.namespace] = by.get(payer.namespace, 0.0) + (spent.gpu if payer.user == 70001 else 0.0)
    assert by["ml"] == approx(MOST_NAMES)
    assert by["web"] == approx(MOST_NAMES)
    assert "new" not in by, "the number of namespaces is bounded"
    again = Bill("boot", 10.0, {}, dict(bill.counters), dict(bill.seen))
    assert again._namespaces == bill._namespaces, "the next daemon counts the same"
    bill.checkpoint(wall + 2 * HOUR)
    assert not [place for place in bill._namespaces if place[0] == 70001]


def test_pods_of_one_namespace_leave_rows_for_others() -> None:
    bill = Bill("boot", 10.0, {(CARD): Mark("boot", 0.0, 0.0, True)})
    for number in range(1000):
        one = {"t": Payer("", "ml", f"p-{number}", "main", "normal", None), "u": payer("x")._replace(namespace="b")}
        bill.add(CARD, Stretch(float(number), number + 1.0, tenants={"t": Spent(gpu=0.5), "u": Spent()}), one, 1000.0)
    assert len([key for key in bill.counters if key[1].namespace == "ml"]) < 300
    assert (CARD, payer("x")._replace(namespace="b")) in bill.counters


def test_stretch_of_a_card_is_what_a_second_of_it_is_times_its_length() -> None:
    bill = CardBill()
    bill.add(5.0, 5.0, {"a": Spent(1.0)})
    assert bill.take() is None
    bill.add(10.0, 12.0, {"a": Spent(0.25, 0.5, 0.125, 3.0, 5.0)})
    bill.add(12.0, 12.5, {"a": Spent(0.5), "b": Spent(1.0)})
    assert bill.take() == Stretch(10.0, 12.5, 1.5, {"a": Spent(0.75, 1.0, 0.25, 6.0, 10.0), "b": Spent(0.5)})
    assert bill.take() is None


def test_gap_after_a_kill_is_billed_to_the_hours_in_which_it_was_unknown_first() -> None:
    bill = Bill("boot", 10.0, {CARD: Mark("boot", 50.0, 0.0, False)})
    bill.add(CARD, Stretch(70.0, 71.0, idle=1.0), {}, wall=2 * HOUR + 6.0)
    rows = {(row.hour, row.payer): row.spent.gpu for row in bill.pending()}
    assert rows == {
        (HOUR, UNKNOWN): approx(10.0),
        (HOUR, UNMEASURED): approx(5.0),
        (2 * HOUR, UNMEASURED): approx(5.0),
        (2 * HOUR, IDLE): approx(1.0),
    }


def test_checkpoint_shows_the_counters_of_the_last_hour() -> None:
    assert Bill("boot", 10.0, {}).checkpoint(5000.0).shown_since == 5000.0 - FORGET


@pytest.mark.parametrize(
    ("busy", "lost", "waiting"),
    [(0.5, 0.0, 0.25), (2.0, 0.0, 0.75), (1.0, 0.25, 0.5), (0.125, 0.0, 0.0), (0.5, 1.0, 0.0)],
)
def test_tenant_waited_while_it_had_work_and_neither_ran_nor_lost_the_card(
    busy: float, lost: float, waiting: float
) -> None:
    found = divide_spending({"p": "a"}, {"p": busy}, {"p": 0.25}, {"a": lost})
    assert found == {"a": Spent(gpu=0.25, preempted=lost, waiting=waiting)}


def test_payer_counts_as_one_name_until_it_is_gone_from_every_card() -> None:
    bill = Bill("boot", 10.0, {})
    for at, card in enumerate(("GPU-0", "GPU-1")):
        spent = {"a": Spent(gpu=1.0)}
        bill.add(card, Stretch(at, at + 1.0, 0.0, spent), {"a": payer("a")}, wall=100.0 + 1000.0 * at)
    owner, place = owner_of(payer("a")), place_of(payer("a"))
    for wall, counted in ((101.0 + FORGET, 1), (1101.0 + FORGET, 0)):
        bill.checkpoint(wall)
        assert (bill._cards[payer("a")], bill._names[owner], bill._namespaces[place]) == (counted,) * 3


@pytest.mark.parametrize(
    ("began", "seconds", "parts"),
    [
        (3599.5, 1.0, [(3599.5, 0.5), (3600.0, 0.5)]),
        (0.0, 3600.0, [(0.0, 3600.0)]),
        (1800.0, 5400.25, [(1800.0, 1800.0), (3600.0, 3600.0), (7200.0, 0.25)]),
        (5.0, 0.0, []),
    ],
)
def test_stretch_is_divided_at_the_hours_to_the_last_part_of_a_second(
    began: float, seconds: float, parts: list[tuple[float, float]]
) -> None:
    assert list(_by_hour(began, seconds)) == parts
