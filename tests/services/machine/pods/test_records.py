"""Pods and their rows on the disk: neither is forgotten without the other."""

from __future__ import annotations

import contextlib
import sqlite3
from threading import Thread

from kit.machines.machine import eventually
from kit.machines.machinepods import Pods, pod, processes_of_pods


def executed(pods: Pods, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(pods.machine.home / "state.db", timeout=60)) as database:
        database.execute(statement)
        database.commit()


def test_name_of_a_pod_is_free_again_although_its_row_could_not_be_deleted_at_first(pods: Pods) -> None:
    pods.apply(pod("p"))
    first = pods.until("p")["uid"]
    executed(pods, "CREATE TRIGGER full BEFORE DELETE ON pods BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
    deleting = Thread(target=pods.delete, args=("Pod", "p"))
    try:
        deleting.start()
        eventually(lambda: not processes_of_pods(str(pods.machine.home)))
        deleting.join(2)  # time for a sweep
        assert deleting.is_alive()
        assert [found["uid"] for found in pods.all()] == [first]
    finally:
        executed(pods, "DROP TRIGGER full")
    deleting.join(60)
    assert pods.all() == []
    pods.apply(pod("p"))
    assert pods.until("p")["uid"] != first
