"""What a waiting PodGroup has and what it lacks, and what becomes of a Pod that names a group that is not there."""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.model.group import Group, Membership, Shortfall
from aliquot.model.reason import Reason
from aliquot.model.refusal import Refusal
from aliquot.wording import reasons
from aliquot.wording.amounts import count
from aliquot.wording.refusals import one_sentence
from aliquot.wording.requests import wants

_LONGEST = 900  # an event's note takes 1,024 bytes


def waiting(short: Shortfall) -> str:
    """One sentence, with numbers."""
    group = f"PodGroup {short.group}"
    if short.broken:
        return f"{group} is invalid: {short.broken}"
    if short.finished:
        return f"{group} is finished (spec.finished): no more of its Pods are started"
    of_role = f" of role {short.role}" if short.role else ""
    needed = f"{group} needs {count(short.needed, 'member')}{of_role} in their places at once"
    if short.pause:
        came = f"{short.came:,}" if short.came else "none"
        return (
            f"{needed}: {came} came to a place that was held, so no cards are held for it for {short.pause:.0f} s."
            " Events of the other members say what keeps them away"
        )
    has = [
        f"{number:,} {words}"
        for number, words in (
            (short.placed, "placed"),
            (short.cardless, "without need of a card"),
            (short.fitting, "that would fit now"),
        )
        if number
    ]
    return f"{needed}: has {' and '.join(has) or 'none'}, lacks {_lacks(short)}"


def _lacks(short: Shortfall) -> str:
    missing = short.needed - short.has
    if short.absent:
        return f"{count(short.absent, 'Pod')} not created yet"
    asks = f" ({wants(short.without)})" if short.without is not None else ""
    return f"room for {f'{missing:,} more' if missing > 0 else 'this one'}{asks}"


def coded_waiting(short: Shortfall) -> str:
    """The sentence with its code, for kube-scheduler to repeat."""
    return reasons.with_code(waiting(short), Reason.GROUP)


def waiting_because(short: Shortfall, refusals: Sequence[Refusal], nodes: int) -> str:
    """The same for an event, with what keeps the first member without room from every node."""
    if short.without is None or not refusals:
        return waiting(short)
    text = f"{waiting(short)}. {short.without.key} {one_sentence(refusals, short.without, nodes)}"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def not_gathered(group: Group, came: int, seconds: float) -> str:
    """Why a bind was refused: kube-scheduler did not send enough other members."""
    return (
        f"PodGroup {group.name} needs {count(group.needed, 'member')} in their places at once: {came:,} came within"
        f" {seconds:g} s, so none is bound. Events of the other members say what keeps them away"
    )


def no_such_group(named: Membership) -> str:
    """Why a Pod that names a group is scheduled by itself."""
    return f'{named.field}: there is no PodGroup "{named.name}" in this namespace: the Pod is scheduled by itself'
