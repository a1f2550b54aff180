"""Output of another user's program, on a terminal: it may change colours, and nothing else of the terminal.

docker and kubectl print logs as they are. There the reader chose the program; here root reads what any user wrote, and
escape sequences can rename windows, write to the clipboard and answer in the reader's name. A program of one's own
needs no log for that.
"""

from __future__ import annotations

import codecs
import re

from aliquot.model.text import printable

_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;:]{0,64})?\Z")
# Line ends and tabs; carriage returns, by which progress bars are drawn; colours; all that is printable.
_HARMLESS = re.compile(r"\x1b\[[0-9;:]{0,64}m|[\n\t\r]")
_RESET = b"\x1b[0m"


class Escaping:
    """Turns pieces of output into what may be shown. A sequence or letter may be spread over two pieces."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode
        self._held = ""

    def shown(self, piece: bytes, *, last: bool = False) -> bytes:
        """The piece; what of it is the beginning of a colour waits for the next."""
        text = self._held + self._decode(piece, last)
        self._held = ""
        if not last and (found := _UNFINISHED.search(text)):
            text, self._held = text[: found.start()], found[0]
        made: list[str] = []
        at = 0
        for harmless in _HARMLESS.finditer(text):
            made += printable(text[at : harmless.start()]), harmless[0]
            at = harmless.end()
        made.append(printable(text[at:]))
        return "".join(made).encode() + (_RESET if last else b"")
