"""`aliquot doctor`: what is wrong with the installation on a cluster, each with its fix; and on the node where it runs.

The checks themselves are pure (services/doctor); here their objects are fetched, and what one may not read becomes a
finding of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

import aliquot
from aliquot.adapters.kubernetes.kubectl import CONFIG_MAPS, QUOTAS, Kubectl, KubectlError, Trouble
from aliquot.cli.cluster.objects import hands_out_claims
from aliquot.cli.errors import InputError
from aliquot.cli.options.kubectl import kubectl_options
from aliquot.cli.tables import printable
from aliquot.dialects.kube.shapes import mapping
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.status.printed import PrintedFinding
from aliquot.model.text import printable_json
from aliquot.services.doctor.findings import Finding, Level, grouped, ok
from aliquot.services.doctor.locate import SchedulerLocation, default_location, find_scheduler
from aliquot.services.doctor.site import Places, Site

if TYPE_CHECKING:
    from aliquot.dialects.wire.workloads import WorkloadObject
    from aliquot.model.refusal import Invalid
    from aliquot.services.doctor.scheduler import Control, Probe
    from aliquot.services.explain.overview import Overview

_T = TypeVar("_T")

_WIDEST = 14  # of a check's name
_AS_AGENT = "The same as for `aliquot agent`"


@click.command()
@click.option("-n", "--namespace", default="default", show_default=True, help="Namespace of the trial Pods (dry run)")
@click.option(
    "--lease-namespace",
    help="Namespace of the scheduler's Lease and Secret  [default: that of its Deployment, else kube-system]",
)
@click.option("--lease-name", default="aliquot-scheduler", show_default=True)
@click.option(
    "--rules",
    type=click.Choice(["seed", "2026"]),
    help="Version of qGPU's rules  [default: the scheduler's, or seed]",
)
@click.option(
    "--machine",
    is_flag=True,
    help="Check the daemon of this machine, without Kubernetes  [default: if neither a cluster nor a kubelet is here]",
)
@click.option("--node/--no-node", default=None, help="Check this machine too  [default: if a kubelet is here]")
@click.option(
    "--nodename", metavar="NAME", help="Name of its Node  [default: the agent's, $NODE_NAME, or the host's name]"
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, readable=False),
    default=Places().run,
    show_default=True,
    help=_AS_AGENT,
)
@click.option(
    "--dbfile",
    type=click.Path(path_type=Path, readable=False),
    default=Places().database,
    show_default=True,
    help=_AS_AGENT,
)
@click.option(
    "--kubelet-dir",
    type=click.Path(path_type=Path, readable=False),
    default=Places().kubelet,
    show_default=True,
    help=_AS_AGENT,
)
@click.option(
    "--cdi-dir",
    type=click.Path(path_type=Path, readable=False),
    default=Places().cdi,
    show_default=True,
    help=_AS_AGENT,
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@kubectl_options
@click.pass_context
def doctor(
    context: click.Context,
    namespace: str,
    lease_namespace: str | None,
    lease_name: str,
    rules: str | None,
    machine: bool,
    node: bool | None,
    nodename: str | None,
    run_dir: Path,
    dbfile: Path,
    kubelet_dir: Path,
    cdi_dir: Path,
    output: str,
    kubectl: Kubectl,
) -> None:
    """Find problems of a cluster or of this machine and say what to do.

    On one machine: driver, NVML, shim, daemon, folders, the dashboard's port, and how each card's shares are enforced.
    On a node, as root or in the agent's container, also check the agent and what it needs of the host. Nothing is
    changed: trial Pods use --dry-run=server. Exit code 0 if nothing is wrong, 1 with findings, 2 if neither the cluster
    nor the node can be read.

    \b
    aliquot doctor                 # of the cluster that kubectl reaches; without one, of this machine
    aliquot doctor --machine
    """
    here = os.path.isdir(kubelet_dir / "device-plugins") if node is None else node
    places = Places(run_dir, dbfile, kubelet_dir, cdi_dir) if here else None
    cluster = _Cluster(
        kubectl, namespace, lease_namespace or default_location().namespace, lease_name, lease_namespace is None
    )
    findings = grouped(_of_machine() if machine else _diagnosed(cluster, rules, places, nodename))
    wrong = sum(finding.level in (Level.FINDING, Level.UNKNOWN) for finding in findings)
    if output == "json":
        import msgspec

        entries = msgspec.json.encode([_entry(finding) for finding in findings])
        click.echo(printable_json(msgspec.json.format(entries, indent=2).decode()))
    else:
        for line in lines_of(findings):
            click.echo(printable(line))
        click.echo(f"\n{wrong} finding{'s' * (wrong != 1)}" if wrong else "\nnothing is wrong")
    context.exit(1 if wrong else 0)


def _diagnosed(cluster: _Cluster, rules: str | None, places: Places | None, node_name: str | None) -> Iterator[Finding]:
    """Of the cluster, and of the node we are on where `places` says where to look."""
    unseen: KubectlError | None = None
    try:
        version = cluster.kubectl.get("/version")  # the one thing that everybody may read
        cluster.findings.append(ok("api", f"Kubernetes {mapping(version).get('gitVersion')} answers"))
        yield from cluster.findings
        cluster.location = find_scheduler(cluster.kubectl)
        if cluster.guessed:
            cluster.lease_namespace = cluster.location.namespace
        yield from _examine(cluster, rules)
    except KubectlError as error:
        if places is None and _names_no_cluster(cluster.kubectl):
            yield from _of_machine()
            return
        if places is None:
            raise InputError(f"{error}; to check only this machine: aliquot doctor --machine") from error
        unseen = error
    if places is not None:
        from aliquot.services.doctor.site import look

        yield from _of_node(look(places, node_name), cluster.kubectl, unseen, rules)


def _names_no_cluster(kubectl: Kubectl) -> bool:
    """Whether nothing says that a cluster is meant."""
    files = os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    return not in_pod and not kubectl.flags and not any(map(os.path.exists, files.split(":")))


def _of_machine() -> Iterator[Finding]:
    from aliquot.adapters.host.home import homes
    from aliquot.services.doctor.machine import machine_findings
    from aliquot.services.doctor.machinesite import look

    yield from machine_findings(look(homes()))


# --- asking --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Cluster:
    """What there is to ask, and what was found out by asking."""

    kubectl: Kubectl
    namespace: str
    lease_namespace: str
    lease_name: str
    guessed: bool = False  # where the Lease is: to be looked for once the cluster answers
    location: SchedulerLocation = field(default_factory=default_location)
    findings: list[Finding] = field(default_factory=list)

    def control(self) -> Control:
        """The Lease and the webhook, and what the webhook does to Pods."""
        from msgspec import UNSET

        from aliquot.dialects.wire.leases import leases_path, parse_lease
        from aliquot.dialects.wire.webhook.configuration import CONFIGURATION, CONFIGURATIONS_PATH, read_configuration
        from aliquot.services.doctor.scheduler import Control, trial_pods

        lease = self._one("scheduler", f"{leases_path(self.lease_namespace)}/{self.lease_name}")
        webhook = self._one("webhook", f"{CONFIGURATIONS_PATH}/{CONFIGURATION}")
        read = None if lease is None else parse_lease(lease) if lease else UNSET
        configuration = None if webhook is None else read_configuration(webhook) if webhook else UNSET
        control = Control(f"{self.lease_namespace}/{self.lease_name}", read, configuration)
        if not webhook:
            return control
        broken, exclusive = trial_pods(self.location.served)
        return replace(control, trials=(self.trial(broken), self.trial(exclusive)), authority=self.authority())

    def workloads(self) -> list[WorkloadObject | Invalid]:
        """Deployments and DaemonSets with our label; none where it was put there in another way, or may not be seen."""
        from aliquot.dialects.wire.ownobjects import SELECTOR
        from aliquot.dialects.wire.workloads import read_workload

        found: list[JsonObject] = []
        for path, kind in (("deployments", "Deployment"), ("daemonsets", "DaemonSet")):
            with contextlib.suppress(KubectlError):
                found += self.kubectl.items(f"/apis/apps/v1/{path}", kind, labelSelector=SELECTOR)
        return [read_workload(workload) for workload in found]

    def authority(self) -> str | None:
        """The certificate that signs the webhook's; Secrets are seldom readable, and the trials show as much."""
        from aliquot.dialects.wire.webhook.configuration import SECRET, read_authority, secrets_path

        try:
            return read_authority(self.kubectl.get(f"{secrets_path(self.lease_namespace)}/{SECRET}"))
        except KubectlError:
            return None

    def trial(self, pod: JsonObject) -> Probe:
        """What the API server would make of the Pod."""
        import msgspec

        from aliquot.services.doctor.scheduler import Probe

        words = ("create", "--dry-run=server", "--output=json", f"--namespace={self.namespace}", "--filename", "-")
        try:
            answer = msgspec.json.decode(self.kubectl.run(*words, stdin=msgspec.json.encode(pod)))
        except KubectlError as error:
            return Probe(None, error.text)
        except msgspec.DecodeError as error:
            return Probe(None, f"kubectl did not print JSON ({error})")
        return Probe(answer if isinstance(answer, dict) else None, None)

    def _one(self, check: str, path: str) -> JsonObject | None:
        """One object; an empty one where we may not look, None where it is not there."""

        def ask() -> JsonObject | None:
            try:
                got = self.kubectl.get(path)
            except KubectlError as error:
                if error.trouble is Trouble.NOT_FOUND:
                    return None
                raise
            return got if isinstance(got, dict) else None

        before = len(self.findings)
        found = self.allowed(check, ask, path)
        return {} if len(self.findings) > before else found

    def allowed(self, check: str, ask: Callable[[], _T], what: str) -> _T | None:
        """What was asked for, or None and one more finding."""
        try:
            return ask()
        except KubectlError as error:
            self.findings.append(Finding(check, Level.UNKNOWN, (what,), error.text, error.advice or None))
            return None


