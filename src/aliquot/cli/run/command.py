"""`aliquot run`: runs a command on a slice of a card.

Everything before the exec is overhead of the command, so nothing heavy is imported here: no click, rich, numpy, asyncio
or msgspec (tests/cli/run/test_command.py checks it). After the exec, the process is the command: pid, exit code,
signals, standard streams and terminal are the same as without aliquot.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aliquot.cli.amounts import (
    DURATION_ALLOWED,
    MEMORY_OF_RUN,
    SIMULATE_ALLOWED,
    SIMULATED,
    AmountError,
    looks_like_cards,
    parse_cards,
    parse_duration,
    parse_memory,
    parse_percent,
)
from aliquot.cli.run.execute import execute, execute_without_card, run_detached
from aliquot.cli.run.request import (
    BAD_INPUT,
    INTERRUPTED,
    NOT_EXECUTABLE,
    NOT_FOUND,
    RunError,
    connect_to_daemon,
    deadline_of,
    not_allowed,
    print_error,
    print_waiting,
    reconnect,
    wait_for_grant,
)
from aliquot.model.numbers.bounds import LEAST_LATENCY, LONGEST_PARK, MOST_LATENCY
from aliquot.wording.runoptions import (
    LATENCY_ALLOWED,
    LATENCY_ONLINE,
    LATENCY_UNIT,
    PARK_ALLOWED,
    PARK_WHOLE,
    TOGETHER_PARK,
    TOGETHER_WHOLE,
)

if TYPE_CHECKING:
    from aliquot.adapters.host.messages import Granted, RunMessage, WaitingEvent

_CLASSES = ("online", "offline", "normal")
_CORE = {  # by --rules
    "seed": (100, "a whole number from 1 to 100, in percent of a card (above 100: --rules 2026)"),
    "2026": (100 << 16, "a whole number, in percent of a card"),
}

USAGE = "aliquot run [OPTIONS] [--] COMMAND [ARGS]..."
_USAGE_OF_PODS = "aliquot run [OPTIONS] -f POD.yaml"
HELP = """\
Run a command on a slice of a card.

Start the daemon if none runs, wait in the queue while the machine is full
(stderr shows the position; Ctrl-C gives up), then exec the command: exit
code, signals, stdin and terminal are those of the command.

aliquot run --memory 10 --core 30 -- python train.py
aliquot run --class offline --core 50 --memory 20 -- python train.py
aliquot run --class online --memory 8 -- python serve.py
aliquot run --gpus 2 --memory 8 -- torchrun train.py
aliquot run --simulate -- aliquot burn
aliquot run -d -f pod.yaml\
"""
# flag, value, help
OPTIONS = (
    (
        "--memory",
        "SIZE",
        "Memory on each card in GiB, or 512MiB, 10GiB, 25%. Without --memory and --core: whole cards",
    ),
    ("--core", "PERCENT", "Compute of each card, 1 to 100. Without --memory: the same percentage of memory"),
    ("--gpus", "N", "Number of cards, or all, with one slice on each  [default: 1]"),
    (
        "--rules",
        "VERSION",
        "2026: qGPU's later rules: --core in steps of 5, or 100 and more for several cards  [default: seed]",
    ),
    ("--class", "CLASS", "online (preempts offline work), offline or normal  [default: normal]"),
    (
        "--latency",
        "TIME",
        "Online work accepts that much (2ms) added to its requests by offline work beside it",
    ),
    (
        "--park",
        "TIME",
        "After that long idle (30s) its memory may leave the card when others need it, until its next call",
    ),
    (
        "--together",
        "GROUP",
        "Side by side with your other runs of GROUP (MPS); one that dies may take all of GROUP with it",
    ),
    ("--name", "NAME", "Name for ps, stop and logs  [default: the command and a number]"),
    ("--no-wait", None, "If the machine is full, exit with code 75"),
    ("--timeout", "TIME", "Wait at most that long (30s, 5m), then exit with code 75"),
    ("--detach", None, "Run in the background, log the output and print the name. Also -d"),
    ("--simulate", "[SPEC]", "If no daemon runs, start one with simulated cards  [default: 2x24GiB]"),
    (
        "--filename",
        "FILE",
        "Run the containers of a Pod, with its request in any dialect; - is stdin. Also -f",
    ),
    ("--dry-run", None, "With -f: print the runs and start none"),
    ("--output", "FORMAT", "With -f, and --dry-run or --detach: table or json. Also -o"),
    ("--help", None, "Show this message and exit. Also -h"),
)

_SHORT = {"-d": "--detach", "-h": "--help", "-f": "--filename", "-o": "--output"}
_OF_PODS = ("--dry-run", "--output")  # options that need -f
_NARROWEST = 20  # columns for the text of an option


def main(arguments: list[str]) -> int:
    """Returns the exit code. Does not return if the command starts."""
    try:
        return _main(arguments)
    except RunError as error:
        print_error(str(error))
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _discard_output(141)
    except OSError as error:  # for example a full disk
        print_error(f"{error.filename or 'output'}: {error.strerror or error}")
        return _discard_output(BAD_INPUT)


def _discard_output(code: int) -> int:
    """The rest of the buffer cannot be written: do not try again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


