"""The `aliquot` command. `aliquot run` does not come this way (aliquot/__main__.py).

Commands are loaded when they are called and do heavy imports inside: `aliquot --help` must be instant.
"""

from __future__ import annotations

import importlib
import os
import sys

import click

import aliquot
from aliquot.cli.completion import VARIABLE
from aliquot.cli.errors import SuggestingGroup, run_and_exit

# name, module:command, one line of help
COMMANDS = (
    (
        "demo",
        "demo.command:demo",
        "Show in two minutes how cards are shared: promised and measured results side by side.",
    ),
    ("run", "run", "Run a command, or the containers of a Pod, on slices of the cards."),
    ("logs", "machine.logs:logs", "Show the output of a run started with --detach."),
    ("ps", "machine.ps:ps", "List the running and queued tenants of this machine."),
    ("top", "machine.top:top", "Show live usage of every card and tenant."),
    ("probe", "machine.probe:probe", "Measure what control of a card is worth, in about a minute."),
    ("usage", "machine.usage:usage", "Show who used how much of the cards: time and memory, by user or run."),
    ("stop", "machine.stop:stop", "Stop runs."),
    ("park", "machine.parking:park", "Move the memory of runs from their cards to the host's pool."),
    ("wake", "machine.parking:wake", "Bring the memory of parked runs back to their cards."),
    ("policy", "machine.policy:policy", "Show or change how tenants share the cards."),
    ("up", "machine.up:up", "Start the daemon of this machine."),
    ("down", "machine.up:down", "Stop the daemon of this machine."),
    ("service", "machine.service:service", "Start the daemon of this machine at boot, with systemd."),
    ("dashboard", "dashboard:dashboard", "Print the address of the dashboard, or open it."),
    ("burn", "machine.burn:burn", "Run a sample workload: kernels with a fixed amount of work."),
    ("scheduler", "cluster.scheduler:scheduler", "Run the scheduler extender of a Kubernetes cluster."),
    ("install-shim", "cluster.installshim:install_shim", "Install the shim library that containers load on this host."),
    ("agent", "cluster.agent:agent", "Run the agent of one node of a Kubernetes cluster."),
    (
        "simulated-cards",
        "cluster.simulatedcards:simulated_cards",
        "Run the simulated cards of a node, for an agent with the same --simulate.",
    ),
    (
        "uninstall",
        "cluster.uninstall:uninstall",
        "Remove aliquot from a cluster: all objects, and on the nodes all files, sockets, labels and annotations.",
    ),
    (
        "explain",
        "cluster.explain:explain",
        "Show where Pods would go on a cluster, or every reason why they do not fit.",
    ),
    ("doctor", "cluster.doctor:doctor", "Find problems of a cluster or of this machine and say what to do."),
    ("manifests", "cluster.schedulerconfig:manifests", "Print configuration files for the cluster."),
    ("simulate", "simulate:simulate", "Measure how well the placement policies pack a trace of Pods."),
    ("completion", "completion:completion", "Print the script that completes aliquot's commands in a shell."),
)


_LIST = "`aliquot ps` lists runs, `aliquot top` shows every card"
_END = "`aliquot stop NAME` stops a run"
_START = "`aliquot run -- COMMAND` runs a command, `aliquot run -f POD.yaml` a Pod, `aliquot up -d` starts the daemon"
_SHOW = "`aliquot ps -o json` shows all of a run"
_PODS = "`aliquot run -f POD.yaml` runs a Pod's containers; for Deployments and the like use k3s (docs/k3s.md)"
_INSTALL = "use `helm upgrade --install` with the chart, or `kubectl apply -f deploy/install.yaml`: see docs/install.md"

# Words of other tools, and the command to use instead.
_HINTS = {
    **dict.fromkeys(("list", "ls", "status", "jobs", "queue"), _LIST),
    **dict.fromkeys(("kill", "rm", "remove", "cancel", "delete"), _END),
    **dict.fromkeys(("start", "exec", "submit"), _START),
    **dict.fromkeys(("show", "inspect", "events", "describe"), _SHOW),
    **dict.fromkeys(("gpus", "cards", "smi", "watch", "monitor"), "`aliquot top` shows every card and its tenants"),
    **dict.fromkeys(("get", "pods"), _LIST),
    "nodes": "`aliquot top` shows their cards",
    "restart": "`aliquot down && aliquot up -d` restarts the daemon; runs on real cards continue",
    "pause": "`aliquot park NAME` takes the memory of a run off its card",
    "resume": "`aliquot wake NAME` brings the memory of a run back to its card",
    "config": "`aliquot policy` shows and sets how cards are shared; `aliquot up --help` lists the daemon's options",
    **dict.fromkeys(("apply", "create", "scale", "edit", "patch", "rollout"), _PODS),
    **dict.fromkeys(("install", "upgrade"), _INSTALL),
    "version": "use the option --version",
    "help": "`aliquot COMMAND --help` describes a command",
    "bench": "`aliquot probe` measures a card, `aliquot demo` shows how it is shared",
}


class _Commands(SuggestingGroup):
    """Loads a command when it is called."""

    hints = _HINTS

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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, _, line in COMMANDS])


def _run_by_itself(words: tuple[str, ...]) -> None:
    from aliquot.cli.run.command import main as run

    raise click.exceptions.Exit(run(list(words)))


# For callers of this group; the program itself does not come this way.
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
    """Share NVIDIA GPUs between many Pods, or many processes on one machine."""


def main() -> None:
    """Entry point of `aliquot`."""
    completing = os.environ.get(VARIABLE)
    if completing:  # called by the shell for completion, with the typed words in variables
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(cli, {}, "aliquot", VARIABLE, completing))
    run_and_exit(cli, "aliquot", sys.argv[1:] or ["--help"])
