"""Keeps how runs ended: for `aliquot ps -a`, and for `aliquot logs` of a run that is over. Pods keep it themselves."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable

from aliquot.adapters.host.process import exitcodes
from aliquot.adapters.storage.history import History, newest, shortened
from aliquot.adapters.storage.writer import Writer
from aliquot.model.status.machine import EndedStatus
from aliquot.model.tenancy import EndedRun, Tenancy

_LOG = logging.getLogger("aliquot.history")


class RunHistory:
    """`directory`: the folder of a tenant. Reads are answered from memory."""

    def __init__(self, store: History, writer: Writer, directory: Callable[[str], object]) -> None:
        self._store, self._writer = store, writer
        self._runs = store.runs()
        self._directory = directory
        self._codes: dict[str, int] = {}  # of runs whose root process has ended while others are left

    def root_ended(self, tenant_id: str, code: int | None) -> None:
        """The run ends with its last process, and has the exit code of its first."""
        if code is not None:
            self._codes.setdefault(tenant_id, code)

    def add(self, tenancy: Tenancy, now: float | None) -> None:
        """The run is over; its folder is still there. `now` None: no daemon was there when it ended."""
        code = self._codes.pop(tenancy.id, None)
        if "/" in tenancy.key:  # a Pod
            return
        known = exitcodes.read_file(str(self._directory(tenancy.id)))
        if code is None and tenancy.root is not None:
            with contextlib.suppress(OSError):  # no file is left: the run is over all the same
                code = exitcodes.exit_code(tenancy.root, tenancy.started)
        if known is not None and code is None:
            code = known[0]
        if known is not None and now is None:
            now = known[1]
        user = os.geteuid() if tenancy.user is None else tenancy.user
        command = shortened(tenancy.command)
        run = EndedRun(
            tenancy.id, tenancy.name, tenancy.app_class, user, command, tenancy.created, now, code, tenancy.log
        )
        self._runs = newest([*(known for known in self._runs if known.id != run.id), run])
        self._writer.put(lambda: self._store.add(run), lambda error: _log_error(run.name, error))

    def last(self, name: str, log: str | None) -> EndedRun | None:
        """The last run of that name that ended; with a log, the one that wrote it."""
        runs = [run for run in self._runs if run.name == name and log in (None, run.log)]
        return runs[-1] if runs else None

    def status(self) -> list[EndedStatus]:
        """The ended runs, in the order in which they ended."""
        return [ended_status(run) for run in self._runs]


def _log_error(name: str, error: Exception | None) -> None:
    if error is not None:  # the run is over all the same
        _LOG.error("ended_run_not_kept", extra={"data": {"run": name, "error": str(error)}})


def ended_status(run: EndedRun) -> EndedStatus:
    """The run as it goes over the socket, with its exit code as a shell has it."""
    return EndedStatus(
        id=run.id,
        name=run.name,
        app_class=run.app_class,
        uid=run.user,
        command=list(run.command),
        started=run.started,
        ended=run.ended,
        exit_code=run.code if run.code is None or run.code >= 0 else 128 - run.code,
        signal=None if run.code is None or run.code >= 0 else _signal_name(-run.code),
        log=run.log,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
