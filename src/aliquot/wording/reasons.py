"""Why a claim does not go somewhere: the one table from Reason to words, and the codes that travel inside sentences.

Three lengths:

    short   what kube-scheduler reports per node. It counts equal strings: no figures of the node
    line    what `aliquot explain` and events say about a group of nodes
    card    what one card lacks, after its name: "card 0 has 6 GiB free, needs 10 GiB"

Imported by `aliquot run`: nothing heavy.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from aliquot.model.reason import Reason
from aliquot.wording import amounts


class Words(NamedTuple):
    """One row of the table. Fields in braces: see Facts."""

    short: str
    line: str
    card: str = ""  # empty: no reason about a card


class Facts(NamedTuple):
    """What a sentence may mention."""

    wanted: str = ""
    had: str = ""
    cards: str = ""  # how many cards say so
    detail: str = ""  # a taint, a selector, a broken rule, in words of its own
    dialect: str = ""  # of the Pod
    requires: str = ""  # what makes a node serve the dialect


NEVER = "never"  # even an empty card or node would not do
OWN = "own"  # the Pod itself wants the card or the node to itself; otherwise another Pod has it
ONE = "one"  # one card was wanted
UNKNOWN = "unknown"  # the detail is not known

_TABLE: dict[tuple[Reason, str], Words] = {
    (Reason.MEMORY, ""): Words(
        "GPU memory: needs {wanted} per card; no card has that much free",
        "GPU memory: needs {wanted} per card; at most {had} free ({cards})",
        "has {had} free, needs {wanted}",
    ),
    (Reason.MEMORY, NEVER): Words(
        "GPU memory: needs {wanted} per card; no card is that large",
        "GPU memory: needs {wanted} per card; the largest card has {had} ({cards})",
        "has {had} free, needs {wanted}",
    ),
    (Reason.CORE, ""): Words(
        "GPU compute: needs {wanted} per card; no card has that much free",
        "GPU compute: needs {wanted} per card; at most {had} free ({cards})",
        "has {had} of its compute free, needs {wanted}",
    ),
    (Reason.GREEDY, ""): Words(
        "offline GPU compute: needs {wanted} per card; no card has that much free",
        "offline GPU compute: needs {wanted} per card; at most {had} free ({cards})",
        "has {had} of its offline compute free, needs {wanted}",
    ),
    (Reason.SLICES, ""): Words(
        "GPU sharing: every card has reached its limit",
        "GPU sharing: the limit per card is reached ({cards})",
        "has reached its sharing limit",
    ),
    (Reason.SLICES, NEVER): Words(
        "GPU sharing: needs more places on one card than any card allows",
        "GPU sharing: needs {wanted} places on one card, more than it allows ({cards})",
        "has reached its sharing limit",
    ),
    (Reason.HOST_POOL, ""): Words(
        "host pool: no room for what goes beyond a GPU's memory",
        "host pool: needs {wanted} for what goes beyond a card; at most {had} free ({cards})",
        "is full, and the host pool for what is parked has {had} free, needs {wanted}",
    ),
    (Reason.EXCLUSIVE, ""): Words(
        "other Pods hold the GPUs exclusively",
        "held exclusively by other Pods ({cards})",
        "is in use",
    ),
    (Reason.EXCLUSIVE, OWN): Words(
        "needs a whole GPU; every GPU is in use",
        "needs whole cards; others use them ({cards})",
        "is in use",
    ),
    (Reason.HEALTH, ""): Words(
        "the GPUs that fit are unhealthy or gone; or the node's agent is away",
        "unhealthy or gone ({cards})",
        "is unhealthy or gone",
    ),
    (Reason.WITHHELD, ""): Words(
        "the GPUs that fit are held by Pods of another device plugin, or are in MIG mode",
        "held by Pods of another device plugin, or in MIG mode ({cards})",
        "is held by a Pod of another device plugin, or is in MIG mode",
    ),
    (Reason.MODEL, ""): Words(
        "needs a GPU of another model or UUID",
        "needs another model or UUID ({cards})",
        "is not of the model or UUID needed",
    ),
    (Reason.CARDS, ""): Words(
        "needs {wanted} GPUs on one node; fewer are free",
        "needs {wanted} cards on one node; at most {had} of them have room now",
    ),
    (Reason.CARDS, NEVER): Words(
        "needs {wanted} GPUs on one node; the node has fewer",
        "needs {wanted} cards on one node; at most {had} would do, even on an empty one",
    ),
    (Reason.CARDS, ONE): Words("no GPU on the node", "no card on the node"),
    (Reason.CONTAINERS, ""): Words(
        "each container fits a GPU by itself; all together do not",
        "each of the {wanted} containers fits by itself; all together do not",
    ),
    (Reason.MODE, ""): Words(
        "does not serve {dialect} Pods: requires {requires}",
        "does not serve {dialect} Pods: requires {requires}",
    ),
    (Reason.OTHER_PLUGIN, ""): Words(
        "another device plugin or DRA driver hands out the node's GPUs; its owner can share them: requires label "
        "aliquot.dev/share-cards-with-other-plugins=true",
        "another device plugin or DRA driver hands out its cards: switch that off, or share them by `kubectl label "
        "node NODE aliquot.dev/share-cards-with-other-plugins=true`",
    ),
    (Reason.TOGETHER, ""): Words(
        "does not run Pods side by side (annotation aliquot.dev/together): requires chart value "
        "agent.together.enabled=true, and nvidia-cuda-mps-control and CDI on the node (see the agent's status)",
        "does not run Pods side by side (annotation aliquot.dev/together): set chart value agent.together.enabled=true "
        "(the agent's --together), with nvidia-cuda-mps-control and CDI on the node (see the agent's status), "
        "or remove the annotation and the Pods take turns",
    ),
    (Reason.MIXED, ""): Words(
        "does not mix online and offline Pods: requires {requires}",
        "does not mix online and offline Pods: requires {requires}",
    ),
    (Reason.QGPU_NODE, ""): Words(
        "a node of qGPU offers no whole cards: requires {requires}",
        "a node of qGPU offers no whole cards: requires {requires}",
    ),
    (Reason.WHOLE_NODE, ""): Words(
        "another Pod has the whole node",
        "another Pod has the whole node",
    ),
    (Reason.WHOLE_NODE, OWN): Words(
        "needs a whole node; other Pods are on it",
        "needs a whole node; other Pods are on it",
    ),
    (Reason.CPU, ""): Words("CPU: needs {wanted}; fewer are free", "CPU: needs {wanted}; at most {had} free"),
    (Reason.CPU, NEVER): Words("CPU: needs {wanted}; the node has fewer", "CPU: needs {wanted}; at most {had} there"),
    (Reason.HOST_MEMORY, ""): Words(
        "host memory: needs {wanted}; less is free",
        "host memory: needs {wanted}; at most {had} free",
    ),
    (Reason.HOST_MEMORY, NEVER): Words(
        "host memory: needs {wanted}; the node has less",
        "host memory: needs {wanted}; at most {had} there",
    ),
    (Reason.INVALID, ""): Words("invalid node: {detail}", "invalid node: {detail}"),
    (Reason.UNKNOWN_NODE, ""): Words("aliquot has not seen this node yet", "not seen yet"),
    (Reason.INVALID_POD, ""): Words("invalid Pod: {detail}", "invalid Pod: {detail}"),
    (Reason.GROUP, ""): Words(
        "its PodGroup waits for more members to have a place",
        "its PodGroup needs {wanted} members in their places at once; {had} have one or would have one",
    ),
    (Reason.UNSCHEDULABLE, ""): Words("the node is cordoned", "cordoned"),
    (Reason.NOT_READY, ""): Words("the node is not ready", "not ready (Ready is {detail})"),
    (Reason.NOT_READY, UNKNOWN): Words("the node is not ready", "not ready"),
    (Reason.TAINT, ""): Words("the Pod does not tolerate a taint", "the Pod does not tolerate the taint {detail}"),
    (Reason.SELECTOR, ""): Words("the Pod requires another node", "the Pod requires {detail}"),
}


def words(reason: Reason, *cases: str) -> Words:
    """The row of the first of these cases that has one."""
    return next(_TABLE[reason, case] for case in (*cases, "") if (reason, case) in _TABLE)


def short(reason: Reason, facts: Facts, *cases: str) -> str:
    """The reason for kube-scheduler, without the code."""
    return words(reason, *cases).short.format_map(facts._asdict())


def line(reason: Reason, facts: Facts, *cases: str) -> str:
    """The reason for a group of nodes."""
    return words(reason, *cases).line.format_map(facts._asdict())


def card(reason: Reason, wanted: object, had: object) -> str:
    """The reason for one card, after the card's name."""
    needed, there = (amount if isinstance(amount, int) else 0 for amount in (wanted, had))
    return words(reason).card.format_map(Facts(*needed_and_had(reason, needed, there))._asdict())


