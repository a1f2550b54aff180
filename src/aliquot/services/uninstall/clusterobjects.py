"""Objects of a cluster by their Identity: read, apply and delete them."""

from __future__ import annotations

from collections.abc import Callable

from aliquot.adapters.kubernetes.kube import ApiError, Kube
from aliquot.dialects.wire.ownobjects import Identity, identity
from aliquot.model.decoding.openjson import JsonObject

_FORCE = {"fieldManager": "aliquot-uninstall", "force": "true"}

Report = Callable[[str, str], None]  # shows progress: the step, and how far it is


class UninstallError(Exception):
    """It cannot go on; the message says why and what to do."""


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
