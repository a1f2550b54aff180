"""The vendors' own manifests and steps, with only the image changed, on a real cluster.

Seed 000's Deployment and DaemonSet are printed in full: theirs is a privileged agent that has neither the host's
processes nor its /run, and fetches both by itself. Seed 004's files are ours, of the same names and for the same steps.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import objects
from testbed.cards import MEM, QCORE, QMEM
from testbed.client import Refused
from testbed.cluster import Cluster
from testbed.judges.inside import granted
from testbed.judges.traces import Traces, remove, until_gone
from testbed.processes import wait_until
from testbed.programs.shipping import install, label, report, uninstall
from testbed.programs.wired import scheduler_config
from testbed.realnodes.nodes import probe

ROOT = Path(__file__).parents[3]
SEEDS = ROOT / "examples" / "seeds"
GPUSHARE = ROOT / "deploy" / "dropin" / "gpushare"
OWN_FILES = Path(__file__).parent / "gpushare"
PLUGINS = "/var/lib/kubelet/device-plugins"
MASTER = "node-role.kubernetes.io/master="
GIB, MIB = 1 << 30, 1 << 20
XGN, SGN = "sched.tensorstack.dev/node-alloc-mode=xgn", "sched.tensorstack.dev/node-alloc-mode=sgn"
POLICY = "tke.cloud.tencent.com/qgpu-schedule-policy"


def wait_runs(cluster: Cluster, selector: str, count: int, *, namespace: str = "kube-system") -> list[str]:
    """The names of the Pods that are chosen so, once so many are ready."""

    def ready() -> list[str]:
        path = f"/api/v1/namespaces/{namespace}/pods"
        return [
            pod["metadata"]["name"]
            for pod in cluster.plane.api("GET", path, params={"labelSelector": selector})["items"]
            if all(
                container_status["ready"]
                for container_status in pod["status"].get("containerStatuses", [{"ready": False}])
            )
        ]

    def saw() -> str:
        return cluster.kubectl("get", "pods", "-A") + cluster.kubectl(
            "logs", "-n", namespace, "-l", selector, "--all-containers", "--tail=5", check=False
        )

    wait_until(lambda: len(ready()) == count, 60, f"{count} Pods with {selector} are ready", saw=saw)
    return sorted(ready())


def wait_offered(cluster: Cluster, resource: str, amount: int, *nodes: str) -> None:
    def offered() -> list[str]:
        return [objects.get_node(cluster.plane, name)["status"]["allocatable"].get(resource, "0") for name in nodes]

    wait_until(lambda: set(offered()) == {str(amount)}, 30, f"{amount} of {resource}", saw=offered, every=0.1)


def tidy(cluster: Cluster, untouched: Traces, *files: Path) -> None:
    """As docs/dropin.md says: what was created is deleted, and what stands on the nodes is swept."""
    cluster.kubectl("delete", "pods,statefulsets", "--all", "--grace-period=1")
    for file in files:
        cluster.kubectl("delete", "--ignore-not-found", "--cascade=foreground", "-f", str(file))
    cluster.kubectl("delete", "lease", "-n", "kube-system", "--ignore-not-found", "aliquot-scheduler")
    swept = cluster.aliquot(
        "uninstall", "--nodes-only", "--delete-pods", "-n", "kube-system", "--image", cluster.image, timeout=90
    )
    cluster.start_default_scheduler()
    found = until_gone(cluster, untouched)
    if swept.returncode or found:
        remove(cluster, untouched)
        pytest.fail(f"left behind: {found}; {swept.stdout}{swept.stderr}", pytrace=False)


def asked(cluster: Cluster, agent: str, *words: str) -> Any:
    """What a command prints as JSON, run in an agent's container with kubectl; a doctor with findings ends with 1."""
    said = cluster.kubectl("exec", "-n", "kube-system", agent, "--", "aliquot", *words, "-o", "json", check=False)
    return json.JSONDecoder().raw_decode(said)[0]  # after it comes what kubectl itself has to say


@pytest.fixture(scope="class")
def qgpu(cluster: Cluster, untouched: Traces) -> Iterator[Cluster]:
    cluster.heal()
    files = (SEEDS / "qgpu-scheduler.yaml", SEEDS / "qgpu-manager.yaml")
    cluster.start_default_scheduler(scheduler_config("http://127.0.0.1:12345"))
    label(cluster, "qgpu-device-enable=enable", "mixed-qgpu-enable=enable")
    for file in files:
        cluster.kubectl("apply", "-f", str(file))
    wait_runs(cluster, "app=qgpu-scheduler", 1)
    wait_runs(cluster, "app=qgpu-manager", 2)
    wait_offered(cluster, QMEM, 64, "n1", "n2")
    yield cluster
    label(cluster, "qgpu-device-enable-", "mixed-qgpu-enable-", f"{POLICY}-")
    tidy(cluster, untouched, *files)


