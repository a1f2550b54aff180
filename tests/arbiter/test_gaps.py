"""release-delay auto: how long online work keeps an idle card, learned from its own gaps."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.arbiter.gaps import EDGES, FIRST, LENGTHS, LONGEST, SHORTEST, SWITCH, Gaps
from aliquot.model.claim import AppClass
from aliquot.model.tenant import SharingRules
from kit.cards.virtualcard import Load, VirtualCard

TOKEN, TOKENS = 0.00118, 24
AUTO = SharingRules(release_delay=None)


def p99(latencies: list[float]) -> float:
    return sorted(latencies)[int(0.99 * len(latencies))]


def beside_training(
    load: Load, rules: SharingRules = AUTO, latency: float | None = None, release_delay: float | None = None
) -> VirtualCard:
    card = VirtualCard(rules)
    card.admit("serve", AppClass.ONLINE, latency=latency, release_delay=release_delay)
    card.admit("train", AppClass.OFFLINE)
    card.start("serve/1", "serve", load)
    card.start("train/1", "train", Load(kernel=0.0005))
    card.run(3.0)
    card.mark()
    return card


def llm(rate: float) -> Load:
    return Load(work=TOKEN, period=1 / rate, kernel=TOKEN, pieces=TOKENS, start=0.5)


@pytest.mark.parametrize("rate", [1, 6, 20])
def test_tokens_of_a_language_model_pay_no_switch_and_training_has_what_is_left(rate: int) -> None:
    card = beside_training(llm(rate))
    card.run(10.0)
    assert p99(card.latencies("serve/1")) <= 1.10 * TOKEN
    assert p99(card.firsts("serve/1")) <= TOKEN + 0.0005
    free = 1 - rate * (TOKENS * TOKEN + (TOKENS - 1) * 0.00005)
    # At 20 requests a second the delay and two orders are one of the 21 ms between requests.
    assert card.share("train") >= (0.97 if rate < 20 else 0.94) * free


def at(length: float, count: int = 1) -> list[int]:
    counts = [0] * LENGTHS
    counts[bisect_left(EDGES, length)] = count
    return counts


@pytest.mark.parametrize("pause", [1, 10, 60])
def test_what_was_learned_inside_requests_outlasts_the_time_between_them(pause: int) -> None:
    """On an H200 at one request a second the delay fell to 0 when a request came, and its first six tokens paid."""
    gaps = Gaps()
    for number in range(20):
        for token in range(TOKENS):
            gaps.read(at(0.00005) if token else at(pause), TOKEN, TOKEN)
            assert not number or gaps.delay >= SHORTEST, (number, token)
        gaps.read((), 0.0, pause)


def test_without_auto_each_token_pays_or_training_does() -> None:
    """What the test above would say of the delays there were before."""
    card = beside_training(llm(6), SharingRules(release_delay=0.0))
    card.run(5.0)
    assert p99(card.latencies("serve/1")) > 1.10 * TOKEN
    card = beside_training(llm(6), SharingRules(release_delay=0.1))
    card.run(5.0)
    assert card.share("train") < 0.5


def test_requests_of_one_piece_hold_nothing_back() -> None:
    """ResNet at 25 requests a second: a delay would cost training the card, and gain a tenth of a millisecond."""
    card = beside_training(Load(work=0.0012, period=0.04, kernel=0.0012))
    card.run(5.0)
    assert card.arbiter.delay_of("serve") == 0.0
    assert p99(card.latencies("serve/1")) <= 0.0012 + 0.0005
    assert card.share("train") >= 0.97 * (1 - 25 * 0.0012)


@pytest.mark.parametrize(("before", "after"), [(5, 100), (100, 5)])
def test_auto_follows_a_step_of_the_load_within_two_seconds(before: int, after: int) -> None:
    card = beside_training(Load(work=0.0012, period=1 / before, kernel=0.0012))
    card.stop("serve/1")
    card.start("serve/2", "serve", Load(work=0.0012, period=1 / after, kernel=0.0012))
    card.run(2.0)
    card.mark()
    card.run(3.0)
    assert p99(card.latencies("serve/2")) <= 0.0012 + 0.0005
    assert card.share("train") >= 0.95 * (1 - after * 0.0012)  # a hundred switches, each way


@pytest.mark.parametrize("launches", [1, 3, 160])
@pytest.mark.parametrize("rate", [25, 100, 107])
def test_requests_of_several_launches_do_not_look_like_short_gaps(rate: int, launches: int) -> None:
    """They did, and training stood still; on an H200 it also did at 100 requests a second, likely for this reason."""
    card = beside_training(Load(work=0.0024, period=1 / rate, kernel=0.0024 / launches))
    card.run(3.0)
    assert card.arbiter.delay_of("serve") == 0.0
    assert card.share("train") >= 0.94 * (1 - rate * 0.0024)


def test_steady_stream_of_requests_does_not_keep_training_off_for_good() -> None:
    card = beside_training(Load(work=0.002, period=0.0045, kernel=0.002))
    card.run(3.0)
    assert card.share("train") >= 0.35  # of 0.56, after a switch each way


def test_model_without_a_pause_between_requests_is_not_cut_at_each_token() -> None:
    card = beside_training(Load(work=TOKEN, kernel=TOKEN, pieces=10**9))
    card.run(3.0)
    assert p99(card.latencies("serve/1")) <= 1.10 * TOKEN


def test_model_that_becomes_a_server_of_single_requests_gives_the_card_back_sooner() -> None:
    card = beside_training(llm(6))
    assert card.arbiter.delay_of("serve") >= SHORTEST
    card.stop("serve/1")
    card.start("serve/2", "serve", Load(work=0.0012, period=0.04, kernel=0.0012))
    card.run(5.0)
    assert card.arbiter.delay_of("serve") == 0.0


def read_requests(gaps: Gaps, pieces: int, gap: float, between: float, requests: int = 20) -> Gaps:
    for _ in range(requests):
        for _ in range(pieces):
            gaps.read(at(gap), 0.001, 0.001 + gap)
        gaps.read(at(between), 0.001, between)
    return gaps


def test_who_accepts_less_latency_keeps_the_card_for_longer() -> None:
    def delay(latency: float) -> float:
        return read_requests(Gaps(latency=latency), 24, 0.004, 0.2).delay

    assert delay(0.0001) >= delay(0.0005) >= delay(0.005)
    assert delay(0.0001) > delay(0.005)
    assert delay(0.005) == 0.0


def test_windows_in_which_more_was_added_than_accepted_are_counted() -> None:
    """No delay outlasts the gaps between these requests: the first piece of each pays a switch."""
    assert read_requests(Gaps(latency=0.0001), 24, 0.0001, 0.25, 200).missed > 0
    assert read_requests(Gaps(latency=0.01), 24, 0.0001, 0.25, 200).missed == 0


def test_without_offline_work_nothing_is_missed() -> None:
    gaps = Gaps(latency=0.0001)
    for _ in range(2000):
        gaps.read(at(0.25), 0.005, 0.01, contended=False)
    assert gaps.missed == 0


def test_requests_are_counted_by_the_longer_gaps() -> None:
    assert read_requests(Gaps(), 24, 0.003, 0.05, requests=7).requests == 7


def test_piece_is_the_work_between_two_gaps() -> None:
    gaps = Gaps()
    assert gaps.piece is None
    for _ in range(100):
        gaps.read(at(0.0004, 2), 0.006, 0.007)
    assert gaps.piece == pytest.approx(0.003, rel=0.01)


@pytest.mark.parametrize(("pause", "wanted"), [(0.0004, 0.67), (0.0081, 0.09), (5.0, 0.01)])
def test_what_is_no_gap_is_wanted_of_the_card(pause: float, wanted: float) -> None:
    """A wait for the card is no gap, and counts; a long pause counts as the longest gap that is told apart."""
    learned, steps = Gaps(), max(1, round(pause / 0.004))
    for _ in range(200):
        counts = [0] * LENGTHS
        for _ in range(steps - 1):
            learned.read([0] * LENGTHS, 0.0, 0.004)
        counts[bisect_left(EDGES, pause)] += 1
        learned.read(counts, 0.0004, 0.0012 if steps == 1 else 0.0048)
    assert learned.wants == pytest.approx(wanted, abs=0.05)


@pytest.mark.parametrize(
    ("gap", "work", "waits"),
    [
        (0.00003, 0.002, False),
        (0.0002, 0.001, True),
        (0.0012, 0.006, True),
        (0.0001, 0.01, False),
        (0.05, 0.002, False),
    ],
)
def test_program_that_keeps_its_queue_full_waits_for_no_piece(gap: float, work: float, waits: bool) -> None:
    """It waits for an earlier kernel, and launches another at once."""
    learned = Gaps()
    for _ in range(300):
        learned.read(at(gap), work, gap + work)
    assert learned.waits_for_pieces is waits


def test_tenant_keeps_the_delay_of_its_own_rules_where_the_node_learns() -> None:
    card = beside_training(llm(6), release_delay=0.1)
    card.run(3.0)
    assert card.arbiter.delay_of("serve") == 0.1
    assert card.share("train") < 0.5
    card = beside_training(llm(6), SharingRules(release_delay=0.0), release_delay=0.1)
    assert card.arbiter.delay_of("serve") == 0.0, "somebody set another for all"


def test_accepted_latency_goes_before_the_delay_of_the_node() -> None:
    """Requests that may take 5 ms more need no delay; those that may not even take a switch more have a long one."""
    patient = beside_training(Load(work=0.0012, period=0.04, kernel=0.0012), SharingRules(release_delay=0.1), 0.005)
    patient.run(3.0)
    assert patient.arbiter.delay_of("serve") == 0.0
    assert patient.share("train") >= 0.95 * (1 - 25 * 0.0012)
    assert p99(patient.latencies("serve/1")) <= 0.0012 + 0.005
    assert patient.arbiter.missed_of("serve") == 0
    hasty = beside_training(Load(work=0.0012, period=0.04, kernel=0.0012), SharingRules(release_delay=0.0), 0.0001)
    hasty.run(3.0)
    assert hasty.arbiter.delay_of("serve") >= 0.04
    assert p99(hasty.latencies("serve/1")) <= 0.0012 + 0.0001


def test_latency_that_cannot_be_had_is_counted_as_missed() -> None:
    """Requests that come after more than the longest delay pay a switch each."""
    card = beside_training(Load(work=0.0012, period=0.3, kernel=0.0012), latency=0.0001)
    card.run(10.0)
    assert card.arbiter.missed_of("serve") >= 5
    silent = beside_training(Load(work=0.0012, period=0.3, kernel=0.0012))
    silent.run(10.0)
    assert silent.arbiter.missed_of("serve") == 0, "it did not say what it accepts"


_readings = st.tuples(st.lists(st.integers(0, 70000), min_size=LENGTHS, max_size=LENGTHS), st.floats(0.0, 3.0))


@given(st.lists(_readings, max_size=50), st.floats(0.00001, 1.0))
def test_delay_is_nothing_or_worth_its_orders_and_never_more_than_qgpus(
    readings: list[tuple[list[int], float]], latency: float
) -> None:
    gaps = Gaps(latency=latency)
    for counts, busy in readings:
        gaps.read(counts, busy, 0.01)
        assert gaps.delay == 0.0 or SHORTEST <= gaps.delay <= LONGEST


# What engines do, in seconds: work, gap inside the request, pieces of a request, requests a second (None: no pause).
ENGINES = {
    "llama.cpp": (0.0009, 0.0004, 24, 6),
    "llama.cpp, always busy": (0.0009, 0.0004, 10**6, None),
    "vLLM, one sequence": (0.005, 0.0012, 32, 2),
    "vLLM, always busy": (0.006, 0.0020, 10**6, None),
    "GPT by graphs": (0.0011, 0.00006, 24, 6),
    "HF generate, synchronised at each token": (0.015, 0.0007, 32, 1),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_no_gap_inside_a_request_costs_a_switch(engine: str) -> None:
    work, gap, pieces, rate = ENGINES[engine]
    gaps = Gaps()
    for piece in range(400):
        between = rate is not None and piece % pieces == pieces - 1
        gaps.read(at(1 / rate - pieces * (work + gap) if between and rate else gap), work, work + gap)
    assert gap < gaps.delay <= 4 * max(gap, SHORTEST)


def test_gap_of_just_the_delay_costs_no_switch() -> None:
    """Offline work is let in when the delay is over, and the online work is there."""
    gaps = Gaps(delay=EDGES[10])
    gaps._add(10, 1, contended=True)
    assert gaps._switches == 0
    gaps._add(11, 1, contended=True)
    assert gaps._switches == 1


@pytest.mark.parametrize(
    ("latency", "seen", "delay"),
    [
        (0.0003, {0.0004: 1, 0.0064: 1}, 0.00048),  # the longer one would be most of all time
        (0.05, {0.0002: 1}, 0.0),  # a switch costs less than the gap
        (0.0005, {0.00005: 50, 0.02: 50}, SHORTEST),  # a few gaps are too long to be kept
        (0.0001, {0.05: 1}, 0.0614),  # not even one switch is accepted,
        (0.0001, {0.2: 2}, SHORTEST),  # but no delay outlasts these
        (0.0003, {0.2: 2}, 0.0),
    ],
)
def test_the_delay_is_the_cheapest_for_the_gaps_that_were_seen(
    latency: float, seen: dict[float, int], delay: float
) -> None:
    gaps = Gaps(latency=latency)
    assert gaps._cheapest() == FIRST, "nothing was seen"
    gaps._busy = 0.001 * sum(seen.values())
    for length, count in seen.items():
        gaps._add(bisect_left(EDGES, length), count, contended=True)
    assert gaps._cheapest() == pytest.approx(delay, rel=0.05)


def test_a_gap_of_long_ago_is_forgotten_even_where_no_switch_is_accepted() -> None:
    gaps = Gaps(latency=0.0001)
    gaps.read(at(10.0), 0.04, 10.0)
    delays = []
    for _ in range(700):
        gaps.read(at(0.02), 0.04, 0.06)  # requests 20 ms apart
        delays.append(gaps.delay)
    assert delays[-1] == pytest.approx(1.2 * EDGES[bisect_left(EDGES, 0.02)])


def test_switches_get_dearer_with_each_second_that_missed_the_latency_and_cheaper_with_the_others() -> None:
    """As much is accepted as two switches cost: four in two requests are no more, four without any are."""
    gaps = Gaps(latency=2 * SWITCH)

    def second(switches: int, requests: int) -> tuple[int, float]:
        gaps._switches, gaps._waits = switches, requests
        gaps._judge(0.5)
        gaps._judge(0.5)
        return gaps.missed, gaps._strain

    assert second(4, 2) == (0, 1.0)
    assert [second(4, 0) for _ in range(5)] == [(1, 2.0), (2, 4.0), (3, 8.0), (4, 16.0), (5, 16.0)]
    assert second(0, 0) == pytest.approx((5, 16 / 1.2))
    assert second(2, 0) == pytest.approx((5, 16 / 1.2**2))
    assert second(3, 1)[0] == 6


def test_takings_are_counted_per_request() -> None:
    """Ten requests of ten tokens each: the card is given away between requests, and not between tokens."""
    gaps = Gaps()
    for _ in range(10):
        for _ in range(9):
            gaps.read(at(0.0004), 0.001, 0.0014)
        gaps.read(at(0.15), 0.001, 0.151)
    assert gaps.requests == 10
    assert gaps.takings <= 20
