"""Why the kernel would not execute a script: it names the script where it means the interpreter."""

from __future__ import annotations

import errno
import os

_LONGEST = 4096  # bytes of the first line that are read


def why_not_executed(error: OSError, program: str) -> str:
    """What went wrong, without the program's name."""
    usual = error.strerror or str(error)
    if error.errno != errno.ENOENT or not os.path.isfile(program):
        return usual
    try:
        with open(program, "rb") as file:
            first, _, _ = file.read(_LONGEST).partition(b"\n")
    except OSError:
        return usual
    if not first.startswith(b"#!"):
        return usual
    word = (first[2:].strip(b" \t").replace(b"\t", b" ").split(b" ") or [b""])[0]
    if word.endswith(b"\r"):
        return "its lines end as on Windows: convert it, for instance with dos2unix"
    if not word or os.path.exists(word):  # what the interpreter itself needs is missing
        return usual
    interpreter = word.decode(errors="replace")
    moved = " (was its folder moved? then install it again)" * os.path.basename(interpreter).startswith("python")
    return f"its first line names {interpreter}, which does not exist{moved}"
