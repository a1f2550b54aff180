"""`aliquot install` and `uninstall` on real nodes: from nothing to the first shared Pod, and back to nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testbed.cards import QCORE, QMEM
from testbed.cluster import Cluster
from testbed.processes import wait_until
from testbed.programs.shipping import NAMESPACE, report
from testbed.realnodes.nodes import probe

GIB = 1 << 30
SMALL = {QCORE: 30, QMEM: 5}
NOT_OURS = "somebody/else:1"  # an image that runs, and is no aliquot


def _install(cluster: Cluster, *words: str, verb: str = "install", code: int = 0) -> str:
    done = cluster.aliquot(
        verb,
        *("--kube-scheduler-image", cluster.kube_scheduler_image, "--simulate", cluster.cards),
        *("--nodes", "n1,n2", "--timeout", "90s", *words),
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def _uninstall(cluster: Cluster, *words: str, code: int = 0) -> str:
    done = cluster.aliquot("uninstall", "--timeout", "90s", *words)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def _running(cluster: Cluster, name: str) -> Any:
    """The container of the Pod: who it is, and how often it began."""
    pod = cluster.plane.api("GET", f"/api/v1/namespaces/default/pods/{name}")
    (status,) = pod["status"]["containerStatuses"]
    return status["containerID"], status["restartCount"], status["ready"]


def test_from_nothing_by_one_command_to_the_first_shared_card_and_back_to_nothing(bare: Cluster) -> None:
    said = _install(bare)
    assert "2 offer GPUs" in said
    assert "refuses a Pod that breaks a rule" in said

    bare.apply(probe("first", limits=SMALL))
    ((card,),) = (report(bare, "first")["cuda"]["cards"],)
    assert card["total"] == 5 * GIB

    again = json.loads(_install(bare, "--dry-run", "-o", "json").split("\ninspect")[0].split("inspect")[0])
    assert set(again.values()) == {"unchanged"}

    assert "1 Pod uses shared cards: default/first" in _uninstall(bare, code=1)
    assert _running(bare, "first")[2], "a refusal changes nothing"
    assert "nothing is left" in _uninstall(bare, "--delete-pods")


def test_uninstall_keep_running_keeps_pods(bare: Cluster) -> None:
    _install(bare)
    bare.apply(probe("stays", "idle", limits=SMALL))
    report(bare, "stays")
    before = _running(bare, "stays")
    said = _uninstall(bare, "--keep-running")
    assert "/var/lib/aliquot/shim" in said, "it says what stays"
    assert f"DaemonSet aliquot-simulated-cards in namespace {NAMESPACE}" in said
    assert _running(bare, "stays") == before
    assert report(bare, "stays")["cuda"]["cards"][0]["total"] == 5 * GIB, "even held to its memory"

    bare.kubectl("delete", "pod", "stays", "--wait=true")
    assert "2 nodes cleaned, nothing is left" in _uninstall(bare), "the nodes themselves tell where files stayed"


def test_failed_install_reports_pod_and_rolls_back(bare: Cluster) -> None:
    said = _install(bare, "--image", NOT_OURS, "--timeout", "12s", code=1)
    assert "Pod aliquot-agent-" in said
    assert "install-shim" in said, "which container, and how it ended"
    assert "rolled back: nothing is left" in said


def test_failed_upgrade_rolls_back(bare: Cluster) -> None:
    _install(bare)
    before = bare.plane.api("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/aliquot-scheduler")
    said = _install(bare, "--image", NOT_OURS, "--timeout", "12s", verb="upgrade", code=1)
    assert "rolled back to" in said

    def healed() -> bool:
        sets = bare.plane.api("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/aliquot-agent")["status"]
        return bool(sets.get("numberAvailable") == 2 == sets.get("updatedNumberScheduled"))

    wait_until(healed, 60, "the old agents are back", saw=lambda: bare.kubectl("get", "pods", "-A"))
    after = bare.plane.api("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/aliquot-scheduler")
    assert after["spec"] == before["spec"]
    assert "unchanged" in _install(bare, "--dry-run"), "and it counts as installed"
    _uninstall(bare)


# What an option is called in the chart, and both with the same value; every option at once too.
SAID: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    **{mode: (("--mode", mode), {"mode": mode}) for mode in ("all", "qgpu", "t9k", "gpushare", "hami", "all+hami+kai")},
    "pull secrets": (
        ("--image-pull-secret", "mine", "--image-pull-secret", "yours"),
        {"imagePullSecrets[0].name": "mine", "imagePullSecrets[1].name": "yours"},
    ),
    "runtime class": (("--runtime-class", "nvidia"), {"agent.runtimeClassName": "nvidia"}),
    "memory unit": (("--memory-unit", "MiB"), {"agent.memoryUnit": "MiB", "scheduler.memoryUnit": "MiB"}),
    "driver folder": (("--driver-folder", "/etc/cdi"), {"agent.driverFolder": "/etc/cdi"}),
    "node selector": (
        ("--node-selector", "pool=gpu", "--node-selector", "zone=a"),
        {"agent.nodeSelector.pool": "gpu", "agent.nodeSelector.zone": "a"},
    ),
    "webhook failure": (("--webhook-failure", "ignore"), {"webhook.failurePolicy": "ignore"}),
    "replicas": (("--replicas", "3"), {"scheduler.replicas": 3}),
    "simulated cards": (("--simulate", "2x8GiB"), {"agent.simulate": "2x8GiB"}),
}
SAID["everything"] = (
    tuple(word for words, _ in list(SAID.values())[3:] for word in words),
    {key: value for _, values in list(SAID.values())[3:] for key, value in values.items()},
)


@pytest.mark.parametrize(("words", "values"), SAID.values(), ids=SAID.keys())
def test_install_objects_equal_chart_objects(cluster: Cluster, words: tuple[str, ...], values: dict[str, Any]) -> None:
    import yaml

    from testbed.programs.shipping import CHART

    done = cluster.aliquot(
        "install", "--dry-run", "-o", "yaml", "--namespace", "elsewhere", "--kube-scheduler-image", "kube-scheduler:x",
        "--image", "here/aliquot:y", *words,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    values = {
        "kubeScheduler.image": "kube-scheduler:x", "image.repository": "here/aliquot", "image.tag": "y",
        "namespace.create": "true", **values,
    }  # fmt: skip
    sets = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    chart = cluster.helm("template", "aliquot", str(CHART), "--namespace", "elsewhere", "--no-hooks", *sets)
    ours = _comparable(yaml.safe_load_all(done.stdout))
    theirs = _comparable(item for item in yaml.safe_load_all(chart) if item)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name] == theirs[name], name


def _comparable(objects: Any) -> dict[str, Any]:
    """By kind and name; without who manages it, and with the kube-scheduler's configuration read."""
    import yaml

    found = {}
    for rendered in objects:
        text = json.dumps(rendered).replace(
            '"app.kubernetes.io/managed-by": "Helm"', '"app.kubernetes.io/managed-by": "aliquot"'
        )
        item = json.loads(text)
        if "config.yaml" in item.get("data", {}):
            item["data"]["config.yaml"] = yaml.safe_load(item["data"]["config.yaml"])
        item.get("spec", {}).get("template", {}).get("metadata", {}).get("annotations", {}).pop(
            "checksum/kube-scheduler", None
        )
        found[f"{item['kind']} {item['metadata'].get('namespace')}/{item['metadata']['name']}"] = item
    return found
