"""`aliquot install` and `upgrade`: our objects into a cluster, without Helm.

    look     what is there: its version, our rights, others in the way, an installation of ours
    put      the record first, then RBAC, agents, scheduler; every write says the same when it is said again
    await_   until programs are as they were asked to be; else who is not ready, and why
    back     to what the record says was there before, or to nothing

Killed between any two writes, the same command goes on: what was applied is applied again, and what the record names is
taken back by whoever rolls back or uninstalls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects.wire import deployment as made
from aliquot.dialects.wire import workloads
from aliquot.dialects.wire.deployment import DAEMON_SET, DEPLOYMENT, Identity, Json, Options, Record
from aliquot.model.refusal import Invalid

_LOOK = 1.0  # seconds between two looks at what is awaited
_FORCE = {"fieldManager": made.FIELD_MANAGER, "force": "true"}
_NODES = "/api/v1/nodes"
_PROGRAMS = {DAEMON_SET: ("DaemonSet", "agents"), DEPLOYMENT: ("Deployment", "schedulers")}

# Who gives the same cards away, by the names of their Deployments and DaemonSets, and in which modes of ours.
_OTHERS = {
    "gpushare-schd-extender": "gpushare",
    "gpushare-device-plugin-ds": "gpushare",
    "gpushare-device-plugin-evict-ds": "gpushare",
    "qgpu-manager": "qGPU",
    "qgpu-scheduler": "qGPU",
    "hami-scheduler": "HAMi",
    "hami-device-plugin": "HAMi",
}
# What it takes: verb, group, resource.
_RIGHTS = (
    ("create", "", "namespaces"),
    ("create", "rbac.authorization.k8s.io", "clusterroles"),
    ("create", "apps", "daemonsets"),
    ("create", "apps", "deployments"),
    ("create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("patch", "", "nodes"),
)

Say = Callable[[str, str], None]  # which step, and how far it is


class InstallError(Exception):
    """It cannot be done, or did not come up; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was there before anything was done."""

    version: str  # of Kubernetes
    record: Record | None
    others: tuple[str, ...]  # programs that give the same cards away
    refused: tuple[str, ...]  # rights that we lack
    foreign: tuple[str, ...]  # programs of ours that somebody else installed, and how


def _whose(name: str, program: Json) -> str:
    """The vendors' manifests with only the image changed are ours, and a second installation all the same."""
    ours = any("aliquot" in container.get("image", "") for container in workloads.containers(program))
    who = "aliquot, as a drop-in" if ours else _OTHERS[name]
    return f"{who}: {program['metadata']['namespace']}/{name}"


