"""The product as it runs in a cluster: `aliquot scheduler`, and a kube-scheduler told of it by our own file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from testbed import objects
from testbed.build import VERSION
from testbed.client import MERGE_PATCH, Refused
from testbed.judges import holdings
from testbed.objects import Object
from testbed.plane import ControlPlane, KubeScheduler
from testbed.processes import wait_until
from testbed.programs.product import AliquotScheduler

_WORKLOADS = ("statefulsets", "daemonsets", "deployments", "replicasets")


def scheduler_config(url: str, *flags: str) -> dict[str, Any]:
    """What `aliquot manifests scheduler-config` prints, less leader election: a test has one kube-scheduler."""
    command = [sys.executable, "-m", "aliquot", "manifests", "scheduler-config"]
    options = [f"--kubernetes={VERSION}", f"--url={url}", *flags]
    printed = subprocess.run([*command, *options], check=True, capture_output=True, text=True).stdout
    config: dict[str, Any] = yaml.safe_load(printed)
    del config["leaderElection"]
    return config


class Wired:
    """Ours and kube-scheduler, on a control plane that several tests share."""

    def __init__(
        self,
        plane: ControlPlane,
        folder: Path,
        *args: str,
        extender: Mapping[str, Any] | None = None,
        dialect: str = "all",
        second: bool = False,
    ) -> None:
        """`extender` are settings that differ from what our file says of us; `dialect` is that of our file, `second`
        whether it is that of a kube-scheduler for GPU Pods only, whose name is `scheduler`."""
        self.plane, self._folder, self._args = plane, folder, args
        self.ours = AliquotScheduler(*args, kubeconfig=plane.kubeconfig, log=folder / "aliquot-scheduler.log")
        config = scheduler_config(self.ours.url, f"--dialect={dialect}", *(["--second"] if second else []))
        self.scheduler = str(config["profiles"][0]["schedulerName"])
        config["extenders"][0].update(extender or {})
        try:
            self.kube: KubeScheduler = plane.start_scheduler(config)
        except BaseException:
            self.ours.stop()
            raise

    def stop(self) -> None:
        self.kube.stop(patience=3)
        self.ours.stop()

    def restart_ours(self) -> None:
        """Killed, and started again at the same address: it knows only what the API server tells."""
        self.ours.kill()
        log = self._folder / "aliquot-scheduler.log"
        self.ours = AliquotScheduler(*self._args, kubeconfig=self.plane.kubeconfig, log=log, port=self.ours.port)

    # What a test does

    def create(self, *things: Object) -> list[Object]:
        return objects.create(self.plane, *things)

    def apply(self, file: Path) -> None:
        """Apply the file with kubectl, as users do."""
        self.plane.kubectl("apply", "-f", str(file))

    def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None:
        self.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": dict(annotations)}})

    def label_node(self, name: str, labels: Mapping[str, str | None]) -> None:
        self.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": dict(labels)}})

    def patch(self, path: str, change: object) -> None:
        self.plane.api("PATCH", path, change, content_type=MERGE_PATCH)

    # What a test looks at

    def pod(self, name: str) -> Object:
        return objects.get_pod(self.plane, name)

    def bound(self, *names: str, seconds: float = 20.0) -> dict[str, str]:
        """Wait until all of these Pods are bound. Returns their nodes."""
        return objects.wait_bound(self.plane, *names, seconds=seconds)

    def bound_among(self, *names: str) -> list[str]:
        """Which of these Pods have a node now."""
        return [name for name in names if objects.bound_to(self.plane, name) is not None]

    def placed(self, *things: Object) -> list[tuple[str, list[int]]]:
        """Creates these Pods one after the other, each when the one before has its place; node and cards of each."""
        found = []
        for thing in things:
            self.create(thing)
            name = thing["metadata"]["name"]
            node = self.bound(name)[name]
            found.append((node, self.cards(name)))
        return found

    def cards(self, name: str) -> list[int]:
        return holdings.cards_of(self.pod(name))

    def await_event(self, name: str, reason: str, *words: str, seconds: float = 15.0) -> str:
        """The message of an event about the object, of that reason and with those words, once there is one."""

        uid = self._uid(name)

        def found() -> str | None:
            params = {"fieldSelector": f"involvedObject.name={name},reason={reason}"}
            events = self.plane.api("GET", "/api/v1/namespaces/default/events", params=params)["items"]
            # There may still be events of a Pod with that name from the test before.
            mine = [event["message"] for event in events if event["involvedObject"].get("uid") == uid]
            return next((message for message in mine if all(word in message for word in words)), None)

        what = f"{reason} on {name}: {' ... '.join(words)}"
        message = wait_until(found, seconds, what, saw=lambda: objects.events_of(self.plane, name))
        assert message is not None
        return message

    def _uid(self, name: str) -> str:
        try:
            found = objects.get_pod(self.plane, name)
        except Refused:
            found = objects.get_node(self.plane, name)
        return str(found["metadata"]["uid"])

    def waits(self, name: str, *words: str) -> None:
        """The Pod has been tried and refused by kube-scheduler, in those words.

        Not always in its first: it may try a Pod before it has heard of the nodes that were made just before.
        """
        self.await_event(name, "FailedScheduling", *words)
        assert objects.bound_to(self.plane, name) is None

    def wait_heard(self) -> None:
        """Ours has heard of every Pod that was made before."""
        name = "heard-of"
        self.create(objects.pod(name, {"aliyun.com/gpu-mem": 1}, scheduler="nobody"))
        heard = f"default/{name}"
        wait_until(
            lambda: heard in [entry["pod"] for entry in self.status()["pending"]], 60, "ours is there", every=0.02
        )
        objects.delete_pod(self.plane, name)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ours.get("/aliquot/status"))
        return found

    # Between two tests

    def tidy(self) -> None:
        """Everything the test made is gone, and ours has forgotten it; nothing is kept back."""
        now = {"gracePeriodSeconds": 0}
        api = self.plane.api
        for space in ("default", "kube-system"):
            for kind in _WORKLOADS:
                api("DELETE", f"/apis/apps/v1/namespaces/{space}/{kind}", {**now, "propagationPolicy": "Background"})
        for pod in objects.list_pods(self.plane):
            if pod["metadata"].get("finalizers"):
                self.patch(_path(pod), {"metadata": {"finalizers": None}})
        for space in ("default", "kube-system"):
            for kind in ("pods", "events", "services"):
                api("DELETE", f"/api/v1/namespaces/{space}/{kind}", now)
        api("DELETE", "/api/v1/nodes", now)
        for config in api("GET", "/api/v1/namespaces/kube-system/configmaps")["items"]:
            if config["metadata"]["name"].startswith("unhealthy-gpu-"):
                api("DELETE", f"/api/v1/namespaces/kube-system/configmaps/{config['metadata']['name']}")
        wait_until(lambda: not objects.list_pods(self.plane), 20, "all Pods are gone")
        wait_until(self._empty, 10, "ours has forgotten all", saw=self.status, every=0.05)

    def _empty(self) -> bool:
        status = self.status()
        return not (status["nodes"] or status["pending"] or status["unusable"])


def _path(pod: Object) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
