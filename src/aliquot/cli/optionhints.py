"""Options of other tools that a command here does not have, and what to use instead."""

from __future__ import annotations

from collections.abc import Sequence

_FOLLOW = ("w", "watch", "f", "follow")
_OUTPUT = ("o", "output", "json", "format")
_FORCE = ("f", "force", "9", "s", "signal", "k", "kill", "now")

# By command: options without their dashes, and what to do instead. The first that matches counts.
_BY_COMMAND: dict[str, Sequence[tuple[tuple[str, ...], str]]] = {
    "aliquot": [(("v", "V", "versions"), "use --version")],
    "aliquot ps": [
        (_FOLLOW, "`aliquot top` is live; `watch aliquot ps` repeats this list"),
        (("q", "quiet", "l", "e", "x", "u"), "-o json has every field"),
    ],
    "aliquot top": [
        (_FOLLOW, "it is live on a terminal; --every sets the seconds between updates"),
        (("d", "s", "interval", "delay"), "use --every SECONDS"),
        (("n", "b", "1"), "use --once"),
    ],
    "aliquot usage": [
        (_FOLLOW, "`watch aliquot usage` repeats it; `aliquot top` is live"),
        (("u", "user"), "use --by user"),
        (("until", "from", "to", "start", "end"), "use --since; -o json has the seconds"),
    ],
    "aliquot stop": [
        (_FORCE, "use --timeout 0: SIGKILL at once"),
        (("t", "time", "grace"), "use --timeout TIME"),
        (("a",), "use --all"),
    ],
    "aliquot logs": [
        (("n", "lines", "t"), "use --tail N"),
        (("since", "p", "previous"), "the log is one piece: use --tail N"),
        (_OUTPUT, "it prints what the run wrote, unchanged"),
    ],
    "aliquot dashboard": [(_OUTPUT, "it prints nothing but the address on stdout")],
    "aliquot down": [(("f", "force", "v"), "tenants keep running; `aliquot stop --all` stops yours")],
    "aliquot up": [
        (("p", "port"), "use --listen PORT"),
        (("b", "background", "daemon"), "use -d"),
        (("gpus", "cards"), "it takes all cards of the machine; --simulate 2x24GiB simulates some"),
    ],
}


def option_hint(path: str, option: str, known: Sequence[str]) -> str | None:
    """What to use instead of an option that the command does not have; `known` are the options it has."""
    word = option.lstrip("-")
    for options, hint in _BY_COMMAND.get(path, ()):
        if word in options:
            return hint
    if word in _OUTPUT and "--output" in known:
        return "use -o json"
    return None
