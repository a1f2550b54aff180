"""`aliquot install-shim`: the shim on the host, by an init container or by hand."""

from __future__ import annotations

from pathlib import Path

import click

import aliquot
from aliquot.adapters.host.home import SYSTEM_STATE
from aliquot.cli.errors import InputError


@click.command()
@click.option(
    "--host-root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/"),
    show_default=True,
    help="Where the host's root folder is: /host in an init container that mounts it there",
)
@click.option(
    "--to",
    "state",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(SYSTEM_STATE),
    show_default=True,
    help="The folder of aliquot's state, as the host names it: the shim goes to shim/ in it",
)
def install_shim(host_root: Path, state: Path) -> None:
    """Install on this host the library that containers load, for `aliquot agent`.

    Each version has a folder of its own, so that containers that run keep theirs; `current` points to this one. It may
    be run again at any time, and does nothing when all is there.

    \b
    aliquot install-shim --host-root /host      in the agent's init container
    """
    from aliquot.adapters.gpu import player
    from aliquot.adapters.storage import shims

    if not state.is_absolute():
        raise InputError(f'--to: "{state}" is not allowed: a path from the root of the host, as {SYSTEM_STATE}')
    if not host_root.is_dir():
        raise InputError(f"--host-root: {host_root} is not there: mount the host's root folder, or leave it out")
    target = host_root / state.relative_to("/")
    if not target.resolve().is_relative_to(host_root.resolve()):  # a link of the host, which leads elsewhere in here
        raise InputError(f"--to: {state} leads out of {host_root} by a link: name the folder that the link leads to")
    try:
        done = shims.install(player.library(), target, aliquot.__version__)
    except shims.ShimError as error:
        raise InputError(str(error)) from error
    place = Path("/") / done.folder.relative_to(host_root)
    click.echo(f"{place}: {'installed' if done.fresh else 'is there already'}, and is what new containers get")
