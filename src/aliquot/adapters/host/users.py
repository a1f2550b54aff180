"""The names of this machine's users."""

from __future__ import annotations

import functools
import os
import pwd
from pathlib import Path

from aliquot.adapters.host.process.processes import is_shortage

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
    to the user of this daemon, count as one user that is none of both: limits that these two do not have are not for
    them. A number with an account of its own is that account's, also if it is lent: whoever may use it is that user."""
    if uid in (0, os.geteuid()):
        return uid
    for name, first, count in _lent():
        if first <= uid < first + count:
            if _has_account(uid):
                return uid
            owner = _number_of(name)
            return -1 - first if owner in (None, 0, os.geteuid()) else owner
    return uid


class _Lent:
    """What is lent, as it was read last: `account_of` remembers what it has made of it."""

    ranges: tuple[tuple[str, int, int], ...] = ()
    state: tuple[object, ...] = ()


def _lent() -> tuple[tuple[str, int, int], ...]:
    """The owner, by name or number, the first number and how many; what makes no sense is left out. Where no file is
    left, as it was before: a user who takes all files would be as many users as there are numbers."""
    try:
        found = _LENT.stat()
        state = (_LENT, found.st_mtime_ns, found.st_ino, found.st_size)
        if state != _Lent.state:
            _Lent.ranges, _Lent.state = _read_lent(_LENT), state
    except OSError as error:
        if not is_shortage(error):
            _Lent.ranges, _Lent.state = (), ()
    return _Lent.ranges


def read_lent() -> None:
    """Read what is lent as long as there are files: a daemon that starts calls it."""
    _lent()


def _read_lent(path: Path) -> tuple[tuple[str, int, int], ...]:
    with path.open("rb") as file:
        lines = file.read(_MOST_LENT).decode(errors="surrogateescape").splitlines()
    return tuple(
        (name, int(first), int(count))
        for name, first, count in (fields for fields in (line.split(":") for line in lines) if len(fields) == 3)
        if all(number.isascii() and number.isdigit() and len(number) <= 10 for number in (first, count))
    )


def _has_account(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        return False
    return True


@functools.lru_cache(maxsize=1024)
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
