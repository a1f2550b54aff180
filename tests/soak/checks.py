"""What must hold all along: no card is given away twice, and each container sees the cards that its Pod was granted."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from soak.churn import SPACE, Workload
from testbed import objects
from testbed.client import Refused
from testbed.cluster import Cluster
from testbed.judges.holdings import GRANT, judge
from testbed.objects import Object
from testbed.programs.shipping import NAMESPACE
from testbed.realnodes.nodes import RealNode

AGENT_PORT, SCHEDULER_PORT = 9479, 12347
STUCK = 120.0  # seconds a Pod may wait, whatever is killed meanwhile
_FOLDERS = ("/run/aliquot/t", "/run/aliquot/a", "/run/cdi")


class Checks:
    """Looks when it is told to, and keeps what was wrong, each thing once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nodes = {node.name: node for node in cluster.nodes}
        self._first_seen: dict[str, float] = {}  # uid of a Pod that waits -> when
        self._looked: set[tuple[str, int]] = set()  # uid, restarts: containers that were looked into
        self.pods: set[str] = set()  # uids of all that ever ran
        self.failed: Counter[str] = Counter()  # why kubelets refused Pods
        self._failed: set[str] = set()
        self.looks = 0
        self.most_at_once = 0
        self.wrong: dict[str, float] = {}  # sentence -> when it was first so

    @property
    def looked_into(self) -> int:
        return len(self._looked)

    def _get(self, path: str) -> list[Object]:
        """Raises OSError if the API server does not answer, or not yet."""
        try:
            found: list[Object] = self._cluster.plane.api("GET", path)["items"]
        except Refused as refusal:
            raise ConnectionError(str(refusal)) from refusal
        return found

    def look(self, at: float) -> None:
        """One look at everything; nothing where the API server is away."""
        with contextlib.suppress(OSError):
            nodes = {node["metadata"]["name"]: node for node in self._get("/api/v1/nodes")}
            pods = self._get(f"/api/v1/namespaces/{SPACE}/pods")
            self.looks += 1
            for sentence in judge(nodes, pods):
                self.wrong.setdefault(f"over-allocated: {sentence}", at)
            for pod in pods:
                self._look_at(pod, at)
            self.most_at_once = max(self.most_at_once, sum(pod["status"].get("phase") == "Running" for pod in pods))

    def _look_at(self, pod: Object, at: float) -> None:
        uid, phase = pod["metadata"]["uid"], pod["status"].get("phase")
        if phase == "Running":
            self.pods.add(uid)
            self._look_into(pod, at)
        if phase == "Pending":
            since = self._first_seen.setdefault(uid, at)
            if at - since > STUCK:
                self.wrong.setdefault(f"stuck: {pod['metadata']['name']} waits for {STUCK:.0f} s: {_why(pod)}", at)
        if phase == "Failed" and uid not in self._failed:
            self._failed.add(uid)
            self.failed[pod["status"].get("reason") or "a container ended with an error"] += 1

    def _look_into(self, pod: Object, at: float) -> None:
        metadata, uid = pod["metadata"], pod["metadata"]["uid"]
        node = self._nodes[pod["spec"]["nodeName"]]
        with contextlib.suppress(OSError):  # its log is gone with it
            for line in node.lines(metadata["name"], "main", namespace=SPACE, uid=uid):
                if line["event"] == "report" and (uid, line["start"]) not in self._looked:
                    self._looked.add((uid, line["start"]))
                    for sentence in differences(pod, line):
                        self.wrong.setdefault(f"inside {metadata['name']} on {node.name}: {sentence}", at)

    def missing(self, wanted: Mapping[str, Workload]) -> list[str]:
        """What is wanted and does not run, a sentence each; raises OSError while the API server is away."""
        pods = self._get(f"/api/v1/namespaces/{SPACE}/pods")
        ready = Counter(pod["metadata"]["labels"]["workload"] for pod in pods if _runs(pod))
        done = {pod["metadata"]["labels"]["workload"] for pod in pods if pod["status"].get("phase") == "Succeeded"}
        found = []
        for workload in wanted.values():
            enough = workload.kind == "Job" and workload.name in done
            if ready[workload.name] < workload.replicas and not enough:
                mine = [pod for pod in pods if pod["metadata"]["labels"]["workload"] == workload.name]
                why = "; ".join(f"{pod['metadata']['name']} {_why(pod)}" for pod in mine) or self._why_no_pod(
                    workload.name
                )
                found.append(f"{workload.name} has {ready[workload.name]} of {workload.replicas}: {why}")
        return found

    def _why_no_pod(self, workload: str) -> str:
        """Why there is no Pod at all."""
        events = objects.events_of(self._cluster.plane, workload, SPACE)
        return f"no Pod: {events[-1][1] if events else 'no event'}"

    def stumbles(self) -> list[str]:
        """Errors of the product's own in the logs of its containers that are still there, each once."""
        found = set()
        for node in self._nodes.values():
            for file in node.path("/var/log/pods").glob(f"{NAMESPACE}_*/*/*.log"):
                with contextlib.suppress(OSError):
                    found |= {f"{file.parent.name}: {error}" for error in _errors(file)}
        return sorted(found)

    # When nothing is wanted any more

    def left(self) -> list[str]:
        """What is still there of Pods that are gone: on the nodes, at the agents, on the schedulers' boards."""
        found = [f"Pod {pod['metadata']['name']}" for pod in self._get(f"/api/v1/namespaces/{SPACE}/pods")]
        for node in self._cluster.nodes:
            found += _left_on(node)
        for pod in self._get(f"/api/v1/namespaces/{NAMESPACE}/pods"):
            if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "scheduler":
                found += _left_on_the_board(pod)
        return found


