"""The names of this machine's users."""

from __future__ import annotations

import functools
import pwd


@functools.lru_cache(maxsize=1024)  # name services over a network may take a while
def user_name(uid: int) -> str:
    """The name; the number if there is none, as for users of containers."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
