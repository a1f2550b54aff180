"""The names of this machine's users."""

from __future__ import annotations

import functools
import pwd
from pathlib import Path


@functools.lru_cache(maxsize=1024)  # name services over a network may take a while
def user_name(uid: int) -> str:
    """The name; the number if there is none, as for users of containers."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def node_account(uid: int) -> str | None:
    """The name of the node's account with that number; None: it has none. The agent's container has other accounts."""
    for path in ("/proc/1/root/etc/passwd", "/etc/passwd"):
        try:
            entries = [line.split(":") for line in Path(path).read_text(errors="replace").splitlines()]
        except OSError:  # we may not look at the node's files, or are on it
            continue
        return next((entry[0] for entry in entries if entry[2:3] == [str(uid)]), None)
    return None
