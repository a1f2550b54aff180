"""A node around a real agent, with a fake kubelet, API server and container runtime.

The agent's own parts are real, and so are its database and folders; the arbiter is a fake, because a real one needs a
driver. A test can kill the agent before any of its writes and create the next one on the same folders. Processes
outlive agents.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from aliquot import dialects
from aliquot.adapters.gpu.mps import Mps
from aliquot.adapters.kubelet import deviceplugin_pb2 as wire
from aliquot.adapters.kubelet.channel import KubeletError
from aliquot.adapters.kubelet.checkpoint import Entry
from aliquot.adapters.kubelet.podresources import Holder
from aliquot.adapters.kubernetes.kube import ApiError, Server, Unreachable
from aliquot.adapters.storage import cdifolder, podstore
from aliquot.adapters.storage.podstore import PodStore
from aliquot.arbiter.timeline import Record
from aliquot.dialects import DEFAULT_RULES, Rules
from aliquot.dialects.wire.admission import env_annotation
from aliquot.dialects.wire.cdi import parse_spec
from aliquot.dialects.wire.objects import NodeObject, PodObject
from aliquot.dialects.wire.otherplugins import GROUP
from aliquot.model.claim import Claim
from aliquot.model.control import CardControl
from aliquot.model.device import Card
from aliquot.model.edits import Edits, Mount, Spec
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node
from aliquot.model.residency import Arrival
from aliquot.model.tenant import Finding, SharingRules, Standing, Tenant
from aliquot.services.agent.devices.plugins import Allocation
from aliquot.services.agent.injection import TENANT, Libraries
from aliquot.services.agent.service import Agent
from aliquot.services.agent.settings import Parts, Settings
from aliquot.services.runtime.groups import Groups
from kit.manifests import QGPU, a_container, a_pod

T = TypeVar("T")
Json = dict[str, Any]

NODE = "n1"
CARDS = tuple(Card(at, 16 * 1024, f"GPU-{at}") for at in range(2))
SHIM = Mount("/host/libaliquot.so", "/usr/local/lib/aliquot/libaliquot.so")


def play(scene: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine to its end."""
    return asyncio.run(asyncio.wait_for(scene, 30))


class Killed(BaseException):
    """The agent was killed here."""


class NotMade(Exception):
    """The runtime cannot make the container."""


@dataclass
class Created:
    """The environment and mounts of a created container."""

    env: dict[str, str]
    mounts: dict[str, str]  # host path by path in the container

    @property
    def tenant(self) -> str:
        """The UID of the Pod whose folder is mounted."""
        return Path(self.mounts[TENANT]).name

    @property
    def cards(self) -> str:
        return self.env["NVIDIA_VISIBLE_DEVICES"]


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
        """Without ordinary init containers, as PodResources."""
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


def containers_of(pod: Json) -> list[tuple[Json, str]]:
    """In the order of their start, with `init`, `sidecar` or `main`."""
    first = [
        (initcontainer, "sidecar" if initcontainer.get("restartPolicy") == "Always" else "init")
        for initcontainer in pod["spec"].get("initContainers", ())
    ]
    return first + [(container, "main") for container in pod["spec"]["containers"]]


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

    def start(self) -> None: ...
    def stop(self) -> None: ...


