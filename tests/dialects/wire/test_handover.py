"""What another device plugin gave a container: the answer that the kubelet kept, against the Pod's annotation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects import parse_pod
from aliquot.dialects.native import GRANT
from aliquot.dialects.wire.handover import VISIBLE, cards_given, is_ours, on_cards, render_own_grant
from aliquot.model.claim import Claim, Role
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node
from kit.values.manifests import MEM, asking

NODE = Node("n1", tuple(Card(at, 16384, f"GPU-{at}") for at in range(4)))


def a_grant(*cards: int, mib: int = 4096) -> Grant:
    shares = tuple(Share(card, mib) for card in cards)
    return Grant("u", "n1", (ContainerGrant("main", 0, Role.MAIN, shares),))


@pytest.mark.parametrize(
    ("visible", "cards"),
    [
        ("GPU-2", (2,)),
        ("GPU-3,GPU-1", (1, 3)),
        ("GPU-9", None),
        ("GPU-1,GPU-9", None),
        ("1", None),
        ("all", None),
        ("no-gpu-has-4GiB-to-run", None),
        ("", None),
    ],
)
def test_visible_devices_are_read_by_uuid(visible: str, cards: tuple[int, ...] | None) -> None:
    assert cards_given({VISIBLE: visible}, NODE) == cards
    assert cards_given({}, NODE) is None


def test_own_allocate_answer_is_recognised() -> None:
    assert is_ours(["aliquot.dev/gpu-mem=1f"], {}, mark="ALIQUOT_TENANT")
    assert is_ours([], {"ALIQUOT_TENANT": "/run/aliquot/tenant"}, mark="ALIQUOT_TENANT")
    assert not is_ours(["nvidia.com/gpu=0", "aliquot.development/x=1"], {VISIBLE: "GPU-0"}, mark="ALIQUOT_TENANT")


def test_grant_on_given_cards_is_kept() -> None:
    assert on_cards(a_grant(2), [2], NODE) == a_grant(2)


def test_grant_with_other_card_count_is_kept() -> None:
    assert on_cards(a_grant(0, 1), [2], NODE) == a_grant(0, 1)


@given(st.sets(st.integers(0, 3), min_size=1))
def test_grant_moves_to_given_cards(named: set[int]) -> None:
    given_cards = {(card + 1) % 4 for card in named}
    moved = on_cards(a_grant(*sorted(named)), given_cards, NODE)
    assert set(moved.usage()) == given_cards
    assert sum(use.memory_mib for use in moved.usage().values()) == 4096 * len(named)
    kept = [share.card for share in moved.containers[0].shares if share.card in named & given_cards]
    assert set(kept) == named & given_cards


def test_grant_annotation_uses_uuids() -> None:
    claim = parse_pod(asking({MEM: 4}, on="n1"))
    assert isinstance(claim, Claim)
    assert '"uuid":"GPU-1"' in render_own_grant(claim, a_grant(1), NODE)[GRANT]
    assert render_own_grant(claim, a_grant(1, mib=1024), NODE) == {}
