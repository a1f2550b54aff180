"""Pods on a machine of paper cards, asked for over the control socket as the commands do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from aliquot.adapters.host.control import ask
from aliquot.adapters.host.home import Home
from kit.machines.machine import PATIENCE, Machine, eventually
from kit.values.manifests import MEM

Json = dict[str, Any]


def container(name: str = "main", *command: str, gib: int | None = 4, **more: Any) -> Json:
    """A container that sleeps on a slice of a card, by default."""
    limits = {} if gib is None else {"resources": {"limits": {MEM: gib}}}
    return {"name": name, "command": list(command or ("sleep", "600")), **limits, **more}


def pod(name: str, *containers: Json, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": list(containers or [container()]), **spec},
    }


def workload(kind: str, name: str, replicas: int, *containers: Json, **spec: Any) -> Json:
    inner: Json = {"spec": {"containers": list(containers or [container()])}}
    amount = "parallelism" if kind == "Job" else "replicas"
    if kind == "Job":
        inner["spec"]["restartPolicy"] = "Never"
    return {"kind": kind, "metadata": {"name": name}, "spec": {amount: replicas, "template": inner, **spec}}


class Pods:
    """Pod operations of one machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.home = [Home(str(machine.home), str(machine.home))]

    def ask(self, op: str, **more: Any) -> Json:
        return ask(self.home, {"op": op, **more}, PATIENCE)

    def apply(self, *objects: Json, **more: Any) -> list[Json]:
        request = {"cwd": str(self.machine.home), "env": {"PATH": os.environ["PATH"]}, **more}
        results: list[Json] = self.ask("apply", objects=list(objects), **request)["results"]
        return results

    def delete(self, kind: str, name: str, grace: float | None = 0.0) -> list[str]:
        gone: list[str] = self.ask("delete", kind=kind, name=name, grace=grace)["deleted"]
        return gone

    def all(self) -> list[Json]:
        found: list[Json] = self.machine.status()["pods"]
        return found

    def one(self, name: str) -> Json:
        return next(pod for pod in self.all() if pod["name"] == name)

    def until(self, name: str, phase: str = "Running") -> Json:
        """The Pod, once it is in that phase."""
        found = eventually(lambda: [pod for pod in self.all() if pod["name"] == name and pod["phase"] == phase])
        return dict(found[0])

    def until_all(self, phases: Sequence[str]) -> list[Json]:
        """Wait until the Pods have these phases. Returns all Pods."""
        found = eventually(lambda: (there := self.all()) and [pod["phase"] for pod in there] == list(phases) and there)
        return list(found)

    def log(self, name: str, container: str | None = None) -> str:
        path = self.ask("pod-logs", namespace="default", name=name, container=container)["log"]
        with open(path) as file:
            return file.read()

    def booked(self) -> int:
        return sum(int(card["memory_booked_bytes"]) for card in self.machine.status()["cards"]) >> 30

    def clear(self) -> None:
        """Delete everything and check that nothing is left."""
        status = self.machine.status()
        for workload in status["workloads"]:
            self.delete(workload["kind"], workload["name"])
        for pod in self.all():
            self.delete("Pod", pod["name"])
        self.check_clear()

    def check_clear(self) -> None:
        status = self.machine.status()
        assert (status["pods"], status["workloads"], status["tenants"], status["queue"]) == ([], [], [], [])
        assert self.booked() == 0
        assert processes_of_pods(str(self.machine.home)) == set()
        eventually(lambda: not os.listdir(self.machine.home / "logs" / "pods"))  # in threads
        eventually(lambda: not os.listdir(self.machine.home / "t"))


def processes_of_pods(home: str) -> set[int]:
    """Supervisors and containers of the Pods of that home, found without the daemon."""
    found = set()
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                environment = file.read()
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                command = file.read()
        except OSError:
            continue
        ours = f"ALIQUOT_TENANT={home}/".encode() in environment or f"PWD={home}\0".encode() in environment
        supervisor = b"aliquot.services.machine.pods.supervisor" in command and home.encode() in command
        if supervisor or (b"ALIQUOT_POD=" in environment and ours):
            found.add(int(entry))
    return found
