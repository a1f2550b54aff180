"""What is asked of a daemon over its control socket. services/daemon/requests.py reads them.

A field's `title` is its name in an answer, where that differs; its `description` says what is allowed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from aliquot.model.device import LEAST_FACTOR, MOST_FACTOR
from aliquot.model.node import Isolation

FACTOR_ALLOWED = f"{LEAST_FACTOR} to {MOST_FACTOR}, for example 1.5"

_Name = Annotated[str | None, Meta(description="a name")]
_Delay = Annotated[float, Meta(ge=0, le=60)]


class Nothing(Struct):
    """The request of an operation that needs no values."""


class PolicyRequest(Struct):
    """The request of `policy`. All fields null: it only asks for the policy."""

    policy: Annotated[Isolation | None, Meta(description=", ".join(Isolation))] = None
    release_delay: Annotated[
        Literal["auto"] | _Delay | None,
        Meta(title="release-delay", description="auto, or 0 to 60s, for example 100ms"),
    ] = None
    oversubscribe: Annotated[float | None, Meta(description=FACTOR_ALLOWED)] = None
    card: Annotated[int | str | None, Meta(title="--card", description="the number or the UUID of a card")] = None


class AgentPolicyRequest(Struct):
    """Of `policy`, to an agent, which refuses whatever is set: the policy is a label of the Node."""

    policy: object = None
    release_delay: object = None


class NameRequest(Struct):
    """The request of `logs`: the name of a run."""

    name: _Name = None


class StopRequest(Struct):
    """The request of `stop`."""

    name: _Name = None
    timeout: Annotated[float, Meta(ge=0, le=86400, description="0 to 24h")] = 10.0  # seconds until SIGKILL


class MoveRequest(Struct):
    """The request of `park` and `wake`."""

    name: _Name = None
    timeout: Annotated[float, Meta(ge=0, le=3600, description="0 to 1h")] = 60.0  # seconds for the move


class UsageRequest(Struct):
    """The request of `usage`."""

    since: Annotated[float, Meta(ge=0, description="seconds since 1970, not in the future")] = 0.0
