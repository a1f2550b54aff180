"""`aliquot uninstall`: nothing of it stays, in the cluster or on its nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import aliquot
from aliquot.cli.client import Duration
from aliquot.cli.errors import InputError
from aliquot.cli.install.options import rendered
from aliquot.cli.install.steps import Steps, find, run

if TYPE_CHECKING:
    from aliquot.adapters.kubernetes.kube import Kube
    from aliquot.dialects.wire.deployment import Identity, Json
    from aliquot.services.install.uninstaller import Uninstaller

_MOST_NAMED = 10
_BY_HELM = (  # its hook's log is all that its user sees of us; and a release that is half gone takes no other values
    "; with Helm: `helm rollback RELEASE REVISION`, the revision that `helm list` tells, makes it whole again, then "
    "`helm upgrade RELEASE CHART --reuse-values --set uninstall.runningPods=delete` or keep, then `helm uninstall`"
)
_STAYS = (
    "their files stay on the nodes until they end: /run/aliquot/t and a, aliquot.*.yaml in /var/run/cdi, "
    "/var/lib/aliquot/shim; `aliquot uninstall` once more takes them away then, or on one node with --this-node"
)


@click.command()
@click.option("-n", "--namespace", help="Where it is installed  [default: $POD_NAMESPACE, else aliquot-system]")
@click.option("--keep-running", is_flag=True, help="Pods on our cards run on, no longer held to their share")
@click.option("--delete-pods", is_flag=True, help="Pods on our cards are deleted, in every namespace")
@click.option(
    "--nodes-only", is_flag=True, help="Programs and what stands on nodes; the other objects are left (to Helm)"
)
@click.option("--this-node", is_flag=True, help="Only the files of this host; what the others run on each node")
@click.option("--image", help="With which nodes are swept  [default: that of the agents]")
@click.option(
    "--host-root", type=click.Path(path_type=Path), default=Path("/"), show_default=True, help="With --this-node"
)
@click.option(
    "--kubelet-dir",
    type=click.Path(path_type=Path),
    default=Path("/var/lib/kubelet"),
    show_default=True,
    help="Likewise",
)
@click.option("--timeout", type=Duration(), default="5m", show_default=True)
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="As for kubectl; in a Pod its account is enough")
@click.option("--context", "kube_context", help="As for kubectl")
def uninstall(**given: Any) -> None:
    """Take aliquot from a cluster: every object, and on its nodes every file, socket, label and annotation.

    Refused while Pods are on our cards, unless one of --keep-running and --delete-pods says what becomes of them.
    Killed at any point, the same command goes on. What stays: annotations of Pods, for they go with them; and resources
    of ours on Nodes, which kubelets tell as 0 until they restart. With --keep-running, and where a node did not answer,
    the Node is marked, and once those Pods are gone `aliquot uninstall` again takes away the rest, by Helm installed or
    not.

    \b
    aliquot uninstall
    aliquot uninstall --delete-pods
    aliquot uninstall --nodes-only       what Helm's hook runs before Helm deletes its own objects
    aliquot uninstall --keep-running     and, when its Pods are gone, aliquot uninstall
    """
    if given["keep_running"] and given["delete_pods"]:
        raise InputError("--keep-running and --delete-pods do not go together: one of them")
    if given["this_node"]:
        _this_node(given)
        return
    server = find(given["kubeconfig"], given["kube_context"])
    steps = Steps()

    async def work() -> int:
        from aliquot.adapters.kubernetes.kube import Kube

        async with Kube(server, agent="aliquot-uninstall") as kube:
            return await _work(kube, given, steps)

    raise click.exceptions.Exit(run(work(), steps, goes_on="the same command goes on"))


def _this_node(given: dict[str, Any]) -> None:
    from aliquot.adapters.storage.filecleanup import SweepError, sweep

    try:
        swept = sweep(given["host_root"], keep_running=given["keep_running"], kubelet=given["kubelet_dir"])
    except SweepError as error:
        raise InputError(str(error), code=1) from error
    for path in swept.removed:
        click.echo(f"removed  {path}")
    for path in swept.kept:
        click.echo(f"kept     {path}")
    if not swept.removed and not swept.kept:
        click.echo("nothing of aliquot is on this host")


async def _work(kube: Kube, given: dict[str, Any], steps: Steps) -> int:
    from aliquot.services.install.installer import InstallError
    from aliquot.services.install.uninstaller import Uninstaller

    namespace = given["namespace"] or os.environ.get("POD_NAMESPACE") or "aliquot-system"
    away = Uninstaller(kube, say=steps.say, now=time.monotonic, until=time.monotonic() + given["timeout"])
    try:
        record = await away.installer.record(namespace)
        if not given["nodes_only"]:
            await _refuse_foreign(away, namespace)
        await _refuse_holders(away, given, steps)
        installed, usually = record.options.image if record else None, f"aliquot/aliquot:{aliquot.__version__}"
        agents = await away.agents(namespace, given["image"], installed, usually)
        await away.close(namespace)
        # Those that came meanwhile too: a controller makes anew what is deleted, and nobody places it any more.
        stay = await _part_with(away, given, steps)
        await away.programs(namespace)
        swept = await away.sweep(namespace, agents, keep_running=stay)
        left = [name for name, problem in swept.items() if stay or problem]
        cleaned = await away.clean_nodes(record.labelled if record else {}, agents, left)
        if given["nodes_only"]:
            await away.leave_room(namespace)
        else:
            await away.rest(record, namespace, usual(namespace))
    except InstallError as error:
        raise InputError(str(error), code=1) from error
    steps.end()
    problems = [problem for problem in swept.values() if problem]
    for problem in problems:
        click.echo(f"aliquot: {problem}", err=True)
    click.echo(f"aliquot is uninstalled: {cleaned} node{'s' * (cleaned != 1)} cleaned, {_remains(given, swept, left)}")
    return 1 if problems else 0


def _remains(given: dict[str, Any], swept: Mapping[str, str | None], left: Sequence[str]) -> str:
    if any(swept.values()):
        return "but what is told above: `aliquot uninstall` again finishes it"
    if left:
        return "where files of Pods stay: `aliquot uninstall`, when those Pods are gone, finishes it"
    return "the other objects are Helm's, or yours, to delete" if given["nodes_only"] else "nothing of it is left"


async def _refuse_foreign(away: Uninstaller, namespace: str) -> None:
    foreign = await away.installer.foreign(namespace)
    if foreign:
        raise InputError(
            f"not installed by `aliquot install` in {namespace}: {'; '.join(foreign)}. By Helm: `helm uninstall`; in "
            "another namespace: name it with --namespace"
        )


async def _refuse_holders(away: Uninstaller, given: dict[str, Any], steps: Steps) -> None:
    """Before anything is done: nobody has said what becomes of them."""
    if given["delete_pods"] or given["keep_running"]:
        return
    steps.say("look", "for Pods on our cards")
    pods = await away.holders()
    if pods:
        helm = _BY_HELM if given["nodes_only"] else ""
        raise InputError(f"{_told(pods)}: end them first, or say --delete-pods, or --keep-running{helm}", code=1)


async def _part_with(away: Uninstaller, given: dict[str, Any], steps: Steps) -> bool:
    """Those who are on our cards; whether any of them run on."""
    pods = await away.holders()
    if given["delete_pods"]:
        await away.evict(pods)
        return False
    if pods:
        steps.end()
        click.echo(f"{_told(pods)}; they run on, and {_STAYS}", err=True)
    return bool(pods) or bool(given["keep_running"])


def _told(pods: Sequence[Json]) -> str:
    """Who is on our cards."""
    names = [f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{len(pods)} Pod{'s are' if len(pods) > 1 else ' is'} on our cards: {', '.join(names[:_MOST_NAMED])}{more}"


def usual(namespace: str) -> list[Identity]:
    """What any installation of this version may have made."""
    from aliquot.dialects.wire.deployment import Options, identity, tailored

    options = Options(image="", kube_scheduler_image="", namespace=namespace, monitoring=True)
    return [identity(each) for each in tailored(rendered(), options, aliquot.__version__)]
