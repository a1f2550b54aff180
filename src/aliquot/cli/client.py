"""Calls the running daemon. Every error is one line that says what to do."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click
import msgspec

from aliquot.adapters.host.control import AnswerError, ControlError, NoDaemonError, connect
from aliquot.adapters.host.home import SYSTEM_RUN, homes
from aliquot.cli.amounts import DURATION_ALLOWED, AmountError, parse_duration
from aliquot.cli.errors import InputError
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.status.machine import DaemonStatus, Status
from aliquot.model.tenant import AUTO

_Answer = TypeVar("_Answer")

_DENIED = 77
_LONGEST_DELAY = 60.0
_SETTLED = 3.0  # seconds
_RETURN = 15.0  # seconds for which a command that watches waits for a daemon to come back
_KUBELET = "/var/lib/kubelet/device-plugins"
_NO_DAEMON = "no daemon runs on this machine: start one with `aliquot up -d`; `aliquot run` starts it too"
_NO_AGENT = (
    "this machine has a kubelet, but neither an agent nor a daemon runs: run `aliquot doctor` to see why the agent is "
    "missing, or `aliquot up -d` if Kubernetes does not manage the cards"
)


class NoDaemonRunsError(InputError):
    """No daemon runs."""


class NotServedError(InputError):
    """A daemon was there and gave no answer; most often it was killed meanwhile."""


class NotFoundError(InputError):
    """There is no object of that name; `existing` lists the names that exist."""

    def __init__(self, what: str, names: Sequence[str], existing: str) -> None:
        super().__init__(f"no {what} is called {' or '.join(names)}: {existing}")
        self.names, self.existing = names, existing


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """A number of seconds, or a number with a unit."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_duration(value)
        except AmountError:
            self.fail(f"{value} is not allowed: {DURATION_ALLOWED}", param, ctx)


class Delay(Duration):
    """A release delay, or `auto`. A number alone is refused: 100 would be seconds, and milliseconds are meant."""

    name = "delay"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == AUTO:
            return AUTO
        if isinstance(value, str) and re.fullmatch(r"\s*[0-9.]*[1-9][0-9.]*\s*", value):
            self.fail(f"{value} needs a unit, as in {value.strip()}ms: auto, or 0 to 60s", param, ctx)
        seconds = super().convert(value, param, ctx)
        if seconds > _LONGEST_DELAY:  # as the daemon would refuse it
            self.fail(f"{value} is not allowed: auto, or 0 to 60s, for example 100ms", param, ctx)
        return seconds


def events(request: JsonView, timeout: float | None = 10.0, what: str = "run") -> Iterator[JsonObject]:
    """The daemon's answers, the last being {"ok": ...}. `what`: the kind of object, for errors about its name."""
    try:
        connection, _ = connect(homes(), obeys=False)
        try:
            connection.send(request)
            yield from connection.events(timeout)
        except TimeoutError:
            raise InputError(connection.unanswered()) from None
        finally:
            connection.close()
    except NoDaemonError:
        on_node = homes()[0].run == SYSTEM_RUN and os.path.isdir(_KUBELET)
        raise NoDaemonRunsError(_NO_AGENT if on_node else _NO_DAEMON) from None
    except ControlError as error:
        raise NotServedError(str(error)) from error
    except AnswerError as error:
        raise refused(error, what) from error


def ask(request: JsonView, what: str = "run", timeout: float = 10.0) -> JsonObject:
    """The final answer."""
    for message in events(request, timeout, what):
        if "ok" in message:
            answer: JsonObject = message["ok"]
            return answer
    raise NotServedError("the daemon closed the connection without an answer")


def read_status() -> Status:
    """The daemon's status."""
    return parse_status(ask({"op": "status"}))


class Watch:
    """Asks over and over, and waits for a daemon that is started again."""

    def __init__(self) -> None:
        self._away: float | None = None  # since when no daemon answers
        self._back = float("-inf")  # when one answered again

    def look(self, ask_daemon: Callable[[], _Answer]) -> _Answer | None:
        """None while no daemon answers. Raises InputError when that takes too long."""
        try:
            answer = ask_daemon()
        except (NoDaemonRunsError, NotServedError):
            self._away = time.monotonic() if self._away is None else self._away
            if time.monotonic() - self._away > _RETURN:
                raise
            return None
        if self._away is not None:
            self._away, self._back = None, time.monotonic()
        return answer

    @property
    def settled(self) -> bool:
        """Whether runs that wait had the time to ask a daemon that has restarted."""
        return time.monotonic() - self._back > _SETTLED


def parse_status(answer: JsonObject) -> Status:
    """Read a status that came over the socket."""
    try:
        return msgspec.convert(answer, Status)
    except msgspec.ValidationError as error:
        raise InputError(f"the daemon's status cannot be read ({error}): is it of another version?") from None


def read_daemon() -> DaemonStatus:
    """What the daemon says about itself."""
    return parse_answer(ask({"op": "hello"}), DaemonStatus)


def parse_answer(answer: object, into: type[_Answer]) -> _Answer:
    """Read an answer that came over the socket."""
    try:
        return msgspec.convert(answer, into)
    except msgspec.ValidationError as error:
        raise InputError(f"the daemon's answer cannot be read ({error}): is it of another version?") from None


def refused(error: AnswerError, what: str) -> InputError:
    """The daemon's refusal in one line."""
    details = error.details
    if error.kind == "unknown-name":
        return NotFoundError(what, [str(details.get("name"))], _existing(details.get("names", ()), what))
    if error.kind == "invalid":
        return InputError(f"{details.get('field')}: {details.get('value')} is not allowed: {details.get('allowed')}")
    return InputError(str(error), code=_DENIED if error.kind == "denied" else 1)


def _existing(names: Sequence[str], what: str) -> str:
    if what != "run":
        return f"there are {', '.join(names)}" if names else "there is none"
    return f"there are {', '.join(names)}" if names else "nothing runs"
