"""`aliquot run`: a command on a slice of a card.

Everything before the exec counts as overhead of the command: nothing heavy is imported here (no click, rich, numpy,
asyncio, msgspec; tests/cli/test_run.py holds it to that). After the exec the process is the command: its pid, exit
code, signals, standard streams and terminal are what they would be without us.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from aliquot.adapters.host.control import Connection
from aliquot.cli.amounts import (
    DURATION_ALLOWED,
    MEMORY_ALLOWED,
    SIMULATE_ALLOWED,
    AmountError,
    looks_like_cards,
    parse_cards,
    parse_duration,
    parse_memory,
)
from aliquot.cli.run.execute import become, detached
from aliquot.cli.run.request import (
    BAD_INPUT,
    INTERRUPTED,
    NOT_EXECUTABLE,
    NOT_FOUND,
    RunError,
    after_restart,
    connected,
    deadline_of,
    not_allowed,
    say,
    say_waiting,
    until_granted,
)

_CLASSES = ("online", "offline", "normal")

USAGE = "aliquot run [OPTIONS] [--] COMMAND [ARGS]..."
HELP = """\
Run a command on a slice of a card.

Starts the daemon of this machine when none runs, waits in a queue while the machine is full
(where it stands is told on stderr, Ctrl-C leaves), and then becomes the command: exit code,
signals, stdin and terminal are the command's own.

aliquot run --memory 10 --core 30 -- python train.py
aliquot run --class offline --core 50 --memory 20 -- python train.py
aliquot run --class online --memory 8 -- python serve.py
aliquot run --gpus 2 --memory 8 -- torchrun train.py
aliquot run --simulate -- aliquot burn\
"""
# flag, value, what it says; the order is that of the help
OPTIONS = (
    (
        "--memory",
        "SIZE",
        "Memory of each card: GiB, or 512MiB, 10GiB. Without --memory and --core: whole cards",
    ),
    ("--core", "PERCENT", "Compute of each card, 1 to 100. Alone, it is the same percentage of memory"),
    ("--gpus", "N", "As many slices, on as many cards  [default: 1]"),
    ("--class", "CLASS", "online (takes the card from offline work), offline, or normal  [default: normal]"),
    ("--name", "NAME", "What ps, stop and logs call it  [default: the command and a number]"),
    ("--no-wait", None, "When there is no room now, give up with exit code 75"),
    ("--timeout", "TIME", "Wait that long at most, as in 30s or 5m; then give up with exit code 75"),
    ("--detach", None, "Run in the background, with the output in the daemon's logs; prints the name. Also -d"),
    ("--simulate", "[SPEC]", "Start the daemon with simulated cards, 2x24GiB by default, when none runs"),
    ("--help", None, "Show this and exit. Also -h"),
)
SIMULATED = "2x24GiB"


def main(arguments: list[str]) -> int:
    """The exit code; does not return when the command could be started."""
    try:
        return _main(arguments)
    except RunError as error:
        say(str(error))
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _unwritten(141)
    except OSError as error:  # the disk is full, say
        say(f"{error.filename or 'output'}: {error.strerror or error}")
        return _unwritten(BAD_INPUT)


def _unwritten(code: int) -> int:
    """What is left in the buffer cannot be written; do not try again on the way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


def _main(arguments: list[str]) -> int:
    options, command = _split(arguments)
    if "--help" in options:
        print(help_text(), flush=True)
        return 0
    request = _request(options, command)
    program = _find(command[0])
    up = _up_arguments(options)
    connection = connected(up, given=options.get("--simulate"))
    deadline = deadline_of(options.get("--timeout"))
    if not request["detach"]:

        def again(waited: bool) -> Connection:
            """Whoever waited in a queue waits on with the daemon's return; whoever did not may as well start one."""
            return after_restart(waited) if waited else connected(up, None)

        return become(until_granted(connection, request, deadline, say_waiting, again), program, command)
    connection.close()  # the child asks for itself: the daemon knows it by its process id
    return detached(request, program, command, deadline)


# --- the command line --------------------------------------------------------------------------------------------


