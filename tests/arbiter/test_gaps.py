"""release-delay auto: how long online work keeps an idle card, learned from its own gaps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.arbiter.gaps import FIRST, LONGEST, SHORTEST, SWITCH, Gaps
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


@pytest.mark.parametrize("pause", [1, 10, 60])
@pytest.mark.parametrize("look", [0.01, 0.1, 0.45])
def test_what_was_learned_inside_requests_outlasts_the_time_between_them(pause: int, look: float) -> None:
    """On an H200 at one request a second the delay fell to 0 when a request came, and its first six tokens paid."""
    gaps = Gaps()
    for number in range(20):
        for _ in range(round(pause / look)):
            gaps.read("serve/1", look, 0.0, 0, works=False)
        for token in range(TOKENS):
            gaps.read("serve/1", TOKEN, TOKEN - (0.00005 if token else 0.0004), 1, works=True)
            assert not number or gaps.delay >= SHORTEST, (number, token)
        gaps.read("serve/1", 0.0004, 0.0, 0, works=False)


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
    card.run(2.0)
    assert card.arbiter.delay_of("serve") == 0.0


def read_requests(gaps: Gaps, pieces: int, gap: float, between: float, requests: int = 20) -> Gaps:
    """As the daemon reads it: every 10 ms while there is work."""
    for _ in range(requests):
        launches = max(1, round(0.01 / (0.001 + gap)))
        for _ in range(max(1, pieces // launches)):
            gaps.read("a", 0.01, 0.01 - launches * gap, launches, True)
        gaps.read("a", 0.01, 0.005, 1, False)
        gaps.read("a", between, 0.0, 0, False)
    return gaps


def test_who_accepts_less_latency_keeps_the_card_for_longer() -> None:
    def delay(latency: float) -> float:
        return read_requests(Gaps(latency=latency), 24, 0.004, 0.2).delay

    assert delay(0.0001) >= delay(0.0005) >= delay(0.005)
    assert delay(0.0001) > delay(0.005)
    assert delay(0.005) == 0.0


def test_windows_in_which_more_was_added_than_accepted_are_counted() -> None:
    """Gaps of 4 ms inside requests, and the card is given back in each."""
    assert read_requests(Gaps(latency=0.0001), 24, 0.0001, 0.05, 200).missed > 0
    assert read_requests(Gaps(latency=0.01), 24, 0.0001, 0.05, 200).missed == 0


def test_gaps_of_a_millisecond_inside_requests_are_not_counted_as_requests() -> None:
    """20 tokens of 5 ms, 1 ms apart, each of which pays a switch: 6 ms for the request, and 0.5 ms is accepted."""
    gaps = Gaps(latency=0.0005)
    for _ in range(100):
        for _ in range(20):
            gaps.read("a", 0.005, 0.005, 1, True)
            gaps.read("a", 0.001, 0.0, 0, False)
        gaps.read("a", 0.05, 0.0, 0, False)
    assert gaps.missed > 0 or gaps.delay >= 0.001


def test_without_offline_work_nothing_is_missed() -> None:
    gaps = Gaps(latency=0.0001)
    for _ in range(2000):
        gaps.read("a", 0.01, 0.005, 1, True, contended=False)
    assert gaps.missed == 0


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


_readings = st.tuples(
    st.sampled_from("ab"),
    st.floats(0.0001, 3.0),
    st.floats(0.0, 1.0),
    st.integers(0, 1000),
    st.booleans(),
)


@given(st.lists(_readings, max_size=100), st.floats(0.00001, 1.0))
def test_delay_is_nothing_or_worth_its_orders_and_never_more_than_qgpus(
    readings: list[tuple[str, float, float, int, bool]], latency: float
) -> None:
    gaps = Gaps(latency=latency)
    for context, elapsed, part, launches, works in readings:
        gaps.read(context, elapsed, elapsed * part, launches, works)
        assert gaps.delay == 0.0 or SHORTEST <= gaps.delay <= LONGEST


def test_gap_of_just_the_delay_costs_no_switch() -> None:
    """Offline work is let in when the delay is over, and the online work is there."""
    gaps = Gaps(delay=0.01)
    gaps._add(0.01, 1)
    assert gaps._switches == 0
    gaps._add(0.0101, 1)
    assert gaps._switches == 1


class Heard(Gaps):
    """Keeps the gaps that it finds: length and count."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[float, int]] = []

    def _add(self, length: float, count: int) -> None:
        self.found += [(length, count)] if count else []


BUSY_THEN_IDLE, IDLE = (0.01, 0.006, 1, False), (0.01, 0.0, 0, False)


@pytest.mark.parametrize(
    ("readings", "found"),
    [
        # Work at both ends: what was idle is divided among the launches,
        ([(0.01, 0.008, 4, True)], [(0.0005, 4)]),
        ([(0.01, 0.008, 4, True), (0.01, 0.008, 2, True)], [(0.0005, 4), (0.001, 2)]),
        ([(1.0, 1 - 2**-15, 160, True)], [(2**-15 / 3, 3)]),  # as many as there was time for, 10 us each,
        ([(0.01, 0.002, 4, True)], [(0.008, 1)]),  # or one, where it was idle for most of the time,
        ([(0.5, 0.25, 4, True)], [(0.25, 1)]),  # or for half of it,
        ([(0.01, 0.0, 4, True)], [(0.01, 1)]),
        ([(0.01, 0.009, 0, True)], []),  # or none: a long kernel, and the figures do not fit.
        ([(0.01, 0.011, 4, True)], []),
        # A gap that is not over is none yet. One that began or ended within a reading did so in its middle.
        ([BUSY_THEN_IDLE], []),
        ([BUSY_THEN_IDLE, IDLE], []),
        ([BUSY_THEN_IDLE, IDLE, IDLE, (0.01, 0.007, 1, True)], [(0.002 + 0.01 + 0.01 + 0.003, 1)]),
        ([BUSY_THEN_IDLE, (0.01, 0.008, 0, True)], [(0.002 + 0.002, 1)]),
        ([IDLE, BUSY_THEN_IDLE, BUSY_THEN_IDLE], [(0.01 + 0.002, 1), (0.002 + 0.002, 1)]),
        ([IDLE, (0.01, 0.011, 1, True)], [(0.01, 1)]),
    ],
)
def test_gaps_are_found_in_what_was_read(
    readings: list[tuple[float, float, int, bool]], found: list[tuple[float, int]]
) -> None:
    gaps = Heard()
    for elapsed, busy, launches, works in readings:
        gaps.read("a", elapsed, busy, launches, works)
    assert [count for _, count in gaps.found] == [count for _, count in found]
    assert [length for length, _ in gaps.found] == pytest.approx([length for length, _ in found])


