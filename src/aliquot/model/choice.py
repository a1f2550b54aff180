"""Why a claim got its cards and not others, as data. wording/placement.py has the sentences."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Rule(StrEnum):
    """What the chosen cards have in common that others lack."""

    GROUP = "group"  # members of its group are on the card (docs/together.md)
    UNBOOKED = "unbooked"  # nothing on the card has to be parked for it
    FEWEST_REPLICAS = "fewest-replicas"  # of the same owner, on the card
    NO_OFFLINE = "no-offline"
    NO_ONLINE = "no-online"
    EMPTY = "empty"  # no other Pod on the card
    NODE_REPLICAS = "node-replicas"  # fewest of the same owner, on the node
    NODE_PODS = "node-pods"  # fewest Pods per card, on the node
    MOST_FREE = "most-free"
    FULLEST_NODE = "fullest-node"
    LEAST_FREE = "least-free"
    LEAST_SPOILED = "least-spoiled"  # fgd and dense
    TOGETHER = "together"  # the containers fit there together
    SMALLEST_NODE = "smallest-node"  # of the nodes that were free as a whole


@dataclass(frozen=True, slots=True)
class Choice:
    """`rules`: those that ruled other cards out, the weightiest first; empty: the others are alike. `fitting`: how many
    cards (of a whole-node claim: nodes) fitted, the chosen ones included."""

    rules: tuple[Rule, ...]
    fitting: int
