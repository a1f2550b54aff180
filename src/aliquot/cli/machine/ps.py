"""`aliquot ps`: who runs and who waits."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

import click
import msgspec
from msgspec import UNSET

from aliquot.adapters.host.users import user_name
from aliquot.cli.client import ask, parse_status
from aliquot.cli.machine.cells import compute, core, latency_words
from aliquot.cli.tables import date_time, narrowed, printable, table, terminal_width
from aliquot.model.residency import Where
from aliquot.model.status.machine import EndedStatus, QueueEntry, ShareStatus, Status, TenantStatus
from aliquot.wording.amounts import duration, memory
from aliquot.wording.shortage import reason
from aliquot.wording.states import state_words

_LONGEST_COMMAND = 60
_COLUMNS: tuple[str, ...] = (
    "NAME", "USER", "CLASS", "PID", "CARDS", "MEMORY", "CORE", "STATE", "SINCE", "COMMAND"
)  # fmt: skip
_DROPPABLE = (
    "COMMAND",
    "SINCE",
    "PID",
    "LATENCY",
    "TOGETHER",
    "CORE",
    "CLASS",
    "CARDS",
    "USER",
)  # on a narrow terminal, in this order


@click.command()
@click.option("-a", "--all", "everything", is_flag=True, help="Also list what has ended: exit code, start and end")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def ps(everything: bool, output: str) -> None:
    """List the running and queued tenants of this machine.

    With -a also the runs that have ended (the last 100 of each user). The exit code of a
    run in the foreground is known on Linux 6.15 and later; elsewhere often only its shell knows it.

    \b
    aliquot ps
    aliquot ps -a -o json
    """
    answer = ask({"op": "status"})
    status = parse_status(answer)
    if everything and status.agent is UNSET:  # an agent keeps no runs
        answer |= ask({"op": "ended"})
        over = {run["id"] for run in answer["ended"]}  # also of those that ended between the two answers
        answer["tenants"] = [tenant for tenant in answer["tenants"] if tenant["id"] not in over]
        status = parse_status(answer)
    if output == "json":
        keys = ("tenants", "queue", "ended")
        click.echo(json.dumps({key: answer[key] for key in keys if key in answer}, indent=2))
        return
    _print_present(status)
    if everything:
        _print_ended(msgspec.convert(answer.get("ended", []), list[EndedStatus]))


def _print_ended(runs: Sequence[EndedStatus]) -> None:
    if not runs:
        click.echo("\nnothing has ended")
        return
    head = ("NAME", "USER", "CLASS", "EXIT", "STARTED", "ENDED", "COMMAND")
    rows = [
        (
            run.name,
            _user(run.uid),
            run.app_class,
            _exit(run.exit_code, run.signal),
            _time(run.started),
            _time(run.ended),
            _command(run.command),
        )
        for run in sorted(runs, key=lambda run: run.ended or run.started)
    ]
    columns, cells = narrowed(head, rows, terminal_width(), ("COMMAND", "STARTED", "CLASS", "USER"))
    click.echo(f"\n{table(columns, cells)}")


def _time(epoch: float | None) -> str:
    """-: not known."""
    return "-" if epoch is None else date_time(epoch)


def _exit(code: int | None, signal: str | None) -> str:
    """-: not known."""
    return "-" if code is None else f"{code} ({signal})" if signal else str(code)


def _print_present(status: Status) -> None:
    head = _COLUMNS
    several = len(status.nodes or []) > 1
    rows = [_running(tenant, several=several) for tenant in status.tenants]
    rows += [_waiting(entry) for entry in status.queue]
    if not rows:
        click.echo("nothing runs")
        return
    if any(tenant.latency_seconds is not None for tenant in status.tenants):
        words = [latency_words(tenant, tenant.cards) for tenant in status.tenants]
        head, rows = _with_column(head, rows, "LATENCY", words)
    if any(tenant.together for tenant in status.tenants):
        head, rows = _with_column(head, rows, "TOGETHER", [tenant.together or "-" for tenant in status.tenants])
    columns, cells = narrowed(head, rows, terminal_width(), _DROPPABLE)
    click.echo(table(columns, cells, right=frozenset(at for at, name in enumerate(columns) if name == "PID")))
    for entry in status.queue:
        click.echo(printable(f"{entry.name} waits ({entry.position} of {entry.of}): {reason(entry)}"))


_Rows = list[tuple[str, ...]]


def _with_column(head: tuple[str, ...], rows: _Rows, name: str, words: list[str]) -> tuple[tuple[str, ...], _Rows]:
    """Another column before the state; `words` are of the first rows, and others have none."""
    at = head.index("STATE")
    words = words + ["-"] * (len(rows) - len(words))
    return (*head[:at], name, *head[at:]), [(*row[:at], word, *row[at:]) for row, word in zip(rows, words, strict=True)]


def _running(tenant: TenantStatus, *, several: bool = False) -> tuple[str, ...]:
    """`several` nodes: a card's number alone says too little."""
    shares = tenant.cards
    cards = ",".join(str(share.index) for share in shares) or "-"
    return (
        tenant.name,
        _user(tenant.uid),
        tenant.app_class,
        "-" if tenant.pid is None else str(tenant.pid),
        f"{tenant.node}/{cards}" if several and tenant.node else cards,
        "-" if not shares else "whole" if shares[0].exclusive else memory(shares[0].limit_mib),
        compute(shares[0]) if shares else "-",
        ",".join(dict.fromkeys(_state(share) for share in shares)),
        duration(int(tenant.age_seconds)),
        _command(tenant.command),
    )


def _state(share: ShareStatus) -> str:
    """Memory that is not on the card says more than what the tenant does without it; `top` says why."""
    if share.residency is not None and share.residency.where is not Where.RESIDENT:
        return share.residency.where.value
    return state_words(share.state, share.paused_by)


def _waiting(entry: QueueEntry) -> tuple[str, ...]:
    wanted = "whole" if entry.core is None else "-"
    if entry.memory_bytes is not None:
        wanted = memory(entry.memory_bytes >> 20)
    cards, state = f"{entry.gpus} wanted", f"queued {entry.position}"
    since = duration(int(entry.waited_seconds))
    shown, user = "-" if entry.pid is None else str(entry.pid), _user(entry.uid)
    command = _command(entry.command)
    return (entry.name, user, entry.app_class, shown, cards, wanted, core(entry.core), state, since, command)


def _user(uid: int | str | None) -> str:
    """Of an agent's Pods there is only the Pod's UID."""
    return printable(user_name(uid)) if isinstance(uid, int) else "-"


def _command(words: list[str], longest: int = _LONGEST_COMMAND) -> str:
    text = printable(shlex.join(words))
    return text if len(text) <= longest else text[: longest - 3] + "..."