def _main(arguments: list[str]) -> int:
    options, command = _split(arguments)
    if "--help" in options:
        print(help_text(_terminal_width()), flush=True)
        return 0
    if "--filename" in options:
        from aliquot.cli.run.pod import run_pod  # not at the top: it reads YAML

        return run_pod(options, command, _run_command)
    for flag in _OF_PODS:
        if flag in options:
            raise RunError(f"{flag} needs -f POD.yaml (see aliquot run --help)")
    return _run_command(options, command)


def _run_command(options: dict[str, str] | None, command: list[str]) -> int:
    """Become the command, on its slice; None: without a card. Returns only for one in the background. Raises
    RunError."""
    if options is None:
        execute_without_card(_find(command[0]), command)
    request = _request(options, command)
    program = _find(command[0])
    up = _up_arguments(options)
    if "together" in request:
        group = request["together"]
        print_error(
            f"together with {group}: if one of its members dies with work in flight, all of {group} may fail; "
            "no other run is affected"
        )
    connection = connect_to_daemon(up, simulate=options.get("--simulate"))
    deadline = deadline_of(options.get("--timeout"))
    if not request["detach"]:
        return execute(wait_for_grant(connection, request, deadline, print_waiting, up), program, command)
    connection.close()  # the child makes the request: the daemon identifies it by its process id

    def request_grant(on_waiting: Callable[[WaitingEvent], None]) -> Granted:
        return wait_for_grant(reconnect(connection, up), request, deadline, on_waiting, up)

    return run_detached(request_grant, program, command)


# --- the command line --------------------------------------------------------------------------------------------


def help_text(width: int | None = None) -> str:
    """The output of `aliquot run --help`; options are wrapped to `width`."""
    wide = max(len(_with_value(flag, value)) for flag, value, _ in OPTIONS)
    lines = [f"  {_with_value(flag, value):<{wide}}  {text}" for flag, value, text in OPTIONS]
    body = [f"  {line}" if line else "" for line in HELP.splitlines()]
    if width is not None:
        lines = [part for line in lines for part in _wrapped(line, width, wide + 4)]
    return "\n".join((f"Usage: {USAGE}", f"       {_USAGE_OF_PODS}", "", *body, "", "Options:", *lines))


def _terminal_width() -> int | None:
    """None: no terminal."""
    try:
        return os.get_terminal_size(1).columns or None
    except OSError:
        return None


def _wrapped(line: str, width: int, indent: int) -> list[str]:
    if len(line) <= width:
        return [line]
    import textwrap  # not at the top: only the help needs it

    indent = indent if width - indent >= _NARROWEST else 4
    return textwrap.wrap(line, max(width, _NARROWEST), subsequent_indent=" " * indent, break_on_hyphens=False)


def _with_value(flag: str, value: str | None) -> str:
    return flag if value is None else f"{flag} {value}"


