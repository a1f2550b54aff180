"""`aliquot explain`: where Pods would go on a cluster, or every reason why not."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aliquot.adapters.kubernetes.kubectl import Kubectl, KubectlError, Trouble
from aliquot.cli.errors import InputError
from aliquot.cli.options.kubectl import kubectl_options, reach
from aliquot.cli.tables import printable
from aliquot.dialects.kube.shapes import mapping
from aliquot.model.decoding.openjson import JsonObject
from aliquot.placement import POLICY_NAMES
from aliquot.wording.amounts import memory, percent

if TYPE_CHECKING:
    from aliquot.cli.manifests import Manifest
    from aliquot.dialects.rules import Rules
    from aliquot.dialects.wire.objects import NodeObject
    from aliquot.model.grant import Grant
    from aliquot.services.explain.claims import PodClaim
    from aliquot.services.explain.verdicts import Note, Verdict

_MOST_NAMES = 3  # of a note; five thousand nodes may all need the same assumption
_WIDEST_NAME = 60
_WHY_NONE = {"DaemonSet": ": it selects none of the nodes, or does not tolerate their taints"}
_NO_NODES = "kubectl get nodes,pods -A -o yaml prints"


@click.command()
@click.argument("pod", required=False)
@click.option("-f", "--filename", type=click.Path(path_type=Path), help="PODS.yaml; - reads from stdin")
@click.option(
    "--cluster",
    type=click.Path(path_type=Path),
    help="CLUSTER.yaml, as `kubectl get nodes,pods -A -o yaml` prints it (-o json is read faster); podgroups,"
    " resourceclaims, resourcequotas too",
)
@click.option(
    "-n", "--namespace", help="Namespace of POD, and of manifests that name none  [default: the one kubectl uses]"
)
@click.option(
    "--priority", type=click.Choice(POLICY_NAMES), help="Policy for choosing  [default: the scheduler's, else binpack]"
)
@click.option(
    "--rules",
    type=click.Choice(["seed", "2026"]),
    help="Version of qGPU's rules  [default: the scheduler's, or seed]",
)
@click.option(
    "--memory-unit",
    type=click.Choice(["auto", "GiB", "MiB"]),
    default="auto",
    show_default=True,
    help="Unit of aliyun.com/gpu-mem; auto: the scheduler's, else by what the nodes advertise",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@kubectl_options
@click.pass_context
def explain(
    context: click.Context,
    pod: str | None,
    filename: Path | None,
    cluster: Path | None,
    namespace: str | None,
    kubectl: Kubectl,
    priority: str | None,
    rules: str | None,
    memory_unit: str,
    output: str,
) -> None:
    """Show where Pods would go on a cluster, or every reason why they do not fit.

    POD is on the cluster already. The Pods of PODS.yaml (Deployments, StatefulSets and Jobs count as their replicas,
    a DaemonSet as one Pod per node it selects, a CronJob as one run; PyTorchJobs, T9k's jobs, RayClusters,
    LeaderWorkerSets, JobSets, Volcano's Jobs, Argo's Workflows, Knative's and KServe's services as the Pods of their
    templates) are placed in order, each booked before the next. A ResourceQuota that is used up refuses a Pod; only
    requests and the number of Pods are counted, not limits. The cluster is the one kubectl talks to, or CLUSTER.yaml.
    Nothing is changed. Assumptions about the cluster are notes on stderr. Exit code 0 if all fit, 1 if some do not, 2
    if the input cannot be read.

    \b
    aliquot explain my-pod -n team
    aliquot explain -f pods.yaml
    kubectl get nodes,pods -A -o json > cluster.json
    aliquot explain -f pods.yaml --cluster cluster.json
    """
    from aliquot.dialects.kube.operators import elsewhere
    from aliquot.dialects.kube.podfields import unknown_fields_of
    from aliquot.dialects.lookalikes import outside_template
    from aliquot.dialects.registry import remarks
    from aliquot.services.doctor.locate import UnknownOptionError, default_location, find_scheduler
    from aliquot.services.explain.manifests import pod_key
    from aliquot.services.explain.snapshot import take_snapshot
    from aliquot.services.explain.verdicts import Note

    manifests, named, objects = _given(pod, namespace, filename, cluster, kubectl)
    nodes = [obj for obj in objects if obj.get("kind") == "Node"]
    if not nodes:
        raise InputError(
            f"{_NO_NODES} none" if cluster is None else f"{cluster}:1:1: has no Node in it: {_NO_NODES} some"
        )
    scheduler = find_scheduler(kubectl) if cluster is None else default_location()
    try:
        policy = priority or scheduler.option("priority", POLICY_NAMES, "binpack")
        by = scheduler.rules(rules, memory_unit, nodes)
    except UnknownOptionError as error:
        raise InputError(str(error)) from error
    snapshot = take_snapshot(objects, policy=policy, rules=by)
    for manifest in manifests:
        snapshot.add_group(manifest.value)
        slips = [misplaced.sentence() for misplaced in outside_template(manifest.value, by.served)]
        slips += _of_owner(manifest.value, by)
        for text in (*slips, *unknown_fields_of(manifest.value), elsewhere(manifest.value)):
            if text is None:
                continue
            click.echo(f"note: {printable(pod_key(manifest.value))}: {printable(text)}", err=True)
    pods = named if filename is None else _pods(filename, manifests, snapshot.nodes.values())
    if cluster is None and filename is not None:
        from aliquot.cli.cluster.objects import resource_quotas

        for quota in reach(lambda: resource_quotas(kubectl, pods)):
            snapshot.add_quota(quota)
    snapshot.expect(pods)
    noted = (Note(pod_key(pod), text) for pod in pods for text in remarks(pod, by))
    for line in _noted([*snapshot.notes, *noted]):
        click.echo(f"note: {printable(line)}", err=True)
    # One by one, and each written before the next: the reasons of 200 Pods on 5,000 nodes are more than memory holds.
    verdicts = (snapshot.place(pod, why_not_elsewhere=output == "json", who_goes=True) for pod in pods)
    if output == "json":
        from aliquot.cli.cluster.explainjson import write_json

        all_fit = write_json(verdicts)
    else:
        widths = [max((len(name) for name in names), default=0) for names in (map(pod_key, pods), snapshot.nodes)]
        all_fit = _write_table(verdicts, nodes=len(nodes), widths=widths)
    context.exit(0 if all_fit else 1)


def _of_owner(workload: JsonObject, rules: Rules) -> list[str]:
    """What the object itself says that changes nothing here."""
    from aliquot.dialects.kube.shapes import mapping
    from aliquot.dialects.registry import owner_remarks

    inner = mapping(workload.get("spec"))
    inner = mapping(mapping(inner.get("jobTemplate")).get("spec")) or inner
    return owner_remarks(workload, inner.get("template"), rules)


def _given(
    pod: str | None, namespace: str | None, filename: Path | None, cluster: Path | None, kubectl: Kubectl
) -> tuple[list[Manifest], list[JsonObject], list[JsonObject]]:
    """The manifests to place or the Pod of that name, and what the cluster shows."""
    from aliquot.cli.cluster.objects import cluster_objects
    from aliquot.cli.manifests import read_manifests

    if (pod is None) == (filename is None):
        raise click.UsageError("give either POD or -f PODS.yaml")
    if str(filename) == str(cluster) == "-":
        raise InputError("-f and --cluster cannot both be read from stdin")
    manifests = [] if filename is None else read_manifests(filename)
    if cluster is not None:
        objects = [manifest.value for manifest in read_manifests(cluster, of_cluster=True)]
    else:
        try:
            objects = cluster_objects(kubectl)
        except KubectlError as error:
            raise InputError(f"{error}{_without_cluster(error, filename)}") from error
    if pod is None:
        return _in_namespaces(manifests, namespace, None if cluster else kubectl), [], objects
    where = namespace or ("default" if cluster is not None else reach(kubectl.namespace))
    return [], [_named(pod, where, objects)], objects


def _without_cluster(error: KubectlError, filename: Path | None) -> str:
    """What those can do who have no cluster."""
    if error.trouble not in (Trouble.NO_KUBECTL, Trouble.UNREACHABLE):
        return ""
    here = f"; `aliquot run --dry-run -f {shlex.quote(str(filename))}` shows its runs here" if filename else ""
    return f". Without a cluster: --cluster FILE has its nodes and Pods (see --help){here}"


def _in_namespaces(manifests: list[Manifest], namespace: str | None, kubectl: Kubectl | None) -> list[Manifest]:
    """The manifests; those that name no namespace are where `kubectl apply` would create them."""

    def is_without(manifest: Manifest) -> bool:
        metadata = manifest.value.get("metadata")
        return isinstance(metadata, dict) and metadata.get("namespace") in (None, "")

    if namespace is None and kubectl is not None and any(map(is_without, manifests)):
        with suppress(KubectlError):  # it has no configuration: inside a Pod
            namespace = kubectl.namespace()
    namespace = namespace or "default"
    return [
        replace(manifest, value=manifest.value | {"metadata": manifest.value["metadata"] | {"namespace": namespace}})
        if is_without(manifest)
        else manifest
        for manifest in manifests
    ]


def _named(name: str, namespace: str, objects: list[JsonObject]) -> JsonObject:
    from aliquot.services.explain.manifests import pod_key

    for obj in objects:
        if obj.get("kind") == "Pod" and pod_key(obj) == f"{namespace}/{name}":
            return obj
    raise InputError(f"{namespace}/{name} is not there: -n names another namespace; kubectl get pods -A lists them all")


def _pods(path: Path, manifests: list[Manifest], nodes: Collection[NodeObject]) -> list[JsonObject]:
    from aliquot.dialects.kube.manifests import expand
    from aliquot.dialects.kube.operators import elsewhere
    from aliquot.model.refusal import Invalid
    from aliquot.services.explain.manifests import pod_key

    found: list[JsonObject] = []
    for manifest in manifests:
        made = expand(manifest.value, nodes, operators=True)
        if isinstance(made, Invalid):
            raise manifest.error(made.sentence())
        if not made and _makes_pods(manifest) and elsewhere(manifest.value) is None:
            text = "makes no Pods now" + _WHY_NONE.get(str(manifest.value["kind"]), ": suspended, or with 0 replicas")
            click.echo(f"note: {printable(pod_key(manifest.value))}: {text}", err=True)
        if not made and not _makes_pods(manifest) and _asks_elsewhere(manifest.value):
            text = f"{manifest.value['kind']} {pod_key(manifest.value)} is not read: explain knows no Pods of this kind"
            click.echo(f"note: {printable(text)}", err=True)
        found += made
    kinds = sorted({str(manifest.value["kind"]) for manifest in manifests})
    # A workload may well make no Pod, with "replicas: 0": such a file is read, and all of its no Pods fit.
    if not found and not any(map(_makes_pods, manifests)):
        only = f", only {', '.join(kinds)}" if kinds else ""
        raise InputError(f"{path}:1:1: has no Pod in it{only}: a Pod, Deployment, StatefulSet or Job is wanted")
    return found


def _asks_elsewhere(manifest: JsonObject) -> bool:
    """Whether it is a custom resource with a field for GPUs: its operator may make Pods of it."""
    api, spec = manifest.get("apiVersion"), mapping(manifest.get("spec"))
    group = api.partition("/")[0] if isinstance(api, str) else ""
    custom = "." in group and not group.endswith(".k8s.io")  # others are Kubernetes' own: a policy, a class
    fields = [*spec, *(field for part in spec.values() for field in mapping(part))]
    return custom and any(isinstance(field, str) and "gpu" in field.lower() for field in fields)


def _makes_pods(manifest: Manifest) -> bool:
    from aliquot.dialects.kube.manifests import WORKLOADS
    from aliquot.dialects.kube.operators import known

    return manifest.value["kind"] in WORKLOADS or known(manifest.value)


def _noted(notes: Iterable[Note]) -> Iterator[str]:
    """Each text once, with whom it is about."""
    about: dict[str, list[str]] = {}
    for note in notes:
        about.setdefault(note.text, []).append(note.about)
    for text, names in about.items():
        more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
        yield f"{', '.join(names[:_MOST_NAMES])}{more}: {text}"


# --- for people --------------------------------------------------------------------------------------------------


def _write_table(verdicts: Iterable[Verdict], *, nodes: int, widths: list[int]) -> bool:
    """A line for each Pod that fits, a paragraph for each that does not, alike ones together. Whether all fit."""
    ours = fits = others = by_claims = 0
    alike: list[Verdict] = []
    for verdict in verdicts:
        if alike and not _alike(alike[-1], verdict):
            _echo(_paragraph(alike, nodes, widths))
            alike = []
        alike.append(verdict)
        ours, fits = ours + verdict.ours, fits + (verdict.fits is True)
        by_claims, others = by_claims + bool(verdict.claims), others + (not verdict.ours and not verdict.claims)
    if alike:
        _echo(_paragraph(alike, nodes, widths))
    total = "no GPU Pods" if not ours else f"all {ours:,} fit" if fits == ours else f"{fits:,} of {ours:,} fit"
    total = f"{by_claims:,} by ResourceClaims" if by_claims and not ours else total
    tail = f"; {by_claims:,} by ResourceClaims" if by_claims and ours else ""
    tail += f"; {others:,} {'request' if others > 1 else 'requests'} no shared GPU" if others else ""
    click.echo(f"\n{total}{tail}")
    return fits == ours


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(printable(line))


def _alike(one: Verdict, other: Verdict) -> bool:
    """Whether both do not fit, for the same reasons: replicas, as a rule."""
    alike = one.broken == other.broken and one.gates == other.gates and one.refusals is other.refusals
    alike = alike and one.preemption == other.preemption
    return one.fits is False and other.fits is False and alike


def _paragraph(alike: list[Verdict], nodes: int, widths: list[int]) -> Iterator[str]:
    from aliquot.wording.groups import waiting
    from aliquot.wording.preemption import would_go
    from aliquot.wording.refusals import held_back, why_not

    verdict, many = alike[0], len(alike) > 1
    name = f"{verdict.pod} ... {alike[-1].pod} ({len(alike):,} Pods)" if many else verdict.pod
    name = name.ljust(min(widths[0], _WIDEST_NAME))
    remark = f"  ({verdict.remark})" if verdict.remark else ""
    if verdict.grant is not None:
        yield f"{name}  {verdict.grant.node.ljust(widths[1])}  {_cards(verdict.grant)}{remark}"
    elif verdict.broken:
        yield f"{name}  {'are' if many else 'is'} not allowed"
        yield from (f"    {broken.sentence()}" for broken in verdict.broken)
    elif verdict.claims:
        yield from _by_claims(name, verdict.claims, widths[1])
    elif verdict.claim is None:
        yield f"{name}  -{remark}"
    elif verdict.gates:
        yield f"{name}  {held_back(verdict.gates)}"
    elif verdict.group is not None:
        yield f"{name}  {'wait' if many else 'waits'}: {waiting(verdict.group)}"
        yield from why_not(verdict.refusals, verdict.claim)
    else:
        yield f"{name}  {'fit' if many else 'fits'} none of {nodes:,} node{'s' * (nodes > 1)}"
        yield from why_not(verdict.refusals, verdict.claim)
        if verdict.preemption is not None:
            gone = verdict.preemption
            yield f"  {'one of them ' * many}{would_go(gone.victims, gone.grant, preempts=gone.allowed)}"


def _by_claims(name: str, claims: Iterable[PodClaim], width: int) -> Iterator[str]:
    for claim in claims:
        if claim.grant is None:
            yield f"{name}  {'-'.ljust(width)}  claim {claim.name}: {claim.why}"
            continue
        users = f"; used by {', '.join(claim.users)}" if claim.users else "; no Pod uses it now"
        what = f"claim {claim.name} ({claim.app_class.value}): {_cards(claim.grant)}{users}"
        yield f"{name}  {claim.grant.node.ljust(width)}  {what}"


def _cards(grant: Grant) -> str:
    parts = []
    for container in grant.containers:
        shares = []
        for share in container.shares:
            amounts = [memory(share.memory_mib)]
            if share.exclusive:
                amounts.append("whole")
            elif share.core_milli is not None:
                amounts.append(percent(share.core_milli))
            if share.greedy_milli is not None:
                amounts.append(f"greedy {percent(share.greedy_milli)}")
            shares.append(f"GPU {share.card} ({', '.join(amounts)})")
        parts.append(f"{container.name}: {' + '.join(shares)}")
    return "; ".join(parts)
