"""`aliquot apply`: from files to the daemon, and what is done on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aliquot.cli.main import cli
from aliquot.cli.pods.submit import noted
from aliquot.model.status.answers import AppliedObject
from kit.machines.fakedaemon import FakeDaemon, a_container, a_pod, a_status, a_workload, pending

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: train}\nspec: {containers: [{name: main}]}\n"
SERVICE = "kind: Service\nmetadata: {name: web}\n"
Json = dict[str, Any]


def apply(*words: str, **more: Any) -> Result:
    return CliRunner().invoke(cli, ["apply", *words], **more)


def accept(*notes: str, action: str = "created") -> Callable[[Json], Json]:
    """A daemon that takes everything."""

    def answer(request: Json) -> Json:
        return {
            "results": [
                {
                    "kind": item["kind"],
                    "namespace": item["metadata"]["namespace"],
                    "name": item["metadata"]["name"],
                    "action": action,
                    "pods": [item["metadata"]["name"]],
                    "notes": list(notes),
                }
                for item in request["objects"]
            ]
        }

    return answer


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pods.yaml"
    path.write_text(POD)
    return path


def test_apply_prints_objects_like_kubectl(daemon: FakeDaemon, file: Path) -> None:
    file.write_text(f"{POD}---\nkind: StatefulSet\nmetadata: {{name: binpack-1}}\nspec: {{}}\n")
    daemon.answers["apply"] = accept()
    done = apply("-f", str(file))
    assert (done.exit_code, done.stdout) == (0, "pod/train created\nstatefulset.apps/binpack-1 created\n")
    assert done.stderr == "see `aliquot get pods`\n"


def test_apply_sends_folder_and_reduced_environment(
    daemon: FakeDaemon, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers["apply"] = accept()
    monkeypatch.chdir(file.parent)
    monkeypatch.setenv("SOME_TOKEN", "secret")
    apply("-f", "pods.yaml", "-n", "team")
    (asked,) = daemon.requests("apply")
    assert [item["metadata"] for item in asked["objects"]] == [{"name": "train", "namespace": "team"}]
    assert (asked["cwd"], asked["dry_run"]) == (str(file.parent), False)
    assert "PATH" in asked["env"]
    assert "SOME_TOKEN" not in asked["env"]


def test_apply_in_a_deleted_folder_names_it(
    daemon: FakeDaemon, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    done = apply("-f", str(file))
    assert (done.exit_code, done.stderr) == (
        2,
        "aliquot: the current folder, in which Pods run, was deleted: cd to another one\n",
    )
    assert daemon.requests("apply") == []


def test_apply_reads_folder_in_order(daemon: FakeDaemon, tmp_path: Path) -> None:
    daemon.answers["apply"] = accept()
    for name in ("b.yml", "a.json", "c.yaml", "d.txt"):
        pod = {"kind": "Pod", "metadata": {"name": name[0]}, "spec": {}}
        (tmp_path / name).write_text("no: pod: at all" if name == "d.txt" else json.dumps(pod))
    assert apply("-f", str(tmp_path), "-o", "name").stdout == "pod/a\npod/b\npod/c\n"


def test_apply_sends_all_files_and_stdin_in_one_request(daemon: FakeDaemon, file: Path) -> None:
    daemon.answers["apply"] = accept()
    assert apply("-f", str(file), "-f", "-", input=POD.replace("train", "serve")).exit_code == 0
    assert len(daemon.requests("apply")) == 1
    assert [item["metadata"]["name"] for item in daemon.asked[0]["objects"]] == ["train", "serve"]


def test_apply_dry_run_is_marked(daemon: FakeDaemon, file: Path) -> None:
    daemon.answers["apply"] = accept()
    done = apply("-f", str(file), "--dry-run", "--wait")
    assert (done.stdout, done.stderr) == ("pod/train created (dry run)\n", "")
    assert daemon.asked[0]["dry_run"] is True


def test_apply_json_is_daemon_answer(daemon: FakeDaemon, file: Path) -> None:
    daemon.answers["apply"] = accept("a note")
    (applied,) = json.loads(apply("-f", str(file), "-o", "json").stdout)
    assert (applied["kind"], applied["name"], applied["action"], applied["notes"]) == (
        "Pod",
        "train",
        "created",
        ["a note"],
    )


def test_apply_prints_equal_notes_once(daemon: FakeDaemon, file: Path) -> None:
    file.write_text(POD + "---\n" + POD.replace("train", "serve"))
    daemon.answers["apply"] = accept("the image is not used")
    assert "note: train, serve: the image is not used\n" in apply("-f", str(file)).stderr


def test_apply_merges_similar_notes() -> None:
    def result(name: str, *notes: str, action: str = "created") -> AppliedObject:
        return AppliedObject("Pod", "default", name, action, notes=list(notes))

    one, other = (f"image {image} is not used" for image in ("a:1", "b:1"))
    assert list(noted([result("x", one), result("y", one)])) == ["x, y: image a:1 is not used"]
    assert list(noted([result("x", one, "slow"), result("y", other)])) == ["x, y: the image is not used", "x: slow"]
    assert list(noted([result("x", one, action="unchanged")])) == []


def test_apply_skips_other_kinds_with_note(daemon: FakeDaemon, file: Path) -> None:
    file.write_text(f"{SERVICE}---\n{POD}")
    daemon.answers["apply"] = accept()
    done = apply("-f", str(file))
    assert (done.exit_code, done.stdout) == (0, "pod/train created\n")
    assert "note: skipped: Service web: one machine runs only Pods and workloads\n" in done.stderr
    assert [item["kind"] for item in daemon.asked[0]["objects"]] == ["Pod"]


@pytest.mark.parametrize(
    ("content", "done"),
    [
        (SERVICE, ": no object that runs on one machine, only Service: expected Pod, Deployment, "),
        ("", ": no object found: expected Pod, "),
        ("a: b: c", ":1:5: not valid YAML: mapping values are not allowed"),
        ("metadata: {name: x}", ":1:1: kind is missing: expected Pod, "),
        (f"{POD}---\nkind: Job\nmetadata: {{}}\n", ":7:1: Job: metadata.name is missing"),
        (POD.replace("train", "train, namespace: a"), ":1:1: Pod train is in namespace a, which contradicts -n team"),
    ],
)
def test_apply_reports_file_errors_with_position(daemon: FakeDaemon, file: Path, content: str, done: str) -> None:
    file.write_text(content)
    refused = apply("-f", str(file), "-n", "team")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.removeprefix("aliquot: ").replace(str(file), "").startswith(done)
    assert daemon.asked == []


def test_apply_refuses_kustomize_with_hint(daemon: FakeDaemon) -> None:
    refused = apply("-k", "overlay")
    done = "aliquot: -k is not supported: use `kubectl kustomize overlay | aliquot apply -f -`\n"
    assert (refused.exit_code, refused.stderr, daemon.asked) == (2, done, [])


def test_apply_refuses_empty_folder(daemon: FakeDaemon, tmp_path: Path) -> None:
    refused = apply("-f", str(tmp_path))
    assert (refused.exit_code, refused.stderr) == (2, f"aliquot: {tmp_path}: no .yaml, .yml or .json file found\n")


def test_apply_refusal_has_file_and_line(daemon: FakeDaemon, file: Path) -> None:
    file.write_text(f"{SERVICE}---\n{POD}")
    field = "Pod default/train: spec.containers[0].name"
    daemon.answers["apply"] = [{"error": {"kind": "invalid", "field": field, "value": "A", "allowed": "a DNS label"}}]
    refused = apply("-f", str(file))
    assert refused.exit_code == 2
    assert refused.stderr == f'aliquot: {file}:7:22: {field}: "A" is not allowed: a DNS label\n'


def test_apply_refuses_too_large_request(daemon: FakeDaemon, file: Path) -> None:
    file.write_text("---\n".join(POD.replace("train", f"train-{at}" + "x" * 900) for at in range(400)))
    refused = apply("-f", str(file))
    assert refused.exit_code == 2
    assert "400 objects: " in refused.stderr


def test_apply_wait_prints_changes(daemon: FakeDaemon, file: Path) -> None:
    looks = iter([a_status(pending("train", "no room")), a_status(pending("train", "no room"))])
    daemon.answers |= {"apply": accept(), "status": lambda _: next(looks, a_status(a_pod("train")))}
    done = apply("-f", str(file), "--wait")
    assert (done.exit_code, done.stderr.splitlines()) == (
        0,
        ["default/train: Pending: no room", "default/train: Running on box, card 0", "1 Pod running or succeeded"],
    )


def test_apply_wait_for_rolled_workload(daemon: FakeDaemon, file: Path) -> None:
    owner = {"kind": "Deployment", "name": "web"}
    old, new = a_pod("web-old", owner=owner, terminating=True), a_pod("web-new", owner=owner)
    looks = iter(
        [
            a_status(old, workloads=[a_workload("Deployment", "web", replicas=1, ready=0)]),
            a_status(old, new, workloads=[a_workload("Deployment", "web", replicas=1, ready=1)]),
        ]
    )
    last = a_status(new, workloads=[a_workload("Deployment", "web", replicas=1, ready=1)])
    daemon.answers |= {"apply": accept(), "status": lambda _: next(looks, last)}
    file.write_text("kind: Deployment\nmetadata: {name: web}\n")
    done = apply("-f", str(file), "--wait")
    assert (done.exit_code, done.stderr.splitlines()) == (
        0,
        [
            "default/web-old: Terminating on box, card 0",
            "default/web-new: Running on box, card 0",
            "default/web-old: gone",
            "1 Pod running or succeeded",
        ],
    )


def test_apply_wait_of_failed_job_exits_1(daemon: FakeDaemon, file: Path) -> None:
    failed = a_pod("once-x", phase="Failed", owner={"kind": "Job", "name": "once"})
    job = a_workload("Job", "once", replicas=1, ready=0)
    daemon.answers |= {"apply": accept(), "status": a_status(failed, workloads=[job])}
    file.write_text("kind: Job\nmetadata: {name: once}\n")
    done = apply("-f", str(file), "--wait")
    assert done.exit_code == 1
    assert "failed: default/once-x" in done.stderr


def a_job_status(phase: str, *pods: str) -> Json:
    """Of a Job whose Pods have these phases."""
    owner = {"kind": "Job", "name": "once"}
    there = [a_pod(f"once-{at}", phase=each, owner=owner) for at, each in enumerate(pods)]
    ready = sum(pod == "Succeeded" for pod in pods)
    return a_status(*there, workloads=[a_workload("Job", "once", replicas=1, ready=ready, phase=phase)])


SEE_LOGS = "(see `aliquot logs default/once-1`)"


@pytest.mark.parametrize(
    ("looks", "code", "last"),
    [
        (
            [("Pending", "Failed"), ("Pending", "Failed"), ("Succeeded", "Failed", "Succeeded")],
            0,
            ["Job default/once is complete; before that, 1 Pod failed", "1 Pod running or succeeded"],
        ),
        (
            [("Pending", "Failed"), ("Pending", "Failed"), ("Failed", "Failed", "Failed")],
            1,
            [f"failed: Job default/once: it reached its backoffLimit, 2 Pods failed {SEE_LOGS}"],
        ),
        (
            [("Running", "Running"), ("Pending", "Failed"), ("Running", "Failed", "Running")],
            0,
            ["Job default/once runs; before that, 1 Pod failed", "1 Pod running or succeeded"],
        ),
        ([("Running", "Pending"), ("Running", "Running")], 0, ["1 Pod running or succeeded"]),
        ([("Succeeded", "Succeeded")], 0, ["1 Pod running or succeeded"]),
    ],
)
def test_apply_wait_of_job_ends_when_it_runs_or_is_over(
    daemon: FakeDaemon, file: Path, looks: list[tuple[str, ...]], code: int, last: list[str]
) -> None:
    seen = iter(looks)
    daemon.answers |= {"apply": accept(), "status": lambda _: a_job_status(*next(seen, looks[-1]))}
    file.write_text("kind: Job\nmetadata: {name: once}\n")
    done = apply("-f", str(file), "--wait")
    assert (done.exit_code, done.stderr.splitlines()[-len(last) :]) == (code, last)


@pytest.mark.parametrize(
    ("look", "why"),
    [
        (("Running", "Pending"), " (see `aliquot get pods`)"),
        (("Pending", "Failed"), ": 1 Pod failed, the next is not running yet (see `aliquot logs default/once-0`)"),
        (("Pending",), " (see `aliquot get pods`)"),
    ],
)
def test_apply_wait_timeout_says_how_far_the_job_is(
    daemon: FakeDaemon, file: Path, look: tuple[str, ...], why: str
) -> None:
    daemon.answers |= {"apply": accept(), "status": a_job_status(*look)}
    file.write_text("kind: Job\nmetadata: {name: once}\n")
    done = apply("-f", str(file), "--wait", "--timeout", "0")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == f"--timeout: Job default/once is not running after 0s{why}"


def test_apply_wait_of_failed_pod_exits_1(daemon: FakeDaemon, file: Path) -> None:
    failed = a_pod("train", phase="Failed", containers=[a_container(state="ended", exit_code=3)], reason="main: exit 3")
    daemon.answers |= {"apply": accept(), "status": a_status(failed)}
    done = apply("-f", str(file), "--wait")
    assert done.exit_code == 1
    assert "failed: default/train (see `aliquot logs default/train`)" in done.stderr


def test_apply_wait_timeout_exits_1(daemon: FakeDaemon, file: Path) -> None:
    daemon.answers |= {"apply": accept(), "status": a_status(pending("train"))}
    done = apply("-f", str(file), "--wait", "--timeout", "0")
    assert done.exit_code == 1
    assert "--timeout: not running after 0s: Pod default/train (see `aliquot get pods`)" in done.stderr


def test_apply_refuses_other_simulated_cards(daemon: FakeDaemon, file: Path) -> None:
    daemon.answers |= {"apply": accept(), "hello": {"simulated": "2x24GiB"}}
    refused = apply("-f", str(file), "--simulate", "1x24GiB")
    assert refused.exit_code == 2
    assert "--simulate: 1x24GiB is not allowed: 2x24GiB is simulated already" in refused.stderr
    assert apply("-f", str(file), "--simulate").exit_code == 0


# --- without a daemon ------------------------------------------------------------------------------------------------


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a daemon."""
    home = tmp_path / "home"
    monkeypatch.setenv("ALIQUOT_HOME", str(home))
    return home


