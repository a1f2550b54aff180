"""Why a healthy card is not offered, in words."""

from __future__ import annotations

from aliquot.model.withheld import CardHolder, Withheld, WithheldCode

_WORDS = {
    WithheldCode.MIG: "MIG mode is on",
    WithheldCode.HELD: "a Pod of another device plugin holds it",
    WithheldCode.UNKNOWN_HOLDERS: "the kubelet does not say which cards Pods of other device plugins hold",
}


def withheld_words(why: Withheld) -> str:
    """Part of a sentence; a code of another release as it is."""
    if why.code is WithheldCode.HELD and why.holder is not None:
        return _held(why.holder)
    return _WORDS.get(why.code, why.code.value)


def _held(holder: CardHolder) -> str:
    more = f", and {holder.more} more" if holder.more else ""
    return f"Pod {holder.pod} holds it by {holder.resource}{more}"