def _examine(cluster: _Cluster, qgpu_rules: str | None) -> Iterator[Finding]:
    from aliquot.dialects import hami
    from aliquot.dialects.wire.workloads import read_pods
    from aliquot.services.doctor.install import installation_findings
    from aliquot.services.doctor.locate import UnknownOptionError
    from aliquot.services.doctor.quotas import quota_findings
    from aliquot.services.doctor.scheduler import control_findings
    from aliquot.services.explain.overview import look

    now = datetime.now(UTC)
    kubectl = cluster.kubectl
    nodes = cluster.allowed("nodes", kubectl.nodes, "nodes")
    pods = cluster.allowed("pods", kubectl.pods, "pods")
    slices = cluster.allowed("nodes", kubectl.resource_slices, "resourceslices")
    sick = cluster.allowed("cards", lambda: kubectl.items(CONFIG_MAPS, "ConfigMap"), CONFIG_MAPS)
    try:
        rules = cluster.location.rules(qgpu_rules, "auto", nodes or [])
    except UnknownOptionError as error:
        raise InputError(str(error)) from error
    by_claims = hands_out_claims([*(nodes or []), *(slices or [])])
    claims = cluster.allowed("claims", kubectl.resource_claims, "resourceclaims") if by_claims else None
    overview = look([*(nodes or []), *(pods or []), *(sick or []), *(slices or []), *(claims or [])], rules)
    control = cluster.control()
    by_hami = hami.DIALECT in rules.served
    quotas = cluster.allowed("quotas", lambda: kubectl.items(QUOTAS, "ResourceQuota"), QUOTAS) if by_hami else None
    yield from cluster.findings[1:]  # what we may not read
    cluster.findings[1:] = []
    yield from installation_findings(
        cluster.workloads(),
        read_pods(pods or []),
        overview.snapshot.nodes.values(),
        aliquot.__version__,
        rules.served,
    )
    yield from control_findings(control, overview.snapshot, now)
    if nodes is not None:
        yield from _of_objects(overview, now, with_pods=pods is not None)
    if quotas is not None:
        yield from quota_findings(quotas)


