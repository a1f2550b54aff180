"""The names of this machine's users."""

from __future__ import annotations

import functools
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

_LENT = Path("/etc/subuid")
_MOST_LENT = 1 << 20  # bytes that are read of it


@functools.lru_cache(maxsize=1024)  # name services over a network may take a while
def user_name(uid: int) -> str:
    """The name; the number if there is none, as for users of containers."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@functools.lru_cache(maxsize=1 << 17)  # what was counted under one number must be given back under the same
def account_of(uid: int) -> int:
    """Under whose number this user counts where each user has a limit. `/etc/subuid` lends ordinary users thousands of
    numbers for their containers: one user, who could otherwise come as all of these. Numbers that are lent to root, or
    to the user of this daemon, count as the first of them: limits that these two do not have are not for them."""
    for name, first, count in _lent():
        if first <= uid < first + count:
            owner = _number_of(name)
            return first if owner in (None, 0, os.geteuid()) else owner
    return uid


def _lent() -> Iterator[tuple[str, int, int]]:
    """The owner, by name or number, the first number and how many; what makes no sense is left out."""
    try:
        with _LENT.open("rb") as file:
            lines = file.read(_MOST_LENT).decode(errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split(":")
        if len(fields) == 3 and all(field.isascii() and field.isdigit() and len(field) <= 10 for field in fields[1:]):
            yield fields[0], int(fields[1]), int(fields[2])


def _number_of(name: str) -> int | None:
    """Of the account with that name, or with the number that stands for it."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):  # there is none, or it is no name
        return int(name) if name.isascii() and name.isdigit() and len(name) <= 10 else None


def node_account(uid: int) -> str | None:
    """The name of the node's account with that number; None: it has none. The agent's container has other accounts."""
    for path in ("/proc/1/root/etc/passwd", "/etc/passwd"):
        try:
            entries = [line.split(":") for line in Path(path).read_text(errors="replace").splitlines()]
        except OSError:  # we may not look at the node's files, or are on it
            continue
        return next((entry[0] for entry in entries if entry[2:3] == [str(uid)]), None)
    return None
