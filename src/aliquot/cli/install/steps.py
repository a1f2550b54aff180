"""How far an installation is: a line for each step that is new, on stderr; on a terminal the last one is rewritten."""

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
_LOOKING = ("", "look")  # before anything is written


@dataclass(slots=True)
class Steps:
    """Hears of each step."""

    began: float = field(default_factory=time.monotonic)
    last: dict[str, str] = field(default_factory=dict)
    step: str = ""
    _open: bool = False

    def say(self, step: str, text: str) -> None:
        """Told once: what is the same as before is no news."""
        about = f"{step}: {text.partition(':')[0]}" if step == "wait" else step
        if self.last.get(about) == text:
            return
        self.last[about], self.step = text, step
        line = printable(f"{step.ljust(_WIDTH)}{text}")[:_LONGEST]
        if sys.stderr.isatty() and step != "wait":
            click.echo(f"\r\x1b[K{line}", err=True, nl=False)
            self._open = True
        else:
            self.end()
            click.echo(line, err=True)

    def end(self) -> None:
        """Whatever is printed next begins a line of its own."""
        if self._open:
            click.echo("", err=True)
        self._open = False


def run(work: Coroutine[Any, Any, _T], steps: Steps, *, goes_on: str) -> _T:
    """The work, to its end. Ctrl-C tells what is half done, and the command that goes on."""
    import asyncio

    from aliquot.adapters.kubernetes.kube import ApiError, Unreachable

    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        steps.end()
        click.echo(f"aliquot: interrupted at: {steps.step or 'the first look'}; {goes_on}", err=True)
        raise
    except (ApiError, Unreachable) as error:
        steps.end()
        if steps.step in _LOOKING:
            goes_on = "nothing was changed; is this the right cluster? `kubectl config current-context` tells"
        raise InputError(f"the API server: {error}; {goes_on}", code=1) from error
    finally:
        steps.end()


def find(kubeconfig: Path | None, context: str | None) -> Server:
    """The cluster, as kubectl would find it; in a Pod, by its account."""
    from aliquot.adapters.kubernetes.kubeconfig import KubeConfigError, find_server

    try:
        return find_server(kubeconfig, context)
    except KubeConfigError as error:
        raise InputError(str(error)) from error
