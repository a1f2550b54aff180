"""An agent's status, without an agent or a node."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from aliquot.dialects.wire.advertising import Token
from aliquot.model.claim import AppClass
from aliquot.model.device import Card
from aliquot.model.grant import Share
from aliquot.model.status.dashboard import Node
from aliquot.model.status.machine import AgentStatus, DaemonStatus, Status
from aliquot.model.status.reading import CardReading
from aliquot.model.tenancy import Tenancy
from aliquot.model.tenant import Finding, FindingKind, Level, SharingRules, Standing, State
from aliquot.services.agent.api.control import AgentControl
from aliquot.services.agent.api.status import NodeState, resource_statuses, status
from aliquot.services.daemon.calls import Calls
from aliquot.services.daemon.loopdelay import LoopDelay
from aliquot.services.runtime.usage.billing import Billing
from aliquot.services.runtime.usage.report import usage_families

CARDS = (Card(0, 16384, "GPU-a", "A30"), Card(1, 16384, "GPU-b", "A30", healthy=False))
TRAIN = Tenancy("u1", "ml", "train-0", AppClass.OFFLINE, (Share(0, 4096, 300, uuid="GPU-a"),), 1000.0)
SERVE = Tenancy("u2", "web", "serve", AppClass.ONLINE, (Share(0, 8192, 500, uuid="GPU-a"),), 1040.0)
RUNS_ON_A = Standing("u1", "GPU-a", State.PAUSED, Level.HARDWARE, 0.25, 5 << 20, 4096 << 20, (41, 42), 3, 1.5, 2)
STRANGER = Finding("GPU-a", 77, FindingKind.STRANGER, "uses the card without being a tenant: it belongs to no Pod")
RESOURCE = "tke.cloud.tencent.com/qgpu-core"


def a_scene(**other: Any) -> NodeState:
    """Two Pods on one of two cards, the other of which is out; `other` replaces fields."""
    scene: dict[str, Any] = {
        "rules": SharingRules(),
        "cards": CARDS,
        "why": {"GPU-b": "Xid 79: it has fallen off the bus"},
        "xids": {"GPU-b": 79},
        "seen": {"GPU-a": CardReading(6 << 20, 0.5)},
        "tenancies": [TRAIN, SERVE],
        "ended": frozenset(),
        "standings": [RUNS_ON_A],
        "findings": [STRANGER],
    }
    return NodeState(**{**scene, **other})


@dataclass(slots=True)
class FakeAgent:
    """What the control socket and HTTP ask of an agent."""

    waits_for: str | None = None
    scene: NodeState = field(default_factory=a_scene)
    offered: Mapping[str, tuple[Token, ...]] = field(default_factory=lambda: {RESOURCE: (Token("GPU-a-_-0", True, 0),)})
    registered: frozenset[str] = frozenset({RESOURCE})
    delay: LoopDelay = field(default_factory=LoopDelay)
    calls: Calls = field(default_factory=lambda: Calls(lambda: "now", ("allocate", "prestart")))
    billing: Billing | None = None
    about: DaemonStatus = field(default_factory=lambda: DaemonStatus(pid=5, node="n1", simulated=None))

    otherwise: dict[str, Any] = field(default_factory=dict)  # fields of its status to replace

    def ready(self) -> str | None:
        return self.waits_for

    def status(self) -> Status:
        agent = AgentStatus(
            waits_for=self.waits_for,
            resources=resource_statuses(self.offered, self.registered),
            kubelet_restarts=2,
            calls=self.calls.status(),
        )
        found = status(self.scene, 1060.0, self.about, agent)
        return msgspec.structs.replace(found, **self.otherwise)

    def families(self, status: Status) -> list[Any]:
        return list(usage_families({}, ()))

    def live(self) -> Node:
        return Node("n1", [], "best-effort", 0.1)


class RunningControl:
    """The control socket in a thread with its own loop: its clients block."""

    def __init__(self, path: str, agent: FakeAgent | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._control = AgentControl(agent or FakeAgent(), path)
        self._thread = threading.Thread(target=self._serve)
        self._stands = threading.Event()

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        self.task = asyncio.create_task(self._control.run())
        await asyncio.sleep(0)  # it listens before it first waits
        await asyncio.sleep(0)
        self._stands.set()
        await asyncio.gather(self.task, return_exceptions=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._stands.wait(5)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self.task.cancel)
        self._thread.join(5)
