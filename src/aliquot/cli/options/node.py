"""The options that the programs of a node share: they must agree on its name, and on the folder where they meet."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from aliquot.adapters.host.home import SYSTEM_RUN

nodename_option = click.option(
    "--nodename", metavar="NAME", help="Name of the Node  [default: $NODE_NAME, else the host name]"
)


def run_dir_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--run-dir, with this help."""
    folder = click.Path(path_type=Path, file_okay=False, readable=False)
    return click.option("--run-dir", type=folder, default=Path(SYSTEM_RUN), show_default=True, help=text)


def node_name(given: str | None) -> str:
    """The name given by --nodename, or the default."""
    return given or os.environ.get("NODE_NAME") or socket.gethostname().lower()
