"""Two schedulers and one Lease: both answer, one binds, and no change of who that is gives a card out twice."""

from __future__ import annotations

import base64
import http.client
import json
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed import objects
from testbed.cards import (
    CARD_GIB,
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
    gpushare_node,
    leads,
    wait_leads,
    whole_card,
)
from testbed.plane import ControlPlane
from testbed.processes import free_port, wait_until
from testbed.programs.asking import Extender
from testbed.programs.product import AliquotScheduler
from testbed.programs.wired import scheduler_config
from testbed.proxy import ALWAYS, BINDING, Fault, Proxy

NAMES = ["n0", "n1"]


def two(start: Start, **first: object) -> tuple[AliquotScheduler, AliquotScheduler]:
    """One that leads and one that stands by."""
    leader = _one(start, **first)
    wait_leads(leader)
    standby = _one(start)
    assert not leads(standby)
    return leader, standby


def _one(start: Start, **more: object) -> AliquotScheduler:
    port = free_port()
    return start(f"--advertise=127.0.0.1:{port}", port=port, **more)


def bound_by(scheduler: AliquotScheduler) -> set[str]:
    return {entry["pod"] for entry in scheduler.entries() if entry["msg"] == "pod_bound"}


@contextmanager
def asked_all_the_time(schedulers: Sequence[AliquotScheduler], pods: Sequence[Object]) -> Iterator[None]:
    """Each of them is asked for every Pod, over and over: twice as many Pods as there are cards."""
    end = threading.Event()

    def ask(scheduler: AliquotScheduler) -> None:
        extender = Extender(scheduler.port, timeout=2)
        while not end.is_set():
            for pod in pods:
                attempt(lambda pod=pod: extender.schedule(pod, NAMES))  # type: ignore[misc]
                if end.wait(0.02):
                    return

    threads = [threading.Thread(target=ask, args=[scheduler]) for scheduler in schedulers for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


@pytest.fixture
def crowd(clean: ControlPlane) -> list[Object]:
    """Eight cards, and sixteen Pods of which each wants one for itself."""
    objects.create(clean, *(gpushare_node(name) for name in NAMES))
    return objects.create(clean, *(whole_card(f"p{n}") for n in range(16)))


def bound(plane: ControlPlane) -> int:
    return sum(1 for pod in objects.list_pods(plane) if pod["spec"].get("nodeName"))


def test_the_standby_answers_filter_and_passes_binds_on_to_the_leader(
    clean: ControlPlane, aliquot_scheduler: Start, crowd: list[Object]
) -> None:
    leader, standby = two(aliquot_scheduler)
    asked = {"Pod": crowd[0], "Nodes": None, "NodeNames": NAMES}
    assert standby.post("/aliquot/filter", asked)["NodeNames"] == NAMES
    assert standby.ask("GET", "/readyz")[0] == 200
    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(lambda pod: Extender(standby.port).schedule(pod, NAMES), crowd[:4]))
    assert said == [""] * 4
    assert bound_by(leader) == {f"default/p{n}" for n in range(4)}
    wait_until(lambda: len(board_of(standby)) == 4, 5, "the standby sees them too")
    lease = clean.api("GET", LEASE)
    assert lease["metadata"]["annotations"]["aliquot.dev/address"] == f"127.0.0.1:{leader.port}"
    wait_until(
        lambda: json.loads(clean.api("GET", LEASE)["metadata"]["annotations"]["aliquot.dev/calls"])["bind"]["count"],
        5,
        "the Lease tells that binds were asked for",
    )
    assert_no_trace(leader, standby)


def test_sigterm_hands_leadership_over_at_once(
    clean: ControlPlane, aliquot_scheduler: Start, crowd: list[Object]
) -> None:
    leader, standby = two(aliquot_scheduler)
    with auditor(clean) as found, asked_all_the_time([leader, standby], crowd):
        wait_until(lambda: bound(clean) >= 3, 5, "some are bound", every=0.02)
        assert leader.stop() == 0
        wait_leads(standby, 4)
        wait_until(lambda: bound(clean) == 8, 10, "every card is given out")
        time.sleep(1)
    assert found.wrong == []
    assert bound(clean) == 8
    assert_board_is_true(clean, standby)
    assert_no_trace(leader, standby)


