"""Pods are found again after the daemon is killed; and Pods on several simulated nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections.abc import Iterator

import pytest

from kit.machines.machine import PATIENCE, eventually, paper
from kit.machines.machinepods import Pods, container, pod, processes_of_pods, workload


def _alone(cards: str) -> Iterator[Pods]:
    """A machine of the test's own."""
    machine = paper(cards)
    machine.up()
    found = Pods(machine)
    try:
        yield found
        found.clear()
    finally:
        machine.close()


class TestRestarts:
    """The daemon is killed; the next one finds everything again."""

    @pytest.fixture
    def own(self) -> Iterator[Pods]:
        yield from _alone("1x24")

    def test_pods_survive_daemon_restart(self, own: Pods) -> None:
        own.apply(pod("p"), workload("StatefulSet", "web", 2))
        before = {item["uid"]: item["containers"][0]["pid"] for item in own.until_all(["Running"] * 3)}
        own.machine.kill()
        assert all(os.path.exists(f"/proc/{pid}") for pid in before.values())
        own.machine.up()
        after = {item["uid"]: item["containers"][0]["pid"] for item in own.until_all(["Running"] * 3)}
        assert after == before
        assert own.booked() == 12

    def test_pods_ended_during_restart_are_reported(self, own: Pods) -> None:
        own.apply(
            pod("p", container("main", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done"), restartPolicy="Never")
        )
        found = own.until("p")
        own.machine.kill()
        (own.machine.home / "go").touch()
        eventually(lambda: not os.path.exists(f"/proc/{found['containers'][0]['pid']}"))
        own.machine.up()
        assert own.until("p", "Succeeded")["containers"][0]["exit_code"] == 0
        eventually(lambda: own.booked() == 0)

    def test_waiting_pods_keep_order_over_restart(self, own: Pods) -> None:
        own.apply(pod("a", container(gib=24)))
        own.until("a")
        own.apply(pod("b", container(gib=24)))
        eventually(lambda: len(own.machine.status()["queue"]) == 1)
        own.apply(pod("c", container(gib=24)))
        eventually(lambda: len(own.machine.status()["queue"]) == 2)
        own.machine.kill()
        own.machine.up()
        eventually(lambda: [entry["name"] for entry in own.machine.status()["queue"]] == ["default/b", "default/c"])
        own.delete("Pod", "a")
        own.until("b")

    def test_pod_whose_supervisor_died_with_daemon_is_replaced(self, own: Pods) -> None:
        own.apply(workload("Deployment", "web", 1))
        own.until_all(["Running"])
        (tenant,) = own.machine.status()["tenants"]
        own.machine.kill()
        os.kill(tenant["pid"], signal.SIGKILL)
        own.machine.up()
        eventually(
            lambda: [item["phase"] for item in own.all()] == ["Running"] and own.all()[0]["key"] != tenant["name"]
        )

    def test_restart_finishes_pending_delete(self, own: Pods) -> None:
        own.apply(pod("p", container("main", "sh", "-c", "trap '' TERM; while :; do sleep 1; done")))
        own.until("p")
        with pytest.raises(Exception, match="daemon"):  # it goes away under the command
            connection_lost_on_delete(own)
        own.machine.up()
        eventually(lambda: own.all() == [])
        own.check_clear()

    def test_reboot_starts_applied_pods_again(self, own: Pods) -> None:
        own.apply(pod("always"), pod("never", restartPolicy="Never"), workload("Deployment", "web", 1))
        before = {item["containers"][0]["pid"] for item in own.until_all(["Running"] * 3)}
        own.machine.kill()
        with contextlib.closing(sqlite3.connect(own.machine.home / "state.db")) as database:
            database.execute("UPDATE settings SET value = 'another' WHERE key = 'boot'")
            database.commit()
        own.machine.up()
        eventually(lambda: [item["phase"] for item in own.all()] == ["Running", "Failed", "Running"])
        assert own.one("never")["reason"] == "the machine was rebooted"
        assert not before & {item["containers"][0]["pid"] for item in own.all()}
        eventually(lambda: own.booked() == 8)

    def test_removed_home_ends_pods(self) -> None:
        machine = paper("1x24")
        machine.up()
        pods = Pods(machine)
        pods.apply(pod("p"))
        pods.until("p")
        machine.close()
        eventually(lambda: processes_of_pods(str(machine.home)) == set())


def connection_lost_on_delete(own: Pods) -> None:
    """Asks for a delete that takes a second, and kills the daemon when it has begun."""
    from aliquot.adapters.host.control import connect

    connection, _ = connect(own.home)
    with contextlib.closing(connection):
        connection.send({"op": "delete", "kind": "Pod", "name": "p", "grace": 1.0})
        for result in connection.events(PATIENCE):
            assert "deleting" in result
            own.machine.kill()


class TestNodes:
    @pytest.fixture
    def two(self) -> Iterator[Pods]:
        yield from _alone("2x2x24")

    def test_simulated_nodes_number_their_cards(self, two: Pods) -> None:
        two.apply(workload("StatefulSet", "web", 4, container(gib=24)))
        found = two.until_all(["Running"] * 4)
        assert sorted((item["node"], item["cards"][0]["index"]) for item in found) == [
            ("node-0", 0), ("node-0", 1), ("node-1", 0), ("node-1", 1),
        ]  # fmt: skip
        status = two.machine.status()
        assert [(card["node"], card["index"]) for card in status["cards"]] == [
            ("node-0", 0), ("node-0", 1), ("node-1", 0), ("node-1", 1),
        ]  # fmt: skip
        assert [node["name"] for node in status["nodes"]] == ["node-0", "node-1"]
        two.machine.kill()
        two.machine.up()
        assert [card["memory_booked_bytes"] >> 30 for card in two.machine.status()["cards"]] == [24] * 4

    def test_run_gets_cards_of_one_node(self, two: Pods) -> None:
        result = two.machine.aliquot("run", "--gpus", "3", "--memory", "1", "--", "true")
        assert "at most 2: no node has more cards" in result.stderr
        two.apply(pod("p", container(gib=24)))
        two.until("p")
        result = two.machine.aliquot(
            "run", "--gpus", "2", "--memory", "20", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"
        )
        assert result.stdout == "2,3\n"
