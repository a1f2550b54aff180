"""Is what was installed there, ready, and all of one release: objects in, findings out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aliquot.dialects import native
from aliquot.dialects.wire.install.deployment import COMPONENT_LABEL, VERSION_LABEL
from aliquot.dialects.wire.workloads import not_ready, rollout_status
from aliquot.services.doctor.findings import Finding, Json, Level, found, ok, part

_UPGRADE = "`aliquot upgrade`, or `helm upgrade`, ends with all of them of one release"


def installation_findings(
    workloads: Iterable[Json], pods: Iterable[Json], nodes: Iterable[Json], version: str
) -> Iterator[Finding]:
    """`workloads` are the Deployments and DaemonSets with our label; `version` is this program's."""
    ours = [
        workload
        for workload in workloads
        if part(workload, "metadata", "labels", COMPONENT_LABEL) in ("scheduler", "agent")
    ]
    if not ours:
        return
    everyone = list(pods)
    wrong = [finding for workload in ours for finding in _about(workload, everyone)]
    wrong += _of_one_release(ours)
    wrong += _agents(nodes, _release(ours))
    yield from wrong
    if not wrong:
        yield ok("installation", f"{_release(ours)}: {', '.join(map(_count, ours))}")
    if _release(ours) != version:
        what = f"is of release {_release(ours)}, this program of {version}: some findings may not apply"
        yield Finding("installation", Level.NOTE, ("the cluster",), what, _UPGRADE)


def _count(workload: Json) -> str:
    status = rollout_status(workload)
    return f"{status.ready} of {status.wanted} {part(workload, 'metadata', 'labels', COMPONENT_LABEL)}s ready"


def _release(workloads: list[Json]) -> str:
    """By the scheduler's label; by another workload's where there is no scheduler."""
    labels = [part(workload, "metadata", "labels") for workload in workloads]
    chosen = next((label for label in labels if label.get(COMPONENT_LABEL) == "scheduler"), labels[0])
    return str(chosen.get(VERSION_LABEL, "unknown"))


def _about(workload: Json, pods: list[Json]) -> Iterator[Finding]:
    """A workload that is not complete, with the first of its Pods that says why."""
    if rollout_status(workload).complete:
        return
    metadata = workload["metadata"]
    name = f"{workload['kind']} {metadata['namespace']}/{metadata['name']}"
    for pod in pods:
        theirs = part(pod, "metadata", "namespace") == metadata["namespace"]
        if not theirs or not str(part(pod, "metadata", "name")).startswith(metadata["name"]):
            continue
        why = not_ready(pod)
        if why is not None:
            whose = f"{part(pod, 'metadata', 'name')} -n {metadata['namespace']}"
            fix = f"kubectl describe pod {whose}; kubectl logs {whose} --all-containers"
            yield found("installation", name, f"{_count(workload)}: {part(pod, 'metadata', 'name')}: {why}", fix)
            return
    conditions = part(workload, "status", "conditions") or []
    refused = [one for one in conditions if (one.get("type"), one.get("status")) == ("ReplicaFailure", "True")]
    if refused:
        fix = "allow it in that namespace: docs/install.md, Clusters with rules of their own"
        yield found("installation", name, f"{_count(workload)}: {refused[0].get('message')}", fix)
        return
    fix = f"kubectl describe {workload['kind'].lower()} {metadata['name']} -n {metadata['namespace']}"
    yield found("installation", name, f"{_count(workload)}, and no Pod of it says why", fix)


def _of_one_release(workloads: list[Json]) -> Iterator[Finding]:
    images = {}
    for workload in workloads:
        containers = part(workload, "spec", "template", "spec", "containers") or [{}]
        images[workload["metadata"]["name"]] = str(containers[0].get("image"))
    if len(set(images.values())) > 1:
        shown = ", ".join(f"{name} {image}" for name, image in sorted(images.items()))
        yield found("installation", "images", f"scheduler and agents are not of one image: {shown}", _UPGRADE)


def _agents(nodes: Iterable[Json], release: str) -> Iterator[Finding]:
    for node in nodes:
        agent = part(node, "metadata", "annotations", native.AGENT)
        if agent is None or agent == release:
            continue
        name = str(part(node, "metadata", "name"))
        if agent == native.AWAY:
            what = "its agent is away, or the kubelet has not accepted its devices: no GPU Pod is sent there"
            fix = (
                "kubectl get pods -A -l app.kubernetes.io/component=agent -o wide; the log of the one on NODE says why"
            )
            yield found("installation", name, what, fix)
        else:
            yield found("installation", name, f"its agent is of release {agent}, the scheduler of {release}", _UPGRADE)
