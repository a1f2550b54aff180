"""Shell completion of the names of runs. Never prints errors: the user is typing."""

from __future__ import annotations

import click

from aliquot.cli.client import ask
from aliquot.cli.errors import InputError
from aliquot.model.decoding.openjson import JsonObject


def runs(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """For `stop`: the names of the runs, queued ones too."""
    found = [run["name"] for run in [*_of_daemon("status", "tenants"), *_of_daemon("status", "queue")]]
    return [name for name in found if "/" not in name and name.startswith(incomplete)]  # on a node, no Pods


def runs_with_output(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """For `logs`: the names of the runs with output, ended ones too."""
    found = [run["name"] for run in [*_of_daemon("status", "tenants"), *_of_daemon("ended", "ended")] if run["log"]]
    return [name for name in dict.fromkeys(found) if name.startswith(incomplete)]


def _of_daemon(operation: str, key: str) -> list[JsonObject]:
    try:
        return list(ask({"op": operation}).get(key, ()))
    except InputError:
        return []
