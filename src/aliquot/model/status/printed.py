"""What commands print with `-o json`. Memory is in GiB, compute in percent of a card.

Field names are the JSON names, in the order in which they are printed.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

from msgspec import Raw, Struct, field

from aliquot.model.claim import AppClass

Amount = int | float

# --- aliquot explain: one ExplainedPod for each Pod ------------------------------------------------------------------


class ExplainedShare(Struct):
    """What a container has of one card; null: not asked for."""

    card: int
    memory_gib: Amount
    core: Amount | None
    core_greedy: Amount | None
    whole: bool


SharesByContainer = dict[str, list[ExplainedShare]]


class ExplainedVictim(Struct):
    """A Pod that would have to go."""

    pod: str
    priority: int
    app_class: AppClass = field(name="class")


class ExplainedPreemption(Struct):
    """Where it would fit if others went; `allowed`: whether its priority is enough."""

    node: str
    containers: SharesByContainer
    allowed: bool
    victims: list[ExplainedVictim]


class ExplainedClaim(Struct):
    """A ResourceClaim of the Pod; `error`: why it has no cards."""

    claim: str
    node: str | None
    app_class: AppClass = field(name="class")
    requests: SharesByContainer
    pods: list[str]
    error: str | None


class ExplainedRefusal(Struct):
    """What is short at one place, in the unit people use; words where it is no amount."""

    node: str
    card: int | None
    reason: str
    wanted: object
    had: object
    never: bool


class ExplainedPod(Struct):
    """Where it goes, or why nowhere; `error`: the rules that it breaks."""

    pod: str
    ours: bool
    fits: bool | None
    node: str | None
    containers: SharesByContainer
    error: str | None
    scheduling_gates: list[str]
    preemption: ExplainedPreemption | None
    claims: list[ExplainedClaim]
    refusals: Raw  # a list of ExplainedRefusal: replicas share theirs, encoded once


# --- kubectl aliquot -------------------------------------------------------------------------------------------------


class PrintedUse(TypedDict):
    """What a Pod or a ResourceClaim has of one card."""

    index: int
    memory_gib: Amount
    core: Amount
    greedy: Amount


class PrintedCard(TypedDict):
    """A card; `withheld`: why it is not offered, in words."""

    index: int
    uuid: str
    model: str
    healthy: bool
    withheld: str | None
    memory_gib: Amount
    memory_used_gib: Amount
    core_used: Amount
    greedy_used: Amount
    shared_by: int
    exclusive: bool


PrintedPod = TypedDict(
    "PrintedPod",
    {
        "pod": str,
        "class": str,
        "dialect": str,
        "whole_node": bool,
        "guessed": bool,
        "parkable": bool,
        "cards": list[PrintedUse],
    },
)
PrintedClaim = TypedDict("PrintedClaim", {"claim": str, "class": str, "cards": list[PrintedUse], "pods": list[str]})


class PrintedNode(TypedDict):
    """A node with what is on its cards."""

    name: str
    offers: list[str]
    policy: str | None
    oversubscribe: float
    pool_gib: Amount
    pool_booked_gib: Amount
    trouble: list[str]
    notes: list[str]
    cards: list[PrintedCard]
    pods: list[PrintedPod]
    claims: list[PrintedClaim]


class PrintedWaiting(TypedDict):
    """A Pod without a node."""

    pod: str
    created: str
    reason: str


class PrintedCluster(TypedDict):
    """All of it; with --pending without nodes."""

    nodes: NotRequired[list[PrintedNode]]
    pending: list[PrintedWaiting]


# --- aliquot doctor --------------------------------------------------------------------------------------------------


class PrintedFinding(Struct):
    """One line of the report."""

    check: str
    level: str
    about: list[str]
    what: str
    fix: str | None
