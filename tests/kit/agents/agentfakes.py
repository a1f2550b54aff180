"""What is around an agent in tests: kubelet, API server, arbiter and health of the cards, without sockets and cards."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from aliquot.adapters.kubelet import deviceplugin_pb2 as wire
from aliquot.adapters.kubelet.channel import KubeletError
from aliquot.adapters.kubelet.checkpoint import Entry
from aliquot.adapters.kubelet.podresources import Holder
from aliquot.adapters.kubernetes.kube import ApiError, Unreachable
from aliquot.arbiter.timeline import Record
from aliquot.dialects.wire.objects import PodObject
from aliquot.dialects.wire.otherplugins import GROUP
from aliquot.model.cardstate.control import CardControl
from aliquot.model.device import Card
from aliquot.model.residency import Arrival
from aliquot.model.tenant import Finding, SharingRules, Standing, Tenant
from aliquot.services.agent.devices.plugins import Allocation
from kit.agents.grantedpods import NODE, Json, containers_of


class Clock:
    """Stands still until a test sets `now`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Kubelet:
    """The device manager of kubelet 1.36: any free ID; later containers of a Pod get its init containers' IDs first."""

    def __init__(self) -> None:
        self.held: dict[str, dict[tuple[str, str], frozenset[str]]] = {}  # by Pod: container, resource
        self.answers: dict[tuple[str, str, str], Allocation] = {}
        self.pods: dict[str, Json] = {}
        self.unreachable = False
        self.private_file = True  # whether its checkpoint can be read
        self.registered: frozenset[str] = frozenset()  # resources of which its checkpoint has devices
        self.on_call: Callable[[], None] = lambda: None  # runs during a PodResources call

    def admit(self, pod: Json, allocate: Callable[[str, frozenset[str]], Allocation]) -> None:
        """Allocate devices to all its containers, before any of them is created."""
        uid = pod["metadata"]["uid"]
        self.pods[uid], held = pod, self.held.setdefault(uid, {})
        reusable: dict[str, set[str]] = {}
        for container, role in containers_of(pod):
            for resource, amount in container["resources"]["limits"].items():
                spare = reusable.setdefault(resource, set())
                ids = sorted(spare)[:amount]
                ids += self._free(resource, amount - len(ids))
                held[container["name"], resource] = chosen = frozenset(ids)
                self.answers[uid, container["name"], resource] = allocate(resource, chosen)
                (spare.update if role == "init" else spare.difference_update)(chosen)

    def _free(self, resource: str, amount: int) -> list[str]:
        taken = {id_ for held in self.held.values() for (_, of), ids in held.items() if of == resource for id_ in ids}
        names = (f"GPU-{card}-_-{at}" for card in range(2) for at in range(100))
        return list(itertools.islice((name for name in names if name not in taken), amount))

    def forget(self, uid: str) -> None:
        self.held.pop(uid, None)
        self.pods.pop(uid, None)

    # --- what the agent reads

    async def holders(self) -> list[Holder]:
        """The holders without ordinary init containers, as PodResources lists them."""
        self.on_call()
        if self.unreachable:
            raise KubeletError("listing PodResources: no answer")
        found = []
        for uid, pod in self.pods.items():
            for container, role in containers_of(pod):
                devices = {of: ids for (name, of), ids in self.held[uid].items() if name == container["name"]}
                if role != "init" and devices:
                    metadata = pod["metadata"]
                    found.append(Holder(metadata["namespace"], metadata["name"], container["name"], devices))
        return found

    def checkpoint(self) -> tuple[Entry, ...] | None:
        if not self.private_file:
            return None
        return tuple(
            Entry(uid, container, resource, ids, _encoded(self.answers.get((uid, container, resource))))
            for uid, held in self.held.items()
            for (container, resource), ids in held.items()
        )

    def device_resources(self) -> frozenset[str]:
        return self.registered

    async def close(self) -> None: ...