# --- amounts ---------------------------------------------------------------------------------------------------------

# How many of the Refusal's unit are one of the unit people use, and that unit.
_UNITS = {
    Reason.MEMORY: (1024, "GiB"),
    Reason.HOST_MEMORY: (1024, "GiB"),
    Reason.HOST_POOL: (1024, "GiB"),
    Reason.CORE: (10, "%"),
    Reason.GREEDY: (10, "%"),
    Reason.CPU: (1000, "CPU"),
}


def unit(reason: Reason) -> str | None:
    """Of the amounts that `numbers` returns; None: a plain count."""
    return _UNITS.get(reason, (1, None))[1]


def numbers(reason: Reason, wanted: object, had: object) -> tuple[object, object]:
    """Both in the unit people use; what is no amount stays as it is. The second is rounded down."""
    per = _UNITS.get(reason, (1, ""))[0]
    return (
        amounts.in_units(wanted, per) if isinstance(wanted, int) else wanted,
        amounts.at_most(had, per) if isinstance(had, int) else had,
    )


def needed_and_had(reason: Reason, needed: int, had: int) -> tuple[str, str]:
    """Both with their unit. They look different where they are."""
    if reason in (Reason.MEMORY, Reason.HOST_MEMORY, Reason.HOST_POOL):
        return amounts.needed_and_had(needed, had)
    if reason in (Reason.CORE, Reason.GREEDY):
        return amounts.percent(needed), amounts.percent(had)
    if reason is Reason.CPU:
        return amounts.cpus(needed), f"{amounts.at_most(had, 1000)}"
    return f"{needed:,}", f"{had:,}"


# --- codes -----------------------------------------------------------------------------------------------------------

_CODE = re.compile(r"\(aliquot:([a-z-]+)\)")


def with_code(sentence: str, reason: Reason) -> str:
    """The sentence, with a mark by which `codes` recognises it wherever it is repeated.

    kube-scheduler repeats our sentences in the Pod's condition PodScheduled, among its own and those of other
    extenders: "0/3 nodes are available: 1 Insufficient cpu, 2 GPU memory: ... (aliquot:memory)." No name that
    Kubernetes takes has a colon in it, so nothing else looks like the mark.
    """
    return f"{sentence} (aliquot:{reason.value})"


def codes(message: str) -> frozenset[str]:
    """The codes of our reasons in the message: values of Reason, or of what a later release calls one."""
    return frozenset(_CODE.findall(message))
