"""Generates docs/cli.md from the --help texts.

python -m aliquot.cli.reference > docs/cli.md      run by `make docs`; tests/test_docs.py compares the page
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import click

from aliquot.cli.cluster.kubectl_aliquot import aliquot as kubectl_aliquot
from aliquot.cli.cluster.kubectl_inspect import inspect as inspect_gpushare
from aliquot.cli.main import COMMANDS
from aliquot.cli.run.command import help_text

_WIDTH = 100
_HEAD = """\
# Commands

The `--help` text of every command. `make docs` generates this page; a test compares it with the program.

All commands use the same exit codes: 0 success; 1 not everything is as requested (a Pod does not fit, `doctor` found a
problem, the daemon refused the request); 2 bad input, or no daemon or API server answers; 77 permission denied; 130
Ctrl-C; 141 broken pipe. Every error is one line on stderr. `aliquot run` adds 75 (no room), 126 (the command cannot be
executed) and 127 (command not found); otherwise it exits with the code of its command.

| environment | |
|---|---|
| `ALIQUOT_HOME` | one folder for the sockets, database and logs of a separate daemon |
| `KUBECONFIG` | for `scheduler` and `agent`; commands that call kubectl pass it on |
| `KUBECTL` | the program to call instead of `kubectl` |
| `NODE_NAME`, `PORT` | for `agent` and `scheduler`, as in the vendor's manifests |
"""


def reference() -> str:
    """The whole page."""
    return _HEAD + "".join(_sections())


def _sections() -> Iterator[str]:
    for name, place, line in COMMANDS:
        yield f"\n## aliquot {name}\n\n{line}\n"
        if name == "run":
            yield _block(help_text())
            continue
        module, _, attribute = place.partition(":")
        command: click.Command = getattr(importlib.import_module(f"aliquot.cli.{module}"), attribute)
        yield from _help(command, f"aliquot {name}")
    for name, command in (("kubectl aliquot", kubectl_aliquot), ("kubectl inspect gpushare", inspect_gpushare)):
        yield f"\n## {name}\n\n{_first_line(command)}\n"
        yield from _help(command, name)


def _help(command: click.Command, path: str) -> Iterator[str]:
    """The help of the command and its subcommands."""
    context = click.Context(
        command,
        info_name=path,
        help_option_names=["-h", "--help"],
        max_content_width=_WIDTH,
        terminal_width=_WIDTH,
    )
    with context:
        yield _block(command.get_help(context))
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                if below is not None:
                    yield f"\n### {path} {name}\n"
                    yield from _help(below, f"{path} {name}")


def _first_line(command: click.Command) -> str:
    return (command.help or "").strip().partition("\n\n")[0].replace("\n", " ")


def _block(text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"\n```\n{lines}\n```\n"


if __name__ == "__main__":
    print(reference(), end="")
