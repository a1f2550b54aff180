"""install.yaml and `aliquot uninstall` on real nodes: from nothing to the first shared Pod, and back to nothing."""

from __future__ import annotations

import importlib.util
from typing import Any

from testbed.cards import QCORE, QMEM
from testbed.cluster import Cluster
from testbed.programs.shipping import CHART, NAMESPACE, label, report
from testbed.realnodes.nodes import probe

GIB = 1 << 30
SMALL = {QCORE: 30, QMEM: 5}
_SPEC = importlib.util.spec_from_file_location("render", CHART.parent / "render.py")
assert _SPEC is not None
assert _SPEC.loader is not None
render = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(render)


def _install(cluster: Cluster) -> None:
    """deploy/install.yaml as its head says, with this cluster's images; with simulated cards, which its nodes need."""
    words = (f"--set=agent.simulate={cluster.cards}", f"--set=kubeScheduler.image={cluster.kube_scheduler_image}")
    manifest = cluster.folder / "install.yaml"
    manifest.write_text(render.render(render.find_helm(), *words))
    cluster.kubectl("apply", "--server-side", "-f", str(manifest), check=False)  # it does not know what monitors us
    label(cluster, "qgpu-device-enable=enable")
    for program in ("deployment/aliquot-scheduler", "daemonset/aliquot-agent"):
        cluster.kubectl("rollout", "status", program, "-n", NAMESPACE, "--timeout=120s")


def _uninstall(cluster: Cluster, *words: str, code: int = 0) -> str:
    done = cluster.aliquot("uninstall", "--timeout", "90s", *words)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def _running(cluster: Cluster, name: str) -> Any:
    """The container of the Pod: who it is, and how often it began."""
    pod = cluster.plane.api("GET", f"/api/v1/namespaces/default/pods/{name}")
    (status,) = pod["status"]["containerStatuses"]
    return status["containerID"], status["restartCount"], status["ready"]


def test_from_nothing_to_the_first_shared_card_and_back_to_nothing(bare: Cluster) -> None:
    _install(bare)
    bare.apply(probe("first", limits=SMALL))
    ((card,),) = (report(bare, "first")["cuda"]["cards"],)
    assert card["total"] == 5 * GIB

    said = bare.aliquot("doctor").stdout
    assert "2 offer GPUs" in said
    assert "refuses a Pod that breaks a rule" in said

    assert "1 Pod uses shared cards: default/first" in _uninstall(bare, code=1)
    assert _running(bare, "first")[2], "a refusal changes nothing"
    assert "nothing is left" in _uninstall(bare, "--delete-pods")
    label(bare, "qgpu-device-enable-")


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
    label(bare, "qgpu-device-enable-")
