"""Becoming the command: the exec, in the foreground or in the background. Imported by `aliquot run`: nothing heavy."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from aliquot.adapters.host.control import ControlError, NoDaemonError
from aliquot.cli.run.request import INTERRUPTED, NOT_EXECUTABLE, RunError, after_restart, say, until_granted
from aliquot.model.environment import with_granted
from aliquot.wording.shortage import waiting


def become(granted: dict[str, Any], program: str, command: list[str]) -> NoReturn:
    """Exec. Nothing of ours stays behind but the environment."""
    import signal

    environment = environment_of(granted)
    # Python ignores these two, and what is ignored stays ignored over an exec.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, command, environment)  # noqa: S606 - to become it is the point
    except OSError as error:
        raise RunError(f"{command[0]}: {error.strerror}", NOT_EXECUTABLE) from error


def environment_of(granted: dict[str, Any]) -> dict[str, str]:
    """Ours as it was when we were started, with what the tenant needs."""
    environment = dict(os.environ)
    if environment.get("LC_CTYPE") == "C.UTF-8" and not _was_given(b"LC_CTYPE="):
        del environment["LC_CTYPE"]  # Python set that for itself, in the C locale
    return with_granted(environment, fixed=granted.get("set", {}), front=granted.get("front", {}))


def _was_given(start: bytes) -> bool:
    try:
        with open("/proc/self/environ", "rb") as file:
            return any(word.startswith(start) for word in file.read().split(b"\0"))
    except OSError:
        return True


def detached(request: dict[str, Any], program: str, command: list[str], deadline: float | None) -> int:
    """The child asks, waits if it must, and becomes the command; we tell its name as soon as it has one, and go."""
    import json

    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        _in_background(request, program, command, deadline, theirs)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        told = [json.loads(line) for line in pipe]
    for each in told:
        if "error" in each:
            raise RunError(each["error"], each["code"])
    for each in told:
        if "note" in each:
            say(each["note"])
        print(each["name"], flush=True)
        return 0
    raise RunError("the run ended before it began", 1)


def _in_background(
    request: dict[str, Any], program: str, command: list[str], deadline: float | None, pipe: int
) -> NoReturn:
    """Never returns: whatever happens in here must not become a second run of the parent's code."""
    import json

    def report(**said: Any) -> None:
        nonlocal pipe
        if pipe >= 0:
            os.write(pipe, json.dumps(said).encode() + b"\n")

    def tell(event: dict[str, Any]) -> None:
        """The first time it waits, the parent need not: from then on the log tells."""
        nonlocal pipe
        standing = event["waiting"]
        if pipe >= 0:
            report(name=standing["name"], note=waiting(standing))
            _into_log(event["log"])
            os.close(pipe)
            pipe = -1
        say(waiting(standing))

    code = 1
    try:
        os.setsid()
        granted = until_granted(after_restart(False), request, deadline, tell, after_restart)
        report(name=granted["name"])
        if pipe >= 0:
            _into_log(granted["log"])
        become(granted, program, command)
    except RunError as error:
        report(error=str(error), code=error.code)
        if pipe < 0:
            say(str(error))
        code = error.code
    except (NoDaemonError, ControlError, OSError) as error:
        report(error=str(error), code=1)
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        os._exit(code)


def _into_log(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
