"""From the request to the grant: finding the daemon or starting it, waiting for room, and every way to be refused.

Imported by `aliquot run` before every command it starts: nothing heavy.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from aliquot.adapters.host.control import AnswerError, Connection, ControlError, NoDaemonError
from aliquot.cli.amounts import parse_cards, parse_duration
from aliquot.cli.run.autostart import StartError, connect_or_start, wait_for_daemon
from aliquot.wording.shortage import reason, waiting

BAD_INPUT, NO_ROOM, DENIED, NOT_EXECUTABLE, NOT_FOUND, INTERRUPTED, STOPPED = 2, 75, 77, 126, 127, 130, 143
AFTER_RESTART = 15.0  # seconds for which a waiting run looks for a daemon that went away
_FIRST_ANSWER = 30.0  # seconds in which a daemon that lives says at least where we stand
_MOST_TRIES = 5  # daemons that may go away under one run


class RunError(Exception):
    """One line for people, and the exit code."""

    def __init__(self, text: str, code: int = BAD_INPUT) -> None:
        super().__init__(text)
        self.code = code


def not_allowed(flag: str, value: object, allowed: str) -> RunError:
    """Names the flag, what it was, and what is allowed."""
    return RunError(f"{flag}: {value} is not allowed: {allowed}")


def connected(up: list[str], given: str | None) -> Connection:
    """To the daemon that runs, or to one that is started with those arguments; `given` is the value of --simulate."""
    try:
        connection, _ = connect_or_start(up, say)
        if given is None:
            return connection
        _check_simulated(connection, given)
        return connect_or_start(up, say)[0]
    except StartError as error:
        raise RunError(str(error), error.code if error.code in (BAD_INPUT, NO_ROOM) else 1) from error
    except (ControlError, NoDaemonError) as error:
        raise RunError(str(error), 1) from error


def _check_simulated(connection: Connection, given: str) -> None:
    """A daemon that runs has the cards it has."""
    connection.send({"op": "hello"})
    try:
        about = next(connection.events(10.0))["ok"]
    except (AnswerError, KeyError, TimeoutError) as error:
        raise ControlError(f"the daemon does not say what it is: {error}") from error
    finally:
        connection.close()
    simulated = about.get("simulated")
    if simulated is None:
        raise RunError("--simulate: a daemon for real cards runs here; ALIQUOT_HOME=/tmp/sim makes room for another")
    if given and parse_cards(given) != parse_cards(simulated):
        raise RunError(f"--simulate: {given} is not allowed: {simulated} are simulated here; `aliquot down` ends them")


Again = Callable[[bool], Connection]  # to a daemon after the one that went away; whether we had a place in its queue


def until_granted(
    connection: Connection,
    request: dict[str, Any],
    deadline: float | None,
    tell: Callable[[dict[str, Any]], None],
    again: Again,
) -> dict[str, Any]:
    """Ask, and wait as long as it takes. When the daemon goes away meanwhile, the next one is asked."""
    standing: dict[str, Any] = {}
    for _ in range(_MOST_TRIES):
        told = ""
        try:
            connection.send(request)
            answered = False
            while True:
                said = _next(connection, deadline, answered)
                answered = True
                if "ok" in said:
                    granted: dict[str, Any] = said["ok"]
                    return granted
                if "waiting" in said:
                    standing = said["waiting"]
                    if waiting(standing) != told:  # what changed may be no part of the line
                        told = waiting(standing)
                        tell(said)
        except AnswerError as error:
            raise _refused(error) from error
        except TimeoutError:
            raise RunError(f"--timeout: no room in time: {reason(standing)}", NO_ROOM) from None
        except ControlError as error:
            say(f"{error}; looking for another")
            connection.close()
            connection = again(bool(standing))
    raise RunError("the daemon went away again and again", 1)


def after_restart(_waited: bool) -> Connection:
    """A daemon that comes back by itself."""
    try:
        return wait_for_daemon(AFTER_RESTART)[0]
    except (NoDaemonError, ControlError) as error:
        raise RunError("the daemon ended while this run waited: `aliquot up` starts one", 1) from error


def _next(connection: Connection, deadline: float | None, answered: bool) -> dict[str, Any]:
    """What is said next. Raises TimeoutError when the deadline passes first, RunError when nobody says anything."""
    left = None if deadline is None else max(0.001, deadline - time.monotonic())
    if answered:
        return next(connection.events(left))
    try:
        return next(connection.events(_FIRST_ANSWER))
    except TimeoutError:
        raise RunError("the daemon does not answer: `aliquot down`, or end it by hand", 1) from None


def _refused(error: AnswerError) -> RunError:
    said = error.details
    match error.kind:
        case "invalid":
            return not_allowed(f"--{said.get('field')}", said.get("value"), str(said.get("allowed")))
        case "busy":
            return RunError(f"no room now: {reason(said)}", NO_ROOM)
        case "denied":
            return RunError(str(error), DENIED)
        case "stopped":
            return RunError(str(error), STOPPED)
        case _:
            return RunError(str(error), 1)


def deadline_of(timeout: str | None) -> float | None:
    """When the patience of --timeout ends."""
    return None if timeout is None else time.monotonic() + parse_duration(timeout)


def say_waiting(event: dict[str, Any]) -> None:
    """Where we stand, on stderr."""
    say(waiting(event["waiting"]))


def say(text: str) -> None:
    """One line for people."""
    print(f"aliquot: {text}", file=sys.stderr, flush=True)
