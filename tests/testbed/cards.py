"""A small cluster with cards, Pods that want them, and what must hold of both whatever happens."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from testbed import objects
from testbed.judges import audit
from testbed.plane import ControlPlane
from testbed.processes import wait_until
from testbed.programs.asking import Extender
from testbed.programs.product import AliquotScheduler

Object = dict[str, Any]
Start = Callable[..., AliquotScheduler]

MEM, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
QMEM, QCORE = "tke.cloud.tencent.com/qgpu-memory", "tke.cloud.tencent.com/qgpu-core"
CARD_GIB = 16
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/aliquot-scheduler"


def gpushare_node(name: str, cards: int = 4) -> Object:
    return objects.node(name, {MEM: cards * CARD_GIB, COUNT: cards}, labels={"gpushare": "true"})


def qgpu_node(name: str, cards: int = 4) -> Object:
    amounts = {QMEM: cards * CARD_GIB, QCORE: cards * 100}
    return objects.node(name, amounts, labels={"qgpu-device-enable": "enable"})


def cluster(plane: ControlPlane, nodes_each: int = 2) -> list[str]:
    """So many nodes of two dialects each, with four cards each; their names."""
    made = [gpushare_node(f"g{n}") for n in range(nodes_each)] + [qgpu_node(f"q{n}") for n in range(nodes_each)]
    return [node["metadata"]["name"] for node in objects.create(plane, *made)]


def some_pod(name: str, rng: random.Random) -> Object:
    """A Pod of one of the dialects, of any size, on one card or two."""
    if rng.random() < 0.5:
        return objects.pod(name, {QMEM: rng.choice((4, 6, 8)), QCORE: rng.choice((20, 30, 50))})
    if rng.random() < 0.2:
        return objects.pod(name, {MEM: 8}, labels={COUNT: "2"})
    return objects.pod(name, {MEM: rng.choice((3, 5, 6, 9))})


def whole_card(name: str) -> Object:
    """A Pod that shares its card with nobody."""
    return objects.pod(name, {MEM: CARD_GIB})


def name_of(thing: Object) -> str:
    return str(thing["metadata"]["name"])


def auditor(plane: ControlPlane) -> audit.Auditor:
    return audit.Auditor(plane, CARD_GIB * 1024)


def attempt(do: Callable[[], str]) -> str:
    """What it said; where there was no answer, that."""
    try:
        return do()
    except OSError as error:
        return repr(error)


def leads(scheduler: AliquotScheduler) -> bool:
    return bool(json.loads(scheduler.get("/aliquot/status"))["leading"])


def wait_leads(scheduler: AliquotScheduler, seconds: float = 10.0) -> None:
    wait_until(lambda: leads(scheduler), seconds, f"{scheduler.name} leads", every=0.02)


def board_of(scheduler: AliquotScheduler) -> dict[audit.Card, int]:
    """MiB that are taken, by card, as the scheduler says."""
    status = json.loads(scheduler.get("/aliquot/status"))
    return {
        (node["name"], card["index"]): card["used_memory_mib"]
        for node in status["nodes"]
        for card in node["cards"]
        if card["used_memory_mib"]
    }


def assert_board_is_true(plane: ControlPlane, scheduler: AliquotScheduler, seconds: float = 5.0) -> None:
    """What the scheduler counts is what the annotations say, no more and no less."""
    wait_until(
        lambda: board_of(scheduler) == audit.booked(objects.list_pods(plane)),
        seconds,
        "the board says what the annotations say",
        saw=lambda: (board_of(scheduler), audit.booked(objects.list_pods(plane))),
    )


def assert_no_trace(*schedulers: AliquotScheduler) -> None:
    """Nothing in their logs is an error of their own."""
    for scheduler in schedulers:
        wrong = [entry for entry in scheduler.entries() if "trace" in entry or entry["level"] in ("error", "critical")]
        assert not wrong, wrong[0]


def bind_until_bound(
    plane: ControlPlane, port: int, pods: Sequence[Object], names: Sequence[str], seconds: float = 40.0
) -> None:
    """As kube-scheduler would, again and again; a Pod that is bound is not tried any more."""
    extender = Extender(port)
    end = time.monotonic() + seconds
    for pod in pods:
        said = ""
        while not _bound(plane, pod):
            assert time.monotonic() < end, f"{name_of(pod)} is not bound: {said}"
            said = attempt(lambda pod=pod: extender.schedule(pod, names))  # type: ignore[misc]
            if said:
                time.sleep(0.2)


def _bound(plane: ControlPlane, pod: Object) -> bool:
    try:
        return bool(objects.bound_to(plane, name_of(pod)))
    except OSError:  # the API server is down
        return False
