"""What goes wrong: programs of the cluster and of the product are killed with -9, in an order that a seed decides.

By their pids. Those that a machine's own supervisor would start again are started again here.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from soak.holding import Holdable
from testbed.client import Refused
from testbed.cluster import Cluster
from testbed.programs.shipping import NAMESPACE
from testbed.realnodes.nodes import RealNode

SCHEDULER, KUBE_SCHEDULER, AGENT = "aliquot scheduler", "kube-scheduler --config", "aliquot agent"


@dataclass(frozen=True, slots=True)
class Fault:
    at: float
    kind: str
    target: str


def running(node: RealNode, program: str) -> list[int]:
    """The processes on a node, in containers, whose command line has these words."""
    return [pid for pid, command in node.contained() if program in command]


class Faults(Holdable):
    """One at a time, `every` so many seconds on average, until it is stopped; each kind as often as the others."""

    def __init__(self, cluster: Cluster, *, seed: int, every: float, clock: Callable[[], float]) -> None:
        super().__init__("faults")
        self._cluster, self._rng, self._every, self._clock = cluster, random.Random(f"faults {seed}"), every, clock
        self.spared: set[int] = set()  # processes that are not killed for now
        self.happened: list[Fault] = []
        self._deck: list[str] = []  # the kinds still to come of this round
        self._kinds: dict[str, Callable[[], str]] = {
            "scheduler killed": lambda: self._kill(SCHEDULER),
            "kube-scheduler killed": lambda: self._kill(KUBE_SCHEDULER),
            "agent killed": lambda: self._kill(AGENT),
            "kubelet killed": self._kubelet,
            "containerd killed": self._containerd,
            "API server killed": self._apiserver,
            "scheduler's Pod deleted": lambda: self._delete_pod("scheduler"),
            "agent's Pod deleted": lambda: self._delete_pod("agent"),
        }

    @property
    def counted(self) -> Counter[str]:
        return Counter(dict.fromkeys(self._kinds, 0)) + Counter(fault.kind for fault in self.happened)

    def pause(self) -> float:
        return self._rng.uniform(0.4, 1.6) * self._every

    def step(self) -> None:
        """Whatever is killed is up again when this returns."""
        self._deck = self._deck or self._rng.sample(tuple(self._kinds), len(self._kinds))
        kind = self._deck.pop()
        at = self._clock()
        target = self._kinds[kind]()
        if target:
            self.happened.append(Fault(at, kind, target))

    def _kill(self, program: str) -> str:
        found = [(node.name, pid) for node in self._cluster.nodes for pid in running(node, program)]
        found = [process for process in found if process[1] not in self.spared]
        if not found:
            return ""
        name, pid = self._rng.choice(found)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return f"{name}: {program}"

    def _kubelet(self) -> str:
        node = self._rng.choice(self._cluster.nodes)
        node.stop_kubelet(kill=True)
        time.sleep(self._rng.uniform(0.1, 2.0))
        node.start_kubelet()
        return node.name

    def _containerd(self) -> str:
        node = self._rng.choice(self._cluster.nodes)
        node.stop_containerd(kill=True)
        time.sleep(self._rng.uniform(0.1, 1.0))
        node.start_containerd()
        return node.name

    def _apiserver(self) -> str:
        self._cluster.plane.stop_apiserver(kill=True)
        time.sleep(self._rng.uniform(0.1, 3.0))
        self._cluster.plane.start_apiserver()
        return "the only one"

    def _delete_pod(self, component: str) -> str:
        """As a drain does it, but with no patience."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        params = {"labelSelector": f"app.kubernetes.io/component={component}"}
        with contextlib.suppress(OSError, Refused):
            pods = self._cluster.plane.api("GET", path, params=params)["items"]
            spared = [pod for pod in pods if not self._is_spared(pod["metadata"]["uid"])]
            if spared:
                name = self._rng.choice(spared)["metadata"]["name"]
                self._cluster.plane.api("DELETE", f"{path}/{name}", {"gracePeriodSeconds": self._rng.choice((0, 5))})
                return str(name)
        return ""

    def _is_spared(self, uid: str) -> bool:
        for pid in self.spared:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cgroup") as file:
                if uid in file.read():
                    return True
        return False
