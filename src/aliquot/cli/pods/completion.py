"""Shell completion of types and names. Never prints errors: the user is typing."""

from __future__ import annotations

import click

from aliquot.cli.errors import InputError
from aliquot.cli.pods.kinds import DEFAULT_NAMESPACE, KINDS, NODE, POD, Target, targets
from aliquot.cli.pods.rows import listed, local_status, namespace_in


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


def pod_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """For `logs`: the names of the Pods."""
    return [name for name in names(Target((POD,)), context.params.get("namespace")) if name.startswith(incomplete)]


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
