"""Why not: a claim that does not go somewhere (Refusal), a manifest that is no claim (Invalid). Both are data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """What was short. `wanted` and `had` of a Refusal are in the unit given here."""

    # about one card
    MEMORY = "memory"  # GPU memory, MiB
    CORE = "core"  # compute, milli-GPU
    GREEDY = "core-greedy"  # offline compute, milli-GPU
    SLICES = "slices"  # how many share the card
    EXCLUSIVE = "exclusive"  # one of the two wants the card for itself; the number of shares on it
    HEALTH = "health"  # the card is sick or gone
    MODEL = "model"  # another GPU model was asked for
    # about a node
    CARDS = "cards"  # cards that fit, of those wanted
    CONTAINERS = "containers"  # each container alone would fit, together they do not
    MODE = "mode"  # the node does not serve this dialect or this way of use
    MIXED = "mixed"  # the node does not mix online and offline Pods
    WHOLE_NODE = "whole-node"  # one of the two wants the node for itself; the number of Pods on it
    CPU = "cpu"  # milli-CPU
    HOST_MEMORY = "host-memory"  # MiB
    INVALID = "invalid-node"  # the node breaks a rule of its dialect; `had` is the sentence
    # said by Kubernetes itself, not by us
    UNSCHEDULABLE = "unschedulable"
    NOT_READY = "not-ready"
    TAINT = "taint"
    SELECTOR = "selector"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One shortage at one place. `never`: even an empty card or node would not do."""

    node: str
    card: int | None
    reason: Reason
    wanted: int | str | None
    had: int | str | None
    never: bool


@dataclass(frozen=True, slots=True)
class Invalid:
    """One field of a manifest that breaks a rule."""

    field: str
    value: object
    allowed: str

    def sentence(self) -> str:
        """Names the field, what it was, and what is allowed."""
        if self.value is None:
            return f"{self.field} is missing: {self.allowed}"
        return f"{self.field}: {show(self.value)} is not allowed: {self.allowed}"


def show(value: object) -> str:
    """Any JSON value in a few words. Deep nesting and numbers of thousands of digits are more than str() can bear."""
    if value is None:
        return "nothing"
    if isinstance(value, int) and value.bit_length() > 256:
        return "a number of enormous size"
    if isinstance(value, (dict, list)):
        text = f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    else:
        text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."
