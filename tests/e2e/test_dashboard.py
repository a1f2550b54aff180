"""The scheduler's dashboard on a real control plane: what it shows of nodes and Pods, and tells as they change."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any
from urllib.parse import quote

import pytest

from testbed.gpus import gpushare_node, gpushare_pod
from testbed.objects import delete_pod
from testbed.plane import HOST
from testbed.processes import free_port, wait_until
from testbed.programs.wired import Wired

PORT = free_port()
SCHEDULER_ARGS = (f"--dashboard={HOST}:{PORT}",)


def asked(path: str) -> Any:
    with urllib.request.urlopen(f"http://{HOST}:{PORT}/api/v1/{path}", timeout=10) as answer:
        return json.load(answer)


def pod(name: str) -> Any:
    """As its panel shows it, once it is known."""

    def found() -> Any:
        try:
            return asked(f"pods/{quote(f'default/{name}', safe='')}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    return wait_until(found, 10, f"the dashboard knows {name}")


@contextmanager
def listening() -> Iterator[Iterator[tuple[str, Any]]]:
    """What it tells, event by event."""
    connection = http.client.HTTPConnection(HOST, PORT, timeout=10)
    connection.request("GET", "/api/v1/events")
    answer = connection.getresponse()

    def events() -> Iterator[tuple[str, Any]]:
        name = ""
        while line := answer.readline().decode():
            if line.startswith("event: "):
                name = line[7:].strip()
            elif line.startswith("data: "):
                yield name, json.loads(line[6:])

    try:
        yield events()
    finally:
        connection.close()


def test_nodes_are_shown_by_name_with_a_byte_for_each_card(cluster: Wired) -> None:
    cluster.create(gpushare_node("n10", 16, 16), gpushare_node("n2", 24))
    state = wait_until(lambda: (seen := asked("state"))["totals"]["nodes"] == 2 and seen, 10, "both are known")
    assert (state["kind"], state["leading"], state["priority"]) == ("cluster", True, "binpack")
    assert (state["nodes"]["names"], state["nodes"]["cards"]) == (["n2", "n10"], [1, 2])
    assert b64decode(state["cards"]["memory"]) == bytes(3)


def test_a_placed_pod_says_where_it_is_and_why_and_its_node_shows_it(cluster: Wired) -> None:
    cluster.create(gpushare_node("n1", 16, 16))
    ((_, (card,)),) = cluster.placed(gpushare_pod("p", 4))
    shown = wait_until(lambda: (seen := pod("p"))["phase"] == "Running" and seen, 10, "it runs, as Kubernetes has it")
    assert (shown["node"], [(card["index"], card["memory_mib"]) for card in shown["cards"]]) == ("n1", [(card, 4096)])
    assert shown["why"][0]["text"] == "Requests 4 GiB (gpushare)."
    assert any("binpack" in line["text"] for line in shown["why"])
    (tenant,) = asked("nodes/n1")["cards"][card]["tenants"]
    assert (tenant["key"], tenant["dialect"], tenant["memory_mib"]) == ("default/p", "gpushare", 4096)
    assert asked("search?q=p")["pods"] == [
        {"key": "default/p", "node": "n1", "class": "normal", "phase": "Running"},
    ]


@pytest.mark.parametrize(("gib", "cards", "wants"), [(20, 1, "20 GiB"), (24, 3, "8 GiB on each of 3 cards")])
def test_a_waiting_pod_is_listed_with_what_it_wants_and_why_it_waits(
    cluster: Wired, gib: int, cards: int, wants: str
) -> None:
    cluster.create(gpushare_node("n1", 16, 16))
    cluster.create(gpushare_pod(f"big-{cards}", gib, cards=cards))

    def waiting() -> Any:
        entries = [entry for entry in asked("state")["waiting"]["pods"] if entry["key"] == f"default/big-{cards}"]
        return next((entry for entry in entries if entry["reason"]["text"].startswith("fits none of 1 node")), None)

    entry = wait_until(waiting, 10, "its reason is told", saw=lambda: asked("state")["waiting"])
    assert (entry["dialect"], entry["wants"]["text"]) == ("gpushare", wants)
    shown = pod(f"big-{cards}")
    assert (shown["phase"], shown["node"]) == ("Pending", None)
    assert [(refusal["nodes"], refusal["example"]) for refusal in shown["refusals"]] == [(1, "n1")]


def test_a_tick_reports_a_new_pod_and_its_deletion(cluster: Wired) -> None:
    cluster.create(gpushare_node("n1", 16))
    wait_until(lambda: asked("state")["nodes"]["cards"] == [1], 10, "the node is known")
    with listening() as events:
        assert next(events)[0] == "state"
        cluster.placed(gpushare_pod("p", 8))
        assert _until(events, memory=100) in ("state", "tick")  # the first tick after a node came is a state
        delete_pod(cluster.plane, "p")
        assert _until(events, memory=0) == "tick"


def _until(events: Iterator[tuple[str, Any]], *, memory: int) -> str:
    """The event that tells this of the only card's memory; one of the next ten."""
    for name, data in islice(events, 10):
        if b64decode(data["cards"]["memory"]) == bytes([memory]):
            return name
    raise AssertionError(f"ten events, and none tells {memory}")
