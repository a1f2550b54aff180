"""The same bind twice, and Pods and nodes that go, or come back as others, while they are bound."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from testbed import objects
from testbed.cards import (
    CARD_GIB,
    MEM,
    Start,
    assert_board_is_true,
    assert_no_trace,
    auditor,
    board_of,
    gpushare_node,
    wait_leads,
    whole_card,
)
from testbed.judges import audit
from testbed.plane import ControlPlane
from testbed.processes import wait_until
from testbed.programs.asking import Extender
from testbed.programs.product import AliquotScheduler
from testbed.proxy import BINDING, Fault, Proxy


@pytest.fixture
def ours(clean: ControlPlane, proxy: Proxy, aliquot_scheduler: Start) -> Iterator[AliquotScheduler]:
    """A scheduler that leads, and two nodes of two cards each."""
    objects.create(clean, gpushare_node("n", 2), gpushare_node("m", 2))
    scheduler = aliquot_scheduler(kubeconfig=proxy.kubeconfig)
    wait_leads(scheduler)
    yield scheduler
    assert_no_trace(scheduler)


def test_concurrent_binds_of_one_pod_happen_once(clean: ControlPlane, ours: AliquotScheduler, proxy: Proxy) -> None:
    (pod,) = objects.create(clean, whole_card("p"))
    extender = Extender(ours.port)
    with auditor(clean) as found, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: extender.bind(pod, "n"), range(8))) == [""] * 8
    assert found.wrong == []
    assert sum("/binding" in request for request in proxy.requests) == 1
    assert_board_is_true(clean, ours)


def test_repeated_bind_before_watch_event_returns_first_outcome(
    clean: ControlPlane, ours: AliquotScheduler, proxy: Proxy
) -> None:
    (pod,) = objects.create(clean, whole_card("p"))
    time.sleep(0.2)
    proxy.quiet_watches()
    extender = Extender(ours.port)
    assert [extender.bind(pod, "n") for _ in range(3)] == [""] * 3
    assert "already bound to n" in extender.bind(pod, "m")
    proxy.quiet_watches(False)
    wait_until(lambda: len(board_of(ours)) == 1, 5, "the board has it once")


def test_binds_of_one_pod_to_two_nodes_at_once_bind_it_to_one(clean: ControlPlane, ours: AliquotScheduler) -> None:
    extender = Extender(ours.port)
    pods = objects.create(clean, *(whole_card(f"p{n}") for n in range(2)))
    with auditor(clean) as found, ThreadPoolExecutor(8) as pool:
        for pod in pods:
            said = list(pool.map(lambda name, pod=pod: extender.bind(pod, name), ["n", "m"] * 4))
            where = objects.bound_to(clean, pod["metadata"]["name"])
            assert where in ("n", "m")
            for name, error in zip(["n", "m"] * 4, said, strict=True):
                assert (error == "") == (name == where), said
    assert found.wrong == []
    assert_board_is_true(clean, ours)


def test_a_pod_deleted_while_it_is_bound_is_refused_and_holds_nothing(
    clean: ControlPlane, ours: AliquotScheduler, proxy: Proxy
) -> None:
    (pod,) = objects.create(clean, whole_card("p"))
    time.sleep(0.2)
    on_its_way = proxy.add(Fault(BINDING, held=0.6))
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(Extender(ours.port).bind, pod, "n")
        wait_until(lambda: on_its_way.met, 5, "the bind is on its way", every=0.01)
        objects.delete_pod(clean, "p")
    assert "not found" in said.result()
    assert board_of(ours) == {}
    assert "default/p is gone" in Extender(ours.port).bind(pod, "n")


def test_a_pod_that_is_being_deleted_is_refused_and_holds_nothing(clean: ControlPlane, ours: AliquotScheduler) -> None:
    held = whole_card("p") | {}
    held["metadata"]["finalizers"] = ["example.com/wait"]
    (pod,) = objects.create(clean, held)
    objects.delete_pod(clean, "p")
    assert "being deleted" in Extender(ours.port).bind(pod, "n")
    assert board_of(ours) == {}
    clean.api(
        "PATCH",
        "/api/v1/namespaces/default/pods/p",
        {"metadata": {"finalizers": None}},
        content_type="application/merge-patch+json",
    )


def test_a_pod_made_anew_by_the_same_name_is_another_pod(
    clean: ControlPlane, ours: AliquotScheduler, proxy: Proxy
) -> None:
    extender = Extender(ours.port)
    (old,) = objects.create(clean, whole_card("p"))
    time.sleep(0.2)
    on_its_way = proxy.add(Fault(BINDING, held=0.8))
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(extender.bind, old, "n")
        wait_until(lambda: on_its_way.met, 5, "the bind is on its way", every=0.01)
        objects.delete_pod(clean, "p")
        (new,) = objects.create(clean, whole_card("p"))
        assert extender.bind(new, "m") == ""
    assert said.result() != ""
    assert objects.bound_to(clean, "p") == "m"
    assert "default/p is gone" in extender.bind(old, "n")
    assert_board_is_true(clean, ours)


def test_a_finished_pod_bound_once_more_is_bound_already_and_holds_nothing(
    clean: ControlPlane, ours: AliquotScheduler
) -> None:
    (pod,) = objects.create(clean, whole_card("p"))
    assert Extender(ours.port).bind(pod, "n") == ""
    objects.finish_pod(clean, "p")
    wait_until(lambda: not board_of(ours), 5, "its card is free")
    assert Extender(ours.port).bind(pod, "n") == ""
    assert board_of(ours) == {}


def test_bind_checks_again_after_prioritize(clean: ControlPlane, ours: AliquotScheduler) -> None:
    pod, other = objects.create(clean, whole_card("p"), whole_card("q"))
    small = pod | {"spec": objects.pod("p", {MEM: 1})["spec"]}
    extender = Extender(ours.port)
    extender.ask("prioritize", {"Pod": small, "NodeNames": ["n"]})
    assert extender.bind(pod, "n") == ""
    assert_board_is_true(clean, ours)
    assert list(audit.booked(objects.list_pods(clean)).values()) == [CARD_GIB * 1024]
    assert extender.bind(other, "n") == ""


def test_a_node_deleted_while_a_pod_is_bound_to_it_counts_the_pod_when_it_comes_back(
    clean: ControlPlane, ours: AliquotScheduler, proxy: Proxy
) -> None:
    extender = Extender(ours.port)
    pod, other, third = objects.create(clean, whole_card("p"), whole_card("q"), whole_card("r"))
    time.sleep(0.2)
    on_its_way = proxy.add(Fault(BINDING, held=0.6))
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(extender.bind, pod, "n")
        wait_until(lambda: on_its_way.met, 5, "the bind is on its way", every=0.01)
        clean.api("DELETE", "/api/v1/nodes/n")
    assert said.result() == ""  # the API server asks for no node; garbage collection will find the Pod
    assert extender.bind(other, "n") != ""
    objects.create(clean, gpushare_node("n", 2))
    wait_until(lambda: extender.bind(other, "n") == "", 5, "the node takes Pods again")
    assert "no longer fits on n" in extender.bind(third, "n")
    assert_board_is_true(clean, ours)


def test_pod_that_asks_for_no_cards_is_bound_once_to_a_node_that_exists(
    clean: ControlPlane, ours: AliquotScheduler
) -> None:
    extender = Extender(ours.port)
    (pod,) = objects.create(clean, objects.pod("zero", {"aliyun.com/gpu-mem": 0}))
    assert 'no node "nowhere"' in extender.bind(pod, "nowhere")
    assert [extender.bind(pod, "n") for _ in range(2)] == [""] * 2
    assert "already bound to n" in extender.bind(pod, "m")
    objects.delete_pod(clean, "zero")
    assert "gone" in extender.bind(pod, "n")


def test_pod_of_others_is_not_bound(clean: ControlPlane, ours: AliquotScheduler) -> None:
    extender = Extender(ours.port)
    (pod,) = objects.create(clean, objects.pod("plain", schedulerName="none"))
    assert "asks for no resource of aliquot" in extender.bind(pod, "n")
    assert objects.bound_to(clean, "plain") is None
