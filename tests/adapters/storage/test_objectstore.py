"""What was applied outlives the daemon: all of a write, or nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aliquot.adapters.storage.database import StoreError
from aliquot.adapters.storage.store import Store
from aliquot.model.containers.localpod import Applier, ContainerState, LocalPod, Phase, PodEvent, PodState, Workload

WHO = Applier(1000, 100, "/home/you", {"PATH": "/bin"})
WEB = Workload("Deployment", "default", "web", {"spec": {"replicas": 2}}, "t1", WHO, 1.0)
STATE = PodState(
    Phase.RUNNING, "why", "node-0", 2.0, 3.0,
    (ContainerState("main", "image", ("sleep", "1"), "/log", state="ended", exit_code=1, restarts=2, started=1.5),),
    ("asked for a card",), (PodEvent(1.0, "made"), PodEvent(2.0, "oops", "Warning")),
)  # fmt: skip
POD = LocalPod("u1", "default", "web-0", ("Deployment", "web"), {"kind": "Pod"}, "t1", WHO, 1.0, STATE, (7, 8), 30.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    (tmp_path / "t").mkdir()
    found = Store(str(tmp_path / "state.db"), str(tmp_path / "t"))
    yield found
    found.close()


def test_objects_are_read_back_unchanged(store: Store) -> None:
    bare = replace(POD, uid="u2", name="p", owner=None, supervisor=None, ending=None, state=PodState(), created=2.0)
    store.objects.write(workloads=[WEB], pods=[POD, bare])
    assert store.objects.workloads() == [WEB]
    assert store.objects.pods() == [POD, bare]


def test_pod_is_updated_in_place(store: Store) -> None:
    store.objects.write(pods=[POD])
    changed = replace(POD, state=replace(STATE, phase=Phase.FAILED), supervisor=None)
    store.objects.write(pods=[changed])
    assert store.objects.pods() == [changed]


def test_deleted_objects_are_gone(store: Store) -> None:
    store.objects.write(workloads=[WEB], pods=[POD])
    store.objects.write(gone=[WEB], gone_pods=[POD])
    assert (store.objects.workloads(), store.objects.pods()) == ([], [])


def test_two_pods_of_one_name_are_refused_atomically(store: Store) -> None:
    store.objects.write(pods=[POD])
    with pytest.raises(StoreError):
        store.objects.write(workloads=[WEB], pods=[replace(POD, uid="u2")])
    assert (store.objects.workloads(), store.objects.pods()) == ([], [POD])
