"""The bill of a machine or of a cluster as rows: grouped, and as a table, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from aliquot.adapters.host.users import user_name
from aliquot.cli.tables import date_time, narrowed, printable, table
from aliquot.model.status.usage import UsageEntry, UsageReport

BY = ("user", "namespace", "pod", "run", "class")
SINCE_ALLOWED = "a number with a unit, as in 90m, 24h, 7d or 4w"
_SINCE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*([mhdw])")
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_FIELDS = (
    "gpu_seconds",
    "waiting_seconds",
    "preempted_seconds",
    "memory_booked_byte_seconds",
    "memory_used_byte_seconds",
)
_DROPPABLE = ("USED (GiB h)", "PREEMPTED", "WAITED", "BOOKED (GiB h)")  # on a narrow terminal, in this order
_KINDS = ("idle", "unknown", "unmeasured")


@dataclass(slots=True)
class UsageRow:
    """What one user, namespace, Pod, run or class had; or what no tenant had."""

    name: str
    kind: str  # "tenant", or why no tenant had it
    gpu_seconds: float = 0.0
    waiting_seconds: float = 0.0
    preempted_seconds: float = 0.0
    memory_booked_byte_seconds: float = 0.0
    memory_used_byte_seconds: float = 0.0

    def add(self, entry: UsageEntry) -> None:
        """Count this entry too."""
        for field in _FIELDS:
            setattr(self, field, getattr(self, field) + getattr(entry, field))

    def columns(self, by: str) -> dict[str, str | float]:
        """The row with the names of JSON and CSV. `by`: the name of the first column."""
        return {by: self.name, "kind": self.kind, **{field: getattr(self, field) for field in _FIELDS}}


class Since(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """How far back, in seconds. Hours are kept whole, so a number alone would promise more than there is."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        match = _SINCE.fullmatch(value.strip())
        if match is None or not float(match[1]):
            self.fail(f"{value} is not allowed: {SINCE_ALLOWED}", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


def usage_options(command: Callable[..., None]) -> Callable[..., None]:
    """What `aliquot usage` and `kubectl aliquot usage` have in common."""
    for option in (
        click.option("-o", "--output", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True),
        click.option("--by", type=click.Choice(BY), help="One row for each of these  [default: run; on a cluster pod]"),
        click.option(
            "--since", type=Since(), default="24h", show_default=True, help="How far back, in whole hours: 90m, 24h, 7d"
        ),
    ):
        command = option(command)
    return command


def usage_rows(entries: Iterable[UsageEntry], by: str) -> list[UsageRow]:
    """One row for each user, namespace, Pod, run or class; those with most time first, then what no tenant had."""
    rows: dict[tuple[str, str], UsageRow] = {}
    for entry in entries:
        key = (entry.kind, "" if entry.kind else _name(entry, by))
        rows.setdefault(key, UsageRow(key[1], entry.kind or "tenant")).add(entry)
    tenants = [row for (kind, _), row in rows.items() if not kind]
    tenants.sort(key=lambda row: (-row.gpu_seconds, row.name))
    return tenants + [rows[kind, ""] for kind in _KINDS if (kind, "") in rows]


def render(reports: Sequence[UsageReport], by: str, output: str, width: int | None = None) -> str:
    """Of one machine, or of several nodes together. `width`: of the terminal, for which columns are left out."""
    rows = usage_rows((entry for report in reports for entry in report.entries), by)
    total = sum(row.gpu_seconds for row in rows)
    since = min((report.since for report in reports), default=0.0)
    if output == "json":
        until = max((report.until for report in reports), default=0.0)
        found = [row.columns(by) for row in rows]
        return json.dumps({"since": since, "until": until, "card_seconds": total, "rows": found}, indent=2)
    if output == "csv":
        file = io.StringIO()
        writer = csv.DictWriter(file, [by, "kind", *_FIELDS], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _plain(value) for name, value in row.columns(by).items()} for row in rows)
        return file.getvalue().rstrip("\n")
    head = [by.upper(), "GPU TIME", "PART", "WAITED", "PREEMPTED", "BOOKED (GiB h)", "USED (GiB h)"]
    cells = [_cells(row, total) for row in rows]
    cells.append(["total", _time(total), "100.0%" if total else "-", "", "", "", ""])
    columns, cells_shown = narrowed(head, cells, width, _DROPPABLE)
    return f"since {date_time(since)}\n" + table(columns, cells_shown, frozenset(range(1, len(columns))))


def _name(entry: UsageEntry, by: str) -> str:
    if by == "user":
        return "-" if entry.user is None else user_name(entry.user)
    if by == "namespace":
        return entry.namespace or "-"
    if by == "class":
        return entry.app_class or "-"
    return f"{entry.namespace}/{entry.name}" if entry.namespace else entry.name


def _cells(row: UsageRow, total: float) -> list[str]:
    part = f"{row.gpu_seconds / total:.1%}" if total else "-"
    first = [f"({row.kind})" if row.kind != "tenant" else row.name, _time(row.gpu_seconds), part]
    if row.kind != "tenant":
        return [*first, "", "", "", ""]
    memory = (row.memory_booked_byte_seconds, row.memory_used_byte_seconds)
    hours = [f"{byte_seconds / (1 << 30) / 3600:.2f}" for byte_seconds in memory]
    return [*first, _time(row.waiting_seconds), _time(row.preempted_seconds), *hours]


def _time(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _plain(value: str | float) -> str:
    """A name that begins like a formula would be one in a spreadsheet."""
    if isinstance(value, float):
        return f"{value:.3f}"
    return printable(f"'{value}" if value[:1] in ("=", "+", "@") else value)