def test_a_leader_that_is_killed_is_followed_when_its_lease_has_run_out(
    clean: ControlPlane, aliquot_scheduler: Start, crowd: list[Object]
) -> None:
    leader, standby = two(aliquot_scheduler)
    with auditor(clean) as found, asked_all_the_time([leader, standby], crowd):
        wait_until(lambda: bound(clean) >= 2, 5, "some are bound", every=0.02)
        leader.kill()
        killed = time.monotonic()
        wait_leads(standby, 20)
        assert time.monotonic() - killed > 10  # it could not know any sooner
        wait_until(lambda: bound(clean) == 8, 10, "every card is given out")
    assert found.wrong == []
    assert_board_is_true(clean, standby)
    assert_no_trace(standby)


def test_a_leader_that_slept_longer_than_its_lease_binds_nothing_when_it_wakes(
    clean: ControlPlane, aliquot_scheduler: Start, crowd: list[Object]
) -> None:
    leader, standby = two(aliquot_scheduler)
    bind_until_bound(clean, leader.port, crowd[:2], NAMES)
    leader.signal(signal.SIGSTOP)
    with auditor(clean) as found, ThreadPoolExecutor(6) as pool:
        wait_leads(standby, 20)
        bind_until_bound(clean, standby.port, crowd[2:8], NAMES)  # all cards are given out; the sleeper sees six free
        late = [
            pool.submit(attempt, lambda pod=pod, name=name: Extender(leader.port).bind(pod, name))  # type: ignore[misc]
            for pod, name in zip(crowd[8:14], NAMES * 3, strict=True)
        ]
        time.sleep(0.3)
        leader.signal(signal.SIGCONT)  # its cache is old, and six binds have waited for it
        said = [future.result() for future in late]
        assert all(said), said
        with asked_all_the_time([leader, standby], crowd):
            time.sleep(2)
    assert found.wrong == []
    assert bound(clean) == 8
    assert not leads(leader)
    for scheduler in (leader, standby):
        assert_board_is_true(clean, scheduler)
    assert_no_trace(leader, standby)


def test_a_leader_cut_off_from_its_lease_stops_before_another_begins_also_with_slow_binds(
    clean: ControlPlane, aliquot_scheduler: Start, crowd: list[Object]
) -> None:
    with Proxy(clean) as line:
        leader, standby = two(aliquot_scheduler, kubeconfig=line.kubeconfig)
        line.quiet_watches()  # nor does it hear what others do
        line.add(Fault(r"(PUT|GET) .*/leases/.*", times=ALWAYS, swallowed=True))
        line.add(Fault(BINDING, times=ALWAYS, held=3.0))
        later = iter(crowd)
        with auditor(clean) as found, ThreadPoolExecutor(4) as pool:
            cut = time.monotonic()
            asked = []
            while time.monotonic() - cut < 18:  # one bind every two seconds, always some on their way
                pod = next(later, None)
                if pod is not None:
                    asked.append(pool.submit(attempt, lambda pod=pod: Extender(leader.port).schedule(pod, NAMES)))  # type: ignore[misc]
                if leads(standby):
                    break
                time.sleep(1.5)
            wait_leads(standby, 10)
            with asked_all_the_time([standby], crowd):
                wait_until(lambda: bound(clean) == 8, 20, "every card is given out")
                for future in asked:
                    future.result()
                time.sleep(1)
        assert found.wrong == []
        assert bound(clean) == 8
        assert not leads(leader)
        assert_board_is_true(clean, standby)
        assert_no_trace(leader, standby)


