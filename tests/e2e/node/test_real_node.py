"""Whether the nodes of the testbed are real enough: what the other tests here stand on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from aliquot.adapters.gpu.player import simulation
from testbed import objects
from testbed.client import MERGE_PATCH, Refused
from testbed.plane import ControlPlane
from testbed.processes import wait_until
from testbed.realnodes.nodes import RealNode, probe, restricted

GIB = 1 << 30


def _restarts(plane: ControlPlane, name: str) -> int:
    statuses = objects.get_pod(plane, name)["status"].get("containerStatuses", [])
    return sum(int(status["restartCount"]) for status in statuses)


def _phase(plane: ControlPlane, name: str) -> str:
    return str(objects.get_pod(plane, name)["status"]["phase"])


def test_a_node_reports_to_the_api_server_that_it_is_ready_and_what_it_runs(node: RealNode) -> None:
    node_object = objects.get_node(node.plane, node.name)
    assert node_object["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://2.")
    assert {"type": "InternalIP", "address": node.address} in node_object["status"]["addresses"]


def test_a_pod_runs_and_says_what_it_sees(node: RealNode) -> None:
    objects.create(node.plane, probe("plain", node=node.name))
    report = node.report("plain")
    assert report["host"] == "plain"
    assert report["cuda"] is None
    assert (report["preload"], report["shim_loaded"]) == (None, False)
    assert '"event": "report"' in node.plane.kubectl("logs", "plain")


def test_any_image_of_any_registry_can_be_pulled(node: RealNode) -> None:
    images = ("nginx", "cheyang/gpu-player:v2", "example.io/example-image:latest")
    for number, image in enumerate(images):
        pod = probe(f"image-{number}", node=node.name)
        pod["spec"]["containers"][0] |= {"image": image, "imagePullPolicy": "Always"}
        objects.create(node.plane, pod)
    assert [node.report(f"image-{number}")["host"] for number in range(3)] == ["image-0", "image-1", "image-2"]


def test_a_pod_of_the_restricted_level_runs_as_the_user_it_names(node: RealNode) -> None:
    plane = node.plane
    plane.kubeconfig_for("guarded/default")  # makes both
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    plane.api("PATCH", "/api/v1/namespaces/guarded", label, content_type=MERGE_PATCH)
    with pytest.raises(Refused, match="restricted"):
        objects.create(plane, probe("guarded", node=node.name, namespace="guarded"))
    objects.create(plane, restricted(probe("guarded", node=node.name, namespace="guarded"), user=1234))
    assert node.report("guarded", namespace="guarded")["uid"] == 1234


def test_a_command_can_be_run_in_a_container(node: RealNode) -> None:
    objects.create(node.plane, probe("open", node=node.name))
    node.report("open")
    assert '"host": "open"' in node.plane.kubectl("exec", "open", "--", "/probe", "exit", "0")


def test_init_containers_come_before_the_others(node: RealNode) -> None:
    first = objects.container("first", args=["exit", "0"])
    objects.create(node.plane, probe("two-steps", node=node.name, init=[first]))
    assert node.report("two-steps", "main")["at"] > node.report("two-steps", "first")["at"]


def test_a_pod_that_ends_with_an_error_is_started_again(node: RealNode) -> None:
    objects.create(node.plane, probe("falls", "exit", "3", node=node.name))
    wait_until(lambda: _restarts(node.plane, "falls") >= 1, 20, "a restart")
    assert len(node.lines("falls")) >= 2


def test_a_pod_that_is_done_is_reported_so(node: RealNode) -> None:
    objects.create(node.plane, probe("done", "exit", "0", node=node.name, restartPolicy="Never"))
    wait_until(lambda: _phase(node.plane, "done") == "Succeeded", 20, "it is done")


def test_a_deleted_pod_leaves_no_process(node: RealNode) -> None:
    objects.create(node.plane, probe("goes", node=node.name))
    node.report("goes")
    assert [command for _, command in node.contained()]
    node.plane.api("DELETE", "/api/v1/namespaces/default/pods/goes")
    wait_until(lambda: not list(node.contained()), 20, "no process is left")


def test_pods_run_on_while_the_kubelet_is_restarted(node: RealNode) -> None:
    objects.create(node.plane, probe("stays", node=node.name))
    node.report("stays")
    before = sorted(node.contained())
    node.restart_kubelet()
    objects.create(node.plane, probe("later", node=node.name))
    node.report("later")
    assert set(before) <= set(node.contained())
    assert _restarts(node.plane, "stays") == 0


def test_pods_run_on_while_containerd_is_killed_and_started(node: RealNode) -> None:
    objects.create(node.plane, probe("stays", node=node.name))
    node.report("stays")
    before = sorted(node.contained())
    node.restart_containerd(kill=True)
    objects.create(node.plane, probe("later", node=node.name))
    node.report("later")
    assert set(before) <= set(node.contained())


def test_two_nodes_have_files_and_processes_of_their_own(nodes: Sequence[RealNode]) -> None:
    one, other = nodes
    for node in nodes:
        objects.create(node.plane, probe(f"on-{node.name}", node=node.name))
    assert [node.report(f"on-{node.name}")["host"] for node in nodes] == ["on-n1", "on-n2"]
    assert not one.lines(f"on-{other.name}")
    assert {pid for pid, _ in one.processes()}.isdisjoint(pid for pid, _ in other.processes())
    mine = one.path("/var/run/cdi/mine")
    mine.touch()
    assert not other.path("/var/run/cdi/mine").exists()
    assert not Path("/var/run/cdi/mine").exists()
    mine.unlink()
    assert one.path("/var/lib/kubelet/device-plugins/kubelet.sock").is_socket()
    assert other.path("/var/lib/kubelet/device-plugins/kubelet.sock").is_socket()


def test_a_program_run_on_a_node_sees_its_files_and_ends_by_its_pid(node: RealNode) -> None:
    program = node.run(["sh", "-c", "echo $$ >/run/aliquot-pid; exec sleep 600"], name="sleeper")
    file = node.path("/run/aliquot-pid")
    wait_until(lambda: file.exists() and file.read_text(), 5, "it has begun")
    assert int(file.read_text()) == program.pid_there
    assert program.kill() == -signal.SIGKILL
    assert not Path(f"/proc/{program.pid}").exists()


def test_a_command_run_on_a_node_reports_what_it_printed_and_how_it_ended(node: RealNode) -> None:
    done = node.call(["sh", "-c", "echo $$; ls /run/containerd; exit 7"])
    assert "containerd.sock" in done.stdout.split()
    assert done.returncode == 7


# The probe itself, on simulated cards that are given to a Pod by hand: no agent is needed for that.


@pytest.fixture
def cards(node: RealNode) -> Iterator[Mapping[str, Any]]:
    """Two simulated cards of 16 GiB on the node; what a Pod's spec must have to see them."""
    node.path("/run/cards").mkdir()
    player = node.run([simulation() + "/player", "--socket", "/run/cards/sock", "--cards", "2", "--memory", "16384"])
    player.wait_ready(lambda: "ready" in player.log, 10)
    folders = {"driver": simulation(), "cards": "/run/cards"}
    yield {
        "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in folders.items()],
        "volumeMounts": [{"name": "driver", "mountPath": "/driver"}, {"name": "cards", "mountPath": "/run/cards"}],
        "env": [
            {"name": "ALIQUOT_SIMGPU", "value": "/run/cards/sock"},
            {"name": "LD_LIBRARY_PATH", "value": "/driver"},
            {"name": "LD_PRELOAD", "value": "/driver/libsimrm.so"},
        ],
    }
    player.stop()
    shutil.rmtree(node.path("/run/cards"))