def _left_on_the_board(scheduler: Object) -> list[str]:
    if "podIP" not in scheduler["status"]:
        return [f"Pod {scheduler['metadata']['name']} is not up yet"]
    answer = ask(scheduler["status"]["podIP"], SCHEDULER_PORT, "/aliquot/status")
    return [
        f"card {card['index']} of {node['name']} is booked, says {scheduler['metadata']['name']}"
        for node in answer["nodes"]
        for card in node["cards"]
        if card["used_memory_mib"]
    ]


def _left_on(node: RealNode) -> list[str]:
    found = [
        f"{folder}/{path.name} on {node.name}"
        for folder in _FOLDERS
        if node.path(folder).exists()
        for path in node.path(folder).iterdir()
    ]
    answer = ask(node.address, AGENT_PORT, "/status")
    return found + [f"tenant {tenant['name']} of {node.name}'s agent" for tenant in answer["tenants"]]


def _errors(file: Path) -> Iterator[str]:
    """A line is TIME STREAM TAG JSON."""
    for line in file.read_text(errors="replace").splitlines():
        if '"level":"error"' in line or '"trace"' in line or "Traceback" in line:
            text = line.split(" ", 3)[-1]
            try:
                entry = json.loads(text)
            except ValueError:
                yield text
                continue
            trace = str(entry.get("trace", "")).strip().splitlines()
            yield " ".join([str(entry.get("message", entry.get("msg", text))), *trace[-1:]])


def ask(address: str, port: int, path: str) -> Any:
    """The decoded answer; OSError where there is none."""
    with urllib.request.urlopen(f"http://{address}:{port}{path}", timeout=5) as response:
        return json.load(response)


def differences(pod: Object, report: Mapping[str, Any]) -> list[str]:
    """Between what the Pod was granted and what its container sees."""
    granted = json.loads(pod["metadata"].get("annotations", {}).get(GRANT, '{"containers": []}'))
    shares = [share for container in granted["containers"] for share in container["cards"]]
    wanted = sorted((share["uuid"], share.get("memory_mib")) for share in shares)
    seen = sorted((card["uuid"], card["total"] >> 20) for card in report["cuda"].get("cards", ()))
    if [uuid for uuid, _ in wanted] != [uuid for uuid, _ in seen]:
        env = report["env"]
        return [f"granted {[uuid for uuid, _ in wanted]}, sees {[uuid for uuid, _ in seen]}, environment {env}"]
    return [
        f"granted {memory} MiB of {uuid}, sees {there}"
        for (uuid, memory), (_, there) in zip(wanted, seen, strict=True)
        if memory and memory != there
    ]


def _runs(pod: Object) -> bool:
    return not pod["metadata"].get("deletionTimestamp") and pod["status"].get("phase") == "Running"


def _why(pod: Object) -> str:
    status = pod["status"]
    waiting = [
        f"{state['waiting'].get('reason')} {state['waiting'].get('message', '')}".strip()
        for state in (container["state"] for container in status.get("containerStatuses", ()))
        if "waiting" in state
    ]
    answer = [
        condition.get("message", "") for condition in status.get("conditions", ()) if condition["status"] == "False"
    ]
    ending = ["is ending"] if pod["metadata"].get("deletionTimestamp") else []
    return ", ".join([str(status.get("phase")), *ending, *waiting, *answer[:1], status.get("reason", "")])[:300]
