"""Why nodes of a cluster do not take a Pod, or its PodGroup waits, as the dashboard's data. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aliquot.model.claim import Claim
from aliquot.model.group import Shortfall
from aliquot.model.reason import Reason
from aliquot.model.refusal import Invalid
from aliquot.model.status.machine import requests_of
from aliquot.model.status.messages import Message, MessageCode, Refused
from aliquot.wording import reasons
from aliquot.wording.amounts import count
from aliquot.wording.groups import waiting
from aliquot.wording.reasons import Facts
from aliquot.wording.refusals import needed, needed_percent, requires, short_reason, wants_alone

_MOST_REASONS = 3  # in one sentence


def refused_by_nodes(reason: Reason, never: bool, claim: Claim, nodes: int, example: str) -> Refused:
    """Why so many nodes do not take a Pod: the same words for all of them."""
    amount, required = needed(reason, claim), requires(reason, claim)
    return Refused(
        reason=reason,
        text=short_reason(reason, never, claim),
        never=never,
        own=wants_alone(reason, claim),
        wanted=amount or None,
        percent=needed_percent(claim) if reason is Reason.MEMORY and not amount else None,
        dialect=claim.dialect if required else None,
        requires=required,
        nodes=nodes,
        example=example,
    )


def invalid_nodes(broken: Mapping[str, Sequence[Invalid]]) -> Refused:
    """Nodes that break a rule of their dialect."""
    example = min(broken)
    detail = broken[example][0].sentence() if broken[example] else ""
    text = reasons.short(Reason.INVALID, Facts(detail=detail))
    return Refused(reason=Reason.INVALID, text=text, never=True, detail=detail, nodes=len(broken), example=example)


def no_fitting_node(groups: Sequence[Refused]) -> Message:
    """Why no node of a cluster takes a Pod, the reasons of most nodes first."""
    if not groups:
        return Message(MessageCode.NO_NODE, "there is no node")
    nodes = sum(group.nodes for group in groups)
    parts = [f"{group.nodes:,}: {group.text}" for group in groups[:_MOST_REASONS]]
    more = max(0, len(groups) - _MOST_REASONS)
    parts += [f"{more} more reasons"] if more else []
    text = f"fits none of {count(nodes, 'node')}. {'. '.join(parts)}"
    refusals = [*groups[:_MOST_REASONS]]
    return Message(MessageCode.NO_FITTING_NODE, text, count=nodes, refusals=refusals, more=more or None)


def group_lacks(short: Shortfall) -> Message:
    """What a Pod's PodGroup has and what it lacks."""
    text, name = waiting(short), short.group
    if short.broken:
        return Message(MessageCode.GROUP_INVALID, text, name=name, detail=short.broken)
    if short.finished:
        return Message(MessageCode.GROUP_FINISHED, text, name=name)
    if short.pause:
        return Message(
            MessageCode.GROUP_PAUSES, text, name=name, of=short.needed, count=short.came, number=int(short.pause)
        )
    return Message(
        MessageCode.GROUP_WAITS,
        text,
        name=name,
        names=[short.role] if short.role else None,
        of=short.needed,
        count=short.placed + short.cardless,
        number=short.fitting,
        more=short.absent or None,
        wants=None if short.absent or short.without is None else requests_of(short.without),
    )
