"""`aliquot run -f`: the containers of a Pod as runs."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kit.machines.machine import PATIENCE, Machine, eventually
from kit.values.manifests import APP_CLASS, MEM

Json = dict[str, Any]


def a_container(name: str, *command: str, gib: int | None = 3, **more: Any) -> Json:
    limits = {} if gib is None else {MEM: gib}
    return {"name": name, "command": list(command), "resources": {"limits": limits}, **more}


def a_pod(*containers: Json, name: str = "p", **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [*containers], **spec},
    }


def run(machine: Machine, *objects: Json, words: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return machine.aliquot("run", *words, "-f", "-", input=yaml.safe_dump_all(objects))


def test_pod_of_one_container_becomes_its_command(machine: Machine, tmp_path: Path) -> None:
    manifest = tmp_path / "pod.yaml"
    container = a_container("main", "sh", "-c", "echo $PORT $ALIQUOT_NAME $$$$; pwd; exit 7", workingDir=str(tmp_path))
    manifest.write_text(yaml.safe_dump(a_pod({**container, "env": [{"name": "PORT", "value": "80"}]})))
    with machine.begin("run", "-f", str(manifest)) as process:
        assert process.communicate(timeout=PATIENCE)[0] == f"80 p {process.pid}\n{tmp_path}\n"
        assert process.returncode == 7


def test_init_containers_come_first_and_their_failure_ends_the_pod(machine: Machine) -> None:
    first, second = (a_container(name, "echo", name, gib=gib) for name, gib in (("first", 3), ("second", None)))
    done = run(machine, a_pod(a_container("main", "echo", "main"), initContainers=[first, second]))
    assert (done.returncode, done.stdout) == (0, "first\nsecond\nmain\n"), done.stderr
    failing = a_container("first", "sh", "-c", "exit 3", gib=None)
    done = run(machine, a_pod(a_container("main", "echo", "main"), initContainers=[failing, second]))
    assert (done.returncode, done.stdout) == (3, "")
    assert "init container first ended with exit code 3" in done.stderr


def test_containers_run_beside_each_other_and_sidecars_end_with_the_last(machine: Machine) -> None:
    side = a_container("side", "sh", "-c", "trap 'echo side; exit 0' TERM; while :; do sleep 0.05; done", gib=None)
    failing = a_container("b", "sh", "-c", "sleep 0.5; exit 4", gib=None)
    pod = a_pod(a_container("a", "true"), failing, initContainers=[{**side, "restartPolicy": "Always"}])
    done = run(machine, pod)
    assert (done.returncode, done.stdout) == (4, "side\n"), done.stderr


def test_container_without_a_card_sees_none(machine: Machine) -> None:
    done = run(
        machine, a_pod(a_container("a", "true"), a_container("b", "sh", "-c", "echo -$CUDA_VISIBLE_DEVICES-", gib=None))
    )
    assert done.stdout == "--\n"


def test_signal_goes_to_all_containers(machine: Machine) -> None:
    wait = ("sh", "-c", "echo on; exec sleep 600")
    manifest = yaml.safe_dump(a_pod(a_container("a", *wait), a_container("b", *wait)))
    with machine.begin("run", "-f", "-") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(manifest)
        process.stdin.close()
        assert [process.stdout.readline(), process.stdout.readline()] == ["on\n", "on\n"]
        assert sorted(machine.names()) == ["p-a", "p-b"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    eventually(lambda: machine.names() == [])


def test_detached_pods_are_runs_in_the_background(machine: Machine) -> None:
    pods = [a_pod(a_container("main", "sleep", "600"), name=name) for name in ("one", "two")]
    done = run(machine, *pods, {"kind": "Service", "metadata": {"name": "web"}}, words=("-d",))
    assert (done.returncode, done.stdout) == (0, "one\ntwo\n"), done.stderr
    assert done.stderr == "aliquot: skipped: Service web\n"
    assert sorted(machine.names()) == ["one", "two"]


def test_detached_pod_in_json(machine: Machine) -> None:
    pod = a_pod(a_container("main", "sleep", "600"))
    pod["metadata"]["annotations"] = {APP_CLASS: "online"}
    done = run(machine, pod, words=("-d", "-o", "json", "--name", "mine"))
    (found,) = json.loads(done.stdout)["runs"]
    assert (found["name"], found["container"], found["request"]["memory_mib"]) == ("mine", "main", 3072)
    assert machine.names() == ["mine"]


def test_dry_run_prints_lines_for_a_shell(machine: Machine) -> None:
    container = a_container("main", "echo", "a b", env=[{"name": "A", "value": "x y"}], workingDir="/no where")
    done = run(machine, a_pod(container), words=("--dry-run", "--no-wait"))
    line = "(cd '/no where' && env 'A=x y' aliquot run --name p --memory 3 --no-wait -- echo 'a b')\n"
    assert (done.returncode, done.stdout) == (0, line)
    assert machine.names() == []


@pytest.mark.parametrize(
    ("kind", "api"), [("Deployment", "apps/v1"), ("Job", "batch/v1"), ("RayCluster", "ray.io/v1"), ("Cron", "x.io/v1")]
)
def test_workloads_are_refused_with_what_to_use(machine: Machine, kind: str, api: str) -> None:
    template = {"spec": a_pod(a_container("main", "true"))["spec"]}
    done = run(machine, {"apiVersion": api, "kind": kind, "metadata": {"name": "w"}, "spec": {"template": template}})
    assert done.returncode == 2
    assert done.stderr.startswith(f"aliquot: -:1:1: {kind} w: `aliquot run -f` runs only Pods; for Deployments")
    assert "k3s" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--memory", "3"), "--memory: not with -f: the Pod says it"),
        (("-o", "json"), "-o json: add --dry-run or --detach"),
        (("-o", "xml"), "--output: xml is not allowed: table or json"),
        (("--rules", "1999"), "--rules: 1999 is not allowed"),
        (("--name", "x" * 64), "too long for a run: use --name"),
    ],
)
def test_options_that_do_not_go_with_a_pod(machine: Machine, words: tuple[str, ...], said: str) -> None:
    done = run(machine, a_pod(a_container("main", "true")), words=words)
    assert done.returncode == 2
    assert said in done.stderr


def test_refusals_name_file_and_line(machine: Machine, tmp_path: Path) -> None:
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(
        "kind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n"
        f"  - name: main\n    resources: {{limits: {{{MEM}: 3}}}}\n"
    )
    done = machine.aliquot("run", "-f", str(manifest))
    assert done.returncode == 2
    assert done.stderr.startswith(f"aliquot: {manifest}:5:5: spec.containers[0].command is missing: ")
    done = run(machine, a_pod(a_container("main", "true", workingDir="/nowhere")))
    assert done.stderr == "aliquot: spec.containers[0].workingDir: /nowhere is not allowed: a folder of this machine\n"
    assert "needs -f" in machine.aliquot("run", "--dry-run", "--", "true").stderr
    assert "omit true" in run(machine, words=("-f", "-", "--", "true")).stderr
    assert "has no Pod" in run(machine, {"kind": "Service", "metadata": {"name": "web"}}).stderr
