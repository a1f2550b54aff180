"""`aliquot logs`: the output of a run started with --detach."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

import click
from msgspec import UNSET

from aliquot.adapters.host.logfiles import OLDER
from aliquot.adapters.host.process import processes
from aliquot.cli.client import (
    NoDaemonRunsError,
    NotFoundError,
    NotServedError,
    Watch,
    ask,
    parse_answer,
)
from aliquot.cli.errors import InputError
from aliquot.cli.machine.logtext import Escaping
from aliquot.cli.machine.runnames import runs_with_output
from aliquot.cli.tables import date_time, printable
from aliquot.model.status.answers import EndedRuns, RunLog
from aliquot.model.status.machine import EndedStatus

_PIECE = 1 << 16
_EVERY = 0.2  # seconds between checks
_DAEMONS_RETURN = 3.0  # seconds for which a run that has ended waits for a daemon that knows its exit code
_FARTHEST = 64 << 20  # bytes from the end of a log: how far back lines are counted
_NOT_OURS = {errno.ELOOP: "it is a symbolic link, not a regular file"}


@dataclass(frozen=True, slots=True)
class _Output:
    """The path of the output, and whether more may come."""

    path: str
    is_running: Callable[[], bool]
    how_ended: Callable[[], str | None] = lambda: None  # a line for people, once it is over


@click.command()
@click.argument("name", metavar="NAME", shell_complete=runs_with_output)
@click.option("-f", "--follow", is_flag=True, help="Keep printing while it runs")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Print only the last N lines")
@click.option("--raw", is_flag=True, help="Print another user's output as it is on a terminal too")
def logs(name: str, follow: bool, tail: int | None, raw: bool) -> None:
    """Show the output of a run started with --detach.

    After the output of a run that has ended, a line on stderr has its exit code. On a terminal, control characters in
    another user's output are escaped, except for colours.

    \b
    aliquot logs train -f
    aliquot logs train --tail 20
    """
    output = _output(name)
    watch = Watch()
    while follow and not os.path.exists(output.path) and watch.look(output.is_running) is not False:
        time.sleep(_EVERY)
    try:
        with contextlib.closing(_Reading(output.path, _open(output.path))) as reading:
            reading.escaping = None if raw or not _is_for_others_eyes(reading.log) else Escaping()
            try:
                reading.begin(tail)
                while follow:
                    replaced = reading.is_replaced()
                    running = watch.look(output.is_running)
                    if running is False and watch.settled:
                        break
                    if replaced and running:  # and it still runs: a daemon that restarted made another log for it
                        reading.reopen()
                    time.sleep(_EVERY)
                    reading.go_on()
                reading.go_on()
            finally:
                reading.end()
    except _WriteError as error:
        raise error.cause from None  # a closed pipe or a full disk: as for all other output
    except OSError as error:
        raise InputError(f"{output.path}: {_NOT_OURS.get(error.errno or 0, error.strerror)}") from error
    if line := output.how_ended():
        click.echo(f"aliquot: {printable(line)}", err=True)  # stdout is the program's


def _output(name: str) -> _Output:
    try:
        return _of_run(_log_of(name))
    except NotFoundError as error:
        raise InputError(error.message + "; `aliquot ps -a` lists what has ended") from error


def _log_of(name: str) -> RunLog:
    return parse_answer(ask({"op": "logs", "name": name}), RunLog)


def _of_run(run: RunLog) -> _Output:
    name = run.name
    if run.log is None and not run.running:
        raise InputError(f"{name} was not started with --detach: there is no output of it; {_how_ended(run)}")
    if run.log is None:
        raise InputError(
            f"{name} was not started with --detach: its output goes to "
            f"{run.output or 'where it was started'} (pid {run.pid})"
        )
    following = _Following(run)
    return _Output(run.log, following.is_running, how_ended=following.how_ended)


class _Following:
    """One run: another one may have its name as soon as it has ended. Its output goes on without a daemon."""

    def __init__(self, run: RunLog) -> None:
        self._run = run
        self._started = processes.start_time(run.pid) if run.pid else None
        self._ended: float | None = None  # when it was seen to have ended, while no daemon ran

    def is_running(self) -> bool:
        """Whether this run still waits or runs."""
        try:
            now = _log_of(self._run.name)
        except NotFoundError:  # it was stopped while it waited
            return False
        except (NoDaemonRunsError, NotServedError):
            if self._started is None:
                raise
            if processes.lives(self._run.pid or None, self._started):
                return True
            self._ended = self._ended or time.monotonic()
            if time.monotonic() - self._ended < _DAEMONS_RETURN:
                raise
            return False
        # After a restart of the daemon a run that waits has the same process and another id.
        same = now.id == self._run.id or (now.pid and now.pid == self._run.pid)
        if not now.running or not same:
            return False
        if now.pid and now.pid != self._run.pid:
            self._started = processes.start_time(now.pid)
        self._run = now
        return True

    def how_ended(self) -> str | None:
        """See the function."""
        if not self._run.running:
            return _how_ended(self._run)
        if self._run.id is UNSET:  # a daemon from before runs had ids
            return _how_ended(_log_of(self._run.name))
        try:
            ended = parse_answer(ask({"op": "ended"}), EndedRuns).ended
        except (NoDaemonRunsError, NotServedError):
            return f"{self._run.name} has ended; its exit code is not known, for no daemon runs"
        return next((_how_it_ended(run) for run in ended if run.id == self._run.id), None)


def _how_ended(run: RunLog) -> str | None:
    """None while it runs, and where the daemon keeps no record of it any more."""
    return _how_it_ended(run.ended) if run.ended else None


def _how_it_ended(ended: EndedStatus) -> str:
    name = ended.name
    when = "" if ended.ended is None else f" at {date_time(ended.ended)}"
    if ended.exit_code is None:
        return f"{name} ended{when}; its exit code is not known"
    why = "" if ended.signal is None else f" ({ended.signal})"
    return f"{name} ended{when} with exit code {ended.exit_code}{why}"


# --- the file --------------------------------------------------------------------------------------------------------


def _open(path: str) -> BinaryIO:
    """The owner controls the folder and we may be root: a link could lead anywhere, a pipe could block for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    log = open(handle, "rb")  # noqa: SIM115 - the caller closes it
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        log.close()
        raise InputError(f"{path}: it is not a regular file")
    return log


