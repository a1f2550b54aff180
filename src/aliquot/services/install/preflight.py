"""Checks before an installation: the cluster's version, our rights, competing products, an existing installation."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aliquot.adapters.kubernetes.kube import ApiError
from aliquot.dialects.wire import workloads
from aliquot.dialects.wire.install.deployment import DAEMON_SET, DEPLOYMENT, MANAGED_LABEL, MANAGER, SELECTOR
from aliquot.dialects.wire.install.record import Record, settled_record
from aliquot.model.decoding.openjson import JsonObject
from aliquot.services.install.clusterobjects import ClusterObjects
from aliquot.services.install.otherplugins import OtherNode, nodes_of_others
from aliquot.services.install.rollout import PROGRAMS, Rollout

# Products that allocate the same cards, by the names of their Deployments and DaemonSets.
_COMPETITORS = {
    "gpushare-schd-extender": "gpushare",
    "gpushare-device-plugin-ds": "gpushare",
    "gpushare-device-plugin-evict-ds": "gpushare",
    "qgpu-manager": "qGPU",
    "qgpu-scheduler": "qGPU",
    "hami-scheduler": "HAMi",
    "hami-device-plugin": "HAMi",
}
# The permissions an installation needs: verb, group, resource.
_RIGHTS = (
    ("create", "", "namespaces"),
    ("create", "rbac.authorization.k8s.io", "clusterroles"),
    ("create", "apps", "daemonsets"),
    ("create", "apps", "deployments"),
    ("create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("patch", "", "nodes"),
)
_KINDS = ("deployments", "daemonsets")


@dataclass(frozen=True, slots=True)
class Preflight:
    """What is in the cluster before we change anything."""

    version: str  # of Kubernetes
    record: Record | None
    competitors: tuple[str, ...]  # programs that allocate the same cards
    missing_rights: tuple[str, ...]
    others: tuple[OtherNode, ...]  # nodes whose cards another device plugin or DRA driver hands out
    foreign: tuple[str, ...]  # aliquot programs that were installed another way or elsewhere


async def inspect(objects: ClusterObjects, rollout: Rollout) -> Preflight:
    """Read what is there. Writes nothing."""
    version, record, competitors, missing, others, foreign = await asyncio.gather(
        objects.kube.get("/version"),
        _current_record(objects, rollout),
        _competitors(objects),
        _missing_rights(objects),
        nodes_of_others(objects),
        foreign_installations(objects, rollout.namespace),
    )
    return Preflight(str(version.get("gitVersion")), record, competitors, missing, others, foreign)


async def _current_record(objects: ClusterObjects, rollout: Rollout) -> Record | None:
    """The record; an installation with --no-wait may have become ready since it was written."""
    record = await objects.record(rollout.namespace)
    if record is None or record.settled or not record.applied:
        return record
    statuses = [await rollout.status(name) for name in PROGRAMS]
    ready = all(status is not None and status.complete for status in statuses)
    return settled_record(record) if ready else record


async def _competitors(objects: ClusterObjects) -> tuple[str, ...]:
    paths = [(f"/apis/apps/v1/{kind}", name) for name in _COMPETITORS for kind in _KINDS]
    lists = await asyncio.gather(*(objects.items(path, fieldSelector=f"metadata.name={name}") for path, name in paths))
    found = zip(paths, lists, strict=True)
    return tuple(_competitor(name, program) for (_, name), programs in found for program in programs)


def _competitor(name: str, program: JsonObject) -> str:
    """A vendor's manifest with our image is aliquot too, and would be a second installation all the same."""
    ours = any("aliquot" in container.get("image", "") for container in workloads.containers(program))
    product = "aliquot, as a drop-in" if ours else _COMPETITORS[name]
    return f"{product}: {program['metadata']['namespace']}/{name}"


async def foreign_installations(objects: ClusterObjects, namespace: str) -> tuple[str, ...]:
    """Our programs in another namespace, or installed by another tool, with the tool's name."""
    lists = await asyncio.gather(*(objects.items(f"/apis/apps/v1/{kind}", labelSelector=SELECTOR) for kind in _KINDS))
    found = []
    for program in (program for programs in lists for program in programs):
        metadata = program["metadata"]
        tool = (metadata.get("labels") or {}).get(MANAGED_LABEL, "an unknown tool")
        if metadata["name"] not in (DEPLOYMENT, DAEMON_SET):
            continue
        if tool != MANAGER or metadata["namespace"] != namespace:
            found.append(f"{metadata['namespace']}/{metadata['name']}, by {tool}")
    return tuple(found)


async def _missing_rights(objects: ClusterObjects) -> tuple[str, ...]:
    async def allowed(verb: str, group: str, resource: str) -> bool:
        spec = {"resourceAttributes": {"verb": verb, "group": group, "resource": resource}}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
        review = await objects.kube.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        return bool((review.get("status") or {}).get("allowed"))

    answers = await asyncio.gather(*(allowed(*right) for right in _RIGHTS))
    return tuple(f"{verb} {resource}" for (verb, _, resource), yes in zip(_RIGHTS, answers, strict=True) if not yes)


async def kube_scheduler_image(objects: ClusterObjects) -> str | None:
    """The image of the cluster's own kube-scheduler; None if its Pods are not visible."""
    pods = await objects.items("/api/v1/namespaces/kube-system/pods", labelSelector="component=kube-scheduler")
    images = (container["image"] for pod in pods for container in pod["spec"]["containers"])
    return next((image for image in images if "kube-scheduler" in image), None)


async def has_prometheus_operator(objects: ClusterObjects) -> bool:
    """Whether the cluster knows the resources of the Prometheus operator."""
    try:
        await objects.kube.get("/apis/monitoring.coreos.com/v1")
    except ApiError:
        return False
    return True
