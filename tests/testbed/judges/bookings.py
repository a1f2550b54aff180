"""What a takeover is judged by: who runs as before, and what is booked by gpushare's annotations, tool and extender."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed import objects
from testbed.build import binaries
from testbed.others import gpushare
from testbed.plane import ControlPlane
from testbed.realnodes.nodes import RealNode


def all_run(plane: ControlPlane, names: Sequence[str]) -> bool:
    pods = {pod["metadata"]["name"]: pod for pod in objects.list_pods(plane, "default")}
    return all(name in pods and pods[name]["status"].get("phase") == "Running" for name in names)


def not_running(plane: ControlPlane) -> list[Any]:
    pods = objects.list_pods(plane, "default")
    return [pod["status"] for pod in pods if pod["status"].get("phase") != "Running"]


def processes(node: RealNode) -> dict[int, str]:
    """The node's containers' processes, by pid and when each began."""
    return {
        pid: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        for pid, command in node.contained()
        if command.startswith("/probe")
    }


def restarts(plane: ControlPlane, name: str) -> int:
    statuses = objects.get_pod(plane, name)["status"]["containerStatuses"]
    return sum(int(status["restartCount"]) for status in statuses)


def booked(inspected: dict[str, Any]) -> dict[str, dict[int, int]]:
    """The bookings by node and card, whatever else the status has."""
    return {node["name"]: {card["id"]: card["usedGPU"] for card in node["devs"]} for node in inspected["nodes"]}


def by_card(inspected: dict[str, Any]) -> dict[tuple[str, int], int]:
    return {(node, card): used for node, cards in booked(inspected).items() for card, used in cards.items()}


def table(plane: ControlPlane) -> str:
    """`kubectl inspect gpushare`, which reads the API server alone."""
    path = f"{binaries()['kubectl'].parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", "from aliquot.cli.cluster.kubectl_inspect import main; main()"],
        env={**os.environ, "KUBECONFIG": str(plane.kubeconfig), "PATH": path},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def overbooked(plane: ControlPlane) -> list[str]:
    """The overbooked cards by gpushare's annotations alone, which both write."""
    pods = objects.list_pods(plane)
    return [
        f"card {card} of {node}: {used} GiB"
        for node in ("n1", "n2")
        for card, used in gpushare.placed(pods, node).items()
        if used > 16
    ]
