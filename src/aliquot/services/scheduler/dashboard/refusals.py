"""Why nodes of a cluster do not take a Pod, as the dashboard's data. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aliquot.dialects import ENABLED_BY
from aliquot.model.claim import Claim
from aliquot.model.reason import Reason
from aliquot.model.refusal import Invalid
from aliquot.model.status.dashboard import Message, MessageCode, Refused
from aliquot.placement.demand import demand_of
from aliquot.wording.refusals import short_reason

_MOST_REASONS = 3  # in one sentence


def refused_by_nodes(reason: Reason, never: bool, claim: Claim, nodes: int, example: str) -> Refused:
    """Why so many nodes do not take a Pod: the same words for all of them."""
    parts = demand_of(claim).parts
    memory = max((part.slice.memory_mib for part in parts), default=0)
    wanted = {
        Reason.MEMORY: memory,
        Reason.CORE: max((part.slice.core_milli or 0 for part in parts), default=0),
        Reason.GREEDY: max((part.slice.greedy_milli or 0 for part in parts), default=0),
        Reason.CARDS: max((part.count for part in parts), default=0),
        Reason.CPU: claim.cpu_milli,
        Reason.HOST_MEMORY: claim.memory_mib,
    }.get(reason)
    percent = max((part.slice.memory_percent for part in parts), default=0)
    serves = reason in (Reason.MODE, Reason.MIXED)
    whole = claim.whole_node if reason is Reason.WHOLE_NODE else any(part.slice.exclusive for part in claim.containers)
    return Refused(
        reason=reason,
        text=short_reason(reason, never, claim),
        never=never,
        own=whole and reason in (Reason.WHOLE_NODE, Reason.EXCLUSIVE),
        wanted=wanted or None,
        percent=percent if reason is Reason.MEMORY and not memory else None,
        dialect=claim.dialect if serves else None,
        requires=ENABLED_BY[claim.offer] if serves else None,
        nodes=nodes,
        example=example,
    )


def invalid_nodes(broken: Mapping[str, Sequence[Invalid]]) -> Refused:
    """Nodes that break a rule of their dialect."""
    example = min(broken)
    detail = broken[example][0].sentence() if broken[example] else ""
    text = f"invalid node: {detail}"
    return Refused(reason=Reason.INVALID, text=text, never=True, detail=detail, nodes=len(broken), example=example)


def no_fitting_node(groups: Sequence[Refused]) -> Message:
    """Why no node of a cluster takes a Pod, the reasons of most nodes first."""
    if not groups:
        return Message(MessageCode.NO_NODE, "there is no node")
    nodes = sum(group.nodes for group in groups)
    parts = [f"{group.nodes:,}: {group.text}" for group in groups[:_MOST_REASONS]]
    more = max(0, len(groups) - _MOST_REASONS)
    parts += [f"{more} more reasons"] if more else []
    text = f"fits none of {nodes:,} node{'s' * (nodes != 1)}: {'; '.join(parts)}"
    refusals = [*groups[:_MOST_REASONS]]
    return Message(MessageCode.NO_FITTING_NODE, text, count=nodes, refusals=refusals, more=more or None)
