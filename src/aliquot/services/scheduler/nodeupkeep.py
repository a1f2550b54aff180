"""Keeps taints, labels and conditions of Nodes in order, as `dialects.upkeep` says.

    observe   remembers a node that came by the watch; nothing is looked at yet, for five thousand come at once
    run       looks at what came. Where something is to change, the node is read afresh, judged again and patched, so
              that neither an old cache nor another writer does harm; what fails is tried again, later each time

Only the leader writes. The others keep the same list and strike off what the leader did, so that one that becomes
leader knows at once what is left. Nothing is kept that a restart would miss.
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
from aliquot.dialects.wire.objects import NodeObject
from aliquot.dialects.wire.upkeep import Told, Upkeep, may_need_upkeep, upkeep
from aliquot.model.refusal import Invalid
from aliquot.services.daemon.events import ObjectRef, Teller, timestamp
from aliquot.services.daemon.pace import Pace, back_off

log = logging.getLogger(__name__)

_AT_ONCE = 50  # nodes looked at before others may run
_FIRST_RETRY, _LAST_RETRY = 1.0, 300.0
_LONGEST_SLEEP = 60.0
_FOLLOWER_SLEEP = 1.0
_SETTLED = 600.0  # seconds without a write after which a node counts as settled
_NODES = "/api/v1/nodes"


@dataclass(slots=True)
class _Todo:
    """A node that something is to be done for."""

    due: float
    failures: int = 0


@dataclass(slots=True)
class _Done:
    """A node that something was done for: when last, and how many times in short order."""

    at: float
    times: int = 1


@dataclass(frozen=True, slots=True)
class _Write:
    """One patch, and the right that it takes."""

    right: str
    path: str
    patch: Mapping[str, Any]
    form: Literal["merge", "strategic"]


class NodeKeeper:
    """See the head of the file. `clock` tells seconds since 1970."""

    def __init__(
        self,
        kube: Kube,
        events: Teller,
        *,
        is_leader: Callable[[], bool],
        clock: Callable[[], float],
        rules: Callable[[], Rules] = Rules,
        per_second: float = 20.0,
        burst: int = 100,
    ) -> None:
        self.writes = 0
        self._kube, self._events = kube, events
        self._is_leader, self._clock = is_leader, clock
        self._rules = rules
        self._pace = Pace(per_second=per_second, burst=burst)
        self._came: dict[str, tuple[NodeObject, tuple[Invalid, ...]]] = {}
        self._todo: dict[str, _Todo] = {}
        self._done: dict[str, _Done] = {}
        self._unhealthy: dict[str, frozenset[int]] = {}
        self._broken: dict[str, tuple[Invalid, ...]] = {}
        self._warned: set[str] = set()
        self._wake = asyncio.Event()

    # --- what is told --------------------------------------------------------------------------------------------

    def observe(self, node: NodeObject, problems: tuple[Invalid, ...] = ()) -> None:
        """A node was added or has changed; with every rule that it breaks, which an event tells."""
        self._came[node.metadata.name] = (node, problems)
        self._wake.set()

    def observe_unhealthy(self, name: str, cards: frozenset[int]) -> None:
        """The cards that the node's ConfigMap takes out; none when it is gone."""
        if self._unhealthy.get(name, frozenset()) == cards:
            return
        if cards:
            self._unhealthy[name] = cards
        else:
            self._unhealthy.pop(name, None)
        self._plan(name)  # to be read afresh: the node itself has not changed, and may not be at hand
        self._wake.set()

    def forget(self, name: str) -> None:
        """The node is gone."""
        for kept in (self._came, self._todo, self._done, self._broken):
            kept.pop(name, None)

    @property
    def behind(self) -> int:
        """Nodes that something is still to be done for."""
        return len(self._todo)

    # --- what is done --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wake.clear()
            pause = await self.step()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):  # not wait_for: it may swallow the cancellation that ends us
                    await self._wake.wait()

    async def step(self) -> float:
        """Look at what came and do what is due; the seconds until there may be more to do."""
        await self._look()
        if not self._is_leader():
            return _FOLLOWER_SLEEP if self._todo else _LONGEST_SLEEP
        for name in [name for name, todo in self._todo.items() if todo.due <= self._clock()]:
            if not self._pace.take(self._clock()):
                return self._pace.wait(self._clock())
            if name in self._todo and self._is_leader():
                await self._attend(name)
        soonest = min((todo.due for todo in self._todo.values()), default=self._clock() + _LONGEST_SLEEP)
        return min(max(0.0, soonest - self._clock()), _LONGEST_SLEEP)

    async def _look(self) -> None:
        seen = 0
        while self._came:
            name, (node, problems) = self._came.popitem()
            self._tell_of(problems, ObjectRef("Node", name, uid=node.metadata.uid))
            if self._needs_something(name, node):
                self._plan(name)
            elif name in self._todo and not self._todo[name].failures:
                del self._todo[name]  # another has done it
            seen += 1
            if seen % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def _plan(self, name: str) -> None:
        """Do it soon. What has failed keeps its time, and what another undoes again and again is not fought over."""
        now, done = self._clock(), self._done.get(name)
        if done is not None and now - done.at > _SETTLED:
            del self._done[name]
            done = None
        due = now if done is None else done.at + back_off(done.times, first=_FIRST_RETRY, longest=_LAST_RETRY)
        self._todo.setdefault(name, _Todo(due=due))

    def _needs_something(self, name: str, node: NodeObject) -> bool:
        meta, status = node.metadata, node.status
        types = ({"type": condition.type} for condition in status.conditions or ())
        may = may_need_upkeep(
            meta.labels or {}, meta.annotations or {}, node.spec.taints or (), types, rules=self._rules()
        )
        return (may or name in self._unhealthy) and self._judge(name, msgspec.to_builtins(node)).needed

    def _judge(self, name: str, node: object) -> Upkeep:
        return upkeep(
            node,
            timestamp(self._clock()),
            rules=self._rules(),
            unhealthy=self._unhealthy.get(name, frozenset()),
        )

    def _tell_of(self, problems: tuple[Invalid, ...], node: ObjectRef) -> None:
        """An event, once, that says which rules the node breaks."""
        if not problems:
            self._broken.pop(node.name, None)
        elif self._broken.get(node.name) != problems and self._is_leader():
            self._broken[node.name] = problems
            self._events.emit(
                node, "InvalidNode", "; ".join(problem.sentence() for problem in problems), type="Warning"
            )

    async def _attend(self, name: str) -> None:
        todo = self._todo[name]
        try:
            done = await self._mend(name)
        except Unreachable as error:
            self._warn("unreachable", f"node {name} could not be looked after: {error}")
            done = False
        if self._todo.get(name) is not todo:  # forgotten meanwhile
            return
        if done:
            del self._todo[name]
            return
        todo.failures += 1
        todo.due = self._clock() + back_off(todo.failures, first=_FIRST_RETRY, longest=_LAST_RETRY)

    async def _mend(self, name: str) -> bool:
        """Read the node and write what it lacks. Whether all is done."""
        path = f"{_NODES}/{name}"
        try:
            node: Any = await self._kube.get(path)
        except ApiError as error:
            return error.status == 404 or self._refused("get nodes", error)
        judged = self._judge(name, node)
        about = ObjectRef("Node", name, uid=node["metadata"].get("uid", ""))
        done = True
        if judged.node is not None:
            done &= await self._write(_Write("patch nodes", path, judged.node, "merge"), about, judged.told_of_node)
        if judged.status is not None:
            write = _Write("patch nodes/status", f"{path}/status", judged.status, "strategic")
            done &= await self._write(write, about, judged.told_of_status)
        return done

    async def _write(self, write: _Write, about: ObjectRef, told: tuple[Told, ...]) -> bool:
        try:
            await self._kube.patch(write.path, write.patch, form=write.form)
        except ApiError as error:
            if error.status == 404:
                return True
            return error.status != 409 and self._refused(write.right, error)
        self.writes += 1
        before = self._done.get(about.name)
        self._done[about.name] = _Done(self._clock(), 1 if before is None else before.times + 1)
        for each in told:
            self._events.emit(about, each.reason, each.message, type=each.type)
        return True

    def _refused(self, right: str, error: ApiError) -> bool:
        """Never done, and told once for each kind."""
        verb, resource = right.split()
        if error.status == 403:
            self._warn(right, f"nodes are not looked after: the role lacks {verb} on {resource}: {error.message}")
        else:
            self._warn(f"{right} {error.status}", f"a node was not looked after: {right}: {error}")
        return False

    def _warn(self, about: str, sentence: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            log.warning(sentence)