def _of_objects(overview: Overview, now: datetime, *, with_pods: bool) -> Iterator[Finding]:
    from aliquot.services.doctor.nodes import node_findings
    from aliquot.services.doctor.pods import claim_findings, pod_findings, waiting_findings

    for key, invalid in overview.snapshot.unheeded.items():
        name = key.rpartition("/")[2]
        what = f"is ignored: {invalid.sentence()}"
        yield Finding("cards", Level.FINDING, (name,), what, f"kubectl edit configmap {name} -n kube-system")
    yield from node_findings(overview.snapshot)
    if with_pods:
        yield from pod_findings(overview.snapshot, now)
        yield from claim_findings(overview)
        yield from waiting_findings(overview)


# --- the node we are on --------------------------------------------------------------------------------------------


def _of_node(site: Site, kubectl: Kubectl, unseen: KubectlError | None, qgpu_rules: str | None) -> Iterator[Finding]:
    """`unseen`: why the cluster could not be read; then the checks of nodes and Pods run for this node alone."""
    from aliquot import dialects
    from aliquot.dialects.wire.objectreading import read_object
    from aliquot.dialects.wire.objects import NodeObject
    from aliquot.dialects.wire.workloads import read_pods
    from aliquot.services.doctor.agent import agent_findings, bystander
    from aliquot.services.doctor.holdings import holding_findings, living
    from aliquot.services.doctor.site import settled
    from aliquot.services.explain.overview import look

    node, pods, about_api = _node_objects(site.node_name, kubectl, unseen)
    yield from about_api
    unit = dialects.guess_gpushare_unit([node] if node else [])
    rules = dialects.Rules(dialects.QgpuRules(qgpu_rules or "seed"), unit, _served(site))
    read, seen = None if node is None else read_object(node, NodeObject, "node"), read_pods(pods)
    if bystander(site, read, rules):
        what = "no agent runs here, and the labels ask for none: this machine was not checked"
        yield Finding("agent", Level.NOTE, (site.node_name,), what, "--no-node leaves this line out")
        return
    yield from agent_findings(site, read, rules)
    if node is None or read is None:
        return
    if unseen is not None:
        yield from _of_objects(look([node, *pods], rules), datetime.now(UTC), with_pods=True)
    yield from holding_findings(settled(site, frozenset(living(seen))), read, seen, rules.whole)


