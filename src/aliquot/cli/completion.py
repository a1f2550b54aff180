"""`aliquot completion`: the script by which a shell completes commands, options and names."""

from __future__ import annotations

import click

VARIABLE = "_ALIQUOT_COMPLETE"  # click's name for it


@click.command()
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes aliquot's commands in a shell.

    \b
    eval "$(aliquot completion bash)"         in ~/.bashrc
    eval "$(aliquot completion zsh)"          in ~/.zshrc, after compinit
    aliquot completion fish | source          in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None  # click has these three
    click.echo(made(ctx.find_root().command, {}, "aliquot", VARIABLE).source())
