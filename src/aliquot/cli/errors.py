"""What goes wrong before any work is done: one line on stderr, exit code 2."""

from __future__ import annotations

import click

from aliquot.cli.tables import printable


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
