"""Why a Pod is on its cards, from the rules that ruled the others out."""

from __future__ import annotations

from aliquot.model.choice import Choice, Rule
from aliquot.model.grant import Grant

_RULES = {
    Rule.GROUP: "the card of its group",
    Rule.UNBOOKED: "its memory is not booked by others",
    Rule.FEWEST_REPLICAS: "fewest replicas of its owner",
    Rule.NO_OFFLINE: "no offline Pod",
    Rule.NO_ONLINE: "no online Pod",
    Rule.EMPTY: "no other Pod",
    Rule.NODE_REPLICAS: "fewest replicas of its owner on the node",
    Rule.NODE_PODS: "fewest Pods per card on the node",
    Rule.MOST_FREE: "most free",
    Rule.FULLEST_NODE: "the fullest node, so that the others stay free",
    Rule.LEAST_FREE: "least free, so that the others stay free for larger Pods",
    Rule.LEAST_SPOILED: "leaves the most usable room for later Pods",
    Rule.TOGETHER: "all containers fit together",
}


def why_there(grant: Grant, choice: Choice | None) -> str:
    """One sentence; without a choice only where it is."""
    if grant.whole_node:
        more = ", the smallest such node" if choice is not None and choice.rules else ""
        return f"{grant.node} had no other tenant{more}"
    cards = sorted({share.card for container in grant.containers for share in container.shares})
    many = len(cards) > 1
    names = f"card{'s' * many} {', '.join(map(str, cards))} of {grant.node}"
    if choice is None:
        return names
    if choice.fitting <= len(cards):
        return f"{names}: the only {'ones' if many else 'one'} with room"
    if not choice.rules:
        return f"{names}: the first of {choice.fitting:,} cards that are alike"
    return f"{names}, of {choice.fitting:,} with room: {', then '.join(_RULES[rule] for rule in choice.rules)}"
