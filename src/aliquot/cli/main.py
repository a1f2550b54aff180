"""The command `aliquot`. Heavy imports stay inside the commands: `aliquot --help` must be instant."""

from __future__ import annotations

import sys

import click

import aliquot


class InputError(click.ClickException):
    """What we were given cannot be read: one line, exit code 2."""

    exit_code = 2

    def show(self, file: object = None) -> None:
        """One line on stderr, without click's usage block."""
        click.echo(f"aliquot: {self.format_message()}", err=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(aliquot.__version__, prog_name="aliquot")
def cli() -> None:
    """Share NVIDIA GPUs between many Pods, or many processes on one box.

    \b
    aliquot explain   where Pods would go on a cluster, or every reason why not
    aliquot simulate  how well the placement policies pack a trace of Pods
    """


def main() -> None:
    """Entry point."""
    from aliquot.cli import explain, simulate

    cli.add_command(explain.explain)
    cli.add_command(simulate.simulate)
    try:
        cli(prog_name="aliquot")
    except BrokenPipeError:  # the reader went away, as `head` does
        sys.stderr.close()
        sys.exit(0)
