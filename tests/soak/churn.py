"""What is wanted of the cluster: workloads of all dialects that come, grow, shrink, are rolled anew, and go.

All Pods have a controller, which makes them anew when a kubelet refuses one. No Pod wants more than two fifths of a
card and all of them together no more than half of the cards: whatever the order, there is always room for the next.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kit.values.manifests import APP_CLASS, COUNT, MEM, QGPU_CORE, QGPU_GREEDY, QGPU_MEMORY, T9K_PERCENT
from soak.holding import Holdable
from testbed import objects
from testbed.client import MERGE_PATCH, Refused
from testbed.plane import ControlPlane

T = TypeVar("T")

SPACE = "soak"
MOST_PODS = 16
HALF = 0.5  # of the cards, at most
_CORES = (5, 10, 25, 40)  # per cent of a card
_JOBS = f"/apis/batch/v1/namespaces/{SPACE}/jobs"
_PATHS = {
    "Deployment": f"/apis/apps/v1/namespaces/{SPACE}/deployments",
    "StatefulSet": f"/apis/apps/v1/namespaces/{SPACE}/statefulsets",
    "Job": _JOBS,
}
_GONE = {"propagationPolicy": "Background"}


@dataclass(frozen=True, slots=True)
class Shape:
    """What one Pod asks for."""

    limits: Mapping[str, int]
    annotations: Mapping[str, str]
    weight: float  # cards


@dataclass(frozen=True, slots=True)
class Workload:
    kind: str
    name: str
    shape: Shape
    replicas: int
    until: float  # when it goes
    words: tuple[str, ...]  # what its containers do

    @property
    def weight(self) -> float:
        return self.replicas * self.shape.weight

    @property
    def path(self) -> str:
        return f"{_PATHS[self.kind]}/{self.name}"


def insist(do: Callable[[], T], *, seconds: float = 90.0) -> T | None:
    """Until it is done; None where it was done already. API servers and webhooks come back."""
    end = time.monotonic() + seconds
    while True:
        try:
            return do()
        except Refused as refusal:
            if refusal.status in (404, 409):
                return None
            if (refusal.status < 500 and refusal.status != 429) or time.monotonic() > end:
                raise
        except OSError:
            if time.monotonic() > end:
                raise
        time.sleep(0.3)


def shapes(card_gib: int) -> dict[str, list[Shape]]:
    """The Pods that come, by dialect: some fifty kinds, of up to two fifths of a card.

    Not of any size: the scheduler remembers what each kind of Pod asks for, thousands of them. With ever new ones its
    memory would grow all along though nothing leaks.
    """
    most = card_gib * 2 // 5
    sizes = sorted({1, most // 3, most * 2 // 3, most} - {0})
    both = [(gib, core) for gib in sizes for core in _CORES]
    return {
        "qgpu": [Shape({QGPU_MEMORY: gib, QGPU_CORE: core}, {}, max(gib / card_gib, core / 100)) for gib, core in both],
        "online": [Shape({QGPU_MEMORY: gib}, {APP_CLASS: "online"}, gib / card_gib) for gib in sizes],
        "offline": [
            Shape({QGPU_MEMORY: gib, QGPU_GREEDY: core}, {APP_CLASS: "offline"}, max(gib / card_gib, core / 100))
            for gib, core in both
        ],
        "gpushare": [Shape({MEM: gib}, {}, gib / card_gib) for gib in sizes],
        "two cards": [Shape({MEM: 2 * gib}, {COUNT: "2"}, 2 * gib / card_gib) for gib in range(1, card_gib // 4 + 1)],
        "t9k": [Shape({T9K_PERCENT: core}, {}, core / 100) for core in _CORES],
    }


class Churn(Holdable):
    """Keeps the cluster about half full of workloads that change all the time, until it is stopped."""

    def __init__(self, plane: ControlPlane, *, seed: int, cards: int, card_gib: int) -> None:
        super().__init__("churn")
        self._plane, self._rng = plane, random.Random(f"churn {seed}")
        self._most = HALF * cards
        self._shapes = shapes(card_gib)
        self._count = 0
        self.wanted: dict[str, Workload] = {}  # changes, unless it is held
        self.did: Counter[str] = Counter()

    def remove_all(self) -> None:
        with self._lock:
            for workload in list(self.wanted.values()):
                self._remove(workload)

    def pause(self) -> float:
        return self._rng.uniform(0.3, 1.2)

    def step(self) -> None:
        now = time.monotonic()
        for workload in list(self.wanted.values()):
            if workload.until < now:
                self._remove(workload)
        living = [workload for workload in self.wanted.values() if workload.kind != "Job"]
        if living and self._rng.random() < 0.25:
            workload = self._rng.choice(living)
            self._rng.choice((self._scale, self._roll, self._delete_pod))(workload)
            return
        self._add(now)

    def _room(self, weight: float, pods: int) -> bool:
        """Twice what runs may be there for a moment, while Pods end; so the half is of what is wanted."""
        used = sum(workload.weight for workload in self.wanted.values())
        return (
            used + weight <= self._most
            and sum(workload.replicas for workload in self.wanted.values()) + pods <= MOST_PODS
        )

    def _add(self, now: float) -> None:
        rng = self._rng
        kind = rng.choice(tuple(_PATHS))
        replicas = 1 if kind == "Job" else rng.choice((1, 1, 2, 3))
        dialect = rng.choice(tuple(self._shapes))
        shape = rng.choice(self._shapes[dialect])
        self._count += 1
        made = Workload(
            kind,
            f"{kind[0].lower()}{self._count}",
            shape,
            replicas,
            now + rng.uniform(6, 45),
            _words(rng, job=kind == "Job"),
        )
        if self._room(made.weight, replicas):
            insist(lambda: self._plane.api("POST", _PATHS[kind], manifest(made)))
            self.wanted[made.name] = made
            self.did["workloads made"] += 1
            self.did[f"Pods wanted, {dialect}"] += replicas

    def _remove(self, workload: Workload) -> None:
        insist(lambda: self._plane.api("DELETE", workload.path, _GONE))
        del self.wanted[workload.name]
        self.did["workloads removed"] += 1

    def _scale(self, workload: Workload) -> None:
        now = replace(workload, replicas=self._rng.choice((1, 2, 3)))
        if now.replicas > workload.replicas and not self._room(
            now.weight - workload.weight, now.replicas - workload.replicas
        ):
            return
        self._patch(workload, {"spec": {"replicas": now.replicas}})
        self.wanted[workload.name] = now
        self.did["scaled"] += 1

    def _roll(self, workload: Workload) -> None:
        template = {"metadata": {"annotations": {"rolled": str(self._rng.random())}}}
        self._patch(workload, {"spec": {"template": template}})
        self.did["rolled anew"] += 1

    def _delete_pod(self, workload: Workload) -> None:
        params = {"labelSelector": f"workload={workload.name}"}
        pods = insist(lambda: self._plane.api("GET", f"/api/v1/namespaces/{SPACE}/pods", params=params))
        if pods and pods["items"]:
            name = self._rng.choice([item["metadata"]["name"] for item in pods["items"]])
            insist(lambda: self._plane.api("DELETE", f"/api/v1/namespaces/{SPACE}/pods/{name}"))
            self.did["Pods deleted by hand"] += 1

    def _patch(self, workload: Workload, body: Mapping[str, Any]) -> None:
        insist(lambda: self._plane.api("PATCH", workload.path, body, content_type=MERGE_PATCH))


def _words(rng: random.Random, *, job: bool) -> tuple[str, ...]:
    """For the probe: some use the card, some end and are started again."""
    work = rng.choice(((), ("alloc", "200MiB"), ("work", "20", "5"), ("alloc", "100MiB", "work", "10", "5")))
    if job:
        return (*work, "sleep", str(rng.randrange(2, 9)), "exit", "0")
    if rng.random() < 0.3:
        return (*work, "sleep", str(rng.randrange(4, 12)), "exit", str(rng.choice((0, 1))))
    return work


def manifest(workload: Workload) -> dict[str, Any]:
    """As its user would write it: no schedulerName, the webhook sets it."""
    labels = {"workload": workload.name, "soak": "yes"}
    main = objects.container("main", workload.shape.limits, args=list(workload.words))
    spec = {"containers": [main], "terminationGracePeriodSeconds": 2}
    template = {"metadata": {"labels": labels, "annotations": dict(workload.shape.annotations)}, "spec": spec}
    metadata = {"name": workload.name, "namespace": SPACE, "labels": labels}
    if workload.kind == "Job":
        spec["restartPolicy"] = "Never"
        body = {"backoffLimit": 1000, "template": template}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": body}
    body = {"replicas": workload.replicas, "selector": {"matchLabels": labels}, "template": template}
    if workload.kind == "StatefulSet":
        body |= {"serviceName": workload.name, "podManagementPolicy": "Parallel"}
    else:
        body["strategy"] = {"type": "Recreate"}  # else a roll would want room for twice as many
    return {"apiVersion": "apps/v1", "kind": workload.kind, "metadata": metadata, "spec": body}
