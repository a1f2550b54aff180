"""How a command ends: one line on stderr for every error, and an exit code for every way out."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from aliquot.cli.tables import printable

# As shells count what a signal ended: neither may look like "some do not fit" (1) or a bad input (2).
_INTERRUPTED = 130
_NOBODY_READS = 141


class InputError(click.ClickException):
    """What we were given cannot be read."""

    def __init__(self, message: str, *, code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # a class variable only for those who never need another

    def format_message(self) -> str:
        """One line, whatever the file had in it."""
        return printable(self.message)

    def show(self, file: object = None) -> None:
        """One line on stderr, without click's usage block."""
        click.echo(f"aliquot: {self.format_message()}", err=True)


def run_and_exit(command: click.Command, name: str, arguments: list[str] | None = None) -> NoReturn:
    """Run one of our commands to its end: every way out has its exit code, and none is a traceback."""
    try:
        code = _run(command, name, sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        code = _INTERRUPTED
    except BrokenPipeError:  # the reader went away, as `head` does
        code = _NOBODY_READS
    except OSError as error:  # the disk is full, say
        _say(f"output: {error.strerror or error}")
        code = 2
    if code not in (0, 1):  # what is left in the buffer cannot be written; do not try again on the way out
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _run(command: click.Command, name: str, arguments: list[str]) -> int:
    """The exit code. Not by calling the command, which ends a broken pipe with a 1."""
    try:
        with command.make_context(name, arguments) as context:
            command.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else name
        _say(f"{' '.join(error.format_message().split())} ({path} --help tells what is allowed)")
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return 0


def _say(text: str) -> None:
    click.echo(f"aliquot: {text}", err=True)
