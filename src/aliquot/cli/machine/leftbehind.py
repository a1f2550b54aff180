"""What runs on without a daemon, as `aliquot down` says it: found by its marks in /proc, for there is nobody to ask."""

from __future__ import annotations

import os
from collections.abc import Sequence

from aliquot.adapters.host.home import NAME_VARIABLE, TENANT_VARIABLE, Home
from aliquot.adapters.host.process.procscan import scan


def left_behind(home: Home) -> list[str]:
    """The names of runs of this home that have processes. None in another user's home: its daemon is not ours to
    start."""
    user = os.geteuid()
    try:
        if os.stat(home.run).st_uid != user:
            return []
    except OSError:
        return []
    found = scan((TENANT_VARIABLE, NAME_VARIABLE), None if user == 0 else {user})
    names = set[str]()
    for seen in found.processes.values():
        folder = seen.marks.get(TENANT_VARIABLE, "")
        if os.path.dirname(folder) == home.tenants:
            names.add(seen.marks.get(NAME_VARIABLE) or os.path.basename(folder))
    return sorted(names)


def left_behind_words(names: Sequence[str], simulated: str | None) -> str:
    """Who they are and how to end them. `simulated`: the cards that they had, if these were simulated."""
    them = "it" if len(names) == 1 else "them"
    cards = "" if simulated is None else f" --simulate {simulated}"
    adopts = f"`aliquot up -d{cards}` adopts {them}"
    return f"{', '.join(names)}: still running; {adopts}, then `aliquot stop NAME` ends {them}"
