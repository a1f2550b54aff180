"""Executes the command in the foreground or in the background. `aliquot run` imports this module: keep it light."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from aliquot.adapters.host.control import ControlError, NoDaemonError
from aliquot.adapters.host.home import TENANT_VARIABLE
from aliquot.adapters.host.process import ourselves
from aliquot.cli.run.request import (
    INTERRUPTED,
    NOT_EXECUTABLE,
    RunError,
    print_error,
    waiting_line,
)
from aliquot.model.containers.environment import with_granted

if TYPE_CHECKING:
    from aliquot.adapters.host.messages import Granted, WaitingEvent


_NO_CARD = {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
RequestGrant = Callable[[Callable[["WaitingEvent"], None]], "Granted"]  # the argument is called whenever it waits


def execute(granted: Granted, program: str, command: list[str]) -> NoReturn:
    """Exec the command. Only the environment of the tenant stays behind."""
    _exec(program, command, environment_of(granted))


def execute_without_card(program: str, command: list[str]) -> NoReturn:
    """Exec a command that may use no card."""
    _exec(program, command, {**_own_environment(), **_NO_CARD})


def _exec(program: str, command: list[str], environment: dict[str, str]) -> NoReturn:
    import signal

    # Python ignores these two signals, and an exec keeps ignored signals ignored.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: it was closed before
        stream.flush()
    try:
        os.execve(program, command, environment)  # noqa: S606 - the purpose of the command
    except OSError as error:
        from aliquot.adapters.host.process.scripts import why_not_executed

        raise RunError(f"{command[0]}: {why_not_executed(error, program)}", NOT_EXECUTABLE) from error


def environment_of(granted: Granted) -> dict[str, str]:
    """The environment of this process at its start, with the variables of the tenant."""
    return with_granted(_own_environment(), fixed=granted.get("set", {}), front=granted.get("front", {}))


def _own_environment() -> dict[str, str]:
    environment = dict(os.environ)
    if environment.get("LC_CTYPE") == "C.UTF-8" and not _was_inherited(b"LC_CTYPE="):
        del environment["LC_CTYPE"]  # set by Python itself in the C locale
    return environment


def _was_inherited(start: bytes) -> bool:
    try:
        with open("/proc/self/environ", "rb") as file:
            return any(word.startswith(start) for word in file.read().split(b"\0"))
    except OSError:
        return True


def run_detached(request_grant: RequestGrant, program: str, command: list[str]) -> int:
    """Fork a child that requests the slice and execs the command. Print its name as soon as it has one."""
    import json

    _open_standard_streams()
    reader, writer = os.pipe()
    if os.fork() == 0:
        folder, folder_writer = os.pipe()
        try:
            os.setsid()
            child = os.fork()
            if child == 0:
                os.close(reader)
                os.close(folder)
                _in_background(request_grant, program, command, writer, folder_writer)
            _keep(child, folder)
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader, "rb") as pipe:
        reports = [json.loads(line) for line in pipe]
    for report in reports:
        if "error" in report:
            raise RunError(report["error"], report["code"])
    for report in reports:
        if "note" in report:
            print_error(report["note"])
        print(report["name"], flush=True)
        return 0
    raise RunError("the run ended before it started the command", 1)


def _open_standard_streams() -> None:
    """Those that are closed: else the next files get their numbers, and what redirects the streams closes the files."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


def _keep(child: int, folder: int) -> NoReturn:
    """Become the process that waits for the run (keeper.py). Without our environment: it may be another tenant's."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # that of the list itself
            os.set_inheritable(number, number in (0, 1, 2, folder))
    os.chdir("/")
    words = ourselves.script(os.path.join(os.path.dirname(__file__), "keeper.py"), str(child), str(folder))
    os.execve(sys.executable, words, {})  # noqa: S606 - ourselves


def _in_background(request_grant: RequestGrant, program: str, command: list[str], pipe: int, folder: int) -> NoReturn:
    """Never returns: the child must not run the code of the parent a second time. The keeper reads the tenant's
    folder from the other end of `folder`."""
    import json

    def report(**fields: Any) -> None:
        nonlocal pipe
        if pipe >= 0:
            os.write(pipe, json.dumps(fields).encode() + b"\n")

    def on_waiting(event: WaitingEvent) -> None:
        """When it has to wait, the parent returns; from then on messages go to the log."""
        nonlocal pipe
        position = event["waiting"]
        if pipe >= 0:
            report(name=position["name"], note=waiting_line(position))
            _redirect_to(event["log"])
            os.close(pipe)
            pipe = -1
        print_error(waiting_line(position))

    code = 1
    try:
        os.setsid()
        granted = request_grant(on_waiting)
        with contextlib.suppress(BrokenPipeError):  # without a keeper the run has no exit code, and that is all
            os.write(folder, os.fsencode(granted.get("set", {}).get(TENANT_VARIABLE, "")))
        report(name=granted["name"])
        try:  # also one that waited: a daemon that restarted meanwhile made another log
            _redirect_to(granted["log"])
        except OSError:
            if pipe >= 0:
                raise  # a run that waited has a log, even if its file was removed
        execute(granted, program, command)
    except RunError as error:
        report(error=str(error), code=error.code)
        if pipe < 0:
            print_error(str(error))
        code = error.code
    except (NoDaemonError, ControlError, OSError) as error:
        report(error=str(error), code=1)
        if pipe < 0:
            print_error(str(error))
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        os._exit(code)


def _redirect_to(path: str | None) -> None:
    if path is None:
        raise RunError("the daemon named no file for the output", 1)
    log = os.open(path, os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
