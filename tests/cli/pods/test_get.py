"""`aliquot get`: kubectl's words, and tables that read like kubectl's."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from aliquot.cli.client import NoDaemonRunsError, NotServedError
from aliquot.cli.main import cli
from aliquot.cli.pods import get as module
from aliquot.cli.pods.get import Changes, Seen
from aliquot.cli.pods.kinds import BY_NAME, POD, targets
from aliquot.cli.pods.rows import state_of
from aliquot.model.status.machine import Status
from kit.machines.fakedaemon import (
    FakeDaemon,
    a_card,
    a_container,
    a_pod,
    a_share,
    a_status,
    a_tenant,
    a_workload,
    machine_status,
    pending,
    pod_status,
)


def get(*words: str) -> Result:
    return CliRunner().invoke(cli, ["get", *words])


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.mark.parametrize("words", [[], ["pods"], ["po"], ["pod"], ["Pods"]])
def test_get_pods_shows_kubectl_columns_and_cards(daemon: FakeDaemon, words: list[str]) -> None:
    two = [a_share(0, 3, core=30), a_share(1, 3, core=30)]
    daemon.answers["status"] = a_status(a_pod("train", cards=two, **{"class": "offline"}))
    head, row = get(*words).stdout.splitlines()
    assert " ".join(head.split()) == "NAME READY STATUS RESTARTS AGE NODE CARDS MEMORY CORE CLASS"
    cells = row.split()
    assert " ".join(cells[:4] + cells[5:]) == "train 1/1 Running 0 box 0,1 2 x 3 GiB 2 x 30% offline"


def test_get_pods_shows_reasons_below(daemon: FakeDaemon) -> None:
    daemon.answers["status"] = a_status(a_pod("train"), pending("a", "no room"), pending("b", "no room"))
    assert get("pods").stdout.splitlines()[-1] == "a, b wait: no room"


def test_get_mentions_other_namespaces(daemon: FakeDaemon) -> None:
    daemon.answers["status"] = a_status(a_pod("train", "team"))
    said = get("pods")
    assert (said.exit_code, said.stdout) == (0, "")
    assert said.stderr == "nothing found in namespace default: there is some in team (-A shows all)\n"
    assert rows(get("pods", "-n", "team").stdout)[1][0] == "train"
    assert rows(get("pods", "-A").stdout)[1][:2] == ["team", "train"]


def test_get_all_shows_workloads_and_pods(daemon: FakeDaemon) -> None:
    daemon.answers["status"] = a_status(a_pod("web-0"), workloads=[a_workload("StatefulSet", "web")])
    shown = rows(get("all").stdout)
    assert [row[0] for row in shown if row] == ["NAME", "pod/web-0", "NAME", "statefulset.apps/web"]
    assert shown[-1][1] == "2/3"


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({"phase": "Succeeded"}, "Complete"),
        ({"phase": "Failed"}, "Failed"),
        ({"phase": "Failed", "suspended": True}, "Failed"),
        ({"phase": "Pending", "suspended": True}, "Suspended"),
        ({"phase": "Running"}, "Running"),
        ({"phase": "Pending"}, "Running"),
    ],
)
def test_get_and_describe_say_whether_a_job_failed(daemon: FakeDaemon, more: dict[str, Any], state: str) -> None:
    daemon.answers["status"] = a_status(workloads=[a_workload("Job", "j", **more)])
    head, row = rows(get("jobs").stdout)
    assert (head, row[:3]) == (["NAME", "STATUS", "COMPLETIONS", "AGE"], ["j", state, "2/3"])
    described = CliRunner().invoke(cli, ["describe", "job", "j"]).stdout
    assert f"Status:       {state}\n" in described


def test_get_cron_jobs_shows_kubectl_columns(daemon: FakeDaemon) -> None:
    often = a_workload("CronJob", "often", schedule="*/5 * * * *", last_run=time.time() - 90, created=time.time() - 700)
    held = a_workload("CronJob", "held", schedule="@daily", suspended=True, ready=0, created=time.time() - 60)
    daemon.answers["status"] = a_status(workloads=[often, held])
    head, first, second = rows(get("cj").stdout)
    assert head == ["NAME", "SCHEDULE", "SUSPEND", "ACTIVE", "LAST", "SCHEDULE", "AGE"]
    assert first[:5] == ["held", "@daily", "True", "0", "<none>"]
    assert [*second[:1], *second[6:9]] == ["often", "False", "2", "1m30s"]


def test_watch_prints_no_line_when_the_last_run_grows_older() -> None:
    seen = Seen(BY_NAME["CronJob"], wide=False, everywhere=False, prefixed=False)
    lines = []
    for ago in (10, 90):
        often = a_workload("CronJob", "often", schedule="@hourly", last_run=time.time() - ago)
        status = machine_status(a_status(workloads=[often]))
        lines.append(seen.changes(status, status.workloads or [], headed=False).lines)
    assert [len(printed) for printed in lines] == [2, 0]
    gone = seen.changes(machine_status(a_status()), [], headed=False).lines
    assert gone[0].split()[3] == "gone"


def test_get_output_name_prints_type_and_name(daemon: FakeDaemon) -> None:
    daemon.answers["status"] = a_status(a_pod("a"), a_pod("b"), workloads=[a_workload("Job", "j")])
    assert get("pods,jobs", "-o", "name").stdout == "pod/a\npod/b\njob.batch/j\n"
    assert get("pod/b", "job/j", "-o", "name").stdout == "pod/b\njob.batch/j\n"


def test_get_unknown_name_lists_existing_ones(daemon: FakeDaemon) -> None:
    daemon.answers["status"] = a_status(a_pod("a"), a_pod("b"), a_pod("c", "team"))
    assert get("pod", "ghost").stderr == "aliquot: no pod is called ghost in namespace default: there are a, b\n"
    assert get("pod", "c").stderr.endswith("there is one in team (-n team)\n")
    assert get("pod", "ghost").exit_code == 1
    assert rows(get("pod", "team/c").stdout)[1][0] == "c"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["services"], "services is not a type: use pods, nodes, deployments, "),
        (["pods,sts", "a"], "pods,sts a: give one type before a name, for example pod a"),
        (["pod/a", "b"], "b: give TYPE/NAME, for example pod/a"),
        (["pod/"], "(empty) is not a name: give NAME or NAMESPACE/NAME"),
        (["pods", "-n", "a", "-A"], "-n and -A: only one of them"),
        (["pods", "-w", "-o", "yaml"], "-w: -o yaml is not allowed: table, wide or name"),
    ],
)
def test_get_rejects_bad_arguments_before_asking_the_daemon(daemon: FakeDaemon, words: list[str], said: str) -> None:
    refused = get(*words)
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"aliquot: {said}")
    assert daemon.asked == []


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("po", "Pod"),
        ("no", "Node"),
        ("deploy", "Deployment"),
        ("deployment.apps", "Deployment"),
        ("sts", "StatefulSet"),
        ("rs", "ReplicaSet"),
        ("jobs.batch", "Job"),
        ("rc", "ReplicationController"),
    ],
)
def test_get_accepts_kubectl_short_names(word: str, kind: str) -> None:
    assert [kind.name for kind in targets([word])[0].kinds] == [kind]


def test_get_nodes_shows_cards_and_free_amounts(daemon: FakeDaemon) -> None:
    nodes = [{"name": f"node-{at}", "cards": [], "offers": ["qgpu"], "policy": "fixed-share"} for at in range(2)]
    cards = [a_card("node-0", 0, 3, core_booked=30.0), a_card("node-0", 1), a_card("node-1", 0, healthy=False)]
    daemon.answers["status"] = a_status(a_pod("train", node="node-0"), nodes=nodes, cards=cards)
    head, first, second = get("nodes", "-o", "wide").stdout.splitlines()
    assert first.split("  ")[0] == "node-0"
    assert "45 GiB of 48 GiB  24 GiB       170% of 200%  1     fixed-share  qgpu    Paper 1000  21 24" in first
    assert second.split()[1:5] == ["1", "out", "1", "0"]
    assert head.endswith("FREE ON EACH (GiB)")


def test_get_nodes_counts_whole_cards_as_used(daemon: FakeDaemon) -> None:
    alone = a_tenant("t", cards=[a_share(0, 24, exclusive=True)])
    card = a_card("box", 0, 24, core_booked=100.0)
    daemon.answers["status"] = a_status(cards=[card, a_card("box", 1)], tenants=[alone])
    assert "100% of 200%" in get("nodes").stdout
    assert "100% booked by one tenant" in CliRunner().invoke(cli, ["describe", "node"]).stdout


def test_get_pods_sorts_by_name(daemon: FakeDaemon) -> None:
    daemon.answers["status"] = a_status(a_pod("b"), a_pod("a"), a_pod("z", "earlier"))
    assert get("pods", "-A", "-o", "name").stdout == "pod/a\npod/b\npod/z\n"


def test_get_yaml_is_the_manifest_with_status(daemon: FakeDaemon) -> None:
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train"},
        "spec": {},
        "status": {"phase": "Running"},
    }
    daemon.answers |= {"status": a_status(a_pod("train")), "object": {"object": manifest}}
    assert yaml.safe_load(get("pod", "train", "-o", "yaml").stdout) == manifest
    assert daemon.requests("object")[0] == {"op": "object", "kind": "Pod", "namespace": "default", "name": "train"}
    assert json.loads(get("pods", "-o", "json").stdout) == {"apiVersion": "v1", "kind": "List", "items": [manifest]}


HIDDEN = "\x00 \x1b[2J \x7f \x85 \x9b \xa0 \xad \u200b \u200d \u2028 \u202e \u3000 \ufeff \ue000 \U000e0041"


@pytest.mark.parametrize(
    "sign", [*HIDDEN.split(" "), HIDDEN, "\\\u3000", '"\u200d"', "a\n\u3000\tb\n", "\u3000 long " * 40]
)
def test_get_yaml_escapes_only_signs_that_cannot_be_seen(daemon: FakeDaemon, sign: str) -> None:
    notes = {
        "team": "训练组",
        "note": f"语音{sign}模型",
        f"key{sign}": "值",
        "lines": "一\n二",
        "face": "😀",
        "count": "1",
    }
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train", "annotations": notes}, "spec": {}}
    daemon.answers |= {"status": a_status(a_pod("train")), "object": {"object": manifest}}
    shown = get("pod", "train", "-o", "yaml").stdout
    assert yaml.safe_load(shown) == manifest
    assert shown.replace("\n", "").isprintable()
    assert "team: 训练组\n" in shown
    assert "face: 😀\n" in shown
    assert 'note: "语音' in shown


def test_get_node_yaml_has_its_cards(daemon: FakeDaemon) -> None:
    printed = yaml.safe_load(get("node", "box", "-o", "yaml").stdout)
    assert (printed["kind"], printed["metadata"]["name"], len(printed["status"]["cards"])) == ("Node", "box", 2)


def test_get_on_a_kubernetes_node_points_to_kubectl(daemon: FakeDaemon) -> None:
    status = a_status()
    del status["pods"]
    daemon.answers["status"] = status
    assert "on a node of Kubernetes `kubectl get pods` shows them" in get("pods").stderr


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        (pending("p"), "Pending"),
        (pending("p", node="box"), "Starting"),
        (pending("p", node="box", containers=[a_container("i", init=True), a_container(state="waiting")]), "Init:0/1"),
        (pending("p", node="box", containers=[a_container(state="waiting", restarts=1)]), "CrashLoopBackOff"),
        (
            pending("p", node="box", containers=[a_container("i", "waiting", init=True, restarts=1), a_container()]),
            "Init:CrashLoopBackOff",
        ),
        (a_pod("p"), "Running"),
        (a_pod("p", containers=[a_container(state="waiting", restarts=2)]), "CrashLoopBackOff"),
        (a_pod("p", containers=[a_container(), a_container("b", state="ended", exit_code=1)]), "Error"),
        (a_pod("p", phase="Succeeded"), "Completed"),
        (a_pod("p", phase="Failed"), "Error"),
        (a_pod("p", terminating=True), "Terminating"),
    ],
)
def test_pod_state_matches_kubectl_status(pod: dict[str, Any], state: str) -> None:
    assert state_of(pod_status(pod)) == state


def test_get_selector_filters_by_label(daemon: FakeDaemon) -> None:
    web, other = a_pod("web-0", labels={"app": "web", "tier": "front"}), a_pod("db-0", labels={"app": "db"})
    daemon.answers["status"] = a_status(web, other, a_pod("bare", labels={}))
    for selector, names in (
        ("app=web", ["web-0"]), ("app==web,tier=back", []), ("app!=web", ["bare", "db-0"]), ("app", ["db-0", "web-0"]),
        ("!app", ["bare"]), ("app, tier!=front", ["db-0"]),
    ):  # fmt: skip
        assert get("pods", "-l", selector, "-o", "name").stdout.split() == [f"pod/{name}" for name in names], selector
    assert "nothing found with these labels" in get("pods", "-l", "app=ghost").stderr


@pytest.mark.parametrize("selector", ["", "=web", "app in (web)", "!app=web", "app=web,,"])
def test_get_rejects_bad_selector(daemon: FakeDaemon, selector: str) -> None:
    said = get("pods", "-l", selector)
    assert (said.exit_code, said.stderr.startswith(f"aliquot: -l: {selector} is not allowed: KEY=VALUE")) == (2, True)


def test_get_no_headers_prints_rows_only(daemon: FakeDaemon) -> None:
    daemon.answers["status"] = a_status(a_pod("train"), pending("a", "no room"))
    assert [row[0] for row in rows(get("pods", "--no-headers").stdout)] == ["a", "train"]


# --- watching -----------------------------------------------------------------------------------------------------


def changes(seen: Seen, pods: list[dict[str, Any]], *, headed: bool) -> Changes:
    return seen.changes(machine_status(a_status()), [pod_status(pod) for pod in pods], headed=headed)


def test_watch_ignores_changes_of_age() -> None:
    seen = Seen(POD, wide=False, everywhere=False, prefixed=False)
    first = changes(seen, [a_pod("a", created=0.0)], headed=False)
    assert len(first.lines) == 2
    assert changes(seen, [a_pod("a", created=5000.0)], headed=False).lines == ()


def test_watch_prints_a_line_per_change() -> None:
    seen = Seen(POD, wide=False, everywhere=False, prefixed=False)
    changes(seen, [pending("a"), a_pod("b")], headed=False)
    (line,) = changes(seen, [a_pod("a"), a_pod("b")], headed=False).lines
    assert line.split()[:3] == ["a", "1/1", "Running"]
    (line,) = changes(seen, [a_pod("a")], headed=False).lines
    assert line.split()[:3] == ["b", "1/1", "gone"]
    assert changes(seen, [a_pod("a")], headed=False).lines == ()


def test_watch_keeps_column_widths() -> None:
    seen = Seen(POD, wide=False, everywhere=False, prefixed=False)
    first = changes(seen, [a_pod("a"), a_pod("a-long-name")], headed=False).lines[1]
    (later,) = changes(seen, [a_pod("a", node="elsewhere")], headed=False).lines[:1]
    assert first.index("1/1") == later.index("1/1")


def test_watch_survives_a_daemon_restart(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EVERY", 0.01)
    looks = module._looks(machine_status(a_status()))
    next(looks)
    daemon.close()
    daemon.listen()
    assert next(looks).pods == []


def test_watch_survives_a_daemon_that_ends_while_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_EVERY", 0.01)
    answers: list[Status | Exception] = [
        NotServedError("closed"),
        NoDaemonRunsError("none"),
        machine_status(a_status()),
    ]

    def answer() -> Status:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(module, "local_status", answer)
    looks = module._looks(machine_status(a_status()))
    next(looks)
    assert next(looks).pods == []
    assert answers == []