class AgentNode:
    """The node. `step` gets the name of each write of the agent, before it is done."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, *, cdi: bool | None = True) -> None:
        self.folder, self.patch, self.cdi = folder, patch, cdi
        self.kubelet, self.api = Kubelet(), Api()
        self.processes: set[str] = set()
        self.emitted: list[tuple[str, str, str]] = []  # events: object, reason, text
        self.steps: list[str] = []
        self.kill_at: int | None = None
        self.health = Health(CARDS)
        self.labels, self.rules = QGPU, DEFAULT_RULES  # of the next agent
        self.together = False  # of the next agent
        self.mps: tuple[Path, Mps] | None = None  # of the next agent: the folder of groups, and what starts controls
        self.driver: Callable[[Sequence[str]], Edits] = lambda uuids: Edits({})
        for name in ("cdi", "a", "t"):
            (folder / name).mkdir()
        patch.setattr("aliquot.services.agent.service.Kubelet", self._fake_kubelet)
        patch.setattr("aliquot.services.agent.service.Kube", lambda server, agent: self.api)
        self._watch_writes()
        self.start()

    # --- the agent: started, killed, started again

    def start(self) -> None:
        """Create an agent on these folders that has read nothing yet."""
        self.kill_at = None
        self.arbiter = Arbiter(self.processes, self.step, folder=self.folder / "t")
        self.store = PodStore(self.folder / "state.db", boot="b")
        libraries = Libraries((SHIM,), {}, lambda uuids: self.driver(uuids))
        groups = None if self.mps is None else Groups(*self.mps, self.arbiter)
        parts = Parts(self.store, self.arbiter, self.health, libraries, groups=groups)
        settings = Settings(
            NODE,
            self.folder / "t",
            self.folder / "a",
            cdi=self.cdi,
            cdi_folder=self.folder / "cdi",
            port=0,
            rules=self.rules,
            together=self.together,
        )
        self.agent = Agent(Server("http://nowhere"), settings, parts)
        self.agent.events.emit = self._emitted  # type: ignore[method-assign]  # no API server to send to
        self.agent.pods.relist = self._relisted  # type: ignore[method-assign]  # no watch runs that could be ended
        self.allocator, self.tenants = self.agent.allocator, self.agent.tenants

    def restart(self) -> None:
        """Kill the agent, create another, and wait until it has restored everything."""
        self.store.close()
        self.api.unsent.clear()
        self.start()
        self.tenants.restore()
        self._restore_groups()
        self.sync()
        play(self.agent._restore())
        self.tenants.sweep()

    def _restore_groups(self) -> None:
        async def restore() -> None:
            self.agent.groups.restore()
            self.agent.groups.close()  # what it began is done when this returns; later work is done at once

        play(restore())

    def sync(self) -> None:
        """The agent has read the Node and all Pods."""
        node = {"metadata": {"name": NODE, "uid": "node", "labels": self.labels}}
        self.agent.reporter.changed(msgspec.convert(node, NodeObject))
        self.api.unsent = [{"type": "ADDED", "object": pod} for pod in self.api.pods.values()]
        self.watch()
        self.agent.pods.synced.set()

    def _fake_kubelet(self, folder: Path) -> Kubelet:
        self.kubelet.plugins = folder  # type: ignore[attr-defined]  # where its sockets are: nowhere here
        return self.kubelet

    def _emitted(self, about: Any, reason: str, message: str, *, type: str = "Warning", action: str = "") -> None:
        self.emitted.append((about.name, reason, message))

    async def _relisted(self) -> None:
        if self.api.away:
            await asyncio.Event().wait()
        self.watch()

    def step(self, name: str) -> None:
        if self.kill_at is not None and len(self.steps) >= self.kill_at:
            raise Killed(name)
        self.steps.append(name)

    def _watch_writes(self) -> None:
        for owner, name in (
            (podstore.PodStore, "add"),
            (podstore.PodStore, "remove"),
            (cdifolder.CdiFolder, "write"),
            (cdifolder.CdiFolder, "remove"),
        ):
            done = getattr(owner, name)

            def counted(this: Any, *given: Any, _done: Any = done, _name: str = f"{owner.__name__}.{name}") -> Any:
                self.step(_name)
                return _done(this, *given)

            self.patch.setattr(owner, name, counted)

    # --- the cluster

    def watch(self) -> None:
        """The watch sends the events that are left."""
        while self.api.unsent:
            event = self.api.unsent.pop(0)
            self.agent.pods._handle(self.agent.pods._event.decode(json.dumps(event)))

    def bound(self, pod: Json, *, quietly: bool = False) -> Json:
        """Bind the Pod to the node. `quietly`: the watch lags."""
        self.api.put(pod)
        if not quietly:
            self.watch()
        return pod

    def deleted(self, pod: Json, *, quietly: bool = False) -> None:
        """Delete the Pod from the API server and the kubelet, which ends its processes."""
        self.api.delete(pod)
        self.kubelet.forget(pod["metadata"]["uid"])
        self.processes.discard(pod["metadata"]["uid"])
        if not quietly:
            self.watch()
            self.tenants.sweep()

    def finished(self, pod: Json) -> None:
        self.processes.discard(pod["metadata"]["uid"])
        self.api.put({**pod, "status": {"phase": "Succeeded"}})
        self.kubelet.forget(pod["metadata"]["uid"])
        self.watch()
        self.tenants.sweep()

    # --- the kubelet and the runtime

    def admitted(self, pod: Json) -> Json:
        self.kubelet.admit(pod, self.allocator.allocate)
        return pod

    def started(self, pod: Json, container: str = "main", *, reverse: bool = False) -> Created:
        """Create the container, for the first time or again: PreStartContainer per resource, then the runtime."""
        uid = pod["metadata"]["uid"]
        held = {of: ids for (name, of), ids in self.kubelet.held[uid].items() if name == container}
        for resource in sorted(held, reverse=reverse):
            play(self.allocator.prepare(resource, held[resource]))
        seen = self.made(pod, container)
        self.processes.add(uid)
        return seen

    def made(self, pod: Json, container: str = "main") -> Created:
        """What the runtime makes of what it was told. Raises NotMade."""
        answers = [
            answer for key, answer in self.kubelet.answers.items() if key[:2] == (pod["metadata"]["uid"], container)
        ]
        specs = {spec.name.qualified: spec for spec in self.specs()}
        seen = Created({}, {})
        for name in (name for answer in answers for name in answer.cdi):
            if name not in specs:
                raise NotMade(f"unresolvable CDI devices {name}")
            seen.env.update(specs[name].edits.env)
            seen.mounts.update({mount.container: mount.host for mount in specs[name].edits.mounts})
        for answer in answers:
            seen.env.update(answer.env)
            seen.mounts.update({mount.container: _resolved(mount.host) for mount in answer.mounts})
        return seen

    def run(self, pod: Json) -> dict[str, Created]:
        """Bound, admitted, and all its containers started in turn."""
        self.admitted(self.bound(pod))
        return {spec["name"]: self.started(pod, spec["name"]) for spec, _ in containers_of(pod)}

    # --- what is there

    def specs(self) -> list[Spec]:
        found = [parse_spec(path.read_bytes()) for path in sorted((self.folder / "cdi").glob("*.yaml"))]
        assert None not in found
        return [spec for spec in found if spec is not None]

    def remains(self) -> dict[str, set[str]]:
        """Whatever is left of Pods, by the place where it is."""
        return {
            "database": {tenancy.id for tenancy in self.store.tenancies()},
            "memory": set(self.tenants.tenancies),
            "arbiter": set(self.arbiter.tenants),
            "folders": {path.name for path in (self.folder / "t").iterdir()},
            "specs": {spec.pod_uid for spec in self.specs()},
            "drafts": {path.name for path in (self.folder / "cdi").glob(".*")},
            "links": {path.name for path in (self.folder / "a").iterdir()},
        }


def _resolved(host: str) -> str:
    """A link is followed when the container is made."""
    for path in (Path(host), *Path(host).parents):
        if path.is_symlink():
            return str(path.readlink() / Path(host).relative_to(path))
    return host


# --- Pods -------------------------------------------------------------------------------------------------------------

_uids = itertools.count(1)


def a_qgpu_pod(
    name: str = "train-0",
    *,
    card: int | Mapping[str, int] = 0,
    core: int = 20,
    gib: int = 4,
    containers: Mapping[str, tuple[int, int]] | None = None,
    init: Mapping[str, tuple[int, int]] | None = None,
    sidecars: Mapping[str, tuple[int, int]] | None = None,
    granted: bool = True,
    node: str = NODE,
    by_annotation: bool = False,
) -> Json:
    """A bound Pod; each container asks for percent and GiB of one card, and was given that card."""
    amounts = containers or {"main": (core, gib)}
    first = [_asks(container, *asked) for container, asked in (init or {}).items()]
    first += [{**_asks(container, *asked), "restartPolicy": "Always"} for container, asked in (sidecars or {}).items()]
    pod = a_pod(name, *(_asks(container, *asked) for container, asked in amounts.items()), init=first, on=node)
    pod["metadata"] |= {"uid": f"uid-{next(_uids)}", "namespace": "ml"}
    if granted:
        pod["metadata"]["annotations"] = grant_of(pod, card, node)
    if by_annotation:
        _read_by_annotation(pod, card)
    return pod


def _read_by_annotation(pod: Json, card: int | Mapping[str, int]) -> None:
    """As the webhook leaves its containers, and the binding its annotations."""
    for container, _ in containers_of(pod):
        name = container["name"]
        key = env_annotation(name, "NVIDIA_VISIBLE_DEVICES")
        pod["metadata"]["annotations"][key] = f"GPU-{card if isinstance(card, int) else card[name]}"
        source = {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}
        container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": source}]


def _asks(name: str, core: int, gib: int) -> Json:
    limits = {"tke.cloud.tencent.com/qgpu-memory": gib, "tke.cloud.tencent.com/qgpu-core": core}
    return a_container(name, {key: amount for key, amount in limits.items() if amount})


def grant_of(
    pod: Json, card: int | Mapping[str, int], node: str = NODE, rules: Rules = DEFAULT_RULES
) -> dict[str, str]:
    """The annotation that a scheduler sets which gives each container that card."""
    claim = dialects.PodReader(rules).read(msgspec.convert(pod, PodObject)).claim
    assert isinstance(claim, Claim), claim
    containers = tuple(
        ContainerGrant(
            container.name,
            container.index,
            container.role,
            (
                Share(
                    number := card if isinstance(card, int) else card[container.name],
                    container.slice.memory_on(CARDS[0].memory_mib),
                    container.slice.core_milli,
                    exclusive=container.slice.exclusive,
                    uuid=f"GPU-{number}",
                ),
            ),
        )
        for container in claim.containers
    )
    grant = Grant(claim.uid, node, containers)
    return dialects.render_grant(claim, grant, Node(NODE, CARDS), 0)
