"""qGPU's limit on how many share a card counts Pods."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from aliquot.model.claim import Claim, Role
from aliquot.model.device import Card
from aliquot.model.node import Node, Offer
from aliquot.placement.book import Booking, Ledger
from aliquot.placement.choose import POLICIES, Chooser
from kit.values.builders import GIB, a_board, a_claim, a_container, a_slice


def _claim(uid: str, *, together: bool) -> Claim:
    containers = (
        a_container(a_slice(1, 4), name="prepare", role=Role.INIT),
        a_container(a_slice(1, 4), name="proxy", role=Role.SIDECAR, index=1),
        a_container(a_slice(1, 4), name="a"),
        a_container(a_slice(1, 4), name="b", index=1),
    )
    return replace(a_claim(*containers, offer=Offer.QGPU, together=together), uid=uid)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("policy", ["binpack", "fgd", "dense"])
def test_sharing_limit_counts_pods_not_containers(policy: str, together: bool) -> None:
    """Init containers, sidecars and a second main container take no place of their own."""
    cards = tuple(Card(at, 32 * GIB, uuid=f"GPU-{at}", max_slices=8) for at in range(4))
    board = a_board(*(Node(name, cards, frozenset({Offer.QGPU})) for name in ("a", "b", "c", "d")))
    ledger, chooser = Ledger(board), Chooser(board, POLICIES[policy]())
    on: Counter[tuple[str, int]] = Counter()
    for at in range(4 * 4 * 8):
        claim = _claim(str(at), together=together)
        grant = chooser.choose(claim)
        assert grant is not None, f"Pod {at}"
        assert isinstance(ledger.assume(claim, grant, 1.0), Booking)
        on.update((grant.node, card) for card in grant.usage())
    assert set(on.values()) == {8}
    assert chooser.choose(_claim("more", together=together)) is None
