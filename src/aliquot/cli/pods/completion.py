"""Shell completion of types and names. Never prints errors: the user is typing."""

from __future__ import annotations

import click

from aliquot.cli.client import ask
from aliquot.cli.errors import InputError
from aliquot.cli.pods.kinds import DEFAULT_NAMESPACE, KINDS, NODE, POD, Target, targets
from aliquot.cli.pods.rows import listed, local_status, namespace_in
from aliquot.model.decoding.openjson import JsonObject


def types_and_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """For `[TYPE] [NAME]...`: a type, TYPE/NAME, or a name of the type before it."""
    words = tuple(context.params.get("what") or ())
    kind, slash, _ = incomplete.partition("/")
    if not words and not slash:
        return [word for word in ("all", *(kind.words[0] for kind in KINDS)) if word.startswith(incomplete)]
    try:
        wanted = targets([kind] if slash else words[:1])[0]
    except InputError:
        return []
    head = f"{kind}/" if slash else ""
    return [
        typed
        for name in names(wanted, context.params.get("namespace"))
        if (typed := head + name).startswith(incomplete)
    ]


def pods_and_runs(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """For `logs`: the names of the Pods, and of the runs with output, ended ones too."""
    namespace = context.params.get("namespace")
    found = names(Target((POD,)), namespace)
    if namespace is None:
        found += [
            run["name"] for run in [*_of_daemon("status", "tenants"), *_of_daemon("ended", "ended")] if run["log"]
        ]
    return [name for name in dict.fromkeys(found) if name.startswith(incomplete)]


def runs(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """For `stop`: the names of the runs, queued ones too."""
    found = [run["name"] for run in [*_of_daemon("status", "tenants"), *_of_daemon("status", "queue")]]
    return [name for name in found if "/" not in name and name.startswith(incomplete)]


def _of_daemon(operation: str, key: str) -> list[JsonObject]:
    try:
        return list(ask({"op": operation}).get(key, ()))
    except InputError:
        return []


def names(wanted: Target, namespace: str | None) -> list[str]:
    """The names of the existing objects of those kinds in the namespace."""
    try:
        status = local_status()
    except InputError:
        return []
    return [
        item.name
        for kind in wanted.kinds
        for item in listed(status, kind)
        if kind is NODE or namespace_in(item) == (namespace or DEFAULT_NAMESPACE)
    ]