class TestSeed000:
    """The vendor's qGPU."""

    @pytest.fixture
    def agents(self, qgpu: Cluster) -> Iterator[dict[str, str]]:
        """The agents' Pods, by node. Tenants are gone after each test."""
        yield {
            pod["spec"]["nodeName"]: pod["metadata"]["name"]
            for pod in qgpu.pods("kube-system")
            if pod["metadata"]["labels"].get("app") == "qgpu-manager"
        }
        qgpu.kubectl("delete", "pods", "--all", "--grace-period=1")

    @pytest.mark.parametrize("name", ["qgpu", "online", "offline"])
    def test_a_pod_of_the_document_has_its_part_of_a_card(
        self, qgpu: Cluster, agents: dict[str, str], name: str
    ) -> None:
        qgpu.kubectl("apply", "-f", str(SEEDS / f"{name}-pod.yaml"))
        (card,) = report(qgpu, name)["cuda"]["cards"]
        assert card["total"] == (5 if name == "qgpu" else 4) * GIB

    def test_drop_in_pod_is_limited_to_memory_and_share(self, qgpu: Cluster, agents: dict[str, str]) -> None:
        """Which needs an agent that knows whose process came to it."""
        label(qgpu, f"{POLICY}=fixed-share")
        words = ("alloc", "4GiB", "alloc", "2GiB", "burn", "4")
        qgpu.apply(probe("held", *words, limits={QCORE: 30, QMEM: 5}))
        report(qgpu, "held")
        node = qgpu.node(str(objects.bound_to(qgpu.plane, "held")))
        node.line("held", "burned")
        lines = node.lines("held")
        first, second = (line for line in lines if line["event"] == "alloc")
        assert (first["name"], second["name"]) == ("CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY")
        begun, *_, burnt = (
            line for line in lines if line["event"] in ("burn", "burned")
        )  # the first second is a start
        share = (burnt["done_ms"] - begun["done_ms"]) / (burnt["elapsed_s"] - begun["elapsed_s"]) / 1000
        assert share == pytest.approx(0.3, abs=0.05)

    def test_top_shows_its_processes_by_the_numbers_that_the_host_knows(
        self, qgpu: Cluster, agents: dict[str, str]
    ) -> None:
        qgpu.apply(probe("shown", "alloc", "1GiB", limits={QCORE: 30, QMEM: 5}))
        report(qgpu, "shown")
        where = str(objects.bound_to(qgpu.plane, "shown"))
        node = qgpu.node(where)

        def numbers() -> list[int]:
            (tenant,) = asked(qgpu, agents[where], "top", "--once")["tenants"]
            return [pid for card in tenant["cards"] for pid in card["pids"]]

        wait_until(lambda: len(numbers()) == 1, 10, "one is seen on the card, its own", saw=numbers)
        (number,) = numbers()
        assert "probe" in node.path(f"/proc/{number}/cmdline").read_text()

    def test_the_doctor_in_its_container_finds_nothing_wrong(self, qgpu: Cluster, agents: dict[str, str]) -> None:
        qgpu.kubectl("apply", "-f", str(SEEDS / "qgpu-pod.yaml"))
        report(qgpu, "qgpu")

        def found() -> list[Any]:
            said = [finding for agent in agents.values() for finding in asked(qgpu, agent, "doctor")]
            return [finding for finding in said if finding["level"] not in ("ok", "note")]

        # The Pod of the test before is gone for the API server a moment before its agent has tidied up after it.
        wait_until(lambda: not found(), 10, "the doctor finds nothing wrong", saw=found)

    def test_one_of_two_agents_on_one_network_does_without_the_port_and_says_so(
        self, qgpu: Cluster, agents: dict[str, str]
    ) -> None:
        """Both nodes have this machine's. On real ones, another program may have it."""
        for agent in agents.values():
            assert asked(qgpu, agent, "top", "--once")["agent"]["waits_for"] is None
        notes = [note for agent in agents.values() for note in asked(qgpu, agent, "top", "--once")["agent"]["notes"]]
        assert set(notes) == {"another program listens on port 9479 (set another with --port)"}

    def test_an_agent_that_was_killed_comes_back_and_takes_up_who_is_there(
        self, qgpu: Cluster, agents: dict[str, str]
    ) -> None:
        qgpu.apply(probe("stays", "alloc", "1GiB", limits={QCORE: 30, QMEM: 5}))
        report(qgpu, "stays")
        where = str(objects.bound_to(qgpu.plane, "stays"))
        node = qgpu.node(where)
        before = len(node.lines("stays"))
        (pid,) = (pid for pid, command in node.processes() if f"agent --nodename={where}" in command)
        os.kill(pid, signal.SIGKILL)

        def taken_up() -> bool:
            try:
                said = str(qgpu.plane.api("GET", f"/api/v1/namespaces/kube-system/pods/{agents[where]}/log"))
            except Refused:  # between two containers
                return False
            return any(json.loads(line).get("pods") == 1 for line in said.splitlines() if line.startswith("{"))

        wait_until(taken_up, 60, "the next agent has the Pod", every=0.2)
        wait_runs(qgpu, "app=qgpu-manager", 2)
        assert len(node.lines("stays")) == before, "the Pod did not start again"
        (tenant,) = asked(qgpu, agents[where], "top", "--once")["tenants"]
        assert tenant["name"] == "default/stays"

    def test_the_documents_limits_of_memory_are_more_than_enough(self, qgpu: Cluster, agents: dict[str, str]) -> None:
        """300 MiB for the agent, 800 for the scheduler."""
        peaks = {"agent --nodename=": 150 * MIB, "qgpu-scheduler": 200 * MIB}
        for node in qgpu.nodes:
            for pid, command in node.processes():
                for word, most in peaks.items():
                    if word in command:
                        assert _peak(pid) < most, command

    def test_the_documents_roles_are_enough_and_what_they_leave_out_is_said(self, qgpu: Cluster) -> None:
        said = qgpu.kubectl("logs", "-n", "kube-system", "deployment/qgpu-scheduler")
        assert "election_disabled" in said
        assert not re.search(r'"level":"(error|critical)"', said)


