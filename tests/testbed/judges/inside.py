"""What containers saw of their cards, held against what their Pods were granted; and what is left of those that went.

No line of the product decides here, but for the reader of the kubelet's PodResources.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aliquot.adapters.kubelet.podresources import Holder, PodResources
from testbed import objects
from testbed.judges import holdings
from testbed.objects import Object
from testbed.processes import wait_until
from testbed.programs.fleet import Fleet
from testbed.realnodes.nodes import RealNode

MIB = 1 << 20
DATABASE = "/var/lib/aliquot/state.db"


def granted(pod: Object) -> dict[str, list[str]]:
    """The UUIDs of the cards that each container was given, by the Pod's annotation."""
    said = json.loads(pod["metadata"]["annotations"][holdings.GRANT])
    return {container["name"]: [card["uuid"] for card in container["cards"]] for container in said["containers"]}


def wrong_in(pod: Object, container: str, report: Mapping[str, Any]) -> str | None:
    """What the container should not have seen; None: its own cards, of the size its Pod has of them, and the shim."""
    name = f"{pod['metadata']['name']}/{container}"
    wanted = granted(pod)[container]
    seen = [card["uuid"] for card in (report["cuda"] or {}).get("cards", ())]
    if sorted(seen) != sorted(wanted):
        return f"{name} sees {seen}, and was given {wanted}"
    if not (report["shim_loaded"] and report["socket_there"] and report["page_writable"]):
        return f"{name} is beyond control"
    numbers = {card["uuid"]: card["index"] for container in _containers(pod) for card in container["cards"]}
    sizes = {uuid: holdings.held(pod)[number]["memory_mib"] * MIB for uuid, number in numbers.items()}
    for card in report["cuda"]["cards"]:
        if card["total"] != sizes[card["uuid"]]:
            return f"{name} sees {card['total']} bytes of {card['uuid']}, and its Pod has {sizes[card['uuid']]}"
    return None


def wrong_cards(fleet: Fleet, names: Iterable[str]) -> list[str]:
    """Of each container of these Pods that was given a card: what is not right in its report; in sentences."""
    found = []
    pods = {pod["metadata"]["name"]: pod for pod in objects.list_pods(fleet.plane, "default")}
    nodes = {node.name: node for node in fleet.nodes}
    for pod in (pods[name] for name in names):
        node = nodes[pod["spec"]["nodeName"]]
        for container in granted(pod):
            wrong = wrong_in(pod, container, _report_of_now(node, pod, container))
            found += [wrong] if wrong else []
    return found


