"""`aliquot dashboard`: where to look at this machine, or at the cluster that kubectl reaches."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import IO

import click

from aliquot.adapters.kubernetes.kubectl import Kubectl
from aliquot.cli.client import read_daemon
from aliquot.cli.errors import InputError
from aliquot.cli.options.kubectl import kubectl_options, reach
from aliquot.model.status.machine import DaemonStatus
from aliquot.services.doctor.locate import default_location, find_scheduler

_NONE = (
    "the daemon of this machine was started without a dashboard, or its usual port was taken: `aliquot down`, then "
    "`aliquot up -d --listen PORT`"
)
_AGENT = (
    "this is a node of a cluster, where an agent runs: the dashboard is its scheduler's; `aliquot dashboard --cluster` "
    "opens it from wherever kubectl works"
)
_FORWARDING = re.compile(r"Forwarding from (127\.0\.0\.1:\d+) ")


@click.command()
@click.option("--open", "opens", is_flag=True, help="Open the address in the browser")
@click.option("--cluster", is_flag=True, help="Show the dashboard of the cluster, through kubectl, until Ctrl-C")
@click.option("-n", "--namespace", help="Where the scheduler runs  [default: where the chart put it, else kube-system]")
@click.option("--target", help="Target of kubectl port-forward  [default: the chart's Deployment aliquot-scheduler]")
@click.option(
    "--port", type=click.IntRange(1, 65535), default=12346, show_default=True, help="Port of the scheduler's dashboard"
)
@click.option("--local-port", type=click.IntRange(0, 65535), default=0, help="Port on this machine  [default: any]")
@kubectl_options
def dashboard(
    opens: bool, cluster: bool, namespace: str | None, target: str | None, port: int, local_port: int, kubectl: Kubectl
) -> None:
    """Print the address of the dashboard, or open it.

    With --cluster, kubectl forwards a port to the scheduler: users who may do that need nothing else to be exposed.

    \b
    aliquot dashboard --open
    kubectl aliquot dashboard
    """
    if cluster or kubectl.flags:
        found = default_location() if namespace else find_scheduler(kubectl)
        words = (
            "port-forward",
            f"--namespace={namespace or found.namespace}",
            "--address=127.0.0.1",
            target or f"deployment/{found.name}",
            f"{local_port or ''}:{port}",
        )
        _forward(reach(lambda: kubectl.spawn(*words)), opens=opens)
        return
    daemon = read_daemon()
    if daemon.node:
        raise InputError(_AGENT)
    if not daemon.dashboard:
        raise InputError(_NONE)
    if daemon.token:
        _tell_token(daemon, daemon.dashboard)
    _tell(daemon.dashboard, opens=opens, token=_token(daemon) if opens else None)


def _tell_token(daemon: DaemonStatus, url: str) -> None:
    """How to come in, and from where. On stderr: what is on stdout is an address."""
    file = daemon.token_file
    where = f"in {file}: open {url}?token=$(cat {file}) once" if file else "of its --token-file"
    click.echo(f"aliquot: the page asks for the token {where}", err=True)
    if daemon.dashboard_elsewhere:
        click.echo(f"aliquot: from other machines: {daemon.dashboard_elsewhere}", err=True)


def _token(daemon: DaemonStatus) -> str | None:
    """The dashboard's token, if we may read it."""
    try:
        return Path(daemon.token_file).read_text().strip() if daemon.token_file else None
    except (OSError, UnicodeDecodeError):
        return None


def _forward(process: subprocess.Popen[str], *, opens: bool) -> None:
    """Wait as long as kubectl forwards."""
    assert process.stdout is not None
    try:
        address = _address(process.stdout)
        if address is not None:
            _tell(f"http://{address}/", opens=opens)
            click.echo("Ctrl-C ends it.", err=True)
            for _ in process.stdout:  # a line for each connection: not to be left unread
                pass
    finally:
        process.terminate()
        process.wait()
    if address is None:
        raise InputError("kubectl port-forward found no dashboard; --namespace, --target and --port say where it is")
    raise InputError("kubectl port-forward has ended", code=1)


def _address(lines: IO[str]) -> str | None:
    for line in lines:
        found = _FORWARDING.match(line)
        if found:
            return found[1]
    return None


def _tell(url: str, *, opens: bool, token: str | None = None) -> None:
    click.echo(url)
    if opens:
        import webbrowser

        if not webbrowser.open(url if token is None else f"{url}?token={token}"):
            click.echo("aliquot: no browser could be started here: open the address yourself", err=True)
