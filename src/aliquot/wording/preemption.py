"""Who has to go for a more important Pod, in words: for events on both sides and for `aliquot explain`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from aliquot.model.claim import AppClass
from aliquot.model.grant import Grant

_MOST_NAMES = 10
_BUDGET = re.compile(r"\bdisruption budget (\S+)")  # the API server's words


@dataclass(frozen=True, slots=True)
class Victim:
    """A Pod that has to go."""

    key: str  # namespace/name
    priority: int
    app_class: AppClass

    def shown_to(self, namespace: str) -> str:
        """With its name where the reader may know it: in its own namespace."""
        name = self.key if self.key.startswith(f"{namespace}/") else "a Pod of another namespace"
        return f"{name} ({self.description})"

    @property
    def description(self) -> str:
        """Its class and priority."""
        return f"{self.app_class.value}, priority {self.priority}"


def place(grant: Grant) -> str:
    """The cards and the node."""
    cards = sorted(grant.usage())
    if grant.whole_node or not cards:
        return f"node {grant.node}"
    return f"card{'s' * (len(cards) > 1)} {', '.join(map(str, cards))} of {grant.node}"


def preempting(victims: Sequence[Victim], grant: Grant, namespace: str) -> str:
    """The sentence for the Pod that gets the room."""
    return f"evicts {_list(victims, namespace)} from {place(grant)}; the room is kept for this Pod"


def preempted(preemptor: Victim, grant: Grant, namespace: str) -> str:
    """The sentence for a Pod that is evicted."""
    return f"evicted from {place(grant)} for {preemptor.shown_to(namespace)}"


def blocked(victims: Sequence[Victim], grant: Grant, why: str, namespace: str) -> str:
    """The sentence for a Pod that waits because the others may not be evicted."""
    found = _BUDGET.search(why)
    budget = f"PodDisruptionBudget {found[1]} is in the way: " if found else ""
    return (
        f"{budget}would get {place(grant)} if {_list(victims, namespace)} went, which the API server refuses now: {why}"
    )


def would_go(victims: Sequence[Victim], grant: Grant, *, preempts: bool) -> str:
    """The sentence for a person who may see all Pods."""
    names = ", ".join(f"{victim.key} ({victim.description})" for victim in victims[:_MOST_NAMES])
    more = f" and {len(victims) - _MOST_NAMES:,} more" if len(victims) > _MOST_NAMES else ""
    never = "" if preempts else "; it waits for that, because its preemptionPolicy is Never"
    return f"would get {place(grant)} if {names}{more} went{never}"


def _list(victims: Sequence[Victim], namespace: str) -> str:
    names = ", ".join(victim.shown_to(namespace) for victim in victims[:_MOST_NAMES])
    return f"{names} and {len(victims) - _MOST_NAMES:,} more" if len(victims) > _MOST_NAMES else names