@pytest.mark.parametrize(
    ("idle", "aged"), [([0.05], 0.05), ([0.05, 0.03], 0.08), ([0.08, 0.08], 0.1), ([0.2, 0.3], 0.1)]
)
def test_a_gap_ages_what_was_learned_by_the_longest_delay_at_most(idle: list[float], aged: float) -> None:
    gaps = Gaps()
    gaps._add(0.001, 8)
    for seconds in idle:
        gaps.read("a", seconds, 0.0, 0, False)
    assert sum(gaps._counts) == pytest.approx(8 * 0.5 ** (aged / 0.4))
    assert sum(gaps._lengths) == pytest.approx(0.008 * 0.5 ** (aged / 0.4))


@pytest.mark.parametrize(
    ("latency", "seen", "delay"),
    [
        # A switch costs 5 ms of offline work here: two are 10; one, the delay, its orders and the short gap 8.2.
        (0.0003, {0.0004: 1, 0.0064: 1}, 0.0008),
        (0.01, {0.0002: 1}, 0.0),  # a switch costs less than the gap
        (0.0005, {0.00005: 50, 0.001: 10}, 0.0),  # the delay would take 4 of the 10 ms that are of use
        (0.0005, {0.0008: 100, 0.0064: 2}, 0.0016),  # ... just a quarter of them
        (0.0001, {0.05: 1}, LONGEST),  # not even one switch is accepted,
        (0.0001, {0.2: 2}, SHORTEST),  # but no delay outlasts these
        (0.0003, {0.0003: 1}, 0.0008),  # one switch is just accepted: it has its price, 5 ms
        (0.0003, {0.2: 2}, 0.0),
    ],
)
def test_the_delay_is_the_cheapest_for_the_gaps_that_were_seen(
    latency: float, seen: dict[float, int], delay: float
) -> None:
    gaps = Gaps(latency=latency)
    assert gaps._cheapest() == FIRST, "nothing was seen"
    for length, count in seen.items():
        gaps._add(length, count)
    assert gaps._cheapest() == pytest.approx(delay)


def test_a_gap_of_long_ago_is_forgotten_even_where_no_switch_is_accepted() -> None:
    gaps = Gaps(latency=0.0001)
    gaps._add(10.0, 1)
    delays = []
    for _ in range(250):
        gaps.read("a", 0.06, 0.04, 1, True)  # requests 20 ms apart
        delays.append(gaps.delay)
    assert delays[0] == SHORTEST
    assert delays[-1] == pytest.approx(0.0512)


@pytest.mark.parametrize(
    ("length", "switches", "requests"),
    [(0.001, 0, 0), (0.0011, 3, 0), (0.002, 3, 0), (0.0021, 3, 3)],
)
def test_a_gap_inside_a_request_may_cost_a_switch_but_is_not_another_request(
    length: float, switches: int, requests: int
) -> None:
    gaps = Gaps(delay=0.001)
    gaps._add(length, 3)
    assert (gaps._switches, gaps._requests) == (switches, requests)


def test_a_gap_that_passes_within_the_delay_is_no_request() -> None:
    gaps = Gaps(delay=0.01)
    gaps._add(0.01, 3)
    assert (gaps._switches, gaps._requests) == (0, 0)


def test_switches_get_dearer_with_each_second_that_missed_the_latency_and_cheaper_with_the_others() -> None:
    """As much is accepted as two switches cost: four in two requests are no more, four without any are."""
    gaps = Gaps(latency=2 * SWITCH)

    def second(switches: int, requests: int) -> tuple[int, float]:
        gaps._switches, gaps._requests = switches, requests
        gaps._judge(0.5)
        gaps._judge(0.5)
        return gaps.missed, gaps._strain

    assert second(4, 2) == (0, 1.0)
    assert [second(4, 0) for _ in range(5)] == [(1, 2.0), (2, 4.0), (3, 8.0), (4, 16.0), (5, 16.0)]
    assert second(0, 0) == pytest.approx((5, 16 / 1.2))
    assert second(2, 0) == pytest.approx((5, 16 / 1.2**2))
    assert second(3, 1)[0] == 6


@pytest.mark.parametrize(("more", "delay"), [(0.0, SHORTEST), (2.0**-52, 0.0032)])
def test_gaps_of_which_a_billionth_is_left_do_not_count(more: float, delay: float) -> None:
    """They were seen so long ago: not even where no switch is accepted at all."""
    gaps, left = Gaps(latency=SWITCH / 2), 4503600 * 2.0**-52
    gaps._counts[0], gaps._counts[5] = left / 1e-9 - left, left + more
    assert gaps._cheapest() == delay