def _split(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """The options before `--` or the first other word, and the command, unchanged."""
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
        flag = _SHORT.get(flag, flag)
        if flag not in known:
            from aliquot.cli.run.hints import suggestion  # not at the top: only this error needs it

            raise RunError(f"No such option: {flag}{suggestion(flag, known)} (see aliquot run --help)")
        at += 1
        takes = known[flag]
        if takes is None and equals:
            raise RunError(f"{flag} takes no value: {value}")
        if takes == "[SPEC]" and not equals and _is_spec(arguments[at : at + 2]):
            value, at = arguments[at], at + 1
        elif takes is not None and takes != "[SPEC]" and not equals:
            if at >= len(arguments) or arguments[at] == "--":
                raise RunError(f"{flag} needs a value: {takes} (see aliquot run --help)")
            value, at = arguments[at], at + 1
        options[flag] = value
    return options, arguments[at:]


def _is_spec(words: list[str]) -> bool:
    """Whether the first of the words after --simulate is its value, and no option: it looks like cards, or `--` follows
    it."""
    return bool(words) and not words[0].startswith("-") and (looks_like_cards(words[0]) or words[1:] == ["--"])


def _request(options: dict[str, str], command: list[str]) -> RunMessage:
    """The request to the daemon. Raises RunError for what is invalid on any machine."""
    if not command:
        raise RunError(f"the command is missing: {USAGE}")
    request: RunMessage = {
        "op": "run",
        "command": [word[:256] for word in command[:64]],
        "class": options.get("--class", "normal"),
        "wait": "--no-wait" not in options,
        "detach": "--detach" in options,
    }
    if "--rules" in options:
        if options["--rules"] not in _CORE:
            raise not_allowed("--rules", options["--rules"], "seed or 2026")
        request["rules"] = options["--rules"]
    if "--core" in options:
        most, allowed = _CORE[options.get("--rules", "seed")]
        request["core"] = _whole("--core", options["--core"], 1, most, allowed)
    if "--gpus" in options:
        every = options["--gpus"] == "all"
        gpus = "a whole number, at least 1, or all"
        request["gpus"] = "all" if every else _whole("--gpus", options["--gpus"], 1, 1 << 16, gpus)
    if "--memory" in options:
        percent = _amount("--memory", options["--memory"], parse_percent, MEMORY_OF_RUN)
        if percent is not None:
            request["memory_percent"] = percent
        else:
            request["memory_mib"] = _amount("--memory", options["--memory"], parse_memory, MEMORY_OF_RUN)
    if options.get("--class", "normal") not in _CLASSES:
        raise not_allowed("--class", options["--class"], "online, offline or normal")
    if "--park" in options:
        request["park"] = _amount("--park", options["--park"], parse_duration, PARK_ALLOWED)
        if request["park"] > LONGEST_PARK:
            raise not_allowed("--park", options["--park"], PARK_ALLOWED)
        if "--memory" not in options and "--core" not in options:
            raise not_allowed("--park", options["--park"], PARK_WHOLE)
    if "--latency" in options:
        request["latency"] = _amount("--latency", options["--latency"], parse_duration, LATENCY_ALLOWED)
        if options["--latency"].strip()[-1].isdigit():  # it would be seconds, and milliseconds are meant
            raise not_allowed("--latency", options["--latency"], LATENCY_UNIT)
        if not LEAST_LATENCY <= request["latency"] <= MOST_LATENCY:
            raise not_allowed("--latency", options["--latency"], LATENCY_ALLOWED)
        if request["class"] != "online":
            raise not_allowed("--latency", options["--latency"], LATENCY_ONLINE)
    if "--together" in options:
        request["together"] = options["--together"]
        if "--park" in options:
            raise not_allowed("--together", options["--together"], TOGETHER_PARK)
        if "--memory" not in options and "--core" not in options:
            raise not_allowed("--together", options["--together"], TOGETHER_WHOLE)
    if "--name" in options:
        request["name"] = options["--name"]
    if "--timeout" in options:
        _amount("--timeout", options["--timeout"], parse_duration, DURATION_ALLOWED)
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
    """The program, found as by a shell. Exit code 127 if there is none, 126 if it is not executable."""
    folders = os.get_exec_path()
    if name == "aliquot":  # found even if this program was called as .venv/bin/aliquot
        folders.append(os.path.dirname(sys.executable))
    paths = [name] if "/" in name else [os.path.join(folder, name) for folder in folders]
    files = [path for path in paths if os.path.isfile(path)]
    for path in files:
        if os.access(path, os.X_OK):
            return path
    from aliquot.cli.run.hints import not_executable, not_found  # not at the top: only these errors need it

    if files or ("/" in name and os.path.exists(name)):
        raise RunError(f"{name}: {not_executable(name)}", NOT_EXECUTABLE)
    raise RunError(f"{name}: command not found{not_found(name)}", NOT_FOUND)
