"""All of the product on real nodes: scheduler, webhook where wanted, and an agent on each node."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed import objects
from testbed.judges import holdings
from testbed.plane import ControlPlane
from testbed.programs.agents import CARDS, AliquotAgent
from testbed.programs.wired import Wired
from testbed.realnodes.nodes import RealNode, remove_pods

QGPU = {"qgpu-device-enable": "enable"}
MIXED = {**QGPU, "mixed-qgpu-enable": "enable"}
GPUSHARE = {"gpushare": "true"}
_T9K = "sched.tensorstack.dev"
EXCLUSIVE = {f"{_T9K}/accelerator": "nvidia-gpu", f"{_T9K}/node-alloc-mode": "xgn"}
SHARED = {f"{_T9K}/accelerator": "nvidia-gpu", f"{_T9K}/node-alloc-mode": "sgn"}
POLICY = "tke.cloud.tencent.com/qgpu-schedule-policy"
HAMI = {"aliquot.dev/serve-nvidia-gpu": "true"}
KAI = {"aliquot.dev/serve-kai": "true"}
DRA = {"aliquot.dev/dra": "true"}
OVERSUBSCRIBE = "aliquot.dev/oversubscribe"
ALL_LABELS = {*MIXED, *GPUSHARE, *EXCLUSIVE, *HAMI, *KAI, *DRA, POLICY, OVERSUBSCRIBE}


class Fleet:
    """Two nodes with four simulated cards each, unless told otherwise; labelled for qGPU with mixing and gpushare."""

    def __init__(
        self,
        plane: ControlPlane,
        nodes: Sequence[RealNode],
        folder: Path,
        *,
        cards: str = CARDS,
        labels: Mapping[str, str] | None = None,
        dialect: str | None = None,
        scheduler: Sequence[str] = (),
        of_agents: Sequence[str] = (),
    ) -> None:
        """`scheduler` and `of_agents` are more options of theirs."""
        self.plane, self.nodes = plane, tuple(nodes)
        served = () if dialect is None else (f"--dialects={dialect.replace('+', ',')}",)
        self.wired = Wired(plane, folder, *served, *scheduler, dialect=dialect or "all")
        self.agents: dict[str, AliquotAgent] = {}
        try:
            for node in self.nodes:
                self.label(node.name, labels or {**MIXED, **GPUSHARE})
                self.agents[node.name] = AliquotAgent(node, *served, *of_agents, cards=cards, wait=False)
            for agent in self.agents.values():
                agent.wait_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for agent in self.agents.values():
            agent.stop()
            agent.node.call([sys.executable, "-m", "aliquot", "down"])  # the cards outlive the agent, as real ones do
        self.wired.stop()

    def heal(self) -> None:
        """As at the start: a test may have failed in the middle of something."""
        if not self.wired.ours.running:
            self.wired.restart_ours()
        for node in self.nodes:
            node.heal()
            self.label(node.name, {**MIXED, **GPUSHARE})
        for agent in self.agents.values():
            if not agent.program.running:
                agent.start(wait=False)
        for agent in self.agents.values():
            agent.wait_ready()

    def label(self, node: str, labels: Mapping[str, str]) -> None:
        """These labels of ours and no others."""
        self.wired.label_node(node, {key: labels.get(key) for key in ALL_LABELS})

    def tidy(self) -> None:
        """No Pod is left, nor anything of one on the nodes."""
        remove_pods(self.plane, self.nodes)
        for agent in self.agents.values():
            agent.until_empty()

    # What a test does

    def create(self, *things: dict[str, Any]) -> list[dict[str, Any]]:
        return objects.create(self.plane, *things)

    def node_of(self, pod: str, *, namespace: str = "default") -> RealNode | None:
        """The node of the Pod; None: it has none yet."""
        name = objects.get_pod(self.plane, pod, namespace)["spec"].get("nodeName")
        return next((node for node in self.nodes if node.name == name), None)

    def report(self, pod: str, container: str | None = None, **more: Any) -> dict[str, Any]:
        """What the probe in the Pod saw, wherever it runs."""
        return self.line(pod, "report", container, **more)

    def line(
        self, pod: str, event: str, container: str | None = None, *, seconds: float = 120.0, namespace: str = "default"
    ) -> dict[str, Any]:
        """The last of its lines with that event, once there is one."""
        objects.wait_bound(self.plane, pod, namespace=namespace, seconds=seconds)
        node = self.node_of(pod, namespace=namespace)
        assert node is not None
        return node.line(pod, event, container, seconds=seconds, namespace=namespace)

    def ask(
        self, pod: str, *words: str, container: str | None = None, namespace: str = "default"
    ) -> list[dict[str, Any]]:
        """What a second probe, run in the container by kubectl, writes when it is told this; its report comes first."""
        where = ["-n", namespace, pod, *([] if container is None else ["-c", container])]
        printed = self.plane.kubectl("exec", *where, "--", "/probe", *words, "exit", "0")
        return [json.loads(line) for line in printed.splitlines()]

    def stumbles(self) -> list[str]:
        """Errors in the agents' logs that are their own."""
        return [line for agent in self.agents.values() for line in agent.stumbles()]

    def overbooked(self) -> list[str]:
        """Cards given away twice, says the API server alone."""
        return holdings.overbooked(self.plane)
