"""What a Pod uses at once, counted as Kubernetes counts: max(init peak, sum of app and sidecars)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.claim import AppClass, Claim, ContainerClaim, Role, Slice, Usage, peak, peak_amount
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Offer
from aliquot.model.tenant import Allotment, Tenant

INIT, SIDECAR, MAIN = Role.INIT, Role.SIDECAR, Role.MAIN


@pytest.mark.parametrize(
    ("parts", "most"),
    [
        ([], 0),
        ([(MAIN, 3), (MAIN, 4)], 7),
        ([(INIT, 5), (INIT, 6), (MAIN, 3)], 6),
        ([(INIT, 5), (MAIN, 3), (MAIN, 4)], 7),
        ([(SIDECAR, 2), (MAIN, 3)], 5),
        ([(SIDECAR, 2), (INIT, 5), (MAIN, 3)], 7),  # the sidecar runs while the init container after it does
        ([(INIT, 5), (SIDECAR, 2), (MAIN, 3)], 5),  # and not while the one before it does
        ([(INIT, 1), (SIDECAR, 2), (SIDECAR, 2), (INIT, 4), (MAIN, 3)], 8),
    ],
)
def test_peak_is_the_larger_of_init_peak_and_sum(parts: list[tuple[Role, int]], most: int) -> None:
    assert peak((role, Usage(memory_mib=amount)) for role, amount in parts) == Usage(memory_mib=most)


def test_peak_takes_the_largest_of_every_dimension_by_itself() -> None:
    parts = [
        (INIT, Usage(memory_mib=9, core_milli=100, slices=1)),
        (MAIN, Usage(memory_mib=3, core_milli=500, slices=1)),
    ]
    assert peak(parts) == Usage(memory_mib=9, core_milli=500, slices=1)


def test_a_percentage_is_of_the_card_that_was_chosen_rounded_down() -> None:
    assert Slice(memory_percent=30).memory_on(16384) == 4915
    assert Slice(memory_mib=3072).memory_on(16384) == 3072


def _granted(name: str, role: Role, *shares: Share) -> ContainerGrant:
    return ContainerGrant(name, 0, role, shares)


def test_a_grant_uses_of_each_card_the_peak_of_the_containers_on_it() -> None:
    grant = Grant(
        "u",
        "n1",
        (
            _granted("init", INIT, Share(0, 5000), Share(1, 5000)),
            _granted("a", MAIN, Share(0, 3000, core_milli=300)),
            _granted("b", MAIN, Share(0, 1000, core_milli=200)),
        ),
    )
    assert grant.usage() == {
        0: Usage(memory_mib=5000, core_milli=500, slices=2),
        1: Usage(memory_mib=5000, slices=1),
    }


def test_a_grant_counts_exclusive_shares() -> None:
    grant = Grant("u", "n1", (_granted("a", MAIN, Share(2, 100, exclusive=True)),))
    assert grant.usage() == {2: Usage(memory_mib=100, slices=1, exclusive=1)}


@pytest.mark.parametrize(
    ("app_class", "park_after", "parkable"),
    [
        (AppClass.OFFLINE, None, True),
        (AppClass.OFFLINE, 30.0, True),
        (AppClass.ONLINE, None, False),
        (AppClass.NORMAL, None, False),
        (AppClass.ONLINE, 30.0, True),
        (AppClass.NORMAL, 0.0, True),
    ],
)
def test_offline_claims_may_be_parked_and_others_if_they_ask_for_it(
    app_class: AppClass, park_after: float | None, parkable: bool
) -> None:
    claim = Claim("u", "ns", "n", "run", Offer.ANY, (), app_class=app_class, park_after=park_after)
    shared, whole = (
        Tenant("u", "n", app_class, (Allotment("GPU-0", limit),), None, park_after=park_after) for limit in (1, None)
    )
    assert (claim.parkable, shared.parkable, whole.parkable) == (parkable, parkable, False)
    two = Tenant("u", "n", app_class, (Allotment("GPU-0", 1), Allotment("GPU-1", 1)), None, park_after=park_after)
    assert not two.parkable


@pytest.mark.parametrize("counts", [(2,), (None,), (1, 1)], ids=str)
def test_claim_of_several_slices_is_never_parked(counts: tuple[int | None, ...]) -> None:
    containers = tuple(
        ContainerClaim(f"c{at}", at, Role.MAIN, Slice(memory_mib=1024), count) for at, count in enumerate(counts)
    )
    assert not Claim("u", "ns", "n", "run", Offer.ANY, containers, app_class=AppClass.OFFLINE).parkable


@pytest.mark.parametrize(("count", "cards"), [(1, 1), (3, 3), (None, 1)])
def test_cards_of_a_container_where_a_dialect_says_a_number(count: int | None, cards: int) -> None:
    assert ContainerClaim("c", 0, Role.MAIN, Slice(memory_mib=1024), count).cards == cards


@given(st.lists(st.tuples(st.sampled_from(Role), st.integers(0, 1000))))
def test_peak_of_a_number_is_that_of_a_usage(parts: list[tuple[Role, int]]) -> None:
    assert peak_amount(parts) == peak((role, Usage(memory_mib=amount)) for role, amount in parts).memory_mib
