"""What `aliquot run` says to options and commands that other tools would take. Imported only for an error."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterable

_CARD_IS_CHOSEN = "aliquot chooses the card; --gpus is the number of cards"
_TERMINAL = "the command already has your terminal and stdin"
_NETWORK = "the command uses the network of this machine"
# Options of other tools, without their dashes, and what holds here.
_HINTS = {
    **dict.fromkeys(("gpu", "card", "cards", "device", "devices", "g", "num-gpus", "gres"), _CARD_IS_CHOSEN),
    **dict.fromkeys(("mem", "gpu-memory", "vram", "m"), "use --memory, in GiB of each card"),
    **dict.fromkeys(("cpu", "cpus", "c"), "processors are not limited; --core is the compute of each card"),
    **dict.fromkeys(("env", "e"), "the command inherits your environment"),
    **dict.fromkeys(("priority", "online", "offline"), "use --class online or --class offline"),
    **dict.fromkeys(("background", "daemon", "b"), "use --detach"),
    **dict.fromkeys(("i", "t", "it", "ti", "interactive", "tty", "pty"), _TERMINAL),
    **dict.fromkeys(("dit", "itd"), "use --detach; `aliquot logs NAME -f` shows the output"),
    **dict.fromkeys(("v", "volume", "mount"), "the command sees the files of this machine"),
    **dict.fromkeys(("p", "publish", "net", "network"), _NETWORK),
    **dict.fromkeys(("w", "workdir", "cwd", "chdir", "D"), "the command runs in the current folder: cd there first"),
    **dict.fromkeys(("u", "user", "uid"), "the command runs as you"),
    **dict.fromkeys(("o", "output", "log"), "redirect it as usual, or use --detach and `aliquot logs NAME`"),
    **dict.fromkeys(("image", "entrypoint"), "there is no image: the command runs on this machine"),
    **dict.fromkeys(("time", "max-time"), "the time is not limited; put `timeout 1h` before the command"),
    **dict.fromkeys(("exclusive", "whole"), "without --memory and --core the card is yours alone"),
    **dict.fromkeys(("n", "N", "nodes", "ntasks", "np"), "--gpus is the number of cards; one command is started"),
    "rm": "nothing remains of a run but its line in `aliquot ps -a`",
    "wait": "it waits unless you say --no-wait",
    "restart": "runs are not restarted; systemd or Kubernetes restarts what ends",
}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def suggestion(flag: str, known: Iterable[str]) -> str:
    """What to add to the error about an unknown option; may be empty."""
    if (word := flag.lstrip("-")) in _HINTS:
        return f": {_HINTS[word]}"
    close = difflib.get_close_matches(flag, list(known), 1, 0.7)
    return f"; did you mean {close[0]}?" if close else ""


def not_found(name: str) -> str:
    """What to add to the error about a command that is not there; may be empty."""
    if _ASSIGNMENT.match(name):
        return f": set variables before aliquot, as in {name} aliquot run ..."
    if any(sign in name for sign in " |&;<>$*"):
        return f": for a line of the shell use -- sh -c {shlex.quote(name)}"
    if "/" not in name and os.path.isfile(name):
        return f": there is a file {name} here: use ./{name}, or its interpreter"
    return ""


def not_executable(name: str) -> str:
    """Why the file cannot be the command, and what can."""
    if os.path.isdir(name):
        return "it is a folder"
    return "not executable: chmod +x it, or name its interpreter, as in python3 or sh"
