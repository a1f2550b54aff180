"""What runs on without a daemon, as `aliquot down` says it: found by its marks in /proc, for there is nobody to ask."""

from __future__ import annotations

import os
from collections.abc import Sequence

from aliquot.adapters.host.home import NAME_VARIABLE, POD_VARIABLE, TENANT_VARIABLE, Home
from aliquot.adapters.host.process.procscan import scan


def left_behind(home: Home) -> tuple[list[str], int]:
    """The names of runs and Pods of this home that have processes, and how many Pods without a card have some. None in
    another user's home: its daemon is not ours to start."""
    user = os.geteuid()
    try:
        if os.stat(home.run).st_uid != user:
            return [], 0
    except OSError:
        return [], 0
    found = scan((TENANT_VARIABLE, NAME_VARIABLE, POD_VARIABLE), None if user == 0 else {user})
    names, on_cards, pods = set[str](), set[str](), set[str]()
    for seen in found.processes.values():
        folder, pod = seen.marks.get(TENANT_VARIABLE, ""), seen.marks.get(POD_VARIABLE)
        if os.path.dirname(folder) == home.tenants:
            names.add(seen.marks.get(NAME_VARIABLE) or os.path.basename(folder))
            on_cards.add(pod or "")
        elif pod is not None and os.path.isdir(os.path.join(home.pod_logs, pod)):
            pods.add(pod)
    return sorted(names), len(pods - on_cards)


def left_behind_words(names: Sequence[str], pods: int, simulated: str | None) -> str:
    """Who they are and how to end them. `simulated`: the cards that they had, if these were simulated."""
    who = [*names, *([f"{pods} Pod{'s' * (pods > 1)} without a card"] if pods else [])]
    them = "it" if len(names) + pods == 1 else "them"
    cards = "" if simulated is None else f" --simulate {simulated}"
    ends = [
        *(["`aliquot stop NAME`"] if any("/" not in name for name in names) else []),
        *(["`aliquot delete pod NAME`"] if pods or any("/" in name for name in names) else []),
    ]
    end = f"end{'s' * (len(ends) == 1)}"
    adopts = f"`aliquot up -d{cards}` adopts {them}"
    return f"{', '.join(who)}: still running; {adopts}, then {' and '.join(ends)} {end} {them}"