class Installer:
    """One command's work. `say` hears of each step; `now` tells seconds."""

    def __init__(self, kube: Kube, *, say: Say, now: Callable[[], float]) -> None:
        self._kube, self._say, self._now = kube, say, now

    # --- what is there -------------------------------------------------------------------------------------------

    async def look(self, namespace: str) -> Found:
        """Before anything is written."""
        version, record, others, refused, foreign = await asyncio.gather(
            self._kube.get("/version"),
            self._as_it_stands(namespace),
            self._others(),
            self._lacking(),
            self.foreign(namespace),
        )
        return Found(str(version.get("gitVersion")), record, others, refused, foreign)

    async def record(self, namespace: str) -> Record | None:
        """Of the installation in that namespace. Raises InstallError where it cannot be read."""
        found = await self.get(Identity("v1", "ConfigMap", namespace, made.RECORD))
        if found is None:
            return None
        record = made.parse_record(found)
        if isinstance(record, Invalid):
            raise InstallError(f"{record.sentence()}; a newer `aliquot` may read it")
        return record

    async def _as_it_stands(self, namespace: str) -> Record | None:
        """One that nobody waited for may have come up since."""
        record = await self.record(namespace)
        if record is None or record.settled or not record.applied:
            return record
        stand = [await self._standing(namespace, name) for name in _PROGRAMS]
        return made.seen_to_stand(record) if all(each is not None and each.complete for each in stand) else record

    async def get(self, which: Identity) -> Json | None:
        """The object, None where it is not there."""
        try:
            got: Json = await self._kube.get(which.path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return {"apiVersion": which.api, "kind": which.kind, **got}

    async def items(self, path: str, **params: str) -> list[Json]:
        """All of a list; nothing where the cluster knows no such thing."""
        try:
            got = await self._kube.get(path, params=params, timeout=60.0)
        except ApiError as error:
            if error.status == 404:
                return []
            raise
        return list(got.get("items") or ())

    async def _others(self) -> tuple[str, ...]:
        paths = [(path, name) for name in _OTHERS for path in ("/apis/apps/v1/deployments", "/apis/apps/v1/daemonsets")]
        lists = await asyncio.gather(*(self.items(path, fieldSelector=f"metadata.name={name}") for path, name in paths))
        return tuple(_whose(name, each) for (_, name), found in zip(paths, lists, strict=True) for each in found)

    async def foreign(self, namespace: str) -> tuple[str, ...]:
        """Programs of ours that are in another namespace, or that somebody else installed, with who."""
        lists = await asyncio.gather(
            *(
                self.items(f"/apis/apps/v1/{kind}", labelSelector=made.SELECTOR)
                for kind in ("deployments", "daemonsets")
            )
        )
        found = []
        for each in (each for some in lists for each in some):
            metadata = each["metadata"]
            by = (metadata.get("labels") or {}).get(made.MANAGED_LABEL, "somebody")
            if metadata["name"] not in (DEPLOYMENT, DAEMON_SET):
                continue
            if by != made.MANAGER or metadata["namespace"] != namespace:
                found.append(f"{metadata['namespace']}/{metadata['name']}, by {by}")
        return tuple(found)

    async def _lacking(self) -> tuple[str, ...]:
        async def may(verb: str, group: str, resource: str) -> bool:
            spec = {"resourceAttributes": {"verb": verb, "group": group, "resource": resource}}
            body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
            told = await self._kube.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
            return bool((told.get("status") or {}).get("allowed"))

        answers = await asyncio.gather(*(may(*right) for right in _RIGHTS))
        return tuple(f"{verb} {resource}" for (verb, _, resource), yes in zip(_RIGHTS, answers, strict=True) if not yes)

    async def cluster_scheduler(self) -> str | None:
        """The image of the cluster's own kube-scheduler; None where its Pods are not to be seen."""
        pods = await self.items("/api/v1/namespaces/kube-system/pods", labelSelector="component=kube-scheduler")
        images = [
            container["image"]
            for pod in pods
            for container in pod["spec"]["containers"]
            if "kube-scheduler" in container["image"]
        ]
        return images[0] if images else None

    async def monitoring(self) -> bool:
        """Whether the cluster knows what Prometheus' operator reads."""
        try:
            await self._kube.get("/apis/monitoring.coreos.com/v1")
        except ApiError:
            return False
        return True

    # --- putting it there ----------------------------------------------------------------------------------------

    async def put(
        self, record: Record, objects: Sequence[Json], *, nodes: Iterable[str], until: float | None
    ) -> Record:
        """Everything. Agents have to be there before the scheduler is touched; `until` None: nothing is waited for."""
        namespace = record.options.namespace
        self._say("apply", f"namespace {namespace}")
        first = next(each for each in objects if each["kind"] == "Namespace")
        await self.apply(await self._own_namespace(first))
        lacking = await self.to_label(nodes, record.options.mode)
        ours = {name: {**record.labelled.get(name, {}), **labels} for name, labels in lacking.items()}
        record = replace_struct(record, labelled={**record.labelled, **ours})
        await self.apply(made.render_record(record))
        for name, labels in lacking.items():  # what was labelled before is its owner's to change since
            self._say("apply", f"labels of node {name}")
            await self._label(name, labels)
        for each in objects:
            if each["kind"] == "Namespace":
                continue
            if each["kind"] == "Deployment" and record.before is not None and until is not None:
                await self.await_(namespace, (DAEMON_SET,), until)
            self._say("apply", str(made.identity(each)))
            await self.apply(each)
        if until is None:
            record = replace_struct(record, applied=True)
            await self.apply(made.render_record(record))
        return record

    async def apply(self, obj: Json) -> Json:
        """Server-side, so that saying it twice changes nothing, and what others own stays theirs."""
        path = made.identity(obj).path
        applied: Json = await self._kube.patch(path, obj, form="apply", params=_FORCE, timeout=30.0)
        return applied

    async def difference(self, obj: Json) -> str:
        """What applying it would do: "created", "changed" or "unchanged"."""
        before = await self.get(made.identity(obj))
        if before is None:
            return "created"
        params = {**_FORCE, "dryRun": "All"}
        after: Json = await self._kube.patch(made.identity(obj).path, obj, form="apply", params=params)
        return "unchanged" if _said(before) == _said(after) else "changed"

    async def _own_namespace(self, wanted: Json) -> Json:
        """One that others made stays theirs: only what our Pods need is added, and can be taken away again."""
        found = await self.get(made.identity(wanted))
        if found is None or (found["metadata"].get("labels") or {}).get(made.MANAGED_LABEL) == made.MANAGER:
            return wanted
        labels = {key: value for key, value in wanted["metadata"]["labels"].items() if key.startswith("pod-security")}
        return {**wanted, "metadata": {"name": wanted["metadata"]["name"], "labels": labels}}

    async def to_label(self, nodes: Iterable[str], mode: str) -> dict[str, dict[str, str]]:
        """What each of the nodes lacks; one that is not there is told."""
        wanted, found = made.MODE_LABELS[mode], {}
        for name in nodes:
            node = await self.get(Identity("v1", "Node", "", name))
            if node is None:
                raise InstallError(f"--nodes: there is no node {name}; `kubectl get nodes` names them")
            there = node["metadata"].get("labels") or {}
            lacking = {key: value for key, value in wanted.items() if key not in there}
            if lacking:
                found[name] = lacking
        return found

    async def _label(self, node: str, labels: Mapping[str, str | None]) -> None:
        body = {"metadata": {"labels": labels}}
        try:
            await self._kube.patch(f"{_NODES}/{node}", body, params={"fieldManager": made.FIELD_MANAGER}, into=bytes)
        except ApiError as error:
            if error.status != 404:  # the node is gone, and its labels with it
                raise

    async def settle(self, record: Record) -> None:
        """It stands: what only installations before it had goes, and there is nothing to go back to any more."""
        before = made.record_before(record)
        own = tuple(made.identity(each) for each in made.unpack(record.packed))
        await self.prune({*record.objects, *(before.objects if before else ())} - set(own))
        await self.apply(made.render_record(replace_struct(record, settled=True, before=None, objects=own)))

    async def prune(self, gone: Iterable[Identity]) -> None:
        """Takes objects away; those that are gone already are none the less."""
        for which in gone:
            await self.delete(which)

    async def delete(self, which: Identity, *, propagation: str = "Background") -> bool:
        """False: it was not there."""
        try:
            await self._kube.delete(which.path, params={"propagationPolicy": propagation}, into=bytes)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    # --- waiting -------------------------------------------------------------------------------------------------

    async def await_(self, namespace: str, names: Sequence[str], until: float) -> None:
        """Until those programs are as they were asked to be. Raises InstallError, which says who is not, and why."""
        while True:
            waits = []
            for name in names:
                called, stands = _PROGRAMS[name][1], await self._standing(namespace, name)
                if stands is None or not stands.complete:
                    waits.append(called)
                told = "not known yet" if stands is None else f"{stands.there} of {stands.wanted} ready"
                why = "" if called not in waits else await self._first_trouble(namespace, name)
                self._say("wait", f"{called}: {told}{why}")
            if not waits:
                return
            if self._now() >= until:
                troubles = await self.troubles(namespace)
                raise InstallError(f"{' and '.join(waits)} did not get ready in time:\n{troubles}")
            await asyncio.sleep(_LOOK)

    async def _standing(self, namespace: str, name: str) -> workloads.Standing | None:
        """None: not known. An API server that is away for a moment is no reason to give up."""
        try:
            found = await self.get(Identity("apps/v1", _PROGRAMS[name][0], namespace, name))
        except Unreachable:
            return None
        return None if found is None else workloads.standing(found)

    async def _pods(self, namespace: str) -> list[Json]:
        try:
            return await self.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector=made.SELECTOR)
        except (ApiError, Unreachable):
            return []

    async def _first_trouble(self, namespace: str, owner: str) -> str:
        for pod in await self._pods(namespace):
            why = workloads.not_ready(pod)
            if why is not None and pod["metadata"]["name"].startswith(owner):
                return f" ({pod['metadata']['name']}: {why})"
        return ""

    async def troubles(self, namespace: str) -> str:
        """Each Pod that is not ready: its state, its last event, the end of its log."""
        lines = []
        for pod in await self._pods(namespace):
            why = workloads.not_ready(pod)
            if why is None:
                continue
            name = pod["metadata"]["name"]
            lines.append(f"  Pod {name}: {why}")
            lines += [f"    event: {event}" for event in await self._events(namespace, name)]
            lines += [f"    log of {log}" for log in await self._logs(namespace, pod)]
        return "\n".join(lines) or f"  no Pod of it is there: kubectl get events -n {namespace}"

    async def _events(self, namespace: str, name: str) -> list[str]:
        try:
            found = await self.items(
                f"/api/v1/namespaces/{namespace}/events", fieldSelector=f"involvedObject.name={name}"
            )
        except (ApiError, Unreachable):
            return []
        warnings = [each for each in found if each.get("type") == "Warning"] or found
        last = sorted(warnings, key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime")))[-1:]
        return [f"{each.get('reason')}: {each.get('message')}" for each in last]

    async def _logs(self, namespace: str, pod: Json) -> list[str]:
        """Of the containers that ran and are not ready; of the time before, where they wait to run again."""
        found = []
        status = pod.get("status") or {}
        for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
            again = bool((each.get("state") or {}).get("waiting"))
            if each.get("ready") or (again and not each.get("restartCount")):
                continue
            params = {"container": each["name"], "tailLines": "5", "previous": "true" if again else "false"}
            path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/log"
            try:
                text: bytes = await self._kube.get(path, params=params, into=bytes)
            except (ApiError, Unreachable):
                continue
            found += [f"{each['name']}: {line}" for line in text.decode(errors="replace").splitlines()]
        return found

    # --- back ----------------------------------------------------------------------------------------------------

    async def back(self, record: Record) -> Record | None:
        """To the installation before; None where there was none, and all of this one is to be taken away."""
        before = made.record_before(record)
        if before is None:
            return None
        objects = made.unpack(before.packed)
        self._say("roll back", f"to {before.version}")
        for each in objects:
            if each["kind"] != "Namespace":
                await self.apply(each)
        await self.prune(set(record.objects) - set(before.objects))
        for name, labels in record.labelled.items():
            new = dict.fromkeys(labels.keys() - before.labelled.get(name, {}).keys())
            if new:
                await self._label(name, new)
        await self.apply(made.render_record(before))
        return before


def _said(obj: Json) -> Json:
    """Without what the API server counts for itself."""
    metadata = {
        key: value
        for key, value in obj["metadata"].items()
        if key not in ("managedFields", "resourceVersion", "generation")
    }
    return {**obj, "metadata": metadata, "status": None}


def replace_struct(record: Record, **more: Any) -> Record:
    """With these fields changed."""
    return msgspec.structs.replace(record, **more)


def options_with(known: Options, given: dict[str, Any]) -> Options:
    """What is not given stays as it was installed."""
    return replace(known, **{key: value for key, value in given.items() if value is not None})
