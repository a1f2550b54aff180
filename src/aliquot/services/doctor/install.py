"""Is what was installed there, ready, and all of one release: objects in, findings out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from aliquot.dialects import gpushare, hami, native, qgpu
from aliquot.dialects.wire.objects import NodeObject
from aliquot.dialects.wire.ownobjects import COMPONENT_LABEL, DAEMON_SET, VERSION_LABEL
from aliquot.dialects.wire.workloads import StartedPod, WorkloadObject, not_ready, rollout_status
from aliquot.model.refusal import Invalid
from aliquot.services.doctor.findings import Finding, Level, found, ok

_UPGRADE = "`helm upgrade`, or `kubectl apply` of that release's install.yaml, ends with all of them of one release"
# Programs of other products that give away cards, by what their Pods' names begin with, and whose Pods they serve.
_SCHEDULERS = {
    "gpushare-schd-extender-": gpushare.DIALECT,
    "qgpu-scheduler-": qgpu.DIALECT,
    "hami-scheduler-": hami.DIALECT,
}
_PLUGINS = ("gpushare-device-plugin-", "qgpu-manager-", "hami-device-plugin-")
_MIGRATE = "let one product decide about a card: docs/migration.md"


def installation_findings(
    workloads: Iterable[WorkloadObject | Invalid],
    pods: Iterable[StartedPod],
    nodes: Iterable[NodeObject],
    version: str,
    served: Collection[str],
) -> Iterator[Finding]:
    """`workloads` are the Deployments and DaemonSets with our label; `version` is this program's; `served` are the
    dialects of the scheduler."""
    everyone = list(workloads)
    ours = [
        workload
        for workload in everyone
        if isinstance(workload, WorkloadObject) and workload.label(COMPONENT_LABEL) in ("scheduler", "agent")
    ]
    for broken in everyone:
        if isinstance(broken, Invalid):
            yield found("installation", "a workload of Aliquot", f"cannot be read: {broken.sentence()}", _UPGRADE)
    if not ours:
        return
    theirs = list(pods)
    wrong = [finding for workload in ours for finding in _about(workload, theirs)]
    wrong += _of_one_release(ours)
    wrong += _agents(nodes, _release(ours))
    wrong += _competitors(theirs, served)
    yield from wrong
    if not wrong:
        yield ok("installation", f"{_release(ours)}: {', '.join(map(_count, ours))}")
    if _release(ours) != version:
        what = f"is of release {_release(ours)}, this program of {version}: some findings may not apply"
        yield Finding("installation", Level.NOTE, ("the cluster",), what, _UPGRADE)


def _count(workload: WorkloadObject) -> str:
    status = rollout_status(workload)
    return f"{status.ready} of {status.wanted} {workload.label(COMPONENT_LABEL)}s ready"


def _release(workloads: list[WorkloadObject]) -> str:
    """By the scheduler's label; by another workload's where there is no scheduler."""
    schedulers = (workload for workload in workloads if workload.label(COMPONENT_LABEL) == "scheduler")
    return next(schedulers, workloads[0]).label(VERSION_LABEL) or "unknown"


def _about(workload: WorkloadObject, pods: list[StartedPod]) -> Iterator[Finding]:
    """A workload that is not complete, with the first of its Pods that says why."""
    if rollout_status(workload).complete:
        return
    namespace, name = workload.metadata.namespace, workload.metadata.name
    about = f"{workload.kind} {namespace}/{name}"
    for pod in pods:
        if pod.metadata.namespace != namespace or not pod.metadata.name.startswith(name):
            continue
        why = not_ready(pod)
        if why is not None:
            whose = f"{pod.metadata.name} -n {namespace}"
            fix = f"kubectl describe pod {whose}; kubectl logs {whose} --all-containers"
            yield found("installation", about, f"{_count(workload)}: {pod.metadata.name}: {why}", fix)
            return
    for condition in workload.status.conditions or ():
        if (condition.type, condition.status) == ("ReplicaFailure", "True"):
            fix = "allow it in that namespace: docs/install.md, Clusters with rules of their own"
            yield found("installation", about, f"{_count(workload)}: {condition.message}", fix)
            return
    fix = f"kubectl describe {workload.kind.lower()} {name} -n {namespace}"
    yield found("installation", about, f"{_count(workload)}, and no Pod of it says why", fix)


def _of_one_release(workloads: list[WorkloadObject]) -> Iterator[Finding]:
    images = {}
    for workload in workloads:
        containers = workload.spec.template.spec.containers
        images[workload.metadata.name] = containers[0].image if containers else "without a container"
    if len(set(images.values())) > 1:
        shown = ", ".join(f"{name} {image}" for name, image in sorted(images.items()))
        yield found("installation", "images", f"scheduler and agents are not of one image: {shown}", _UPGRADE)


def _agents(nodes: Iterable[NodeObject], release: str) -> Iterator[Finding]:
    for node in nodes:
        agent = (node.metadata.annotations or {}).get(native.AGENT)
        if agent is None or agent == release:
            continue
        name = node.metadata.name
        if agent == native.AWAY:
            what = "its agent is away, or the kubelet has not accepted its devices: no GPU Pod is sent there"
            fix = (
                "kubectl get pods -A -l app.kubernetes.io/component=agent -o wide; the log of the one on NODE says why"
            )
            yield found("installation", name, what, fix)
        else:
            yield found("installation", name, f"its agent is of release {agent}, the scheduler of {release}", _UPGRADE)


def _competitors(pods: list[StartedPod], served: Collection[str]) -> Iterator[Finding]:
    """Schedulers that decide about the same Pods, and device plugins on nodes with an agent of ours."""
    running = [pod for pod in pods if pod.spec.node_name and not pod.finished]
    with_agent = {pod.spec.node_name for pod in running if pod.metadata.name.startswith(f"{DAEMON_SET}-")}
    for pod in running:
        name, about = pod.metadata.name, f"{pod.metadata.namespace}/{pod.metadata.name}"
        if any(name.startswith(start) and dialect in served for start, dialect in _SCHEDULERS.items()):
            what = "schedules the same Pods as Aliquot: both may give one card away"
            yield found("installation", about, what, f"scale it to 0; {_MIGRATE}")
        elif name.startswith(_PLUGINS) and pod.spec.node_name in with_agent:
            what = f"runs on {pod.spec.node_name} together with Aliquot's agent: both hand out its cards"
            yield found("installation", about, what, f"remove one of them from the node; {_MIGRATE}")