def _served(site: Site) -> frozenset[str]:
    """The dialects that the agent says it serves; all where it does not say."""
    from aliquot.dialects.rules import DIALECTS, EVERY

    named = site.agent.daemon.dialects if site.agent else None
    return frozenset(name for name in EVERY if name in named) if isinstance(named, list) else frozenset(DIALECTS)


def _node_objects(
    name: str, kubectl: Kubectl, unseen: KubectlError | None
) -> tuple[JsonObject | None, list[JsonObject], list[Finding]]:
    """The Node and its Pods, by kubectl or, where there is none, by the account of the Pod we are in."""
    from aliquot.services.doctor.site import OwnAccountError, own_objects

    try:
        if unseen is None:
            return kubectl.nodes(name)[0], kubectl.pods(name), []
        if unseen.trouble is not Trouble.NO_KUBECTL:
            raise unseen
        node, pods = own_objects(name)
        what = f"{unseen.text}: only this node was checked"
        return (
            node,
            pods,
            [Finding("api", Level.NOTE, (name,), what, "for the rest, run it where kubectl works")],
        )
    except KubectlError as error:
        problem, advice = error.text, error.advice
    except OwnAccountError as error:
        problem, advice = str(error), "name the cluster in KUBECONFIG, or install kubectl"
    what = f"{problem}; so what Pods were granted is not known"
    fix = advice or "name the Node of this machine: --nodename, of those that kubectl get nodes shows"
    return None, [], [Finding("api", Level.UNKNOWN, (f"Node {name}",), what, fix)]


# --- output --------------------------------------------------------------------------------------------------------


def lines_of(findings: list[Finding]) -> Iterator[str]:
    marks = {Level.OK: "ok     ", Level.NOTE: "note   ", Level.FINDING: "FINDING", Level.UNKNOWN: "FINDING"}
    for finding in findings:
        cannot = "cannot look: " if finding.level is Level.UNKNOWN else ""
        about = f"{finding.whom}: " if finding.about else ""
        yield f"{marks[finding.level]}  {finding.check.ljust(_WIDEST)}  {about}{cannot}{finding.what}"
        if finding.advice and finding.level is not Level.OK:
            yield f"{' ' * 9}{' ' * _WIDEST}  -> {finding.advice}"


def _entry(finding: Finding) -> PrintedFinding:
    return PrintedFinding(finding.check, finding.level.value, list(finding.about), finding.what, finding.advice)
