"""Why a healthy card is not offered."""

from __future__ import annotations

import msgspec

from aliquot.model.decoding.opencode import OpenCode


class WithheldCode(OpenCode):
    """The reason. In the inventory annotation and in the status; wording/withheld.py has the words."""

    MIG = "mig"  # MIG mode is on
    HELD = "held"  # a Pod of another device plugin or DRA driver holds the card: see CardHolder
    UNKNOWN_HOLDERS = "unknown-holders"  # the kubelet does not say which cards such Pods hold


class CardHolder(msgspec.Struct, frozen=True, gc=False):
    """A Pod that holds a card by another device plugin's resource."""

    pod: str  # namespace/name
    resource: str
    more: int = 0  # other holders of the same card


class Withheld(msgspec.Struct, frozen=True, gc=False):
    """The code, and of a held card its holder."""

    code: WithheldCode
    holder: CardHolder | None = None


MIG_MODE = Withheld(WithheldCode.MIG)
UNKNOWN_HOLDERS = Withheld(WithheldCode.UNKNOWN_HOLDERS)
