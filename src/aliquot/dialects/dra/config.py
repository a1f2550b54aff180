"""The opaque configuration of a claim or a DeviceClass. Strict: an unknown field or value is an error that names it.

apiVersion: aliquot.dev/v1
kind: ClaimConfig
class: offline            # normal, online or offline
policy: burst-share       # the claim needs a node with this policy
parking: never            # its memory stays on the card; this release knows nothing else
latency: 2ms              # of online claims: what offline work may add to the p99 of their requests
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aliquot.dialects.latency import ALLOWED, parse_latency
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.refusal import Invalid

API_VERSION, KIND = "aliquot.dev/v1", "ClaimConfig"
_FIXED = {"apiVersion": API_VERSION, "kind": KIND}
_ALLOWED: dict[str, tuple[str, ...]] = {
    "class": tuple(AppClass),
    "policy": tuple(Isolation),
    "parking": ("never",),
}
_LATENCY = "latency"


@dataclass(frozen=True, slots=True)
class ClaimConfig:
    """What one entry says. None: nothing."""

    app_class: AppClass | None = None
    policy: Isolation | None = None
    latency: float | None = None  # seconds


def parse_config(parameters: object, field: str) -> ClaimConfig | list[Invalid]:
    """`field` is where the parameters stand in the object."""
    if not isinstance(parameters, Mapping):
        return [Invalid(field, parameters, f"a mapping with apiVersion: {API_VERSION} and kind: {KIND}")]
    problems = []
    for name, expected in _FIXED.items():
        if parameters.get(name) != expected:
            problems.append(Invalid(f"{field}.{name}", parameters.get(name), expected))
    found: dict[str, Any] = {}
    for name, value in parameters.items():
        if name in _FIXED:
            continue
        if name == _LATENCY:
            found[name] = parse_latency(value)
            if found[name] is None:
                problems.append(Invalid(f"{field}.{name}", value, ALLOWED))
        elif name not in _ALLOWED:
            fields = ", ".join((*_FIXED, *_ALLOWED, _LATENCY))
            problems.append(Invalid(f"{field}.{name}", value, f"fields are {fields}"))
        elif not isinstance(value, str) or value not in _ALLOWED[name]:
            problems.append(Invalid(f"{field}.{name}", value, f"one of {', '.join(_ALLOWED[name])}"))
        else:
            found[name] = value
    if problems:
        return problems
    return ClaimConfig(
        AppClass(found["class"]) if "class" in found else None,
        Isolation(found["policy"]) if "policy" in found else None,
        found.get(_LATENCY),
    )


def render_config(config: ClaimConfig) -> dict[str, str]:
    """The reverse; the latency in whole microseconds."""
    named = {"class": config.app_class, "policy": config.policy}
    latency = {} if config.latency is None else {_LATENCY: f"{config.latency * 1e6:.0f}us"}
    return {**_FIXED, **{name: value.value for name, value in named.items() if value is not None}, **latency}
