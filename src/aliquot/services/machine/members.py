"""Which processes belong to a tenant of one machine: its booking ends with the last of them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from aliquot.adapters.host import processes
from aliquot.adapters.host.home import TENANT_VARIABLE
from aliquot.adapters.host.procscan import Scan
from aliquot.model.tenancy import Tenancy


def user_of(tenancy: Tenancy) -> int:
    """The user of its processes."""
    return os.geteuid() if tenancy.user is None else tenancy.user


def members(
    tenancy: Tenancy,
    found: Scan,
    folder: str,
    *,
    on_cards: Mapping[int, int],
    seen: Mapping[int, int] | None,
    root_left: bool,
) -> dict[int, int]:
    """Its live processes, with their start times: its root, those on cards, those with its environment variable, those
    seen before (None: this is the first look), and all their children.

    `root_left`: its root asked again, and belongs to another tenant unless it is on a card. The children that it had
    at the first look stay; those that come later are the other tenant's.
    """
    user, mark = user_of(tenancy), (TENANT_VARIABLE, folder)
    root: dict[int, int] = {}
    if tenancy.root is not None and tenancy.started is not None and processes.lives(tenancy.root, tenancy.started):
        root[tenancy.root] = tenancy.started
    own = found.marked(*mark, user) | {pid: at for pid, at in (seen or {}).items() if processes.lives(pid, at)}
    if not root_left:
        own |= {**on_cards, **root}
        return own | found.below(own, mark, user)
    own = {pid: at for pid, at in own.items() if pid not in root}
    below = found.below({**own, **on_cards, **(root if seen is None else {})}, mark, user)
    return {pid: at for pid, at in (own | below).items() if pid not in root} | dict(on_cards)
