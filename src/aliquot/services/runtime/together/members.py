"""Members of a group that share a card in space, through one MPS server (docs/together.md).

The server has the channel groups, and nothing else is known of it: launches, waits and memory are on the pages of the
members' processes. So to the arbiter the server is the group's one context, and does what its *parts* do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aliquot.adapters.gpu.page import Use
from aliquot.adapters.host.process import processes
from aliquot.model.tenant import Tenant
from aliquot.services.runtime.processes.contexts import Context, busy_ns

NO_SERVER = (
    "is a member of a group whose MPS server has not registered, so its kernel launches wait: stop all members "
    "and start them again, or read the server's log in the group's folder"
)


def not_the_server(group: Tenant, pid: int) -> str | None:
    """Why that process is not the MPS server that the group's control has started; None: it is. A control forks its
    servers, and never hands them to another parent."""
    if not processes.lives(group.root, group.started):
        return "the group's control does not run"
    if processes.ancestors(pid, most=2)[1:] != [group.root]:
        return f"it was not started by the group's control, process {group.root}"
    return None


def read(context: Context, now: float, stamp: int, before: int) -> tuple[Use, bool]:
    """What it does, and whether a thread of it waits for the card. `before`: the stamp of the last reading."""
    own = context.page.use(context.slot, context.card)
    waits = context.waits(own, now)
    if not context.parts:
        return own, waits
    idle, outstanding = 1.0, own.busy_since_ns != 0
    for part in context.parts:
        use = part.page.use(part.slot, part.card)
        waits |= part.waits(use, now)
        outstanding |= use.busy_since_ns != 0
        idle *= 1.0 - busy_part(part, use, stamp, before)
        context.all_launches += max(0, use.launches - (0 if part.last is None else part.last.launches))
    # Each says how long it had work, not when: they are taken as independent of each other.
    context.all_busy_ns += round((1.0 - idle) * max(0, stamp - before))
    joint = own._replace(
        launches=own.launches + context.all_launches,
        busy_ns=context.all_busy_ns,
        busy_since_ns=stamp if outstanding else 0,
    )
    return joint, waits


def busy_part(context: Context, use: Use, stamp: int, before: int) -> float:
    """The part of the time since the last reading in which it had work."""
    if context.last is None or stamp <= before:
        return 0.0
    return min(1.0, max(0.0, (busy_ns(use, stamp) - busy_ns(context.last, before)) / (stamp - before)))


def spread(
    contexts: Iterable[Context], parts: Mapping[str, float], busy: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """`parts` and `busy` by the processes that work, not by their servers: what a server had of the card belongs to its
    parts, by how long each had work. `busy` has that of the parts too."""
    spread_parts, spread_busy = dict(parts), dict(busy)
    for server in contexts:
        if not server.parts:
            continue
        had = spread_parts.pop(server.name, 0.0)
        spread_busy.pop(server.name, None)
        total = sum(busy.get(part.name, 0.0) for part in server.parts)
        for part in server.parts:
            own = busy.get(part.name, 0.0) / total if total else 1.0 / len(server.parts)
            spread_parts[part.name] = spread_parts.get(part.name, 0.0) + had * own
    return spread_parts, spread_busy


def has_work(part: Context) -> bool:
    """Whether it has work on the card, or waits for it."""
    return part.last is not None and (part.last.busy_since_ns != 0 or part.last.waiting > 0)
