"""Pods through a real kube-scheduler, with an extender or without one."""

from __future__ import annotations

import threading
import time
from typing import Any

from bench.scheduler.chart import kube_scheduler_config
from bench.scheduler.contestants import Running
from bench.scheduler.ground import Ground
from bench.scheduler.trials import Numbers

from testbed import objects

PODS_PATH = "/api/v1/namespaces/default/pods"


def through_kube_scheduler(
    running: Running | None, ground: Ground, *, pods: int, seconds: float, resource: str
) -> Numbers:
    """Pods a second: with their creation in it, and with all of them there before kube-scheduler starts."""
    plane = ground.plane
    assert plane is not None, "a control plane of our own"
    config = config_for(running, resource)
    name = config["profiles"][0]["schedulerName"] if config.get("profiles") else None
    numbers: Numbers = {}
    wrongs: list[str] = []
    scheduler = plane.start_scheduler(config)
    try:
        with Follower(ground, pods) as follower:
            began = time.monotonic()
            drafts = ground.drafts(pods, scheduler=name)
            objects.bulk(drafts, lambda pod: ground.api("POST", PODS_PATH, pod) and None, threads=8)
            numbers["creation_s"] = time.monotonic() - began
            follower.wait(began + seconds)
        numbers["kube_pods_per_s"] = follower.rate(began)
        wrongs += _wrongs(running, ground, follower)
        ground.clear()
    finally:
        scheduler.stop(patience=3)
    ground.pods(pods, scheduler=name)
    with Follower(ground, pods) as follower:
        scheduler = plane.start_scheduler(config)
        try:
            follower.wait(time.monotonic() + seconds)
        finally:
            scheduler.stop(patience=3)
    numbers["kube_before_pods_per_s"] = follower.rate(min(follower.times, default=0.0))
    wrongs += _wrongs(running, ground, follower)
    ground.clear()
    return {**numbers, "kube_wrongs": len(wrongs)}


def _wrongs(running: Running | None, ground: Ground, follower: Follower) -> list[str]:
    """Without an extender no cards are chosen, and nothing can be wrong with them."""
    if running is None:
        return []
    wrongs = ground.wrongs(follower.names)
    for wrong in wrongs[:5]:
        ground.say(f"{running.contestant.name}, through kube-scheduler: {wrong}")
    return wrongs


def config_for(running: Running | None, resource: str) -> dict[str, Any]:
    """Ours as the chart ships it; a peer as its own documentation wires it, with the verbs it has; or no extender."""
    if running is not None and running.contestant.ours:
        return kube_scheduler_config(running.url)  # exactly what the chart ships
    config: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
    }
    if running is not None:
        config["extenders"] = [_extender(running, resource)]
    # Otherwise kube-scheduler's own 50 calls a second are what is measured.
    config["clientConnection"] = {**config.get("clientConnection", {}), "qps": 2000, "burst": 2000}
    return config


def _extender(running: Running, resource: str) -> dict[str, Any]:
    verbs = running.verbs
    said: dict[str, Any] = {
        "urlPrefix": running.url,
        "filterVerb": verbs.filter.lstrip("/"),
        "bindVerb": verbs.bind.lstrip("/"),
        "enableHTTPS": False,
        "nodeCacheCapable": not verbs.whole_nodes,
        "managedResources": [{"name": resource, "ignoredByScheduler": False}],
        "ignorable": False,
    }
    if verbs.prioritize is not None:
        said |= {"prioritizeVerb": verbs.prioritize.lstrip("/"), "weight": 1}
    return said


class Follower:
    """When each Pod of the trial was bound, by a watch."""

    def __init__(self, ground: Ground, wanted: int) -> None:
        self._ground, self._wanted = ground, wanted
        self._version = ""
        self.when: dict[str, float] = {}
        self._all, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Follower:
        listed = self._ground.api("GET", PODS_PATH, params={"limit": "1"})
        self._version = listed["metadata"]["resourceVersion"]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()  # heard with the next event: the Pods are deleted now

    @property
    def names(self) -> list[str]:
        return list(self.when)

    @property
    def times(self) -> list[float]:
        return list(self.when.values())

    def wait(self, end: float) -> None:
        """Until all are bound, or until `end`; says how far it is."""
        while not self._all.wait(min(5.0, max(0.01, end - time.monotonic()))):
            if time.monotonic() >= end:
                return
            self._ground.say(f"{len(self.when)} of {self._wanted} bound")

    def rate(self, began: float) -> float:
        """Pods a second, from then to the last one."""
        return len(self.when) / max(1e-9, max(self.times) - began) if self.when else 0.0

    def _run(self) -> None:
        while not self._over.is_set():  # on a busy machine the API server drops a watch that reads slowly
            try:
                with self._ground.api.watch(PODS_PATH, resourceVersion=self._version, timeout=600) as events:
                    for event in events:
                        self._version = event["object"]["metadata"].get("resourceVersion", self._version)
                        self._note(event["object"])
                        if self._over.is_set() or event["type"] == "ERROR":
                            return
            except OSError:
                time.sleep(0.1)

    def _note(self, pod: dict[str, Any]) -> None:
        name = pod.get("metadata", {}).get("name", "")
        if name.startswith("tried-") and pod["spec"].get("nodeName") and name not in self.when:
            self.when[name] = time.monotonic()
            if len(self.when) == self._wanted:
                self._all.set()
