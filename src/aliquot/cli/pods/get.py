"""`aliquot get`: the Pods, workloads and nodes of this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click
import msgspec

from aliquot.cli.client import Watch, ask
from aliquot.cli.errors import InputError
from aliquot.cli.pods.completion import types_and_names
from aliquot.cli.pods.kinds import Kind, Target, targets
from aliquot.cli.pods.rows import (
    Object,
    cards_on,
    head,
    labels_of,
    local_status,
    namespace_in,
    namespace_of,
    row,
    selected,
    waiting_lines,
)
from aliquot.cli.pods.selectors import Selector, label_selector
from aliquot.cli.tables import narrowed, table, terminal_width
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.status.machine import NodeStatus, PodStatus, Status
from aliquot.model.text import printable_json

Found = list[tuple[Kind, Object]]

_EVERY = 0.5  # seconds from look to look
_RIGHT = frozenset({"RESTARTS", "FREE"})
_GROWING = frozenset({"AGE", "LAST SCHEDULE"})
_DROPPABLE = ("ON ONE CARD", "POLICY", "NODE", "CLASS", "RESTARTS", "AGE", "CORE", "READY")  # on a narrow terminal


@click.command()
@click.argument("what", metavar="[TYPE] [NAME]...", nargs=-1, shell_complete=types_and_names)
@click.option("-n", "--namespace", help="Of Pods and workloads  [default: default]")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Of all namespaces")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json", "yaml", "name"]),
    default="table",
    show_default=True,
    help="yaml, json: the manifest as it was applied, a Pod's with its status",
)
@click.option("-l", "--selector", callback=label_selector, help="Only objects with these labels: app=web,tier!=front")
@click.option("--no-headers", is_flag=True, help="Print rows only: no header, no reasons")
@click.option("-w", "--watch", is_flag=True, help="Keep running and print a line for every change; Ctrl-C ends it")
def get(
    what: Sequence[str],
    namespace: str | None,
    everywhere: bool,
    output: str,
    selector: Selector | None,
    no_headers: bool,
    watch: bool,
) -> None:
    """Show the Pods, workloads and nodes of this machine.

    TYPE is pods (po), deployments (deploy), statefulsets (sts), replicasets (rs), jobs, cronjobs (cj), nodes (no)
    or all; several with commas; pods when there is none. NAME is one of them; TYPE/NAME does too. It reads like
    kubectl's, but there is no cluster behind it: nodes are this machine, or the nodes of `--simulate 2x8x24GiB`,
    and what `aliquot run` started is no Pod (`aliquot ps` shows both).

    \b
    aliquot get pods
    aliquot get pods -A -o wide
    aliquot get sts,pods -w
    aliquot get pods -l app=web --no-headers
    aliquot get pod binpack-1-0 -o yaml
    aliquot get nodes
    """
    wanted = targets(what)
    where = namespace_of(namespace, everywhere)
    if watch and output in ("json", "yaml"):
        raise InputError(f"-w: -o {output} is not allowed: table, wide or name")
    if selector is not None and any(target.name is not None for target in wanted):
        raise InputError("-l and a NAME: only one of them")
    status = local_status()
    found = _found(status, wanted, where, selector)
    if output in ("json", "yaml"):
        _write(_documents(status, found, alone=len(wanted) == 1 and wanted[0].name is not None), output)
    elif watch:
        _watch(status, wanted, where, output, selector, headed=not no_headers)
    elif not found:
        click.echo(_nothing(status, wanted, where, selector), err=True)
    elif output == "name":
        click.echo("\n".join(kind.shown(item.name) for kind, item in found))
    else:
        _tables(status, found, wide=output == "wide", everywhere=where is None, headed=not no_headers)


def _found(status: Status, wanted: Sequence[Target], where: str | None, selector: Selector | None) -> Found:
    return _labelled([chosen for target in wanted for chosen in selected(status, target, where)], selector)


def _labelled(found: Found, selector: Selector | None) -> Found:
    return [(kind, item) for kind, item in found if selector is None or selector(labels_of(item))]


def _nothing(status: Status, wanted: Sequence[Target], where: str | None, selector: Selector | None) -> str:
    """Also where there are some in other namespaces."""
    found = _found(status, wanted, None, selector)
    others = sorted({space for _, item in found if (space := namespace_in(item)) is not None})
    if selector is not None and not others:
        return f"nothing found with these labels{'' if where is None else f' in namespace {where}'}"
    if where is not None and others:
        return f"nothing found in namespace {where}: there is some in {', '.join(others)} (-A shows all)"
    return f"nothing found{'' if where is None else f' in namespace {where}'}: `aliquot apply -f FILE` starts Pods"


def _tables(status: Status, found: Found, *, wide: bool, everywhere: bool, headed: bool) -> None:
    kinds = list(dict.fromkeys(kind for kind, _ in found))
    for number, kind in enumerate(kinds):
        if number and headed:
            click.echo()
        columns = head(kind, wide=wide, everywhere=everywhere)
        rows = [
            row(status, kind, item, wide=wide, everywhere=everywhere, prefixed=len(kinds) > 1)
            for of, item in found
            if of is kind
        ]
        shown, cells = narrowed(columns, rows, None if wide else terminal_width(), _DROPPABLE)
        lines = table(shown, cells, frozenset(at for at, name in enumerate(shown) if name in _RIGHT)).splitlines()
        click.echo("\n".join(lines if headed else lines[1:]))
    for line in () if not headed else waiting_lines(item for _, item in found if isinstance(item, PodStatus)):
        click.echo(line)


# --- for programs ----------------------------------------------------------------------------------------------------


def _documents(status: Status, found: Found, *, alone: bool) -> JsonObject:
    """The one that was named, or a List."""
    items = [_document(status, kind, item) for kind, item in found]
    return items[0] if alone else {"apiVersion": "v1", "kind": "List", "items": items}


def _document(status: Status, kind: Kind, item: Object) -> JsonObject:
    if isinstance(item, NodeStatus):
        cards = msgspec.to_builtins(cards_on(status, item))
        rest = {"cards": cards, "offers": item.offers, "policy": item.policy.value}
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": item.name}, "status": rest}
    request = {"op": "object", "kind": kind.name, "namespace": item.namespace, "name": item.name}
    found: JsonObject = ask(request, what=kind.words[1])["object"]
    first: JsonObject = {key: found[key] for key in ("apiVersion", "kind", "metadata", "spec") if key in found}
    return {**first, **found}


def _write(document: JsonObject, output: str) -> None:
    if output == "json":
        click.echo(printable_json(json.dumps(document, indent=2, ensure_ascii=False)))
        return
    from aliquot.cli.pods.yamltext import yaml_text  # not at the top: only this output needs it

    click.echo(yaml_text(document), nl=False)


# --- watching --------------------------------------------------------------------------------------------------------


def _watch(
    status: Status, wanted: Sequence[Target], where: str | None, output: str, selector: Selector | None, *, headed: bool
) -> None:
    kinds = tuple(dict.fromkeys(kind for target in wanted for kind in target.kinds))
    seen = {
        kind: Seen(kind, wide=output == "wide", everywhere=where is None, prefixed=len(kinds) > 1) for kind in kinds
    }
    for shown in seen.values():
        shown.headed = not headed  # as if it had been printed
    for now in _looks(status):
        found = _labelled(_still(now, wanted, where), selector)
        for kind in kinds:
            again = headed and len(kinds) > 1
            changed = seen[kind].changes(now, [item for of, item in found if of is kind], headed=again)
            for line in changed.names if output == "name" else changed.lines:
                click.echo(line)


def _looks(status: Status) -> Iterator[Status]:
    """What there is, over and over; a daemon that is started again is waited for."""
    yield status
    watch = Watch()
    while True:
        time.sleep(_EVERY)
        if (now := watch.look(local_status)) is not None:
            yield now


def _still(status: Status, wanted: Sequence[Target], where: str | None) -> Found:
    """As found, without named objects that are gone: that is no error while watching."""
    found: Found = []
    for target in wanted:
        try:
            found += selected(status, target, where)
        except InputError:
            continue
    return found


@dataclass(frozen=True, slots=True)
class Changes:
    """What is new, as rows and as names."""

    lines: tuple[str, ...]
    names: tuple[str, ...]


class Seen:
    """The rows of one kind as they were shown last."""

    def __init__(self, kind: Kind, *, wide: bool, everywhere: bool, prefixed: bool) -> None:
        self.kind, self.wide, self.everywhere, self.prefixed = kind, wide, everywhere, prefixed
        self.columns = head(kind, wide=wide, everywhere=everywhere)
        self.rows: dict[tuple[str, str], tuple[str, ...]] = {}
        self.widest = ("",) * len(self.columns)  # as wide as ever: columns do not move from line to line
        self.headed = False

    def changes(self, status: Status, found: Sequence[Object], *, headed: bool) -> Changes:
        """Those that are not as they were, and those that are gone; `headed`: under the head of the table, again."""
        rows = {(namespace_in(item) or "", item.name): self._row(status, item) for item in found}
        gone = {key: self._gone(old) for key, old in self.rows.items() if key not in rows}
        new = [key for key, cells in rows.items() if self._ageless(cells) != self._ageless(self.rows.get(key, ()))]
        every = [*rows.values(), *gone.values(), self.widest]
        self.widest = tuple(max((cells[at] for cells in every), key=len) for at in range(len(self.columns)))
        lines = table(self.columns, [*every, self.widest]).splitlines()
        shown = dict(zip([*rows, *gone], lines[1:], strict=False))
        under = lines[:1] if (new or gone) and (headed or not self.headed) else []
        self.headed, self.rows = self.headed or bool(under), rows
        return Changes(
            (*under, *(shown[key] for key in [*new, *gone])), tuple(self.kind.shown(name) for _, name in new)
        )

    def _row(self, status: Status, item: Object) -> tuple[str, ...]:
        return row(status, self.kind, item, wide=self.wide, everywhere=self.everywhere, prefixed=self.prefixed)

    def _ageless(self, cells: Sequence[str]) -> tuple[str, ...]:
        """A row that only grew older has not changed."""
        return tuple(cell for name, cell in zip(self.columns, cells, strict=False) if name not in _GROWING)

    def _gone(self, cells: Sequence[str]) -> tuple[str, ...]:
        """Its last row."""
        last = next(name for name in ("STATUS", "READY", "ACTIVE") if name in self.columns)
        return tuple("gone" if name == last else cell for name, cell in zip(self.columns, cells, strict=True))
