"""The flags of kubectl that our commands hand on, and what a command does when kubectl fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from aliquot.adapters.kubernetes.kubectl import Kubectl, KubectlError
from aliquot.cli.errors import InputError

_T = TypeVar("_T")


def reach(ask: Callable[[], _T]) -> _T:
    """What was asked for, or the end of the command: one line that says what to do, exit code 2."""
    try:
        return ask()
    except KubectlError as error:
        raise InputError(str(error)) from error


# --- the flags of kubectl that a plugin must hand on -----------------------------------------------------------------

# Not --cluster: in `explain` that is a file; --context chooses as well.
_FLAGS = (
    "--kubeconfig",
    "--context",
    "--user",
    "--server",
    "--token",
    "--as",
    "--as-group",
    "--as-uid",
    "--certificate-authority",
    "--client-certificate",
    "--client-key",
    "--tls-server-name",
    "--request-timeout",
    "--cache-dir",
)
_SHOWN = {"--kubeconfig": "As for kubectl", "--context": "As for kubectl; its other flags of this kind work too"}

_Command = TypeVar("_Command", bound=Callable[..., Any])


def kubectl_options(command: _Command) -> _Command:
    """Adds kubectl's own flags; the command gets them as one argument, `kubectl`."""
    from functools import wraps

    names = {flag.lstrip("-").replace("-", "_") + "_": flag for flag in _FLAGS}

    @wraps(command)
    def with_kubectl(*args: Any, insecure_skip_tls_verify_: bool, **more: Any) -> Any:
        flags = [f"{flag}={value}" for name, flag in names.items() for value in more.pop(name)]
        flags += ["--insecure-skip-tls-verify"] * insecure_skip_tls_verify_
        return command(*args, kubectl=Kubectl(tuple(flags)), **more)

    decorated: Any = click.option("--insecure-skip-tls-verify", "insecure_skip_tls_verify_", is_flag=True, hidden=True)(
        with_kubectl
    )
    for name, flag in reversed(names.items()):
        shown = _SHOWN.get(flag)
        decorated = click.option(flag, name, multiple=True, hidden=shown is None, help=shown, metavar="TEXT")(decorated)
    return decorated  # type: ignore[no-any-return]
