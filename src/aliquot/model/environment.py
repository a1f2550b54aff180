"""What a tenant's processes find in their environment. Imported by `aliquot run`: nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def with_granted(
    environment: Mapping[str, str], *, fixed: Mapping[str, str], front: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """That environment with what a tenant needs: `fixed` as it is, `front` before what is in the lists already."""
    found = dict(environment)
    for name, first in front.items():
        there = found.get(name, "")
        if name == "LD_PRELOAD":  # a blank parts names there as a colon does
            there = there.replace(" ", ":")
        found[name] = ":".join([*first, *(word for word in there.split(":") if word and word not in first)])
    return {**fixed, **found, **fixed}  # first of all: of a very long environment, only the beginning is ever looked at
