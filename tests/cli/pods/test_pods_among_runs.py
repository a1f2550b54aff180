"""`ps` and `top` show Pods beside runs; and completion knows the commands."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from click.testing import CliRunner

from aliquot.cli.main import cli
from kit.machines.fakedaemon import (
    FakeDaemon,
    a_card,
    a_container,
    a_pod,
    a_queue_entry,
    a_share,
    a_status,
    a_tenant,
    pending,
)
from kit.machines.machine import ALIQUOT


def shown(*words: str) -> str:
    said = CliRunner().invoke(cli, [*words])
    assert said.exit_code == 0, said.output
    return said.stdout


def test_ps_shows_process_and_command_of_a_pod(daemon: FakeDaemon) -> None:
    two = [a_container(), a_container("side", "ended", command=["true"])]
    daemon.answers["status"] = a_status(a_pod("train", containers=two), tenants=[a_tenant("default/train")])
    row = shown("ps").splitlines()[1].split()
    assert (row[0], row[3]) == ("default/train", "4711")
    assert " ".join(row[-5:]) == "python train.py (and 1 more)"


def test_ps_names_the_node_of_a_card_where_there_are_several(daemon: FakeDaemon) -> None:
    tenant = a_tenant("default/train", node="node-1", cards=[a_share(0), a_share(3)])
    nodes = [{**a_status()["nodes"][0], "name": name} for name in ("node-0", "node-1")]
    daemon.answers["status"] = a_status(tenants=[tenant], nodes=nodes)
    assert shown("ps").splitlines()[1].split()[4] == "node-1/0,3"


def test_ps_shows_pods_that_wait_with_the_reason(daemon: FakeDaemon) -> None:
    daemon.answers["status"] = a_status(pending("train", "no room"))
    _, row, why = shown("ps").splitlines()
    assert row.split()[:8] == ["default/train", "root", "normal", "-", "-", "-", "-", "pending"]
    assert why == "train waits: no room"
    assert [pod["key"] for pod in json.loads(shown("ps", "-o", "json"))["pods"]] == ["default/train"]


def test_ps_and_top_show_a_queued_pod_with_its_reason(daemon: FakeDaemon) -> None:
    entry = a_queue_entry("default/train", core=30, command=["keeper"])
    daemon.answers["status"] = a_status(pending("train", "number 1 of 1 in the queue: no room"), queue=[entry])
    _, row, why = shown("ps").splitlines()
    assert row.split()[:9] == ["default/train", "root", "normal", "-", "1", "wanted", "3", "GiB", "30%"]
    assert row.endswith("python train.py")
    assert why == "train waits: number 1 of 1 in the queue: no room"
    assert shown("top").splitlines()[-1] == why


@pytest.mark.parametrize(("moves", "said"), [(1, "2 GiB, 1 move"), (3, "2 GiB, 3 moves")])
def test_top_counts_moves_of_parked_memory(daemon: FakeDaemon, moves: int, said: str) -> None:
    residency = {
        "where": "parked",
        "why": "asked",
        "resident_bytes": 0,
        "parked_bytes": 2 << 30,
        "moves": moves,
        "moved_bytes": 0,
        "last_out_seconds": None,
        "last_in_seconds": None,
    }
    tenant = a_tenant("off", cards=[a_share(residency=residency)])
    daemon.answers["status"] = a_status(cards=[a_card("box", 0)], tenants=[tenant])
    assert f" {said}  " in shown("top")


def test_top_names_nodes_and_waiting_pods(daemon: FakeDaemon) -> None:
    cards = [a_card("node-0", 0), a_card("node-1", 0, uuid="GPU-9")]
    daemon.answers["status"] = a_status(pending("a", "no room"), cards=cards, tenants=[a_tenant("default/train")])
    lines = shown("top").splitlines()
    assert [line.partition("  ")[0] for line in lines if "Paper" in line] == ["node-0 card 0", "node-1 card 0"]
    assert lines[-1] == "a waits: no room"
    daemon.answers["status"] = a_status()
    assert "\ncard 0  Paper 1000" in shown("top")


def test_top_sums_up_empty_cards_per_node(daemon: FakeDaemon) -> None:
    cards = [a_card(f"node-{at // 3}", at % 3, uuid=f"GPU-{at}") for at in range(6)]
    daemon.answers["status"] = a_status(cards=cards, tenants=[a_tenant("default/train")])
    lines = shown("top").splitlines()
    assert lines[2].startswith("node-0 card 0  Paper 1000, ")
    assert lines[-2:] == [
        "node-0 cards 1, 2  Paper 1000, 24 GiB each, no tenants",
        "node-1 cards 0, 1, 2  Paper 1000, 24 GiB each, no tenants",
    ]


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("desc", ["describe"]),
        ("get stat", ["statefulsets"]),
        ("get pods tr", ["train"]),
        ("delete pod/", ["pod/serve", "pod/train"]),
        ("logs -n team ", ["other"]),
        ("describe ghosts x", []),
    ],
)
def test_completion_of_commands_types_and_names(daemon: FakeDaemon, words: str, completed: list[str]) -> None:
    daemon.answers["status"] = a_status(a_pod("serve"), a_pod("train"), a_pod("other", "team"))
    typed = f"aliquot {words}"
    asked = {"_ALIQUOT_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)}
    said = subprocess.run(ALIQUOT, env={**os.environ, **asked}, capture_output=True, text=True, check=False)
    assert said.stdout.split() == [f"plain,{name}" for name in completed]
    assert said.stderr == ""


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (("top", "--once"), "paused: serve has the card"),
        (("ps",), "paused: serve has the card"),
        (("get", "pods"), "train is paused: serve has the card"),
    ],
)
def test_commands_name_the_tenant_that_has_the_card(daemon: FakeDaemon, command: tuple[str, ...], line: str) -> None:
    share = a_share(0, state="paused", paused_by="serve", paused_seconds=12.34)
    pod, tenant = a_pod("train", cards=[share]), a_tenant("default/train", cards=[share])
    daemon.answers["status"] = a_status(pod, tenants=[tenant])
    assert line in shown(*command)
    if command[0] == "top":
        assert "12.3s  paused" in shown(*command)


def test_a_whole_card_is_promised_whole_in_every_table(daemon: FakeDaemon) -> None:
    share = a_share(0, 24, exclusive=True)
    daemon.answers["status"] = a_status(
        a_pod("train", cards=[share]), tenants=[a_tenant("default/train", cards=[share])]
    )
    for command in (("top", "--once"), ("ps",), ("get", "pods")):
        assert "whole" in next(row for row in shown(*command).splitlines() if "train" in row).split()
