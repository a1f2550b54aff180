"""docs/cli.md: every command with what its --help says, so that the page and the program cannot differ.

python -m aliquot.cli.reference > docs/cli.md      `make docs` does it; tests/test_docs.py holds the page to it
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

Every command with what `--help` says of it. This page is made by `make docs`; the tests compare it with the program.

Exit codes are the same everywhere: 0 done; 1 not all is as wished (a Pod that does not fit, a finding of `doctor`, a
request that the daemon refuses); 2 bad input, or nobody there to be asked; 77 not yours to do; 130 Ctrl-C; 141 nobody
reads the output. Whatever is not 0 is said in one line on stderr. `aliquot run` adds 75 (no room), 126 and 127 (the
command cannot be run, is not there), and else has the exit code of its command.

| environment | |
|---|---|
| `ALIQUOT_HOME` | one folder for the daemon's sockets, database and logs, instead of the system's: a world apart |
| `KUBECONFIG` | for `scheduler` and `agent`; commands that go through kubectl leave it to kubectl |
| `KUBECTL` | another program than `kubectl` |
| `NODE_NAME`, `PORT` | of `agent` and `scheduler`, as in the vendor's manifests |
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
        yield from _told(command, f"aliquot {name}")
    for name, command in (("kubectl aliquot", kubectl_aliquot), ("kubectl inspect gpushare", inspect_gpushare)):
        yield f"\n## {name}\n\n{_first_line(command)}\n"
        yield from _told(command, name)


def _told(command: click.Command, path: str) -> Iterator[str]:
    """The command's help, and those of its own commands below it."""
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
                    yield from _told(below, f"{path} {name}")


def _first_line(command: click.Command) -> str:
    return (command.help or "").strip().partition("\n\n")[0].replace("\n", " ")


def _block(text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"\n```\n{lines}\n```\n"


if __name__ == "__main__":
    print(reference(), end="")
