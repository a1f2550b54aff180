"""Pods on one machine, as people use them: apply, get, describe, logs, delete, against a daemon that runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from kit.machines.machine import FOREVER, Machine, eventually
from kit.values.manifests import MEM

Json = dict[str, Any]
CARDS = "1x24"  # of 24 GiB: conftest.py


def a_pod(name: str, *command: str, gib: int = 3, **spec: Any) -> Json:
    container: Json = {"name": "main", "image": "some/image:v1", "command": list(command or FOREVER)}
    container |= {"resources": {"limits": {MEM: gib}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def stateful(name: str, replicas: int, *command: str, gib: int = 3) -> Json:
    template = {"metadata": {"labels": {"app": name}}, "spec": a_pod("", *command, gib=gib)["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def apply(machine: Machine, *objects: Json, words: tuple[str, ...] = ("--wait",)) -> tuple[int, str, str]:
    done = machine.aliquot("apply", "-f", "-", *words, input=yaml.safe_dump_all(objects))
    return done.returncode, done.stdout, done.stderr


def cells(machine: Machine, *words: str) -> list[list[str]]:
    """The rows of `get`, less the head."""
    return [line.split() for line in machine.aliquot("get", *words).stdout.splitlines()[1:]]


def test_statefulset_apply_and_delete(machine: Machine) -> None:
    code, out, err = apply(machine, stateful("binpack-1", 3))
    assert (code, out) == (0, "statefulset.apps/binpack-1 created\n"), err
    assert "note: binpack-1: image some/image:v1 is not used: containers are local processes" in err
    assert [row[:3] for row in cells(machine, "pods")] == [[f"binpack-1-{at}", "1/1", "Running"] for at in range(3)]
    assert cells(machine, "sts")[0][:2] == ["binpack-1", "3/3"]
    result = machine.aliquot("delete", "sts", "binpack-1", "--now")
    assert (result.returncode, result.stdout) == (0, 'statefulset.apps "binpack-1" deleted (3 Pods)\n')
    assert machine.aliquot("get", "all").stdout == ""
    assert machine.names() == []


def test_apply_again_changes_only_differences(machine: Machine) -> None:
    apply(machine, stateful("web", 1), a_pod("train"))
    pids = {row[0]: row[-1] for row in cells(machine, "pods", "-o", "wide")}
    assert (
        apply(machine, stateful("web", 2), a_pod("train"))[1]
        == "statefulset.apps/web configured\npod/train unchanged\n"
    )
    after = {row[0]: row[-1] for row in cells(machine, "pods", "-o", "wide")}
    assert sorted(after) == ["train", "web-0", "web-1"]
    assert {name: after[name] for name in pids} == pids


def test_logs_of_pod(machine: Machine) -> None:
    apply(machine, a_pod("talk", "sh", "-c", "echo one; echo two >&2; sleep 600"))
    eventually(lambda: machine.aliquot("logs", "talk").stdout == "one\ntwo\n")
    assert machine.aliquot("logs", "default/talk", "--tail", "1").stdout == "two\n"


def test_logs_follow_until_pod_ends(machine: Machine) -> None:
    apply(machine, a_pod("talk", "sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.2; done", restartPolicy="Never"))
    assert machine.aliquot("logs", "-f", "talk").stdout == "1\n2\n3\n"


def test_succeeded_pod_is_completed(machine: Machine) -> None:
    code, _, err = apply(machine, a_pod("short", "true", restartPolicy="Never"))
    assert code == 0, err
    eventually(lambda: cells(machine, "pod", "short")[0][:3] == ["short", "0/1", "Completed"])


def test_apply_wait_of_failing_pod_exits_1(machine: Machine) -> None:
    """In an init container: so it never runs, however busy the machine is."""
    first = {"name": "first", "image": "some/image:v1", "command": ["sh", "-c", "exit 3"]}
    code, _, err = apply(machine, a_pod("bad", restartPolicy="Never", initContainers=[first]))
    assert code == 1
    assert "failed: default/bad" in err
    assert "exit code 3" in machine.aliquot("describe", "pod", "bad").stdout


def test_apply_wait_of_job_goes_on_after_a_failed_pod(machine: Machine, tmp_path: Path) -> None:
    """The first Pod fails, the second finds what it left and succeeds."""
    command = ("sh", "-c", f"test -e {tmp_path}/there || {{ touch {tmp_path}/there; exit 3; }}")
    spec = {"backoffLimit": 1, "template": {"spec": a_pod("", *command, restartPolicy="Never")["spec"]}}
    code, _, err = apply(
        machine, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "twice"}, "spec": spec}
    )
    assert code == 0, err
    assert "; before that, 1 Pod failed" in err


def test_pod_without_room_waits_with_reason(machine: Machine) -> None:
    assert apply(machine, a_pod("big", gib=20))[0] == 0  # of those that are applied together, any may be the first
    code, _, err = apply(machine, a_pod("more", gib=20), words=("--wait", "--timeout", "2s"))
    assert code == 1
    assert "--timeout: not running after 2s: Pod default/more" in err
    shown = machine.aliquot("get", "pods").stdout
    assert "more waits: " in shown
    assert machine.aliquot("delete", "pod", "big", "--now").returncode == 0
    eventually(lambda: cells(machine, "pod", "more")[0][2] == "Running")


def test_get_yaml_has_manifest_and_status(machine: Machine) -> None:
    apply(machine, a_pod("train"))
    pod = yaml.safe_load(machine.aliquot("get", "pod", "train", "-o", "yaml").stdout)
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {MEM: 3}
    assert pod["status"]["phase"] == "Running"
    assert json.loads(machine.aliquot("get", "pods", "-o", "json").stdout)["items"][0]["status"] == pod["status"]


def test_describe_pod_has_placement_and_events(machine: Machine) -> None:
    apply(machine, a_pod("train"))
    shown = machine.aliquot("describe", "pod/train").stdout
    for words in ("Status:       Running (1 of 1", "Card 0:  Paper 1000", "0 GiB of 3 GiB", "Why:", "Events:"):
        assert words in shown
    assert "default/train  normal" in machine.aliquot("describe", "node").stdout


def test_apply_starts_nothing_if_one_object_is_invalid(machine: Machine, tmp_path: Path) -> None:
    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump_all([a_pod("good"), a_pod("bad", gib=-1)]))
    result = machine.aliquot("apply", "-f", str(file))
    assert (result.returncode, result.stdout) == (2, "")
    line = next(at for at, text in enumerate(file.read_text().splitlines(), 1) if text.endswith(": -1"))
    assert result.stderr.startswith(f"aliquot: {file}:{line}:9: Pod default/bad: spec.containers[0]")
    assert machine.aliquot("get", "pods").stdout == ""


def test_apply_starts_nothing_if_one_pod_can_never_fit(machine: Machine) -> None:
    code, printed, error = apply(machine, a_pod("good"), stateful("huge", 2, gib=25))
    assert (code, printed) == (2, "")
    assert "StatefulSet default/huge: spec.template.spec.containers[0]" in error
    assert "25 is not allowed: this machine has 1 card of 24 GiB" in error
    assert machine.aliquot("get", "pods").stdout == ""


def test_get_and_describe_show_cron_jobs_and_suspended_jobs(machine: Machine) -> None:
    template = {"spec": {**a_pod("")["spec"], "restartPolicy": "Never"}}
    job = {"kind": "Job", "metadata": {"name": "once"}, "spec": {"suspend": True, "template": template}}
    spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template}}}
    cron = {"kind": "CronJob", "metadata": {"name": "yearly"}, "spec": spec}
    code, printed, _ = apply(machine, job, cron)
    assert (code, printed) == (0, "job.batch/once created\ncronjob.batch/yearly created\n")
    assert cells(machine, "jobs")[0][:3] == ["once", "Suspended", "0/1"]
    head, row = machine.aliquot("get", "cj").stdout.splitlines()
    assert head.split() == ["NAME", "SCHEDULE", "SUSPEND", "ACTIVE", "LAST", "SCHEDULE", "AGE"]
    assert row.startswith("yearly  0 0 1 1 *  False")
    assert row.split()[7:9] == ["0", "<none>"]
    assert yaml.safe_load(machine.aliquot("get", "cj", "yearly", "-o", "yaml").stdout)["status"] == {"active": []}
    shown = machine.aliquot("describe", "cronjob", "yearly").stdout
    assert "Schedule:     0 0 1 1 *" in shown
    assert "-01-01 00:00:00" in shown
    assert "Suspended:    yes" in machine.aliquot("describe", "job", "once").stdout


def test_apply_dry_run_starts_nothing(machine: Machine) -> None:
    assert apply(machine, a_pod("train"), words=("--dry-run",))[:2] == (0, "pod/train created (dry run)\n")
    assert machine.aliquot("get", "pods").stdout == ""


def test_ps_and_top_show_pods_among_runs(machine: Machine) -> None:
    apply(machine, a_pod("train", "sleep", "601"))
    machine.detach("--name", "run", "--memory", "1", "--", *FOREVER)
    shown = machine.aliquot("ps").stdout.splitlines()
    row = next(line for line in shown if line.startswith("default/train"))
    assert row.endswith("sleep 601")
    assert row.split()[3].isdigit()
    assert "default/train  normal" in machine.aliquot("top", "--once").stdout
    machine.aliquot("stop", "run", "--timeout", "0")


def test_unknown_pod_lists_existing_names(machine: Machine) -> None:
    apply(machine, a_pod("train"))
    result = machine.aliquot("delete", "pod", "ghost")
    assert result.returncode == 1
    assert result.stderr.startswith("aliquot: no pod is called ")
    assert "train" in result.stderr
