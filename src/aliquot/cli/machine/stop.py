"""`aliquot stop`: stops runs by name."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence

import click

from aliquot.adapters.host.users import user_name
from aliquot.cli.client import Duration, NoDaemonRunsError, NotFoundError, events, read_status
from aliquot.cli.errors import InputError
from aliquot.cli.machine.runnames import runs
from aliquot.model.status.machine import Status

_AT_ONCE = 32  # runs: fewer than a user may have connections


@click.command()
@click.argument("names", metavar="NAME...", nargs=-1, shell_complete=runs)
@click.option("--all", "everything", is_flag=True, help="Stop all your runs, also queued ones")
@click.option("--timeout", type=Duration(), default="10s", show_default=True, help="Time from SIGTERM to SIGKILL")
def stop(names: Sequence[str], everything: bool, timeout: float) -> None:
    """Stop runs.

    Send SIGTERM to all processes of a run, then SIGKILL to those that are left. A queued run leaves the queue.

    \b
    aliquot stop train serve
    aliquot stop --all --timeout 30s
    """
    if bool(names) == everything:
        raise click.UsageError("give either a NAME or --all", click.get_current_context())
    if everything:
        raise click.exceptions.Exit(_stop_all(timeout))
    raise click.exceptions.Exit(_stop_named(list(dict.fromkeys(names)), timeout))


def _stop_named(names: Sequence[str], timeout: float) -> int:
    """The exit code. Names that nothing has first: their error lists what runs, before anything is stopped. Then those
    that wait, as in `_stop_all`."""
    if len(names) == 1:  # also of a daemon whose status this version cannot read
        return _exit_code(_stop_each(names, timeout, 1, _report_missing))
    status = read_status()
    waiting = [entry.name for entry in reversed(status.queue) if entry.name in names]
    there = {tenant.name for tenant in status.tenants}
    missing = [name for name in names if name not in there and name not in waiting]
    failed = _stop_each(missing, timeout, 1, _report_missing)
    failed += _stop_each(waiting, timeout, 1, _report_missing)
    failed += _stop_each([name for name in names if name in there], timeout, _AT_ONCE, _report_missing)
    return _exit_code(failed)


def _stop_all(timeout: float) -> int:
    """The exit code. Those that wait first, so that none starts while the others end; and of these the last one first:
    one that needs much room keeps those behind it from starting."""
    status = read_status()
    waiting, running = _runs_of(status, os.geteuid())
    if not waiting and not running:
        _check_sudo(status)
        click.echo("no run of yours to stop", err=True)
    failed = _stop_each(waiting, timeout, 1)
    return _exit_code(failed + _stop_each(running, timeout, _AT_ONCE))  # some end by themselves


def _runs_of(status: Status, uid: int) -> tuple[list[str], list[str]]:
    """Names of those that wait, the last first, and of those that run."""
    waiting = [entry.name for entry in reversed(status.queue) if entry.uid == uid]
    return waiting, [one.name for one in status.tenants if one.uid == uid]


def _check_sudo(status: Status) -> None:
    """Raises InputError: the user of `sudo aliquot stop --all` may mean their own runs, not root's."""
    caller = os.environ.get("SUDO_UID", "")
    if os.geteuid() or not caller.isdecimal() or int(caller) == 0:
        return
    waiting, running = _runs_of(status, int(caller))
    if waiting or running:
        raise InputError(
            f"root has no run, {user_name(int(caller))} has {', '.join([*waiting, *running])}: "
            "use `aliquot stop --all` without sudo",
            code=1,
        )


def _stop_each(
    names: Sequence[str],
    timeout: float,
    at_once: int,
    on_missing: Callable[[str, InputError], None] | None = None,
) -> list[Exception]:
    """What failed; the others are stopped all the same. Each may take the whole timeout, so that several end at a time;
    in threads that do not outlive Ctrl-C. Without `on_missing` it is no error that there is no such run."""
    left: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        left.put(name)
    errors: dict[str, Exception] = {}

    def work() -> None:
        while True:
            try:
                name = left.get_nowait()
            except queue.Empty:
                return
            try:
                _stop_or_report(name, timeout, on_missing)
            except Exception as error:  # raised or shown when the others are stopped
                errors[name] = error

    threads = [threading.Thread(target=work, daemon=True) for _ in names[:at_once]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [errors[name] for name in names if name in errors]


def _stop_or_report(name: str, timeout: float, on_missing: Callable[[str, InputError], None] | None) -> None:
    try:
        _stop(name, timeout)
    except NotFoundError as error:
        if on_missing is not None:
            on_missing(name, error)
            raise


def _exit_code(failed: Sequence[Exception]) -> int:
    """That of the first error. Shows what is not shown yet; raises what is no refusal of a single run."""
    refused = [error for error in failed if isinstance(error, InputError) and not isinstance(error, NoDaemonRunsError)]
    for error in refused:
        if not isinstance(error, NotFoundError):
            error.show()
    for other in failed:
        if other not in refused:
            raise other
    return refused[0].exit_code if refused else 0


def _report_missing(_name: str, error: InputError) -> None:
    error.show()


def _stop(name: str, timeout: float) -> None:
    for message in events({"op": "stop", "name": name, "timeout": timeout}, timeout + 20):
        if "signal" in message:
            pids = message["pids"]
            click.echo(f"{name}: {message['signal']} to {len(pids)} process{'es' * (len(pids) != 1)}", err=True)
        elif "ok" in message:
            waited = message["ok"]["was"] == "waiting"
            click.echo(f"{name}: {'removed from the queue' if waited else 'stopped'}", err=True)