def _is_for_others_eyes(log: BinaryIO) -> bool:
    """Whether another user's program wrote it, and a terminal shows it."""
    return sys.stdout.isatty() and os.fstat(log.fileno()).st_uid != os.geteuid()


class _Reading:
    """A log and its older part (adapters/host/logfiles.py), as one. `escaping`: None prints it as it is."""

    def __init__(self, path: str, log: BinaryIO, escaping: Escaping | None = None) -> None:
        self._path, self.log, self.escaping = path, log, escaping
        self._older = self._number_of_older()
        self._was_short = False

    def close(self) -> None:
        """The file."""
        self.log.close()

    def is_replaced(self) -> bool:
        """Whether another file has its name now."""
        try:
            return not os.path.samestat(os.lstat(self._path), os.fstat(self.log.fileno()))
        except FileNotFoundError:
            return False

    def reopen(self) -> None:
        """Go on with the file that has its name now."""
        self._copy(self.log)
        self.log.close()
        self.log = _open(self._path)
        self._older, self._was_short = self._number_of_older(), False

    def begin(self, tail: int | None) -> None:
        """Print what is there, or its last lines."""
        missing = None if tail is None else seek_lines(self.log, tail)
        if missing != 0:
            with contextlib.suppress(FileNotFoundError), _open(self._path + OLDER) as older:
                if missing is not None:
                    seek_lines(older, missing)
                self._copy(older)
        self._copy(self.log)

    def go_on(self) -> None:
        """Print what is new."""
        if self.is_replaced():  # the older part is another log's too
            self._copy(self.log)
            return
        number = self._number_of_older()
        if number != self._older:  # the log was cut: the rest of what it had is in its older part
            self._older = number
            with contextlib.suppress(FileNotFoundError), _open(self._path + OLDER) as older:
                if older.seek(0, os.SEEK_END) < self.log.tell():
                    click.echo("aliquot: some output is lost: it was written too fast", err=True)
                older.seek(self.log.tell())
                self._copy(older)
            self.log.seek(0)
        elif os.fstat(self.log.fileno()).st_size < self.log.tell():  # it is being cut, or another run has its name
            if self._was_short:
                self.log.seek(0)
            self._was_short = not self._was_short
        self._copy(self.log)

    def end(self) -> None:
        """Nothing more comes."""
        if self.escaping is not None:
            _write(self.escaping.shown(b"", last=True))

    def _copy(self, log: BinaryIO) -> None:
        sys.stdout.flush()
        while piece := log.read(_PIECE):
            _write(piece if self.escaping is None else self.escaping.shown(piece))

    def _number_of_older(self) -> tuple[int, int] | None:
        """Another one after each cut; an inode alone may be used again."""
        try:
            found = os.lstat(self._path + OLDER)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns


def seek_lines(log: BinaryIO, lines: int) -> int:
    """Seek to the start of the last N lines. An unterminated last line counts. Returns how many are missing. A log can
    be a hole of any size: what is farther from the end than _FARTHEST is not searched."""
    at = end = log.seek(0, os.SEEK_END)
    begin = max(0, end - _FARTHEST)
    if end == 0 or lines == 0:
        return lines
    log.seek(end - 1)
    wanted = lines + (log.read(1) == b"\n")
    while at > begin:
        size = min(_PIECE, at - begin)
        at -= size
        log.seek(at)
        piece = log.read(size)
        while (found := piece.rfind(b"\n")) >= 0:
            wanted -= 1
            if wanted == 0:
                log.seek(at + found + 1)
                return 0
            piece = piece[:found]
    log.seek(begin)
    if begin:
        click.echo(f"aliquot: the last {_FARTHEST >> 20} MiB have fewer lines than that", err=True)
        return 0
    return wanted - 1


class _WriteError(Exception):
    """Our own output cannot be written, whatever may be wrong with the log."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _write(piece: bytes) -> None:
    """Raises _WriteError."""
    while piece:
        try:
            piece = piece[os.write(sys.stdout.fileno(), piece) :]
        except OSError as error:
            raise _WriteError(error) from error
