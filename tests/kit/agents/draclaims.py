"""ResourceClaims as kube-scheduler leaves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aliquot.dialects.dra import DRIVER
from aliquot.dialects.dra.slices import device_name
from aliquot.model.device import Card

Json = dict[str, Any]


def a_result(card: Card, memory_mib: int | None, core: int = 0, *, request: str = "gpu", node: str = "n1") -> Json:
    """One device of a claim; None: the cluster does not share devices."""
    result: Json = {"request": request, "driver": DRIVER, "pool": node, "device": device_name(card.uuid)}
    if memory_mib is not None:
        result["consumedCapacity"] = {"memory": f"{memory_mib}Mi", "core": str(core)}
        result["shareID"] = "00000000-0000-4000-8000-000000000000"
    return result


def a_config(parameters: Any, *, source: str = "FromClaim", requests: Sequence[str] = ()) -> Json:
    """One entry of an allocation's configuration."""
    return {"source": source, "requests": list(requests), "opaque": {"driver": DRIVER, "parameters": parameters}}


def parameters(**fields: Any) -> Json:
    """The parameters of a ClaimConfig; `class_` for class."""
    named = {name.rstrip("_"): value for name, value in fields.items()}
    return {"apiVersion": "aliquot.dev/v1", "kind": "ClaimConfig", **named}


def a_claim(
    *results: Json,
    config: Sequence[Json] = (),
    name: str = "claim",
    uid: str = "claim-uid",
    namespace: str = "ml",
    pods: Mapping[str, str] | None = None,
) -> Json:
    """An allocated claim; `pods` are those that it is reserved for: names by UID."""
    reserved = [{"resource": "pods", "name": pod, "uid": of} for of, pod in (pods or {}).items()]
    devices = {"results": list(results), "config": list(config)}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
        "status": {"allocation": {"devices": devices}, "reservedFor": reserved},
    }


def a_waiting_claim(name: str, *requests: Json, namespace: str = "ml", config: Sequence[Json] = ()) -> Json:
    """A claim that kube-scheduler has not allocated yet."""
    spec = {"devices": {"requests": list(requests), "config": list(config)}}
    return {"metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"}, "spec": spec}


def a_request(device_class: str = "aliquot.dev", name: str = "gpu", **fields: Any) -> Json:
    """A request of a claim for one share; `memory` and `core`: its capacity."""
    capacity = {key: fields.pop(key) for key in ("memory", "core") if key in fields}
    exactly = {"deviceClassName": device_class, **({"capacity": {"requests": capacity}} if capacity else {}), **fields}
    return {"name": name, "exactly": exactly}
