"""`aliquot install` and `upgrade`: apply our objects to a cluster without Helm.

    apply_all   the record first, then RBAC, agents, scheduler; every write is idempotent
    settle      the installation is ready: delete what only earlier ones had
    roll_back   to the installation before, as the record has it

Killed between two writes, the same command resumes: it applies everything again, and a rollback or an uninstallation
removes everything that the record names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from aliquot.adapters.kubernetes.kube import ApiError
from aliquot.dialects import hami
from aliquot.dialects.wire.install.deployment import (
    DAEMON_SET,
    FIELD_MANAGER,
    MANAGED_LABEL,
    MANAGER,
    MODE_LABELS,
    Identity,
    OptionChanges,
    Options,
    identity,
)
from aliquot.dialects.wire.install.record import (
    Record,
    previous_record,
    render_record,
    render_replaced,
    replaced_labels,
    unpack,
)
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import NodeObject
from aliquot.dialects.wire.otherplugins import may_serve_nvidia_gpu
from aliquot.model.decoding.openjson import JsonObject
from aliquot.services.install.clusterobjects import ClusterObjects, InstallError, Report
from aliquot.services.install.otherplugins import taken_by_other
from aliquot.services.install.rollout import Rollout


class Installer:
    """Installs, upgrades and rolls back."""

    def __init__(self, objects: ClusterObjects, rollout: Rollout, *, report: Report) -> None:
        self.objects, self.rollout, self._report = objects, rollout, report

    async def apply_all(
        self, record: Record, objects: Sequence[JsonObject], *, nodes: Iterable[str], until: float | None
    ) -> Record:
        """Apply everything. An upgrade waits for the agents before it changes the scheduler, unless `until` is None."""
        namespace = next(obj for obj in objects if obj["kind"] == "Namespace")
        self._report("apply", f"namespace {record.options.namespace}")
        await self.objects.apply(await self.own_part(namespace))
        missing = await self.missing_labels(nodes, record.options.mode)
        ours = {name: {**record.labelled.get(name, {}), **labels} for name, labels in missing.items()}
        record = msgspec.structs.replace(record, labelled={**record.labelled, **ours})
        await self.objects.apply(render_record(record))
        for name, labels in missing.items():  # a label that we set before is its owner's to change
            self._report("apply", f"labels of node {name}")
            await self._label(name, labels)
        for obj in objects:
            if obj["kind"] == "Namespace":
                continue
            if obj["kind"] == "Deployment" and record.before is not None and until is not None:
                await self.rollout.wait((DAEMON_SET,), until)
            self._report("apply", str(identity(obj)))
            await self.objects.apply(obj)
        if until is None:
            record = msgspec.structs.replace(record, applied=True)
            await self.objects.apply(render_record(record))
        return record

    async def own_part(self, namespace: JsonObject) -> JsonObject:
        """An existing namespace stays its owner's: add only what our Pods need, which we can remove again, and note
        the owner's values that this replaces."""
        found = await self.objects.get(identity(namespace))
        if found is None or (found["metadata"].get("labels") or {}).get(MANAGED_LABEL) == MANAGER:
            return namespace
        metadata = namespace["metadata"]
        labels = {key: value for key, value in metadata["labels"].items() if key.startswith("pod-security")}
        present = found["metadata"].get("labels") or {}
        earlier = {key: (theirs, labels.get(key, ours)) for key, (theirs, ours) in replaced_labels(found).items()}
        replaced = {key: (present[key], value) for key, value in labels.items() if present.get(key, value) != value}
        note = render_replaced({**earlier, **replaced})
        return {**namespace, "metadata": {"name": metadata["name"], "labels": labels, **note}}

    async def missing_labels(self, nodes: Iterable[str], mode: str) -> dict[str, dict[str, str]]:
        """The labels of the mode that each node lacks. Raises InstallError if a node does not exist, or if the label
        would make nvidia.com/gpu ours while another plugin serves it."""
        missing = {}
        for name in nodes:
            node = await self.objects.get(Identity("v1", "Node", "", name))
            if node is None:
                raise InstallError(f"--nodes: there is no node {name}; `kubectl get nodes` lists them")
            present = node["metadata"].get("labels") or {}
            lacking = {key: value for key, value in MODE_LABELS[mode].items() if key not in present}
            read = read_object(node, NodeObject, "node")
            if hami.LABEL in lacking and not (isinstance(read, NodeObject) and may_serve_nvidia_gpu(read)):
                raise InstallError(f"--nodes: {taken_by_other(name)}")
            if lacking:
                missing[name] = lacking
        return missing

    async def _label(self, node: str, labels: Mapping[str, str | None]) -> None:
        path, body = Identity("v1", "Node", "", node).path, {"metadata": {"labels": labels}}
        try:
            await self.objects.kube.patch(path, body, params={"fieldManager": FIELD_MANAGER}, into=bytes)
        except ApiError as error:
            if error.status != 404:  # the node is gone, and its labels with it
                raise

    async def settle(self, record: Record) -> None:
        """The installation is ready: delete what only earlier ones had; there is nothing to roll back to any more."""
        before = previous_record(record)
        own = tuple(identity(obj) for obj in unpack(record.packed))
        await self._delete({*record.objects, *(before.objects if before else ())} - set(own))
        settled = msgspec.structs.replace(record, settled=True, before=None, objects=own)
        await self.objects.apply(render_record(settled))

    async def roll_back(self, record: Record) -> Record | None:
        """To the installation before; None if there was none, and all of this one has to be removed."""
        before = previous_record(record)
        if before is None:
            return None
        self._report("roll back", f"to {before.version}")
        for obj in unpack(before.packed):
            if obj["kind"] != "Namespace":
                await self.objects.apply(obj)
        await self._delete(set(record.objects) - set(before.objects))
        for name, labels in record.labelled.items():
            new = dict.fromkeys(labels.keys() - before.labelled.get(name, {}).keys())
            if new:
                await self._label(name, new)
        await self.objects.apply(render_record(before))
        return before

    async def _delete(self, objects: Iterable[Identity]) -> None:
        for which in objects:
            await self.objects.delete(which)


def options_with(known: Options, given: OptionChanges) -> Options:
    """The options with those that are given; None keeps the installed value."""
    changes: Any = {key: value for key, value in given.items() if value is not None}
    return replace(known, **changes)
