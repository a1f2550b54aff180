"""`aliquot describe`: where, why, how it stands, and what happened."""

from __future__ import annotations

import time

from click.testing import CliRunner, Result

from aliquot.cli.main import cli
from kit.machines.fakedaemon import (
    FakeDaemon,
    a_card,
    a_container,
    a_pod,
    a_share,
    a_status,
    a_tenant,
    a_workload,
    pending,
)


def describe(*words: str) -> Result:
    return CliRunner().invoke(cli, ["describe", *words])


def flat(text: str) -> list[str]:
    """The lines with one space for many, so that columns may move."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_describe_pod_shows_where_and_why(daemon: FakeDaemon) -> None:
    owner = {"kind": "StatefulSet", "name": "train"}
    daemon.answers["status"] = a_status(a_pod("train-0", why=["asks for 3 GiB", "card 0 is fullest"], owner=owner))
    shown = flat(describe("pod", "train-0").stdout)
    assert shown[:4] == ["Name: train-0", "Namespace: default", "Owner: StatefulSet/train", shown[3]]
    assert shown[3] == "Status: Running (1 of 1 containers ready)"
    assert "Class: normal, in the dialect gpushare" in shown
    assert shown[shown.index("Why:") + 1 :][:2] == ["asks for 3 GiB", "card 0 is fullest"]


def test_describe_pod_shows_share_quota_and_memory(daemon: FakeDaemon) -> None:
    paused = {"paused_seconds": 1.5, "state": "paused", "paused_by": "serve"}
    card = a_share(1, 8, core=30, share=0.253, refused_allocations=4, **paused)
    daemon.answers["status"] = a_status(a_pod("train", cards=[card]))
    shown = flat(describe("pod/train").stdout)
    assert "Card 1: Paper 1000, GPU-1" in shown
    assert "compute: 25.3% of the card's time; quota 30% (best-effort)" in shown
    assert "memory: 64 MiB of 8 GiB; 4 allocations past the limit were refused" in shown
    assert "state: paused: serve has the card" in shown
    assert "paused: 1.5s in all" in shown


def test_describe_shows_why_a_container_cannot_start(daemon: FakeDaemon) -> None:
    why = "nosuch: command not found on this machine"
    container = a_container(state="waiting", restarts=1, exit_code=127, reason=why)
    daemon.answers["status"] = a_status(pending("p", f"container main: {why}", node="box", containers=[container]))
    shown = flat(describe("pod", "p").stdout)
    assert "Status: CrashLoopBackOff (0 of 1 containers ready)" in shown
    assert f"Reason: container main: {why}" in shown
    assert f"state: waiting; last exit code 127: {why}" in shown


def test_describe_shows_container_states_and_exit_codes(daemon: FakeDaemon) -> None:
    now = time.time()
    containers = [
        a_container("prepare", "ended", init=True, exit_code=0, ended=now - 5),
        a_container("main", started=now - 5, exit_code=137, restarts=1),
        a_container("side", "ended", exit_code=3, ended=now - 5),
    ]
    daemon.answers["status"] = a_status(a_pod("train", containers=containers))
    shown = flat(describe("pod", "train").stdout)
    assert shown[shown.index("Init container prepare:") + 1].endswith("ago, exit code 0")
    main = shown[shown.index("Container main:") :]
    assert main[1].endswith("s, pid 4711; last exit code 137 (signal 9)")
    assert main[2:6] == [
        "restarts: 1",
        "command: python train.py",
        "image: some/image:v1 (not used: containers are local processes)",
        "log: /logs/main",
    ]


def test_describe_waiting_pod_shows_reason_and_events(daemon: FakeDaemon) -> None:
    event = {"time": time.time() - 90, "type": "Warning", "text": "no room on any card"}
    daemon.answers["status"] = a_status(pending("train", "no room", events=[event]))
    shown = flat(describe("pod", "train").stdout)
    assert {"Reason: no room", "Node: none yet"} <= set(shown)
    assert shown[-1].endswith("Warning no room on any card")
    assert shown[-1].startswith("1m3")


def test_describe_workload_lists_its_pods(daemon: FakeDaemon) -> None:
    owner = {"kind": "StatefulSet", "name": "web"}
    pods = [a_pod("web-0", owner=owner), pending("web-1", "no room", owner=owner), a_pod("other")]
    daemon.answers["status"] = a_status(*pods, workloads=[a_workload("StatefulSet", "web")])
    shown = flat(describe("sts", "web").stdout)
    assert "Ready: 2 of 3" in shown
    assert shown[-4:] == ["NAME STATUS NODE CARDS", "web-0 Running box 0", "web-1 Pending - -", "web-1: no room"]


def test_describe_node_shows_cards_and_tenants(daemon: FakeDaemon) -> None:
    cards = [a_card("box", 0, 3, core_booked=30.0, utilisation=0.5), a_card("box", 1, healthy=False, why_out="XID 79")]
    tenant = a_tenant("default/train", cards=[a_share(core=30)])
    daemon.answers["status"] = a_status(cards=cards, tenants=[tenant])
    shown = flat(describe("node").stdout)
    assert shown[:3] == ["Name: box", "Offers: qgpu, gpushare", "Policy: best-effort, release delay 100ms"]
    assert "memory: 3 GiB of 24 GiB booked, 21 GiB free" in shown
    assert "compute: 30% booked; busy 50%" in shown
    assert "default/train normal 50.0% 30% 64 MiB / 3 GiB running" in shown
    assert "out: XID 79" in shown


def test_describe_escapes_terminal_sequences(daemon: FakeDaemon) -> None:
    daemon.answers["status"] = a_status(a_pod("train", why=["a\x1b[31mb"]))
    assert "a\\x1b[31mb" in describe("pod", "train").stdout


def test_describe_requires_a_type(daemon: FakeDaemon) -> None:
    assert describe().exit_code == 2
    assert describe("ghost").exit_code == 2
