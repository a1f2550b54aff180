"""The environment of a tenant's processes. `aliquot run` imports this: no heavy imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def with_granted(
    environment: Mapping[str, str], *, fixed: Mapping[str, str], front: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """The environment with a tenant's variables: `fixed` as they are, `front` prepended to lists."""
    found = dict(environment)
    for name, first in front.items():
        there = found.get(name, "")
        if name == "LD_PRELOAD":  # blanks separate entries there, too
            there = there.replace(" ", ":")
        found[name] = ":".join([*first, *(word for word in there.split(":") if word and word not in first)])
    return {**fixed, **found, **fixed}  # first: of a very long environment only the beginning is read
