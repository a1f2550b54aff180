"""`aliquot install-shim`: install the shim on the host, in an init container or by hand."""

from __future__ import annotations

from pathlib import Path

import click

import aliquot
from aliquot.adapters.host.home import SYSTEM_STATE
from aliquot.cli.errors import InputError


@click.command()
@click.option(
    "--host-root",
    type=click.Path(file_okay=False, path_type=Path, readable=False),
    default=Path("/"),
    show_default=True,
    help="Root folder of the host, e.g. /host in an init container",
)
@click.option(
    "--to",
    "state",
    type=click.Path(file_okay=False, path_type=Path, readable=False),
    default=Path(SYSTEM_STATE),
    show_default=True,
    help="State folder of aliquot on the host; the shim goes to its subfolder shim",
)
def install_shim(host_root: Path, state: Path) -> None:
    """Install the shim library that containers load on this host.

    Each version gets its own folder, so that running containers keep theirs; `current` points to this version. Running
    it again is harmless.

    \b
    aliquot install-shim --host-root /host      in the agent's init container
    """
    from aliquot.adapters.gpu import player
    from aliquot.adapters.storage import shims

    if not state.is_absolute():
        raise InputError(f'--to: "{state}" is not allowed: an absolute path on the host, for example {SYSTEM_STATE}')
    if not host_root.is_dir():
        raise InputError(
            f"--host-root: {host_root} does not exist: mount the host's root folder there, or omit the option"
        )
    target = host_root / state.relative_to("/")
    if not target.resolve().is_relative_to(
        host_root.resolve()
    ):  # a link of the host that points elsewhere in this container
        raise InputError(f"--to: {state} is a link that leaves {host_root}: give the target of the link")
    try:
        done = shims.install(player.library(), target, aliquot.__version__)
    except shims.ShimError as error:
        raise InputError(str(error)) from error
    place = Path("/") / done.folder.relative_to(host_root)
    click.echo(f"{place}: {'installed' if done.fresh else 'already installed'}; new containers use it")
