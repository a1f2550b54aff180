"""The scheduler among faults: killed, cut off, slowed down, lied to. No card is given out twice and no Pod is lost,
and both are checked from the API server alone."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import objects
from testbed.cards import (
    LEASE,
    MEM,
    Object,
    Start,
    assert_board_is_true,
    assert_no_trace,
    attempt,
    auditor,
    bind_until_bound,
    board_of,
    cluster,
    gpushare_node,
    name_of,
    some_pod,
    wait_leads,
    whole_card,
)
from testbed.plane import ControlPlane
from testbed.processes import free_port, wait_until
from testbed.programs.asking import Extender
from testbed.programs.product import AliquotScheduler
from testbed.proxy import ALWAYS, BINDING, WATCHES, Fault, Proxy

# --- killed --------------------------------------------------------------------------------------------------------


def test_a_scheduler_killed_fifty_times_around_its_binds_loses_no_pod_and_gives_no_card_twice(
    clean: ControlPlane, proxy: Proxy, aliquot_scheduler: Start
) -> None:
    rng = random.Random(4)
    names, port = cluster(clean), free_port()
    running: list[AliquotScheduler] = []

    def kill() -> None:
        os.kill(running[-1].pid, signal.SIGKILL)

    ways: Iterator[dict[str, Any]] = cycle(
        [
            {"before": kill, "swallowed": True},  # nothing was written
            {"after": kill, "lost": True},  # written, and nobody heard
            {"after": kill, "status": 500},  # written, and told that it was not
            {"lost": True, "times": 3},  # answers were lost before the end
            {"status": 429, "times": 3},
        ]
    )
    pods: list[Object] = []
    extender = Extender(port, timeout=3)
    with auditor(clean) as found:
        for number in range(50):
            running.append(aliquot_scheduler(port=port, kubeconfig=proxy.kubeconfig))
            wait_leads(running[-1])
            proxy.add(Fault(BINDING, skip=rng.randrange(4), **next(ways)))
            fresh = objects.create(clean, *(some_pod(f"p{number}-{n}", rng) for n in range(4)))
            pods += fresh
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda pod: attempt(lambda: extender.schedule(pod, names)), fresh))
            running[-1].kill()
            proxy.mend()
            for pod in rng.sample(pods, max(0, len(pods) - 16)):  # room for the next ones
                objects.delete_pod(clean, name_of(pod))
                pods.remove(pod)
        last = aliquot_scheduler(port=port, kubeconfig=proxy.kubeconfig)
        wait_leads(last)
        assert_board_is_true(clean, last, 2)  # rebuilt from the annotations alone
        bind_until_bound(clean, port, pods, names)
    assert found.wrong == []
    assert found.looks > 100
    assert all(pod["spec"].get("nodeName") for pod in objects.list_pods(clean))
    assert_board_is_true(clean, last)
    assert_no_trace(last)


def test_sigterm_finishes_binds_and_releases_lease(clean: ControlPlane, proxy: Proxy, aliquot_scheduler: Start) -> None:
    objects.create(clean, gpushare_node("n", 8))
    ours = aliquot_scheduler(kubeconfig=proxy.kubeconfig)
    wait_leads(ours)
    pods = objects.create(clean, *(whole_card(f"p{n}") for n in range(5)))
    slow = proxy.add(Fault(BINDING, times=4, held=1.5))
    extender = Extender(ours.port)
    with ThreadPoolExecutor(4) as pool:
        under_way = [pool.submit(extender.bind, pod, "n") for pod in pods[:4]]
        wait_until(lambda: slow.met == 4, 5, "four binds are on their way", every=0.01)
        ours.signal(signal.SIGTERM)
        wait_until(lambda: ours.ask("GET", "/readyz")[0] == 503, 5, "it says that it is ending", every=0.01)
        late = attempt(lambda: extender.bind(pods[4], "n"))
        said = [future.result() for future in under_way]
    assert said == [""] * 4
    assert "shutting down" in late
    assert ours.stop() == 0
    assert [objects.bound_to(clean, name_of(pod)) for pod in pods] == ["n"] * 4 + [None]
    assert not clean.api("GET", LEASE)["spec"].get("holderIdentity")
    assert_no_trace(ours)


# --- answers that do not come, and come late ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Fault(BINDING, lost=True),
        Fault(BINDING, status=500),
        Fault(BINDING, status=504),
        Fault(BINDING, status=429),
        Fault(BINDING, late=6.0),  # longer than anybody waits
    ],
    ids=["lost", "500", "504", "429", "late"],
)
def test_bind_with_lost_answer_keeps_its_card(
    clean: ControlPlane, proxy: Proxy, aliquot_scheduler: Start, fault: Fault
) -> None:
    objects.create(clean, gpushare_node("n", 1))
    ours = aliquot_scheduler(kubeconfig=proxy.kubeconfig)
    wait_leads(ours)
    first, second = objects.create(clean, whole_card("first"), whole_card("second"))
    proxy.quiet_watches()  # it must not be the watch that tells
    proxy.add(fault)
    extender = Extender(ours.port)
    assert "first: " in extender.bind(first, "n")
    for _ in range(10):
        assert "default/second no longer fits on n" in extender.bind(second, "n")
        time.sleep(0.05)
    assert extender.bind(first, "n") == ""  # the same bind once more is not a second one
    proxy.quiet_watches(False)
    assert_board_is_true(clean, ours)
    assert objects.bound_to(clean, "second") is None
    assert_no_trace(ours)


def test_a_write_whose_answer_is_not_known_keeps_its_card_until_it_can_no_longer_happen(
    clean: ControlPlane, proxy: Proxy, aliquot_scheduler: Start
) -> None:
    objects.create(clean, gpushare_node("n", 1))
    ours = aliquot_scheduler(kubeconfig=proxy.kubeconfig)
    wait_leads(ours)
    first, second = objects.create(clean, whole_card("first"), whole_card("second"))
    proxy.add(Fault(BINDING, held=7.0))  # it reaches the API server after we have given it up
    extender = Extender(ours.port)
    with auditor(clean) as found:
        assert "did not answer" in extender.bind(first, "n")
        assert "default/second no longer fits on n" in extender.bind(second, "n")
        wait_until(lambda: objects.bound_to(clean, "first"), 10, "the late write has happened")
        assert "default/second no longer fits on n" in extender.bind(second, "n")
    assert found.wrong == []
    assert_board_is_true(clean, ours)


def test_a_write_that_never_happened_frees_its_card_after_a_while(
    clean: ControlPlane, proxy: Proxy, aliquot_scheduler: Start
) -> None:
    objects.create(clean, gpushare_node("n", 1))
    ours = aliquot_scheduler(kubeconfig=proxy.kubeconfig)
    wait_leads(ours)
    first, second = objects.create(clean, whole_card("first"), whole_card("second"))
    proxy.add(Fault(BINDING, swallowed=True))
    extender = Extender(ours.port)
    assert "did not answer" in extender.bind(first, "n")
    assert "default/second no longer fits on n" in extender.bind(second, "n")
    wait_until(lambda: not extender.bind(second, "n"), 12, "the card is free again")
    assert objects.bound_to(clean, "first") is None
    assert_board_is_true(clean, ours)


def test_a_pod_deleted_while_its_bind_is_looked_up_leaves_nothing_on_the_board(
    clean: ControlPlane, proxy: Proxy, aliquot_scheduler: Start
) -> None:
    objects.create(clean, gpushare_node("n", 1))
    ours = aliquot_scheduler(kubeconfig=proxy.kubeconfig)
    wait_leads(ours)
    (pod,) = objects.create(clean, whole_card("p"))
    proxy.quiet_watches()
    proxy.add(Fault(BINDING, lost=True))
    read = threading.Event()
    proxy.add(Fault(r"GET .*/pods/p", after=read.set, late=1.0))  # the Pod as it was before it was deleted
    assert "did not answer" in Extender(ours.port).bind(pod, "n")
    assert read.wait(3)
    objects.delete_pod(clean, "p")
    proxy.quiet_watches(False)
    wait_until(lambda: not board_of(ours), 3, "the watch has told that it is gone", every=0.02)
    time.sleep(1.5)  # the old answer has come by now
    assert board_of(ours) == {}


def test_a_pod_bound_and_deleted_while_no_watch_held_leaves_nothing_on_the_board(
    clean: ControlPlane, proxy: Proxy, aliquot_scheduler: Start
) -> None:
    objects.create(clean, gpushare_node("n", 1))
    ours = aliquot_scheduler(kubeconfig=proxy.kubeconfig)
    wait_leads(ours)
    proxy.add(Fault(WATCHES, times=ALWAYS, swallowed=True))
    proxy.add(Fault(r"GET /api/v1/(pods|nodes)", times=ALWAYS, swallowed=True))
    proxy.cut_watches()
    time.sleep(0.7)
    (pod,) = objects.create(clean, whole_card("p"))
    assert Extender(ours.port).bind(pod, "n") == ""
    objects.delete_pod(clean, "p")
    clean.compact()  # so that no watch can tell of it afterwards
    proxy.mend()
    wait_until(lambda: not board_of(ours), 40, "the card is free", every=0.2)


# --- the API server, and the line to it ------------------------------------------------------------------------------


def test_an_api_server_restarted_under_load_costs_nothing_but_time(
    clean: ControlPlane, aliquot_scheduler: Start
) -> None:
    rng = random.Random(7)
    names = cluster(clean, 4)
    ours = aliquot_scheduler()
    wait_leads(ours)
    pods = objects.create(clean, *(some_pod(f"p{n}", rng) for n in range(60)))
    with auditor(clean) as found:
        with ThreadPoolExecutor(4) as pool:
            streams = [pool.submit(bind_until_bound, clean, ours.port, pods[n::4], names, 90.0) for n in range(4)]
            for kill in (True, False):
                time.sleep(0.3)
                clean.restart_apiserver(kill=kill)
            for stream in streams:
                stream.result()
        assert_board_is_true(clean, ours, 20)
    assert found.wrong == []
    assert ours.ask("GET", "/readyz")[0] == 200
    assert_no_trace(ours)


def test_relist_after_410_reports_only_differences(clean: ControlPlane, proxy: Proxy, aliquot_scheduler: Start) -> None:
    rng = random.Random(9)
    names = cluster(clean)
    ours = aliquot_scheduler(kubeconfig=proxy.kubeconfig)
    wait_leads(ours)
    pods = objects.create(clean, *(some_pod(f"p{n}", rng) for n in range(12)))
    bind_until_bound(clean, ours.port, pods, names)
    proxy.add(Fault(r".*", times=ALWAYS, swallowed=True))
    proxy.cut_watches()
    for pod in pods[:6]:
        objects.delete_pod(clean, name_of(pod))
    (again,) = objects.create(clean, some_pod("p0", rng))  # another Pod by an old name
    clean.api("DELETE", "/api/v1/nodes/q1")
    objects.create(clean, gpushare_node("g9"))
    clean.compact()
    proxy.mend()
    assert_board_is_true(clean, ours, 30)
    wait_leads(ours, 20)
    bind_until_bound(clean, ours.port, [again], [*names[:3], "g9"])
    assert_board_is_true(clean, ours)
    (relists,) = [line for line in ours.get("/metrics").splitlines() if line.startswith("aliquot_relists_total ")]
    assert float(relists.split()[1]) >= 2, relists
    assert_no_trace(ours)


def test_watches_cut_in_the_middle_of_a_line_lose_and_repeat_nothing(
    clean: ControlPlane, proxy: Proxy, aliquot_scheduler: Start
) -> None:
    rng = random.Random(11)
    names = cluster(clean)
    ours = aliquot_scheduler(kubeconfig=proxy.kubeconfig)
    wait_leads(ours)
    with auditor(clean) as found:
        for turn in range(6):
            proxy.cut_watches()
            pods = objects.create(clean, *(some_pod(f"p{turn}-{n}", rng) for n in range(5)))
            bind_until_bound(clean, ours.port, pods, names)
            assert_board_is_true(clean, ours, 10)
            for pod in pods:
                objects.delete_pod(clean, name_of(pod))
    assert_board_is_true(clean, ours, 10)
    assert board_of(ours) == {}
    assert found.wrong == []
    assert_no_trace(ours)


def test_on_a_slow_api_server_binds_are_slow_and_right(
    clean: ControlPlane, proxy: Proxy, aliquot_scheduler: Start
) -> None:
    rng = random.Random(13)
    names = cluster(clean)
    ours = aliquot_scheduler(kubeconfig=proxy.kubeconfig)
    wait_leads(ours)
    proxy.add(Fault(r".*", times=ALWAYS, held=0.4, late=0.4))
    proxy.cut_watches()
    pods = objects.create(clean, *(some_pod(f"p{n}", rng) for n in range(24)))
    with auditor(clean) as found, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda pod: bind_until_bound(clean, ours.port, [pod], names), pods))
    assert found.wrong == []
    assert_board_is_true(clean, ours, 10)
    assert_no_trace(ours)


def test_readyz_waits_for_nodes_and_pods(clean: ControlPlane, proxy: Proxy, aliquot_scheduler: Start) -> None:
    objects.create(clean, gpushare_node("n", 1))
    (pod,) = objects.create(clean, whole_card("p"))
    proxy.add(Fault(r"GET /api/v1/pods", held=2.0))
    ours = aliquot_scheduler(kubeconfig=proxy.kubeconfig, wait=False)
    wait_until(lambda: ours.ask("GET", "/livez")[0] == 200, 10, "it lives")
    assert ours.ask("GET", "/readyz") == (503, b"the cluster is not read yet\n")
    asked = {"Pod": pod, "NodeNames": ["n"]}
    assert "has not read the cluster yet" in ours.post("/aliquot/filter", asked)["Error"]
    assert "has not read the cluster yet" in Extender(ours.port).bind(pod, "n")
    wait_until(lambda: ours.ask("GET", "/readyz")[0] == 200, 10, "it is ready", every=0.02)
    assert ours.post("/aliquot/filter", asked)["NodeNames"] == ["n"]


# --- rights ----------------------------------------------------------------------------------------------------------

VENDORS_ROLE = """
kind: ClusterRole
apiVersion: rbac.authorization.k8s.io/v1
metadata: {name: qgpu-scheduler}
rules:
  - {apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}
  - {apiGroups: [""], resources: [events], verbs: [create, patch]}
  - {apiGroups: [""], resources: [pods], verbs: [update, patch, get, list, watch]}
  - {apiGroups: [""], resources: [bindings, pods/binding], verbs: [create]}
  - {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]}