def _with(cards: Mapping[str, Any], name: str, *words: str, node: str) -> dict[str, Any]:
    pod = probe(name, *words, node=node, volumes=cards["volumes"])
    pod["spec"]["containers"][0] |= {"env": cards["env"], "volumeMounts": cards["volumeMounts"]}
    return pod


def test_the_probe_reports_the_cards_it_sees_and_their_memory(node: RealNode, cards: Mapping[str, Any]) -> None:
    objects.create(node.plane, _with(cards, "sees", node=node.name))
    seen = node.report("sees")["cuda"]["cards"]
    assert [card["uuid"][:12] for card in seen] == ["GPU-5106f000", "GPU-5106f001"]
    assert [card["total_mem"] for card in seen] == [16 * GIB, 16 * GIB]
    assert all(0 < card["free"] < card["total"] == 16 * GIB for card in seen)


def test_the_probe_takes_memory_and_reports_what_the_driver_answered(node: RealNode, cards: Mapping[str, Any]) -> None:
    objects.create(node.plane, _with(cards, "takes", "alloc", "1GiB", "alloc", "16GiB", "fill", node=node.name))
    filled = node.line("takes", "filled")
    answers = [line["name"] for line in node.lines("takes") if line["event"] == "alloc"]
    assert answers == ["CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY"]
    assert 14 * GIB < filled["bytes"] < 15 * GIB


def test_the_probe_reports_its_share_of_a_card(node: RealNode, cards: Mapping[str, Any]) -> None:
    """Alone it has nearly all of it, and beside another that asks for as much, half."""
    objects.create(node.plane, _with(cards, "alone", "burn", "2", "card", "1", "burn", "60", node=node.name))
    assert node.line("alone", "burned")["share"] > 0.8
    objects.create(node.plane, _with(cards, "beside", "card", "1", "burn", "2", node=node.name))
    assert 0.35 < node.line("beside", "burned")["share"] < 0.65


def test_the_probe_answers_requests_and_reports_how_long_they_took(node: RealNode, cards: Mapping[str, Any]) -> None:
    objects.create(node.plane, _with(cards, "serves", "serve", "2", "100", "5", node=node.name))
    served = node.line("serves", "served")
    assert served["count"] == 20
    assert 5 <= served["p50_ms"] < 50


_KILLED = """
import os, signal, sys
from pathlib import Path
from testbed.registries.images import Registry
from testbed.realnodes.nodes import RealNode
from testbed.plane import ControlPlane
from testbed import objects
from testbed.realnodes.nodes import probe
folder = Path(sys.argv[1])
plane = ControlPlane(folder / "plane")
plane.start()
node = RealNode(plane, "n1", folder / "n1", Registry())
node.start()
objects.create(plane, probe("p", node="n1"))
node.report("p")
print(node.cgroup, node.address, *[pid for pid, _ in node.processes()], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_of_a_test_run_that_is_killed_nothing_is_left(tmp_path: Path) -> None:
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", _KILLED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    cgroup, address, *pids = done.stdout.split()
    assert len(pids) >= 5

    def left() -> list[str]:
        processes = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{cgroup}")]
        addresses = subprocess.run(["ip", "address", "show", "lo"], capture_output=True, text=True).stdout
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(tmp_path) in line]
        return processes + groups + mounts + [address] * (f" {address}/" in addresses)

    wait_until(lambda: not left(), 20, "nothing is left", saw=left)
