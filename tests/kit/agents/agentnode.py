"""A node around a real agent, with a fake kubelet, API server and container runtime.

The agent's own parts are real, and so are its database and folders; the arbiter is a fake, because a real one needs a
driver. A test can kill the agent before any of its writes and create the next one on the same folders. Processes
outlive agents.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from aliquot.adapters.gpu.mps import Mps
from aliquot.adapters.kubernetes.kube import Server
from aliquot.adapters.storage import cdifolder, podstore
from aliquot.adapters.storage.podstore import PodStore
from aliquot.dialects import DEFAULT_RULES
from aliquot.dialects.wire.cdi import parse_spec
from aliquot.dialects.wire.objects import NodeObject
from aliquot.model.containers.edits import Edits, Mount, Spec
from aliquot.services.agent.injection import TENANT, Libraries
from aliquot.services.agent.service import Agent
from aliquot.services.agent.settings import Parts, Settings
from aliquot.services.runtime.together.groups import Groups
from kit.agents.agentfakes import Api, Arbiter, Health, Kubelet
from kit.agents.grantedpods import CARDS, NODE, Json, containers_of
from kit.values.manifests import QGPU

T = TypeVar("T")

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
            self.agent.groups.start()
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
        """The container that the runtime makes of the answer. Raises NotMade."""
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
        """Everything that is left of Pods, by the place where it is."""
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