def _peak(pid: int) -> int:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.fixture(scope="class")
def gpushare(cluster: Cluster, untouched: Traces) -> Iterator[Cluster]:
    cluster.heal()
    files = [GPUSHARE / f"{name}.yaml" for name in ("gpushare-schd-extender", "device-plugin-rbac", "device-plugin-ds")]
    cluster.kubectl("create", "-f", str(files[0]))
    config = yaml.safe_load((GPUSHARE / "scheduler-policy-config.yaml").read_text())
    del config["leaderElection"]
    (extender,) = config["extenders"]
    extender["urlPrefix"] = extender["urlPrefix"].replace(":32766", ":12345")  # nobody plays kube-proxy here
    cluster.start_default_scheduler(config)
    for file in files[1:]:
        cluster.kubectl("create", "-f", str(file))
    label(cluster, "gpushare=true")
    wait_runs(cluster, "component=gpushare-schd-extender", 1)
    wait_runs(cluster, "component=gpushare-device-plugin", 2)
    wait_offered(cluster, MEM, 64, "n1", "n2")
    yield cluster
    label(cluster, "gpushare-")
    tidy(cluster, untouched, *files)


class TestSeed004:
    """gpushare, by its steps."""

    def test_the_documents_app_is_packed_onto_one_card_and_inspect_shows_it(self, gpushare: Cluster) -> None:
        gpushare.kubectl("apply", "-f", str(SEEDS / "binpack-1.yaml"))
        for name in ("binpack-1-0", "binpack-1-1", "binpack-1-2"):
            seen = report(gpushare, name)
            assert [card["total"] for card in seen["cuda"]["cards"]] == [3 * GIB]
            assert seen["env"]["ALIYUN_COM_GPU_MEM_CONTAINER"] == "3"
        path = f"{Path(sys.executable).parent}:{gpushare.environment['PATH']}"  # kubectl finds its plugins there
        command = ["kubectl", "inspect", "gpushare"]
        done = subprocess.run(
            command, env={**gpushare.environment, "PATH": path}, capture_output=True, text=True, check=True
        )
        printed = done.stdout.splitlines()
        assert printed[0].split() == [
            "NAME",
            "IPADDRESS",
            *[f"GPU{at}(Allocated/Total)" for at in range(4)],
            "GPU",
            "Memory(GiB)",
        ]
        # kube-scheduler spreads replicas over the nodes; those of one node share a card.
        rows = [[part.split("/")[0] for part in line.split()[2:]] for line in printed[1:3]]
        assert all(cards == [total, "0", "0", "0"] for *cards, total in rows)
        assert sum(int(total) for *_, total in rows) == 9
        assert printed[-2:] == ["Allocated/Total GPU Memory In Cluster:", "9/128 (7%)  "]

    def test_pod_on_four_cards_works_unlike_in_the_document(self, gpushare: Cluster) -> None:
        gpushare.kubectl("apply", "-f", str(SEEDS / "four-cards.yaml"))
        assert [card["total"] for card in report(gpushare, "four-cards")["cuda"]["cards"]] == [3 * GIB] * 4


