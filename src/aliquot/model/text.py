"""Text that others wrote: what of it can be encoded, and what can be shown.

Python's strings may have half of a surrogate pair, which JSON can spell ("\\ud800") and UTF-8 cannot. Imported by
programs that start fast: keep it light.
"""

from __future__ import annotations

import json
import re

_WIDE_SPACE = "\u3000"  # of Chinese and Japanese text; Python counts it as not printable
_CUT_ESCAPE = re.compile(r"\\(?:x[0-9a-f]?|u[0-9a-f]{0,3}|U[0-9a-f]{0,7})?\Z")


def printable(text: str) -> str:
    """The text on one line, control characters escaped: names may come from files of other users."""
    return text if text.isprintable() else "".join(sign if _harmless(sign) else ascii(sign)[1:-1] for sign in text)


def printable_start(text: str, most: int) -> str:
    """Like `printable`; what is longer than `most` signs then ends in dots, never within an escape."""
    shown = printable(text[: most + 1])
    return shown if len(shown) <= most else without_cut_escape(shown[: most - 3]) + "..."


def without_cut_escape(shown: str) -> str:
    """What was cut off from a longer `printable`, less the half of an escape at its end."""
    return _CUT_ESCAPE.sub("", shown)


def _harmless(sign: str) -> bool:
    return sign.isprintable() or sign == _WIDE_SPACE


def printable_lines(text: str) -> str:
    """Like `printable`, for text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    """JSON in which every sign that steers terminals is escaped. JSON itself escapes only those below space."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(sign if _harmless(sign) or sign == "\n" else json.dumps(sign)[1:-1] for sign in text)


def encodable(text: str) -> str:
    """The text with a question mark for each half of a surrogate pair."""
    return text.encode(errors="replace").decode()
