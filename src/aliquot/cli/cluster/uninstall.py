"""`aliquot uninstall`: removes everything from the cluster and its nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

import aliquot
from aliquot.cli.client import Duration
from aliquot.cli.cluster.uninstallsteps import Steps, find_cluster, run
from aliquot.cli.errors import InputError
from aliquot.model.decoding.openjson import JsonObject

if TYPE_CHECKING:
    from aliquot.adapters.kubernetes.kube import Kube
    from aliquot.services.uninstall.uninstaller import Cleaned, Uninstaller

_MOST_NAMED = 10
_HELM_HINT = (  # a Helm user sees only the log of the hook; and a half-deleted release accepts no other values
    "; with Helm: restore the release with `helm rollback RELEASE REVISION`, the revision from `helm list`, then "
    "`helm upgrade RELEASE CHART --reuse-values --set uninstall.runningPods=delete` or keep, then `helm uninstall`"
)
_FILES_STAY = (
    "their files stay on the nodes: /run/aliquot/t and a, aliquot.*.yaml in /var/run/cdi, /var/lib/aliquot/shim; when "
    "the Pods have ended, run `aliquot uninstall` again to remove them, or with --this-node on one node"
)


class UninstallGiven(TypedDict):
    """The options of the command line."""

    namespace: str | None
    keep_running: bool
    delete_pods: bool
    nodes_only: bool
    this_node: bool
    image: str | None
    pod_labels: tuple[str, ...]
    host_root: Path
    kubelet_dir: Path
    timeout: float
    kubeconfig: Path | None
    kube_context: str | None


@click.command()
@click.option("-n", "--namespace", help="Where aliquot is installed  [default: $POD_NAMESPACE, else aliquot-system]")
@click.option(
    "--keep-running",
    is_flag=True,
    help="Let Pods on shared cards run on, without limits; not those with ResourceClaims",
)
@click.option("--delete-pods", is_flag=True, help="Delete the Pods on shared cards, in every namespace")
@click.option(
    "--nodes-only", is_flag=True, help="Remove programs and clean the nodes; leave the other objects (to Helm)"
)
@click.option("--this-node", is_flag=True, help="Remove only the files on this host")
@click.option("--image", help="Image of the Pods that clean the nodes  [default: the agents' image]")
@click.option(
    "--pod-label",
    "pod_labels",
    metavar="KEY=VALUE",
    multiple=True,
    help="Label of the Pods that clean the nodes, which the cluster's policies may want; may be repeated  [default:"
    " the labels of the agents' Pods]",
)
@click.option(
    "--host-root",
    type=click.Path(path_type=Path),
    default=Path("/"),
    show_default=True,
    help="Root of the host's files, for --this-node",
)
@click.option(
    "--kubelet-dir",
    type=click.Path(path_type=Path),
    default=Path("/var/lib/kubelet"),
    show_default=True,
    help="Folder of the kubelet, for --this-node",
)
@click.option("--timeout", type=Duration(), default="5m", show_default=True)
@click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="As for kubectl; in a Pod, its service account is used"
)
@click.option("--context", "kube_context", help="As for kubectl")
def uninstall(**given: Unpack[UninstallGiven]) -> None:
    """Remove aliquot from a cluster: all objects, and on the nodes all files, sockets, labels and annotations.

    For what `kubectl apply -f install.yaml` installed; `helm uninstall` does the same for a release of the chart.
    Refuses while Pods use shared cards, unless --keep-running or --delete-pods is given. If it is interrupted, run the
    same command again. It leaves the annotations of Pods, and the resources on Nodes, which a kubelet reports as 0
    until it restarts. With --keep-running, or if a node does not answer, it marks the Node; run `aliquot uninstall`
    again when those Pods have ended to remove the rest. This also works after `helm uninstall`. Simulated cards of Pods
    that run on stay until then, too.

    \b
    aliquot uninstall
    aliquot uninstall --delete-pods
    aliquot uninstall --nodes-only       what Helm's hook runs before Helm deletes its objects
    aliquot uninstall --keep-running     later, when the Pods have ended: aliquot uninstall
    """
    if given["keep_running"] and given["delete_pods"]:
        raise InputError("--keep-running and --delete-pods exclude each other: give one of them")
    if given["this_node"]:
        _this_node(given)
        return
    server = find_cluster(given["kubeconfig"], given["kube_context"])
    steps = Steps()

    async def work() -> int:
        from aliquot.adapters.kubernetes.kube import Kube

        async with Kube(server, agent="aliquot-uninstall") as kube:
            return await _work(kube, given, steps)

    raise click.exceptions.Exit(run(work(), steps, resume="run the same command again to resume"))


def _this_node(given: UninstallGiven) -> None:
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
        click.echo("no files of aliquot on this host")


async def _work(kube: Kube, given: UninstallGiven, steps: Steps) -> int:
    from aliquot.dialects.wire.ownobjects import SIMULATED_CARDS, identities_in
    from aliquot.services.uninstall.clusterobjects import UninstallError
    from aliquot.services.uninstall.uninstaller import Uninstaller

    namespace = given["namespace"] or os.environ.get("POD_NAMESPACE") or "aliquot-system"
    uninstaller = Uninstaller(kube, report=steps.report, now=time.monotonic, until=time.monotonic() + given["timeout"])
    try:
        if not given["nodes_only"]:
            await _refuse_foreign(uninstaller, namespace)
        await _refuse_holders(uninstaller, given, steps)
        default = f"aliquot/aliquot:{aliquot.__version__}"
        labels = dict(_label(text) for text in given["pod_labels"])
        settings = await uninstaller.sweep_settings(namespace, given["image"], default, labels)
        if settings.image_known and not given["nodes_only"]:
            await uninstaller.note_settings(namespace, settings)
        await uninstaller.stop_scheduling(namespace)
        # Also those that arrived meanwhile: controllers recreate deleted Pods, but nothing schedules them any more.
        kept = await _release_holders(uninstaller, given, steps)
        cleaned = await uninstaller.clean(
            namespace,
            settings,
            keep_running=bool(kept) or given["keep_running"],
            cards_on={pod["spec"]["nodeName"] for pod in kept},
        )
        if given["nodes_only"]:
            await uninstaller.delete_sweep_namespace(namespace)
        else:
            installed = identities_in(packaged_objects(), namespace)
            await uninstaller.delete_objects(namespace, installed, cards_left=cleaned.cards_left)
    except UninstallError as error:
        raise InputError(str(error), code=1) from error
    steps.end()
    for problem in cleaned.problems:
        click.echo(f"aliquot: {problem}", err=True)
    if cleaned.cards_left:
        click.echo(
            f"the Pods use simulated cards, which stay: DaemonSet {SIMULATED_CARDS} in namespace {namespace}, until "
            f"`aliquot uninstall --namespace {namespace}` removes both when the Pods have ended",
            err=True,
        )
    nodes = f"{cleaned.nodes} node{'s' * (cleaned.nodes != 1)} cleaned"
    click.echo(f"aliquot is uninstalled: {nodes}, {_remains(cleaned, nodes_only=given['nodes_only'])}")
    return 1 if cleaned.problems else 0


def _label(text: str) -> tuple[str, str]:
    key, equals, label = text.partition("=")
    if not key or not equals:
        raise InputError(f"--pod-label {text}: KEY=VALUE is wanted, as for kubectl label")
    return key, label


def _remains(cleaned: Cleaned, *, nodes_only: bool) -> str:
    if cleaned.problems:
        return "except for the problems above: run `aliquot uninstall` again to finish"
    if cleaned.files_left:
        return "but files of running Pods stay: run `aliquot uninstall` again when they have ended"
    return "the other objects are left to Helm or to you" if nodes_only else "nothing is left"


async def _refuse_foreign(uninstaller: Uninstaller, namespace: str) -> None:
    foreign = await uninstaller.foreign(namespace)
    if foreign:
        raise InputError(
            f"not installed from install.yaml in {namespace}: {'; '.join(foreign)}. If Helm installed it: `helm "
            "uninstall`; if it is in another namespace: --namespace; if you applied what `helm template` printed: "
            "`aliquot uninstall --nodes-only`, then `kubectl delete` with that file"
        )


async def _refuse_holders(uninstaller: Uninstaller, given: UninstallGiven, steps: Steps) -> None:
    """Before anything is changed, unless an option says what to do with the Pods."""
    if given["delete_pods"]:
        return
    steps.report("inspect", "Pods on shared cards")
    hint = _HELM_HINT if given["nodes_only"] else ""
    claimants = await uninstaller.holders(claims_only=True)
    if claimants:
        raise InputError(
            f"{_names(claimants)} by ResourceClaims, and the kubelet needs the agent to end {_them(claimants)}: "
            f"end {_them(claimants)} first, or give --delete-pods{hint}",
            code=1,
        )
    if given["keep_running"]:
        return
    pods = await uninstaller.holders()
    if pods:
        raise InputError(f"{_names(pods)}: end them first, or give --delete-pods or --keep-running{hint}", code=1)


async def _release_holders(uninstaller: Uninstaller, given: UninstallGiven, steps: Steps) -> Sequence[JsonObject]:
    """Delete or keep the Pods on our cards. Returns those that run on."""
    if given["delete_pods"]:
        await uninstaller.evict(await uninstaller.holders())
        return ()
    await _refuse_holders(uninstaller, {**given, "keep_running": True}, steps)  # Pods with claims that arrived since
    pods = await uninstaller.holders()
    if pods:
        steps.end()
        click.echo(f"{_names(pods)}; they run on, and {_FILES_STAY}", err=True)
    return pods


def _them(pods: Sequence[JsonObject]) -> str:
    return "them" if len(pods) > 1 else "it"


def _names(pods: Sequence[JsonObject]) -> str:
    """Which Pods use shared cards."""
    names = [f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    count = f"{len(pods)} Pod{'s use' if len(pods) > 1 else ' uses'} shared cards"
    return f"{count}: {', '.join(names[:_MOST_NAMED])}{more}"


def packaged_objects() -> list[JsonObject]:
    """The objects of install.yaml: in the wheel, or in deploy/ of a checkout."""
    import yaml

    package = Path(aliquot.__file__).parent
    files = (package / "manifests" / "install.yaml", package.parents[1] / "deploy" / "install.yaml")
    text = next((file for file in files if file.exists()), files[0]).read_text()
    return [obj for obj in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if obj]