def test_transient_403_does_not_disable_election(
    clean: ControlPlane, aliquot_scheduler: Start, crowd: list[Object]
) -> None:
    """An API server that starts says 403 to all until it has read its roles."""
    with Proxy(clean) as line:
        leader = _one(aliquot_scheduler)
        wait_leads(leader)
        refused = line.add(Fault(r"GET .*/leases/.*", times=2, status=403, swallowed=True))
        standby = _one(aliquot_scheduler, kubeconfig=line.kubeconfig)
        for again in range(2):
            while refused.met < refused.times:
                assert not leads(standby)
                time.sleep(0.1)
            time.sleep(1.5)
            assert not leads(standby)
            if not again:
                refused = line.add(Fault(r"GET .*/leases/.*", times=4, status=403, swallowed=True))
        assert leads(leader)


def test_new_leader_knows_last_binds_of_old_leader(
    clean: ControlPlane, aliquot_scheduler: Start, crowd: list[Object]
) -> None:
    """As in every rolling update: what was listed first may be older than the last binds."""
    with Proxy(clean) as line:
        leader = _one(aliquot_scheduler)
        wait_leads(leader)
        line.quiet_watches()  # no watch may help
        listed = threading.Event()
        line.add(Fault(r"GET /api/v1/pods", after=listed.set, late=3.0))
        port = free_port()
        new = aliquot_scheduler(f"--advertise=127.0.0.1:{port}", port=port, kubeconfig=line.kubeconfig, wait=False)
        assert listed.wait(10)
        bind_until_bound(clean, leader.port, crowd[:4], NAMES)
        assert leader.stop() == 0
        wait_leads(new, 10)
        full = {pod["spec"]["nodeName"] for pod in objects.list_pods(clean) if pod["spec"].get("nodeName")}
        assert len(full) == 1  # binpack
        assert "no longer fits" in Extender(port).bind(crowd[8], full.pop())


def test_kube_scheduler_and_replicas_call_by_mutual_tls_and_others_are_refused(
    clean: ControlPlane, aliquot_scheduler: Start, kube_scheduler: Callable[..., object], tmp_path: Path
) -> None:
    """kube-scheduler calls the replica that does not lead, and that one the leader: no call without a certificate."""
    objects.create(clean, *(gpushare_node(name) for name in NAMES))
    ports = [free_port(), free_port()]
    leader = aliquot_scheduler(f"--tls-port={ports[0]}")
    wait_leads(leader)
    standby = aliquot_scheduler(f"--tls-port={ports[1]}")
    address = clean.api("GET", LEASE)["metadata"]["annotations"]["aliquot.dev/address"]
    assert address == f"https://127.0.0.1:{ports[0]}"
    data = clean.api("GET", EXTENDER_SECRET)["data"]
    for name, content in data.items():
        (tmp_path / name).write_bytes(base64.b64decode(content))
    kube_scheduler(scheduler_config(f"https://127.0.0.1:{ports[1]}", f"--tls-folder={tmp_path}"))
    objects.create(clean, *(whole_card(f"p{n}") for n in range(3)))
    objects.wait_bound(clean, "p0", "p1", "p2", seconds=60)
    assert bound_by(leader) == {f"default/p{n}" for n in range(3)}
    assert not bound_by(standby)
    (pod,) = objects.create(clean, objects.pod("p3", {MEM: CARD_GIB}, scheduler="nobody"))
    body = json.dumps({"PodName": "p3", "PodNamespace": "default", "PodUID": pod["metadata"]["uid"], "Node": "n0"})
    for port in ports:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            _post(port, body, tmp_path, certificate=False)
    assert objects.bound_to(clean, "p3") is None
    assert json.loads(_post(ports[1], body, tmp_path, certificate=True)) == {"Error": ""}
    assert_no_trace(leader, standby)
    clean.api("DELETE", EXTENDER_SECRET)


EXTENDER_SECRET = "/api/v1/namespaces/kube-system/secrets/aliquot-extender-tls"


def _post(port: int, body: str, folder: Path, *, certificate: bool) -> bytes:
    """A call of /bind, as kube-scheduler would make it."""
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.check_hostname = False  # of an address
    if certificate:
        context.load_cert_chain(folder / "client.crt", folder / "client.key")
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    try:
        connection.request("POST", "/aliquot/bind", body, {"Content-Type": "application/json"})
        return connection.getresponse().read()
    except http.client.HTTPException as error:
        raise ConnectionError(repr(error)) from error
    finally:
        connection.close()
