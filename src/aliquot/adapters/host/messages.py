"""The JSON that `aliquot run` and the daemon exchange on the control socket, as types.

`aliquot run` must start fast: it imports this module only to check types, and reads plain dicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

RunMessage = TypedDict(
    "RunMessage",
    {
        "op": str,
        "command": list[str],
        "class": str,
        "wait": bool,
        "detach": bool,
        "rules": NotRequired[str],
        "core": NotRequired[int],
        "gpus": NotRequired[int | str],
        "memory_mib": NotRequired[int],
        "memory_percent": NotRequired[float],
        "park": NotRequired[float],
        "latency": NotRequired[float],
        "together": NotRequired[str],
        "name": NotRequired[str],
    },
)
"""The request: services/machine/requests.py parses it."""


class Lack(TypedDict):
    """What one card lacks: RefusalStatus of the model."""

    card: int | None
    reason: str
    wanted: int | str | None
    had: int | str | None
    node: NotRequired[str]


class Position(TypedDict):
    """A place in the queue: QueuePosition of the model."""

    name: str
    position: int
    of: int
    kept_for: str | None
    refusals: list[Lack]


class WaitingEvent(TypedDict):
    """The run must wait."""

    waiting: Position
    log: str | None  # of a detached run


class GrantedCard(TypedDict):
    """One of its cards."""

    index: int
    uuid: str


class Granted(TypedDict):
    """It may start. `set` replaces environment variables, `front` prepends to lists in them."""

    name: str
    cards: list[GrantedCard]
    log: str | None
    set: NotRequired[Mapping[str, str]]
    front: NotRequired[Mapping[str, Sequence[str]]]