def _encoded(answer: Allocation | None) -> str:
    """As the kubelet keeps it; empty if the plugin was killed before it answered."""
    if answer is None:
        return ""
    cdi = [wire.CDIDevice(name=name) for name in answer.cdi]
    kept = wire.ContainerAllocateResponse(envs=answer.env, cdi_devices=cdi)
    return base64.b64encode(kept.SerializeToString()).decode()


class Api:
    """The API server's Pods. `away`: it does not answer. `unsent`: events that the watch has not sent yet."""

    def __init__(self) -> None:
        self.pods: dict[str, Json] = {}  # by namespace/name
        self.unsent: list[Json] = []
        self.away = False
        self.late: Callable[[], None] = lambda: None  # runs after a GET was answered, before the agent has the answer
        self.gets = 0
        self.slices: list[Json] | None = None  # ResourceSlices of the node; None: the cluster serves none
        self._version = itertools.count(100)

    def put(self, pod: Json) -> None:
        self._write("MODIFIED" if _key(pod) in self.pods else "ADDED", pod)
        self.pods[_key(pod)] = pod

    def delete(self, pod: Json) -> None:
        self._write("DELETED", self.pods.pop(_key(pod)))

    def _write(self, kind: str, pod: Json) -> None:
        pod["metadata"]["resourceVersion"] = str(next(self._version))
        self.unsent.append({"type": kind, "object": json.loads(json.dumps(pod))})

    async def get(self, path: str, **given: Any) -> Any:
        self.gets += 1
        if self.away:
            raise Unreachable("connection refused")
        if path.startswith(GROUP) and self.slices is not None:
            if path == GROUP:
                return {"versions": [{"version": "v1alpha3"}, {"version": "v1"}]}
            assert (path, given["params"]) == (f"{GROUP}/v1/resourceslices", {"fieldSelector": f"spec.nodeName={NODE}"})
            return {"items": self.slices}
        namespace, _, name = path.split("/")[-3:]
        pod = self.pods.get(f"{namespace}/{name}")
        if pod is None:
            raise ApiError(404, "NotFound", f'pods "{name}" not found')
        answer = msgspec.convert(json.loads(json.dumps(pod)), PodObject)
        self.late()
        return answer


def _key(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


@dataclass
class Arbiter:
    """Creates and removes folders as the real one does."""

    processes: set[str]  # Pods that have one
    step: Callable[[str], None]
    broken: set[str] = field(default_factory=set)
    tenants: dict[str, Tenant] = field(default_factory=dict)

    def add(self, tenant: Tenant, directory: Path) -> None:
        self.step("arbiter.add")
        if tenant.id in self.broken:
            raise OSError(28, "No space left on device")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "page").touch()
        (directory / "sock").touch()
        self.tenants.setdefault(tenant.id, tenant)

    def change(self, tenant: Tenant) -> None:
        if tenant.id in self.tenants:
            self.tenants[tenant.id] = tenant

    def remove(self, tenant_id: str) -> None:
        self.step("arbiter.remove")
        if self.tenants.pop(tenant_id, None) is not None:
            shutil.rmtree(self.folder / tenant_id, ignore_errors=True)

    def alive(self, tenant_id: str) -> bool:
        return tenant_id in self.tenants and tenant_id in self.processes

    def keep_trace(self, wanted: bool) -> None: ...

    def records(self) -> dict[str, list[Record]]:
        return {}

    folder: Path = Path()

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def configure(self, rules: SharingRules) -> None: ...

    spared: frozenset[str] | None = None

    def spare(self, tenants: frozenset[str]) -> None:
        self.spared = tenants

    def standings(self) -> list[Standing]:
        return []

    arrivals: list[Arrival] = field(default_factory=list)

    def take_arrivals(self) -> list[Arrival]:
        taken, self.arrivals = self.arrivals, []
        return taken

    def findings(self) -> list[Finding]:
        return []

    def controls(self) -> dict[str, CardControl]:
        return {}


@dataclass
class Health:
    cards: tuple[Card, ...]
    why: dict[str, str] = field(default_factory=dict)
    xids: dict[str, int] = field(default_factory=dict)

    def start(self) -> None: ...
    def stop(self) -> None: ...
