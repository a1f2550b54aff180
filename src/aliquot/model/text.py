"""Text that others wrote: what of it can be encoded, and what can be shown.

Python's strings may have half of a surrogate pair, which JSON can spell ("\\ud800") and UTF-8 cannot. Imported by
programs that start fast: keep it light.
"""

from __future__ import annotations

import json


def printable(text: str) -> str:
    """The text on one line, control characters escaped: names may come from files of other users."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def printable_lines(text: str) -> str:
    """Like `printable`, for text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    """JSON in which every sign that steers terminals is escaped. JSON itself escapes only those below space."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else json.dumps(sign)[1:-1] for sign in text)


def encodable(text: str) -> str:
    """The text with a question mark for each half of a surrogate pair."""
    return text.encode(errors="replace").decode()


def not_encodable(value: object) -> str | None:
    """The first text in the JSON value that UTF-8 cannot spell."""
    pending = [value]
    while pending:
        found = pending.pop()
        if isinstance(found, str):
            if encodable(found) != found:
                return found
        elif isinstance(found, dict):
            pending += [*found.keys(), *found.values()]
        elif isinstance(found, list):
            pending += found
    return None
