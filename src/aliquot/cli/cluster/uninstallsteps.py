"""Progress of `aliquot uninstall`: one line per step on stderr; on a terminal the last line is rewritten."""

from __future__ import annotations

import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aliquot.cli.errors import InputError
from aliquot.cli.tables import printable

if TYPE_CHECKING:
    from aliquot.adapters.kubernetes.kubeconfig import Server

_T = TypeVar("_T")
_WIDTH = 12
_LONGEST = 160
_READ_ONLY = ("", "inspect")  # steps before anything is written


@dataclass(slots=True)
class Steps:
    """Prints the progress."""

    began: float = field(default_factory=time.monotonic)
    last: dict[str, str] = field(default_factory=dict)
    step: str = ""
    _open: bool = False

    def report(self, step: str, text: str) -> None:
        """Print a line, unless it repeats the last one of its kind."""
        if self.last.get(step) == text:
            return
        self.last[step], self.step = text, step
        line = printable(f"{step.ljust(_WIDTH)}{text}")[:_LONGEST]
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{line}", err=True, nl=False)
            self._open = True
        else:
            self.end()
            click.echo(line, err=True)

    def end(self) -> None:
        """End the open line, so that the next output starts on its own line."""
        if self._open:
            click.echo("", err=True)
        self._open = False


def run(work: Coroutine[Any, Any, _T], steps: Steps, *, resume: str) -> _T:
    """Run the work. On Ctrl-C, print the step that was interrupted and how to resume."""
    import asyncio

    from aliquot.adapters.kubernetes.kube import ApiError, Unreachable

    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        steps.end()
        click.echo(f"aliquot: interrupted at: {steps.step or 'start'}; {resume}", err=True)
        raise
    except (ApiError, Unreachable) as error:
        steps.end()
        if steps.step in _READ_ONLY:
            resume = "nothing was changed; is this the right cluster? See `kubectl config current-context`"
        raise InputError(f"the API server: {error}; {resume}", code=1) from error
    finally:
        steps.end()


def find_cluster(kubeconfig: Path | None, context: str | None) -> Server:
    """The cluster that kubectl would use; in a Pod, the cluster of its service account."""
    from aliquot.adapters.kubernetes.kubeconfig import KubeConfigError, find_server

    try:
        return find_server(kubeconfig, context)
    except KubeConfigError as error:
        raise InputError(str(error)) from error
