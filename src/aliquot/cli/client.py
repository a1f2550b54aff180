"""Asking the daemon, for the commands that need one that runs. What goes wrong is one line, with what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from aliquot.adapters.host.control import AnswerError, ControlError, NoDaemonError, connect
from aliquot.adapters.host.home import SYSTEM_RUN, homes
from aliquot.cli.amounts import DURATION_ALLOWED, AmountError, parse_duration
from aliquot.cli.errors import InputError
from aliquot.model.status.machine import Status
from aliquot.wording.amounts import duration

_DENIED = 77
_LONGEST_DELAY = 60.0
_KUBELET = "/var/lib/kubelet/device-plugins"
_NO_DAEMON = (
    "no daemon runs on this machine: `aliquot up -d` starts one, and so does the first `aliquot run` or `aliquot apply`"
)
_NO_AGENT = (
    "neither a node's agent nor a daemon runs on this machine, which has a kubelet: `aliquot doctor` looks why there "
    "is no agent. Where the cards are not Kubernetes's, `aliquot up -d` starts a daemon"
)


class NoDaemonRunsError(InputError):
    """Nobody is there to be asked."""


class NotThereError(InputError):
    """Nobody has that name; `there` tells who is."""

    def __init__(self, what: str, names: Sequence[str], there: str) -> None:
        super().__init__(f"no {what} is called {' or '.join(names)}: {there}")
        self.names, self.there = names, there


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """Seconds, or with a unit."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_duration(value)
        except AmountError:
            self.fail(f"{value} is not allowed: {DURATION_ALLOWED}", param, ctx)


def events(request: dict[str, Any], timeout: float | None = 10.0, what: str = "run") -> Iterator[dict[str, Any]]:
    """What the daemon says, the last being {"ok": ...}. `what` is asked about, where a name is not known."""
    try:
        connection, _ = connect(homes())
        try:
            connection.send(request)
            yield from connection.events(timeout)
        finally:
            connection.close()
    except NoDaemonError:
        on_node = homes()[0].run == SYSTEM_RUN and os.path.isdir(_KUBELET)
        raise NoDaemonRunsError(_NO_AGENT if on_node else _NO_DAEMON) from None
    except TimeoutError:
        raise InputError("the daemon does not answer") from None
    except ControlError as error:
        raise InputError(str(error)) from error
    except AnswerError as error:
        raise refused(error, what) from error


def ask(request: dict[str, Any], what: str = "run") -> dict[str, Any]:
    """The one answer."""
    for said in events(request, what=what):
        if "ok" in said:
            answer: dict[str, Any] = said["ok"]
            return answer
    raise InputError("the daemon said nothing")


def read_status() -> Status:
    """The daemon's status."""
    return parse_status(ask({"op": "status"}))


def parse_status(answer: dict[str, Any]) -> Status:
    """As it came over the socket."""
    try:
        return msgspec.convert(answer, Status)
    except msgspec.ValidationError as error:
        raise InputError(f"the daemon's status cannot be read ({error}): is it of another version?") from None


def refused(error: AnswerError, what: str) -> InputError:
    """What the daemon said no to, in one line."""
    said = error.details
    if error.kind == "unknown-name":
        return NotThereError(what, [str(said.get("name"))], _there(said.get("names", ()), what))
    if error.kind == "invalid":
        return InputError(f"{said.get('field')}: {said.get('value')} is not allowed: {said.get('allowed')}")
    return InputError(str(error), code=_DENIED if error.kind == "denied" else 1)


def _there(names: Sequence[str], what: str) -> str:
    if what != "run":
        return f"there are {', '.join(names)}" if names else "there is none"
    runs = [name for name in names if "/" not in name]  # a Pod is NAMESPACE/NAME, and `aliquot delete` ends it
    return f"there are {', '.join(runs)}" if runs else "only Pods run" if names else "nothing runs"


def check_delay(seconds: float) -> None:
    """As the daemon would refuse it, in the words of the command line."""
    if seconds > _LONGEST_DELAY:
        raise InputError(f"release-delay: {duration(seconds)} is not allowed: 0 to 60s, for example 100ms")
