"""The chart on real nodes: agents whose port is taken, and whether its accounts may do all that they have to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from testbed.cards import QCORE, QMEM
from testbed.cluster import Cluster
from testbed.processes import wait_until
from testbed.programs.shipping import NAMESPACE, install, label, report, uninstall
from testbed.realnodes.nodes import probe


@pytest.fixture
def stranger() -> Iterator[tuple[int, list[str]]]:
    """A program on all addresses of both nodes: its port, and what it was asked. It never says yes."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(503)

    with ThreadingHTTPServer(("0.0.0.0", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1], asked
        server.shutdown()
        thread.join()


def agents(cluster: Cluster) -> list[dict[str, Any]]:
    return [pod for pod in cluster.pods(NAMESPACE) if pod["metadata"]["name"].startswith("aliquot-agent-")]


def answered(cluster: Cluster, pod: dict[str, Any]) -> set[str]:
    """The kinds of probes that the kubelet of a Pod's node had a yes to."""
    message = str(cluster.plane.api("GET", f"/api/v1/nodes/{pod['spec']['nodeName']}/proxy/metrics/probes"))
    lines = [line for line in message.splitlines() if f'pod="{pod["metadata"]["name"]}"' in line]
    return {kind for kind in PROBES for line in lines if f'probe_type="{kind}",result="successful"' in line}


PROBES = {"Liveness", "Readiness"}


def test_agents_whose_port_is_another_programs_are_ready_and_are_not_restarted(
    bare: Cluster, stranger: tuple[int, list[str]]
) -> None:
    port, asked = stranger
    label(bare, "qgpu-device-enable=enable")
    install(bare, "--set", f"agent.port={port}")  # waits until they are ready

    def all_answered() -> bool:
        return all(answered(bare, pod) == PROBES for pod in agents(bare))

    wait_until(all_answered, 40, "the kubelets have heard from both")
    assert [pod["status"]["containerStatuses"][0]["restartCount"] for pod in agents(bare)] == [0, 0]
    for pod in agents(bare):
        name = pod["metadata"]["name"]
        said = bare.kubectl("exec", "-n", NAMESPACE, name, "--", "aliquot", "top", "--once", "-o", "json")
        assert json.loads(said)["agent"]["notes"] == [
            f"another program listens on port {port} (set another with --port)"
        ]
    assert asked == [], "nobody takes it for an agent"
    uninstall(bare)
    label(bare, "qgpu-device-enable-")


def test_service_account_rights_are_sufficient(bare: Cluster) -> None:
    """Pods of all dialects come, wait and are tried again, a node is tainted: no log tells of a right that lacks."""
    label(bare, "qgpu-device-enable=enable", "gpushare=true")
    install(bare)
    bare.apply(probe("q", limits={QCORE: 30, QMEM: 5}), probe("g", limits={"aliyun.com/gpu-mem": 3}))
    report(bare, "q")
    report(bare, "g")
    bare.apply(probe("t", limits={"tensorstack.dev/nvidia-gpu": 1}))  # waits for a node of its kind
    chosen = (
        "sched.tensorstack.dev/accelerator=nvidia-gpu",
        "sched.tensorstack.dev/node-alloc-mode=xgn",
        "aliquot.dev/mix-qgpu-and-whole-cards=true",
    )
    bare.kubectl("label", "node", "n2", *chosen)
    report(bare, "t")
    message = bare.kubectl("get", "pod", "g", "-o", "jsonpath={.metadata.annotations.ALIYUN_COM_GPU_MEM_ASSIGNED}")
    assert message == "true"
    names = bare.kubectl("get", "pods", "-n", NAMESPACE, "-o", "name").split()
    logs = {name: bare.kubectl("logs", "-n", NAMESPACE, name, "--all-containers") for name in names}
    assert len(logs) == 6, "schedulers, agents, and what plays their cards"
    for name, log in logs.items():
        assert [line for line in log.splitlines() if "orbidden" in line or "lacks" in line] == [], name
    bare.kubectl("delete", "pods", "--all")
    uninstall(bare)
    label(bare, "qgpu-device-enable-", "gpushare-")
    bare.kubectl("label", "node", "n2", *(label.partition("=")[0] + "-" for label in chosen))
