"""Objects of a cluster by their Identity: read, apply and delete them. What installer and uninstaller share."""

from __future__ import annotations

from collections.abc import Callable

from aliquot.adapters.kubernetes.kube import ApiError, Kube
from aliquot.dialects.wire.install.deployment import FIELD_MANAGER, RECORD, Identity, identity
from aliquot.dialects.wire.install.record import Record, parse_record
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.refusal import Invalid

_FORCE = {"fieldManager": FIELD_MANAGER, "force": "true"}

Report = Callable[[str, str], None]  # shows progress: the step, and how far it is


class InstallError(Exception):
    """The installation is not possible, or failed; the message says why and what to do."""


class ClusterObjects:
    """Reads and writes whole objects."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube

    async def get(self, which: Identity) -> JsonObject | None:
        """The object, None if it does not exist."""
        try:
            got: JsonObject = await self.kube.get(which.path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return {"apiVersion": which.api, "kind": which.kind, **got}

    async def items(self, path: str, **params: str) -> list[JsonObject]:
        """The items of a list; none if the cluster does not know the resource."""
        try:
            got = await self.kube.get(path, params=params, timeout=60.0)
        except ApiError as error:
            if error.status == 404:
                return []
            raise
        return list(got.get("items") or ())

    async def apply(self, obj: JsonObject) -> None:
        """Apply server-side: idempotent, and fields of other managers stay theirs."""
        await self.kube.patch(identity(obj).path, obj, form="apply", params=_FORCE, timeout=30.0)

    async def difference(self, obj: JsonObject) -> str:
        """What applying it would do: "created", "changed" or "unchanged"."""
        before = await self.get(identity(obj))
        if before is None:
            return "created"
        params = {**_FORCE, "dryRun": "All"}
        after: JsonObject = await self.kube.patch(identity(obj).path, obj, form="apply", params=params)
        return "unchanged" if _without_counters(before) == _without_counters(after) else "changed"

    async def delete(self, which: Identity, *, grace: int | None = None) -> bool:
        """Delete it. Returns False if it did not exist. `grace` are seconds for a Pod's containers to end."""
        params = {"propagationPolicy": "Background"}
        if grace is not None:
            params["gracePeriodSeconds"] = str(grace)
        try:
            await self.kube.delete(which.path, params=params, into=bytes)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    async def record(self, namespace: str) -> Record | None:
        """The record of the installation in that namespace. Raises InstallError if it cannot be read."""
        found = await self.get(Identity("v1", "ConfigMap", namespace, RECORD))
        if found is None:
            return None
        record = parse_record(found)
        if isinstance(record, Invalid):
            raise InstallError(f"{record.sentence()}; a newer `aliquot` may be able to read it")
        return record


def _without_counters(obj: JsonObject) -> JsonObject:
    """Without the fields that the API server changes by itself."""
    metadata = {
        key: value
        for key, value in obj["metadata"].items()
        if key not in ("managedFields", "resourceVersion", "generation")
    }
    return {**obj, "metadata": metadata, "status": None}