def help_text() -> str:
    """As `aliquot run --help` shows it."""
    wide = max(len(_spelled(flag, value)) for flag, value, _ in OPTIONS)
    lines = [f"  {_spelled(flag, value):<{wide}}  {text}" for flag, value, text in OPTIONS]
    body = "\n".join(f"  {line}" if line else "" for line in HELP.splitlines())
    return f"Usage: {USAGE}\n\n{body}\n\nOptions:\n" + "\n".join(lines)


def _spelled(flag: str, value: str | None) -> str:
    return flag if value is None else f"{flag} {value}"


def _split(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Options up to `--` or the first word that is none; the rest is the command, untouched."""
    known = {flag: value for flag, value, _ in OPTIONS}
    options: dict[str, str] = {}
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if word == "--":
            return options, arguments[at + 1 :]
        if not word.startswith("-") or word == "-":
            break
        flag, equals, value = word.partition("=")
        flag = {"-d": "--detach", "-h": "--help"}.get(flag, flag)
        if flag not in known:
            raise RunError(f"No such option: {flag} (aliquot run --help tells what is allowed)")
        at += 1
        takes = known[flag]
        if takes is None and equals:
            raise RunError(f"{flag}: {value} is not allowed: it takes no value")
        if takes == "[SPEC]" and not equals and at < len(arguments) and looks_like_cards(arguments[at]):
            value, at = arguments[at], at + 1
        elif takes is not None and takes != "[SPEC]" and not equals:
            if at >= len(arguments) or arguments[at] == "--":
                raise RunError(f"{flag} needs a value: {takes} (aliquot run --help tells what is allowed)")
            value, at = arguments[at], at + 1
        options[flag] = value
    return options, arguments[at:]


def _request(options: dict[str, str], command: list[str]) -> dict[str, Any]:
    """What is asked of the daemon; raises RunError for what is wrong on any machine."""
    if not command:
        raise RunError(f"no command given: {USAGE}")
    request: dict[str, Any] = {"op": "run", "command": [word[:256] for word in command[:64]]}
    if "--core" in options:
        request["core"] = _whole("--core", options["--core"], 1, 100, "a whole number from 1 to 100, percent of a card")
    if "--gpus" in options:
        request["gpus"] = _whole("--gpus", options["--gpus"], 1, 1 << 16, "a whole number, at least 1")
    if "--memory" in options:
        request["memory_mib"] = _amount("--memory", options["--memory"], parse_memory, MEMORY_ALLOWED)
    if options.get("--class", "normal") not in _CLASSES:
        raise not_allowed("--class", options["--class"], "online, offline or normal")
    request["class"] = options.get("--class", "normal")
    if "--name" in options:
        request["name"] = options["--name"]
    if "--timeout" in options:
        _amount("--timeout", options["--timeout"], parse_duration, DURATION_ALLOWED)
    request["wait"] = "--no-wait" not in options
    request["detach"] = "--detach" in options
    return request


def _up_arguments(options: dict[str, str]) -> list[str]:
    if "--simulate" not in options:
        return []
    spec = options["--simulate"] or SIMULATED
    _amount("--simulate", spec, parse_cards, SIMULATE_ALLOWED)
    return ["--simulate", spec]


def _whole(flag: str, text: str, least: int, most: int, allowed: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and least <= int(text) <= most):
        raise not_allowed(flag, text, allowed)
    return int(text)


def _amount(flag: str, text: str, parse: Callable[[str], Any], allowed: str) -> Any:
    try:
        return parse(text)
    except AmountError:
        raise not_allowed(flag, text, allowed) from None


def _find(name: str) -> str:
    """The program, as a shell would find it: 127 when there is none, 126 when it cannot be run."""
    folders = os.get_exec_path()
    if name == "aliquot":  # what we are ourselves is there, even if it was called as .venv/bin/aliquot
        folders.append(os.path.dirname(sys.executable))
    places = [name] if "/" in name else [os.path.join(folder, name) for folder in folders]
    there = [place for place in places if os.path.isfile(place)]
    for place in there:
        if os.access(place, os.X_OK):
            return place
    if there or ("/" in name and os.path.exists(name)):
        raise RunError(f"{name}: cannot be executed", NOT_EXECUTABLE)
    raise RunError(f"{name}: command not found", NOT_FOUND)