def test_apply_dry_run_starts_no_daemon(nobody: Path, file: Path) -> None:
    done = apply("-f", str(file), "--dry-run")
    assert (done.exit_code, done.stdout) == (0, "pod/train created (dry run)\n")
    assert "note: no daemon runs: the manifests were checked" in done.stderr
    assert not nobody.exists()


def test_apply_of_another_operators_object_has_file_and_line(nobody: Path, file: Path) -> None:
    other = "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: vc}\nspec: {}\n"
    file.write_text(f"{POD}---\n{other}")
    done = apply("-f", str(file), "--dry-run")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"aliquot: {file}:6:1: ")
    assert 'Job vc: apiVersion: "batch.volcano.sh/v1alpha1" is not allowed: a Pod, Job' in done.stderr


@pytest.mark.parametrize("name", ["Train_1", "x" * 300])
def test_apply_invalid_name_has_file_and_line(nobody: Path, file: Path, name: str) -> None:
    file.write_text(f"{POD}---\n{POD.replace('train', name)}")
    done = apply("-f", str(file), "--dry-run")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"aliquot: {file}:8:12: Pod: metadata.name: ")


def test_apply_refused_name_has_file_and_line(daemon: FakeDaemon, file: Path) -> None:
    error = {"kind": "invalid", "field": "Pod: metadata.name", "value": "train", "allowed": "another"}
    daemon.answers["apply"] = [{"error": error}]
    assert apply("-f", str(file)).stderr.startswith(f"aliquot: {file}:3:12: Pod: metadata.name: ")


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n---\n"])
def test_apply_names_empty_file(nobody: Path, file: Path, text: str) -> None:
    file.write_text(text)
    done = apply("-f", str(file), "--dry-run")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"aliquot: {file}: ")
