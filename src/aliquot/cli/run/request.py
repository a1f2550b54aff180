"""Requests a slice from the daemon: connects or starts it, waits in the queue, turns refusals into exit codes.

`aliquot run` imports this module before every command: keep it light.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from aliquot.adapters.host.control import AnswerError, Connection, ControlError, NoDaemonError
from aliquot.adapters.host.home import own_home
from aliquot.cli.amounts import parse_cards, parse_duration
from aliquot.cli.run.autostart import StartError, connect_or_start, wait_for_daemon
from aliquot.model.text import printable

if TYPE_CHECKING:
    from aliquot.adapters.host.messages import Granted, Position, RunMessage, WaitingEvent
    from aliquot.model.decoding.openjson import JsonObject

BAD_INPUT, NO_ROOM, DENIED, NOT_EXECUTABLE, NOT_FOUND, INTERRUPTED, STOPPED = 2, 75, 77, 126, 127, 130, 143
_RESTART = 15.0  # seconds for which a run waits for a daemon that others start
_OWN_RESTART = 8.0  # before it starts one itself: a service manager does so 2 s later, with the right options
_SPREAD = 20  # of 0.1 s: not all runs that waited start a daemon at the same moment; by their pid
_FIRST_ANSWER = 30.0  # seconds within which the daemon reports at least the position
_MOST_TRIES = 10  # daemons in a row that die within _LIVED
_LIVED = 60.0


class RunError(Exception):
    """An error line and the exit code."""

    def __init__(self, text: str, code: int = BAD_INPUT) -> None:
        super().__init__(text)
        self.code = code


def not_allowed(flag: str, value: object, allowed: str) -> RunError:
    """The error for an invalid value of a flag."""
    unclear = value == "" or (flag in ("--name", "--together") and " " in str(value))
    shown = f'"{value}"' if unclear else value
    return RunError(f"{flag}: {shown} is not allowed: {allowed}")


def connect_to_daemon(up: list[str], simulate: str | None) -> Connection:
    """Connect to the running daemon, or start one with `aliquot up UP`. `simulate` is the value of --simulate."""
    try:
        connection, _ = connect_or_start(up, print_error)
        if simulate is None:
            return connection
        _check_simulated(connection, simulate)
        return connect_or_start(up, print_error)[0]
    except StartError as error:
        raise RunError(str(error), error.code if error.code in (BAD_INPUT, NO_ROOM) else 1) from error
    except (ControlError, NoDaemonError) as error:
        raise RunError(str(error), 1) from error


def _check_simulated(connection: Connection, simulate: str) -> None:
    """The cards of a running daemon cannot change."""
    connection.send({"op": "hello"})
    try:
        about = next(connection.events(10.0))["ok"]
    except (AnswerError, KeyError, TimeoutError) as error:
        raise ControlError(f"the daemon does not identify itself: {error}") from error
    finally:
        connection.close()
    simulated = about.get("simulated")
    if simulated is None:
        raise RunError("--simulate: a daemon with real cards runs already; set ALIQUOT_HOME to start another one")
    if simulate and parse_cards(simulate) != parse_cards(simulated):
        raise RunError(
            f"--simulate: {simulate} is not allowed: {simulated} is simulated already; stop it with `aliquot down`"
        )


def wait_for_grant(
    connection: Connection,
    request: RunMessage,
    deadline: float | None,
    on_waiting: Callable[[WaitingEvent], None],
    up: list[str],
) -> Granted:
    """Send the request and wait for the grant. If the daemon dies, ask the next one (see `reconnect`)."""
    position: Position | None = None
    tries = 0
    while tries < _MOST_TRIES:
        began, ending = time.monotonic(), False
        shown = ""
        try:
            connection.send(request)
            answered = False
            while True:
                message = _next(connection, deadline, answered)
                answered = True
                ending |= "ending" in message
                if "ok" in message:
                    granted: Granted = message["ok"]
                    return granted
                if "waiting" in message:
                    event = cast("WaitingEvent", message)
                    position = event["waiting"]
                    if (line := waiting_line(position)) != shown:  # the change may not be visible in the line
                        shown = line
                        on_waiting(event)
        except AnswerError as error:
            raise _refused(error) from error
        except TimeoutError:
            raise _late(position) from None
        except ControlError as error:
            print_error(f"{error}; reconnecting")
            connection.close()
            tries = 0 if time.monotonic() - began > _LIVED else tries + 1
            try:
                connection = reconnect(connection, up, deadline, may_start=not ending)
            except TimeoutError:
                raise _late(position) from None
    raise RunError("the daemon restarted too often", 1)


def reconnect(lost: Connection, up: list[str], deadline: float | None = None, *, may_start: bool = True) -> Connection:
    """Connect to the daemon that follows one that died. If that was ours and none follows, start one as a new run
    would. Not in place of another user's (root's), which would book the same cards. `may_start`: it did not end on
    SIGTERM. Raises TimeoutError at the deadline."""
    ours = _is_ours(lost)
    start = ours and may_start
    patience = _OWN_RESTART + os.getpid() % _SPREAD / 10 if start else _RESTART
    left = float("inf") if deadline is None else deadline - time.monotonic()
    try:
        return wait_for_daemon(min(patience, left))[0]
    except (NoDaemonError, ControlError) as error:
        if left < patience:
            raise TimeoutError from error
        if start:
            return connect_to_daemon(up, None)
        who = "start it" if ours else "root starts it"
        raise RunError(
            f"the daemon ended and did not restart within {patience:.0f} s: {who} with `aliquot up -d`; "
            "then repeat the command",
            1,
        ) from error


def _is_ours(daemon: Connection) -> bool:
    """Whether a run may start the next daemon in its place."""
    return daemon.user == os.geteuid() and daemon.path == own_home().control


def _next(connection: Connection, deadline: float | None, answered: bool) -> JsonObject:
    """The next message. Raises TimeoutError at the deadline, RunError if the daemon never answers."""
    left = None if deadline is None else max(0.001, deadline - time.monotonic())
    if answered:
        return next(connection.events(left))
    try:
        return next(connection.events(_FIRST_ANSWER))
    except TimeoutError:
        raise RunError(connection.unanswered(), 1) from None


def _late(position: Position | None) -> RunError:
    return RunError(f"--timeout: no room in time: {shortage_of(position or {})}", NO_ROOM)


def _refused(error: AnswerError) -> RunError:
    details = error.details
    match error.kind:
        case "invalid":
            return not_allowed(f"--{details.get('field')}", details.get("value"), str(details.get("allowed")))
        case "busy":
            return RunError(f"no room now: {shortage_of(details)}", NO_ROOM)
        case "denied":
            return RunError(str(error), DENIED)
        case "stopped":
            return RunError(str(error), STOPPED)
        case _:
            return RunError(str(error), 1)


def deadline_of(timeout: str | None) -> float | None:
    """The end of --timeout on the monotonic clock."""
    return None if timeout is None else time.monotonic() + parse_duration(timeout)


def print_waiting(event: WaitingEvent) -> None:
    """Print the position in the queue on stderr."""
    print_error(waiting_line(event["waiting"]))


def waiting_line(position: Position) -> str:
    """Place in the queue and reason. Most runs never wait, and do not load the words for it."""
    from aliquot.wording.shortage import parse_place, waiting

    return waiting(parse_place(position))


def shortage_of(position: Mapping[str, object]) -> str:
    """What is short; loaded as late."""
    from aliquot.wording.shortage import parse_place, reason

    return reason(parse_place(position))


def print_error(text: str) -> None:
    """One line on stderr, without control characters."""
    print(f"aliquot: {printable(text)}", file=sys.stderr, flush=True)
