"""The command `aliquot`. Heavy imports stay inside the commands: `aliquot --help` must be instant."""

from __future__ import annotations

import os
import sys

import click

import aliquot
from aliquot.cli.explain import explain
from aliquot.cli.simulate import simulate

# As shells count what a signal ended: neither may look like "some do not fit" (1) or a bad input (2).
_INTERRUPTED = 130
_NOBODY_READS = 141


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(aliquot.__version__, prog_name="aliquot")
def cli() -> None:
    """Share NVIDIA GPUs between many Pods, or many processes on one box."""


cli.add_command(explain)
cli.add_command(simulate)


def main() -> None:
    """Entry point: every way out has its exit code, and none is a traceback."""
    try:
        code = _run(sys.argv[1:] or ["--help"])
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


def _run(arguments: list[str]) -> int:
    """The exit code. Not by calling cli(), which ends a broken pipe with a 1."""
    try:
        with cli.make_context("aliquot", arguments) as context:
            cli.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "aliquot"
        _say(f"{' '.join(error.format_message().split())} ({path} --help tells what is allowed)")
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return 0


def _say(text: str) -> None:
    click.echo(f"aliquot: {text}", err=True)