def _report_of_now(node: RealNode, pod: Object, container: str) -> dict[str, Any]:
    """What the container said since it was last started: not one before it, nor of a Pod that had the name before."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    statuses = [*pod["status"].get("containerStatuses", []), *pod["status"].get("initContainerStatuses", [])]
    start = next((int(status["restartCount"]) for status in statuses if status["name"] == container), 0)

    def fresh() -> dict[str, Any] | None:
        lines = node.lines(name, container, namespace=pod["metadata"]["namespace"], uid=uid)
        return next((line for line in reversed(lines) if line["event"] == "report" and line["start"] >= start), None)

    report = wait_until(fresh, 20, f"a report of {name}/{container}, started again {start} times", every=0.05)
    assert report is not None
    return report


def denied(pod: Object) -> bool:
    """Whether the kubelet turned the Pod away for good since no device plugin was there. Its owner makes another."""
    return bool(pod["status"].get("reason") == "UnexpectedAdmissionError")


def wait_running(fleet: Fleet, names: Sequence[str], seconds: float = 60.0) -> None:
    """All of them run, says the API server; the error tells who does not, and what was told of the first."""
    left: list[str] = []

    def all_run() -> bool:
        phases = {p["metadata"]["name"]: _runs(p) for p in objects.list_pods(fleet.plane, "default")}
        left[:] = [name for name in names if not phases.get(name)]
        return not left

    def saw() -> object:
        return {"do not run": left, "events": objects.events_of(fleet.plane, left[0]) if left else []}

    wait_until(all_run, seconds, f"{len(names)} Pods run", saw=saw, every=0.2)


def _runs(pod: Object) -> bool:
    statuses = pod["status"].get("containerStatuses", [])
    return pod["status"]["phase"] == "Running" and all("running" in status["state"] for status in statuses)


def restarts(fleet: Fleet, name: str) -> int:
    """How often containers of the Pod were started again."""
    statuses = objects.get_pod(fleet.plane, name)["status"].get("containerStatuses", [])
    return sum(int(status["restartCount"]) for status in statuses)


def wait_restarted(fleet: Fleet, name: str, before: int, seconds: float = 30.0) -> None:
    """Its containers were started more often than so, and run."""

    def again() -> bool:
        return restarts(fleet, name) > before and _runs(objects.get_pod(fleet.plane, name))

    wait_until(again, seconds, f"{name} was started again", saw=lambda: objects.events_of(fleet.plane, name))


def end_container(node: RealNode, pod: str, *, uid: str | None = None) -> None:
    """What runs in its containers is killed; the kubelet starts them again. `uid`: the API server need not be asked."""
    uid = uid or objects.get_pod(node.plane, pod)["metadata"]["uid"]
    for pid, command in node.contained():
        with contextlib.suppress(OSError):
            if f"/pod{uid}/" in Path(f"/proc/{pid}/cgroup").read_text() and command.startswith("/probe"):
                os.kill(pid, signal.SIGKILL)


# What the nodes offer


def allocatable(node: RealNode, resource: str) -> int:
    """How much of it Pods may use there, says the kubelet by the API server."""
    return int(objects.get_node(node.plane, node.name)["status"]["allocatable"].get(resource, 0))


def wait_offered(
    fleet: Fleet, amounts: Mapping[str, int], *, nodes: Sequence[RealNode] = (), seconds: float = 20
) -> None:
    """Wait until each node, or each of these, offers so much of each resource."""

    def offered() -> list[dict[str, int]]:
        return [{resource: allocatable(node, resource) for resource in amounts} for node in nodes or fleet.nodes]

    def all_offered() -> bool:
        return all(offer == amounts for offer in offered())

    wait_until(all_offered, seconds, f"each node offers {dict(amounts)}", saw=offered)


# What is left


def holders(node: RealNode) -> list[Holder]:
    """Who holds devices, says the kubelet."""

    async def ask() -> list[Holder]:
        kubelet = PodResources(node.path("/var/lib/kubelet/pod-resources/kubelet.sock"))
        try:
            return await kubelet.holders()
        finally:
            await kubelet.close()

    return asyncio.run(ask())


_READER = (
    "import json, sqlite3, sys\n"
    "database = sqlite3.connect(f'file:{sys.argv[1]}?mode=ro', uri=True, timeout=5)\n"
    "print(json.dumps(database.execute(sys.argv[2]).fetchall()))\n"
)


def query(node: RealNode, sql: str) -> list[list[Any]]:
    """What the agent's database answers, read beside it, on the node: SQLite follows links, and /proc's lead back.

    OSError where there is none, or it cannot be read.
    """
    done = node.call([sys.executable, "-I", "-S", "-c", _READER, DATABASE, sql])
    if done.returncode:
        raise OSError(done.stderr.strip())
    found: list[list[Any]] = json.loads(done.stdout)
    return found


def recorded(node: RealNode) -> list[str]:
    """The names of the Pods in it."""
    return [
        name
        for (name,) in query(
            node, "SELECT name FROM tenancies UNION SELECT pod FROM shares WHERE pod NOT IN (SELECT uid FROM tenancies)"
        )
    ]


def soundness(node: RealNode) -> str:
    """What SQLite says of it: ok."""
    ((found,),) = query(node, "PRAGMA integrity_check")
    return str(found)


def left_of_pods(fleet: Fleet) -> list[str]:
    """Anything of a Pod: on the scheduler's board, at the agents, in their databases and folders, at the kubelets."""
    board = fleet.wired.status()
    found = [f"the board: {card}" for node in board["nodes"] for card in node["cards"] if card["used_memory_mib"]]
    found += [f"the board: {pod}" for node in board["nodes"] for pod in node["pods"]]
    found += [f"the board: {pod}" for pod in board["pending"]]
    for agent in fleet.agents.values():
        node = agent.node
        found += [f"{node.name}: {leftover}" for leftover in agent.left()]
        found += [f"{node.name}: database: {name}" for name in recorded(node)]
        found += [f"{node.name}: kubelet: {holder.name}" for holder in holders(node)]
    return found


def wait_nothing_left(fleet: Fleet, seconds: float = 30.0) -> None:
    wait_until(lambda: not left_of_pods(fleet), seconds, "nothing is left of the Pods", saw=lambda: left_of_pods(fleet))


def _containers(pod: Object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(pod["metadata"]["annotations"][holdings.GRANT])["containers"]
    return found


def longest_silence(work: list[tuple[float, float]]) -> float:
    """Of its lines, the longest time in which the Pod got nothing done, beyond the second between two of them."""
    return max((later - before - 1 for (before, _), (later, _) in itertools.pairwise(work)), default=0.0)