@pytest.fixture(scope="class")
def own_files(cluster: Cluster, untouched: Traces, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """gpushare's own files: an extender without a command, a device plugin without privilege and with one volume."""
    cluster.heal()
    folder = tmp_path_factory.mktemp("gpushare")
    files = [folder / file.name for file in sorted(OWN_FILES.glob("*.yaml"))]
    for file in files:
        file.write_text((OWN_FILES / file.name).read_text().replace("IMAGE", cluster.image))
    cluster.start_default_scheduler(scheduler_config("http://127.0.0.1:12345"))
    cluster.kubectl("label", "node", "n1", MASTER)
    label(cluster, "gpushare=true")
    for file in files:
        cluster.kubectl("create", "-f", str(file))
    wait_runs(cluster, "component=gpushare-schd-extender", 1)
    wait_runs(cluster, "component=gpushare-device-plugin", 2)
    wait_offered(cluster, MEM, 64, "n1", "n2")
    yield cluster
    label(cluster, "gpushare-")
    cluster.kubectl("label", "node", "n1", f"{MASTER.rstrip('=')}-")
    tidy(cluster, untouched, *files)


class TestGpushareOwnFiles:
    """With only the image changed."""

    @pytest.fixture
    def pods(self, own_files: Cluster) -> Iterator[Cluster]:
        yield own_files
        own_files.kubectl("delete", "pods,statefulsets", "--all", "--grace-period=1")

    def test_the_documents_app_has_its_part_of_a_card_and_its_environment(self, pods: Cluster) -> None:
        pods.kubectl("apply", "-f", str(SEEDS / "binpack-1.yaml"))
        for name in ("binpack-1-0", "binpack-1-1", "binpack-1-2"):
            seen = report(pods, name)
            assert [card["total"] for card in seen["cuda"]["cards"]] == [3 * GIB]
            assert seen["env"]["ALIYUN_COM_GPU_MEM_CONTAINER"] == "3"
            assert seen["env"]["NVIDIA_VISIBLE_DEVICES"] == seen["cuda"]["cards"][0]["uuid"]

    def test_equal_pods_at_once_have_each_the_card_that_it_was_granted(self, pods: Cluster) -> None:
        """Which of them an Allocate is for, gpushare guesses by size and age."""
        names = [f"equal-{at}" for at in range(8)]
        pods.apply(*(probe(name, limits={MEM: 9}) for name in names))
        for name in names:
            (card,) = report(pods, name)["cuda"]["cards"]
            (uuid,) = granted(objects.get_pod(pods.plane, name))["main"]
            assert (card["uuid"], card["total"]) == (uuid, 9 * GIB)

    def test_memory_beyond_the_quota_is_refused(self, pods: Cluster) -> None:
        pods.apply(probe("held", "alloc", "2GiB", "alloc", "2GiB", limits={MEM: 3}))
        report(pods, "held")
        node = pods.node(str(objects.bound_to(pods.plane, "held")))
        node.line("held", "alloc")
        wait_until(lambda: len(_allocations(node.lines("held"))) == 2, 60, "both allocations were tried")
        assert _allocations(node.lines("held")) == ["CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY"]

    def test_restarted_kubelet_leaves_the_agents_folder_alone(self, pods: Cluster) -> None:
        """It removes files of its folder of device plugins when it starts, but no folders."""
        pods.apply(probe("stays", "alloc", "1GiB", limits={MEM: 3}))
        report(pods, "stays")
        node = pods.node(str(objects.bound_to(pods.plane, "stays")))
        folder = node.path(f"{PLUGINS}/aliquot/run/t/{objects.get_pod(pods.plane, 'stays')['metadata']['uid']}")
        assert (folder / "page").exists()
        node.restart_kubelet()
        wait_until(lambda: list(node.path(PLUGINS).glob("aliquot-*.sock")), 60, "the agent has registered again")
        wait_offered(pods, MEM, 64, node.name)
        assert (folder / "page").exists()
        pods.apply(probe("next", limits={MEM: 3}))
        assert [card["total"] for card in report(pods, "next")["cuda"]["cards"]] == [3 * GIB]

    def test_the_log_names_what_is_missing_and_the_lines_to_add(self, own_files: Cluster) -> None:
        for name in wait_runs(own_files, "component=gpushare-device-plugin", 2):
            lines = _log(own_files, name)
            missing = {line["missing"]: line["add"] for line in lines if line["msg"] == "host_access_missing"}
            volumes = {"/run/aliquot", "/var/lib/aliquot", "/var/run/cdi", "/var/lib/kubelet/pod-resources"}
            assert missing.keys() == {*volumes, "hostPID"}
            assert all(f"hostPath: {{path: {path}" in missing[path] for path in volumes)
            assert missing["hostPID"] == "in the Pod's spec: hostPID: true"
            notes = asked(own_files, name, "top", "--once")["agent"]["notes"]
            assert len([note for note in notes if note.startswith("the agent's Pod lacks")]) == len(missing)
            assert not [line for line in lines if line["level"] in ("error", "critical")]

    def test_the_extender_names_what_its_role_leaves_out(self, own_files: Cluster) -> None:
        (name,) = wait_runs(own_files, "component=gpushare-schd-extender", 1)
        lines = _log(own_files, name)
        assert "election_disabled" in {line["msg"] for line in lines}
        assert not [line for line in lines if line["level"] in ("error", "critical")]


def _allocations(lines: list[Any]) -> list[str]:
    return [line["name"] for line in lines if line["event"] == "alloc"]


def _log(cluster: Cluster, pod: str) -> list[Any]:
    text = cluster.kubectl("logs", "-n", "kube-system", pod)
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.fixture(scope="class")
def t9k(cluster: Cluster, untouched: Traces) -> Iterator[Cluster]:
    cluster.heal()
    for node, mode in (("n1", XGN), ("n2", SGN)):
        cluster.kubectl("label", "node", node, "sched.tensorstack.dev/accelerator=nvidia-gpu", mode)
    install(cluster, "--set", "mode=t9k")
    wait_offered(cluster, "tensorstack.dev/nvidia-gpu", 4, "n1")
    wait_offered(cluster, "tensorstack.dev/nvidia-gpu-percent", 400, "n2")
    yield cluster
    label(cluster, "sched.tensorstack.dev/accelerator-", "sched.tensorstack.dev/node-alloc-mode-")
    cluster.kubectl("delete", "pods", "--all", "--grace-period=1")
    uninstall(cluster)
    found = until_gone(cluster, untouched)
    if found:
        remove(cluster, untouched)
        pytest.fail(f"left behind: {found}", pytrace=False)


class TestSeed003:
    """T9k: the labels of its nodes, and its Pods."""

    def test_an_exclusive_node_has_the_taint_and_its_pods_need_no_toleration_of_their_own(self, t9k: Cluster) -> None:
        wait_until(
            lambda: "xgn-mode" in json.dumps(objects.get_node(t9k.plane, "n1")["spec"].get("taints")), 20, "a taint"
        )
        t9k.kubectl("apply", "-f", str(SEEDS / "exclusive-gpu.yaml"))
        seen = report(t9k, "exclusive-gpu")
        assert seen["env"]["NVIDIA_VISIBLE_DEVICES"].split(",") == [card["uuid"] for card in seen["cuda"]["cards"]]
        assert [card["total"] for card in seen["cuda"]["cards"]] == [16 * GIB] * 2
        assert objects.bound_to(t9k.plane, "exclusive-gpu") == "n1"

    def test_a_shared_pod_gets_its_percentage_and_its_megabytes(self, t9k: Cluster) -> None:
        t9k.kubectl("apply", "-f", str(SEEDS / "shared-gpu.yaml"))
        seen = report(t9k, "shared-gpu")
        assert seen["env"]["T9K_GPU_PERCENT"] == "30"
        assert int(seen["env"]["T9K_GPU_MEMORY"]) == seen["cuda"]["cards"][0]["total"] // MIB
        assert objects.bound_to(t9k.plane, "shared-gpu") == "n2"