---
kind: ClusterRoleBinding
apiVersion: rbac.authorization.k8s.io/v1
metadata: {name: qgpu-scheduler}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: qgpu-scheduler}
subjects:
  - {kind: ServiceAccount, name: qgpu-scheduler, namespace: kube-system}
"""


@pytest.fixture
def vendors_account(clean: ControlPlane) -> Iterator[Path]:
    """The rights that the manifest of the seed gives (000)."""
    role, binding = yaml.safe_load_all(VENDORS_ROLE)
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    clean.api("POST", f"{rbac}/clusterroles", role)
    clean.api("POST", f"{rbac}/clusterrolebindings", binding)
    yield clean.kubeconfig_for("kube-system/qgpu-scheduler")
    clean.api("DELETE", f"{rbac}/clusterrolebindings/qgpu-scheduler")
    clean.api("DELETE", f"{rbac}/clusterroles/qgpu-scheduler")


def test_vendor_role_works_and_missing_rights_are_logged_once(
    clean: ControlPlane, vendors_account: Path, aliquot_scheduler: Start
) -> None:
    rng = random.Random(17)
    names = cluster(clean)
    ours = aliquot_scheduler("--priority=binpack", kubeconfig=vendors_account)
    wait_leads(ours)
    pods = objects.create(clean, *(some_pod(f"p{n}", rng) for n in range(8)))
    bind_until_bound(clean, ours.port, pods, names)
    objects.create(clean, objects.pod("large", {MEM: 999}))
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4"}
    clean.api(
        "PATCH",
        "/api/v1/namespaces/default/pods/large/status",
        {"status": {"conditions": [refused]}},
        content_type="application/merge-patch+json",
    )
    events = wait_until(lambda: objects.events_of(clean, "large"), 10, "an event says why it waits")
    assert events[0][0] == "WaitingForGPU"
    objects.create(clean, objects.node("x", {}, labels={"sched.tensorstack.dev/accelerator": "nvidia-gpu"}))
    time.sleep(5)  # two rounds of the election
    warnings = [entry for entry in ours.entries() if entry["level"] != "info"]
    said = [(entry["msg"], entry.get("why", "")) for entry in warnings]
    assert len(said) == len(set(said)), said
    assert "election_disabled" in [key for key, _ in said]
    assert_board_is_true(clean, ours)
    assert_no_trace(ours)
