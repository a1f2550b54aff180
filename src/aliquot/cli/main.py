"""The command `aliquot`, but for `run`, which goes its own way (aliquot/__main__.py).

A command is loaded when it is called, and heavy imports stay inside it: `aliquot --help` must be instant.
"""

from __future__ import annotations

import importlib
import os
import sys

import click

import aliquot
from aliquot.cli.errors import run_and_exit

_COMPLETE = "_ALIQUOT_COMPLETE"  # as click names it


# name, module and command, and one line of help
COMMANDS = (
    ("demo", "demo.command:demo", "The two-minute story: cards shared, measured, beside what was promised."),
    ("run", "run", "Run a command on a slice of a card."),
    ("apply", "pods.apply:apply", "Run the Pods of a manifest on this machine, as local processes."),
    ("get", "pods.get:get", "Show the Pods, workloads and nodes of this machine."),
    (
        "describe",
        "pods.describe:describe",
        "Show all that is known of a Pod, a workload or a node, and why it is where it is.",
    ),
    ("delete", "pods.delete:delete", "End Pods, and the workloads that make them."),
    ("logs", "pods.logs:logs", "Show the output of a Pod, or of a run that was started with --detach."),
    ("ps", "machine.ps:ps", "Show who runs on the cards of this machine, and who waits."),
    ("top", "machine.top:top", "Show what each card and each tenant does, over and over."),
    ("stop", "machine.stop:stop", "End a run."),
    ("policy", "machine.policy:policy", "See or change how tenants share the cards."),
    ("up", "machine.up:up", "Start the daemon of this machine."),
    ("down", "machine.up:down", "End the daemon."),
    ("dashboard", "dashboard:dashboard", "Tell where the dashboard is, or open it."),
    ("burn", "machine.burn:burn", "A sample workload: kernels that are a fixed amount of work."),
    ("scheduler", "cluster.scheduler:scheduler", "Run the scheduler extender of a Kubernetes cluster."),
    ("install-shim", "cluster.installshim:install_shim", "Install the shim library that containers load on this host."),
    ("agent", "cluster.agent:agent", "Run the agent of one node of a Kubernetes cluster."),
    (
        "install",
        "install.install:install",
        "Install aliquot on a cluster: scheduler, webhook, agents, and what they need.",
    ),
    ("upgrade", "install.install:upgrade", "Upgrade the installation on a cluster to this program's version."),
    (
        "uninstall",
        "install.uninstall:uninstall",
        "Remove aliquot from a cluster: all objects, and on the nodes all files, sockets, labels and annotations.",
    ),
    ("explain", "cluster.explain:explain", "Where Pods would go on a cluster, or every reason why not."),
    ("doctor", "cluster.doctor:doctor", "Look for what is wrong with aliquot on a cluster, and say what to do."),
    ("manifests", "cluster.schedulerconfig:manifests", "Print configuration files for the cluster."),
    ("simulate", "simulate:simulate", "How well the placement policies pack a trace of Pods."),
)


class _Commands(click.Group):
    """Knows its commands by name, and loads the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, _, _ in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for name, place, _ in COMMANDS:
            if name != cmd_name:
                continue
            if name == "run":
                return _RUN
            module, _, attribute = place.partition(":")
            found: click.Command = getattr(importlib.import_module(f"aliquot.cli.{module}"), attribute)
            return found
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """With what was probably meant, where there is no such command."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            close = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            if close and not args[0].startswith("-"):
                raise click.UsageError(f'There is no command "{args[0]}": {close[0]}?', ctx) from error
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table, loading none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, _, line in COMMANDS])


def _run_by_itself(words: tuple[str, ...]) -> None:
    from aliquot.cli.run.command import main as run

    raise click.exceptions.Exit(run(list(words)))


# For those who call this group directly; the command itself does not come this way.
_RUN = click.Command(
    "run",
    callback=_run_by_itself,
    params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(aliquot.__version__, prog_name="aliquot")
def cli() -> None:
    """Share NVIDIA GPUs between many Pods, or many processes on one box."""


def main() -> None:
    """Entry point of `aliquot`."""
    completing = os.environ.get(_COMPLETE)
    if completing:  # a shell asks, with the words typed so far in its variables
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(cli, {}, "aliquot", _COMPLETE, completing))
    run_and_exit(cli, "aliquot", sys.argv[1:] or ["--help"])
