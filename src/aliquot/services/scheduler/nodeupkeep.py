"""Controller for the taints, labels and conditions of Nodes that `dialects.wire.upkeep` specifies.

    observe   queues a node from the watch without examining it, because 5,000 nodes arrive at once
    run       examines the queue. If a node has to change, it is read again, examined again and patched, so that neither
              a stale cache nor another writer does harm; failures are retried with back-off, and a change that another
              writer keeps undoing is repeated ever later

Only the leader writes. Followers keep the same list and remove what the leader did, so that a new leader knows at once
what is left. A restart loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects import Rules
from aliquot.dialects.nodereading import qgpu_bars_whole_cards
from aliquot.dialects.wire.objects import NodeObject
from aliquot.dialects.wire.upkeep import NodeEvent, Upkeep, may_need_upkeep, upkeep
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.numbers.backoff import backoff
from aliquot.model.refusal import Invalid
from aliquot.services.daemon.events import EventSink, ObjectRef, timestamp
from aliquot.services.daemon.pace import Pace

log = logging.getLogger(__name__)

_BATCH = 50  # nodes examined before other tasks may run
_FIRST_RETRY, _LAST_RETRY = 1.0, 300.0
_LONGEST_SLEEP = 60.0
_FOLLOWER_SLEEP = 1.0
_SETTLED = 600.0  # seconds without a write after which a node counts as stable
_NODES = "/api/v1/nodes"
_STATUS = ("status",)  # a kind of write


@dataclass(slots=True)
class _Todo:
    """A node that needs a write."""

    due: float
    failures: int = 0


@dataclass(frozen=True, slots=True)
class _Written:
    """The last write of a node: when, what it did (_kind), and how many times in a short period."""

    at: float
    kind: tuple[str, ...]
    times: int = 1


@dataclass(frozen=True, slots=True)
class _Write:
    """One patch, and the permission it needs."""

    right: str
    path: str
    patch: JsonView
    form: Literal["merge", "strategic"]


class NodeUpkeep:
    """The controller. `clock` returns seconds since 1970."""

    def __init__(
        self,
        kube: Kube,
        events: EventSink,
        *,
        is_leader: Callable[[], bool],
        clock: Callable[[], float],
        rules: Callable[[], Rules] = Rules,
        drivers: Callable[[str, Mapping[str, str] | None], tuple[str, ...]] = lambda name, labels: (),
        per_second: float = 20.0,
        burst: int = 100,
    ) -> None:
        self.writes = 0
        self._kube, self._events = kube, events
        self._is_leader, self._clock = is_leader, clock
        self._rules, self._drivers = rules, drivers
        self._pace = Pace(per_second=per_second, burst=burst)
        self._came: dict[str, tuple[NodeObject, tuple[Invalid, ...]]] = {}
        self._todo: dict[str, _Todo] = {}
        self._done: dict[str, _Written] = {}
        self._unhealthy: dict[str, frozenset[int]] = {}
        self._broken: dict[str, tuple[Invalid, ...]] = {}
        self._warned: set[str] = set()
        self._wake = asyncio.Event()

    # --- input ---------------------------------------------------------------------------------------------------

    def observe(self, node: NodeObject, problems: tuple[Invalid, ...] = ()) -> None:
        """A node was added or has changed; `problems` are reported in an event."""
        self._came[node.metadata.name] = (node, problems)
        self._wake.set()

    def observe_unhealthy(self, name: str, cards: frozenset[int]) -> None:
        """The cards that the node's ConfigMap takes out of use; none after it was deleted."""
        if self._unhealthy.get(name, frozenset()) == cards:
            return
        if cards:
            self._unhealthy[name] = cards
        else:
            self._unhealthy.pop(name, None)
        self._plan(name, _STATUS)  # to be read again: the node itself has not changed
        self._wake.set()

    def forget(self, name: str) -> None:
        """The node was deleted."""
        for nodes in (self._came, self._todo, self._done, self._broken):
            nodes.pop(name, None)

    @property
    def behind(self) -> int:
        """How many nodes still need a write."""
        return len(self._todo)

    # --- work ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._wake.clear()
            pause = await self.step()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):  # not wait_for: it may swallow our cancellation
                    await self._wake.wait()

    async def step(self) -> float:
        """Examine the queue and write what is due. Returns the seconds until the next step."""
        await self._examine()
        if not self._is_leader():
            return _FOLLOWER_SLEEP if self._todo else _LONGEST_SLEEP
        for name in [name for name, todo in self._todo.items() if todo.due <= self._clock()]:
            if not self._pace.take(self._clock()):
                return self._pace.wait(self._clock())
            if name in self._todo and self._is_leader():
                await self._process(name)
        soonest = min((todo.due for todo in self._todo.values()), default=self._clock() + _LONGEST_SLEEP)
        return min(max(0.0, soonest - self._clock()), _LONGEST_SLEEP)

    async def _examine(self) -> None:
        seen = 0
        while self._came:
            name, (node, problems) = self._came.popitem()
            self._report(problems, ObjectRef("Node", name, uid=node.metadata.uid))
            kind = self._needed(name, node)
            if kind is not None:
                self._plan(name, kind)
            elif name in self._todo and not self._todo[name].failures:
                del self._todo[name]  # another writer has done it
            seen += 1
            if seen % _BATCH == 0:
                await asyncio.sleep(0)

    def _plan(self, name: str, kind: tuple[str, ...]) -> None:
        """Schedule a write. A failed node keeps its due time. If others keep undoing the same write it is backed off; a
        node whose owner changes its labels again and again is not."""
        now, done = self._clock(), self._done.get(name)
        if done is not None and now - done.at > _SETTLED:
            del self._done[name]
            done = None
        again = done is not None and done.kind == kind
        due = done.at + backoff(done.times, first=_FIRST_RETRY, longest=_LAST_RETRY) if done and again else now
        todo = self._todo.setdefault(name, _Todo(due=due))
        if not todo.failures:
            todo.due = min(todo.due, due)

    def _needed(self, name: str, node: NodeObject) -> tuple[str, ...] | None:
        """The kind of write that the node needs; None: it needs none."""
        meta, status = node.metadata, node.status
        types = ({"type": condition.type} for condition in status.conditions or ())
        suspect = may_need_upkeep(
            meta.labels or {}, meta.annotations or {}, node.spec.taints or (), types, rules=self._rules()
        )
        if not suspect and name not in self._unhealthy:
            return None
        judged = self._judge(name, msgspec.to_builtins(node))
        # Only the managedFields say whether qGPU's label is ours, and a watch does not decode them.
        unclear = qgpu_bars_whole_cards(meta.labels or {}, self._rules().served)
        return _kind(judged) if judged.needed or unclear else None

    def _judge(self, name: str, node: JsonObject) -> Upkeep:
        return upkeep(
            node,
            timestamp(self._clock()),
            rules=self._rules(),
            unhealthy=self._unhealthy.get(name, frozenset()),
            drivers=self._drivers(name, node["metadata"].get("labels")),
        )

    def _report(self, problems: tuple[Invalid, ...], node: ObjectRef) -> None:
        """Emit one event about the rules that the node violates."""
        if not problems:
            self._broken.pop(node.name, None)
        elif self._broken.get(node.name) != problems and self._is_leader():
            self._broken[node.name] = problems
            self._events.emit(
                node, "InvalidNode", "; ".join(problem.sentence() for problem in problems), type="Warning"
            )

    async def _process(self, name: str) -> None:
        todo = self._todo[name]
        try:
            done = await self._repair(name)
        except Unreachable as error:
            self._warn("unreachable", name, str(error))
            done = False
        if self._todo.get(name) is not todo:  # deleted meanwhile
            return
        if done:
            del self._todo[name]
            return
        todo.failures += 1
        todo.due = self._clock() + backoff(todo.failures, first=_FIRST_RETRY, longest=_LAST_RETRY)

    async def _repair(self, name: str) -> bool:
        """Read the node and write what it lacks. Returns whether everything is done."""
        path = f"{_NODES}/{name}"
        try:
            node: Any = await self._kube.get(path)
        except ApiError as error:
            return error.status == 404 or self._refused("get nodes", name, error)
        judged = self._judge(name, node)
        about = ObjectRef("Node", name, uid=node["metadata"].get("uid", ""))
        done, before = True, self.writes
        if judged.node is not None:
            done &= await self._write(_Write("patch nodes", path, judged.node, "merge"), about, judged.node_events)
        if judged.status is not None:
            write = _Write("patch nodes/status", f"{path}/status", judged.status, "strategic")
            done &= await self._write(write, about, judged.status_events)
        if self.writes > before:
            kind, last = _kind(judged), self._done.get(name)
            times = last.times + 1 if last is not None and last.kind == kind else 1
            self._done[name] = _Written(self._clock(), kind, times)
        return done

    async def _write(self, write: _Write, about: ObjectRef, events: tuple[NodeEvent, ...]) -> bool:
        try:
            await self._kube.patch(write.path, write.patch, form=write.form)
        except ApiError as error:
            if error.status == 404:
                return True
            return error.status != 409 and self._refused(write.right, about.name, error)
        self.writes += 1
        for event in events:
            self._events.emit(about, event.reason, event.message, type=event.type)
        return True

    def _refused(self, right: str, name: str, error: ApiError) -> bool:
        """Log the failure, once per kind. Returns False: the write is not done."""
        verb, resource = right.split()
        if error.status == 403:
            self._warn(right, name, f"the role lacks {verb} on {resource}: {error.message}")
        else:
            self._warn(f"{right} {error.status}", name, f"{right}: {error}")
        return False

    def _warn(self, kind: str, name: str, why: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("node_upkeep_failed", extra={"data": {"node": name, "why": why}})


def _kind(judged: Upkeep) -> tuple[str, ...]:
    """What a write does: adds the taint, removes it, ... A condition that goes back and forth counts as one kind: each
    write of it says little, and a card that fails now and then would cause many."""
    return (*(event.reason for event in judged.node_events), *(_STATUS if judged.status is not None else ()))
