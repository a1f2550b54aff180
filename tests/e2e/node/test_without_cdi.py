"""A node whose runtime knows nothing of CDI: mounts come by the kubelet, and the environment by the webhook."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from aliquot.adapters.kubelet.checkpoint import CHECKPOINT, read_checkpoint
from testbed import objects
from testbed.cards import MEM, QCORE, QMEM
from testbed.client import Refused
from testbed.judges.inside import end_container, granted
from testbed.plane import HOST, ControlPlane
from testbed.processes import free_port, wait_until
from testbed.programs.agents import AliquotAgent
from testbed.programs.doctor import Doctor
from testbed.programs.fleet import GPUSHARE, MIXED
from testbed.programs.wired import Wired
from testbed.realnodes.nodes import RealNode, probe, remove_pods
from testbed.registries.images import Registry

GIB = 1 << 30
SHIMS = "/var/lib/aliquot/shim"
_WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/aliquot"


@dataclass(frozen=True, slots=True)
class Old:
    """An old node, and what serves it."""

    plane: ControlPlane
    node: RealNode
    wired: Wired
    agent: AliquotAgent


@pytest.fixture(scope="module")
def running(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Old]:
    """On a control plane of its own: a webhook is for the whole cluster."""
    port = free_port()
    webhook = (f"--webhook-port={port}", f"--webhook-url=https://{HOST}:{port}", "--env-by-annotation")
    labels = {**MIXED, **GPUSHARE}
    with ControlPlane(tmp_path_factory.mktemp("old-plane")) as plane:
        folder = tmp_path_factory.mktemp("old")
        with RealNode(plane, "old", folder, registry, cdi=False, labels=labels) as node:
            wired = Wired(plane, folder, *webhook)
            try:
                wait_until(lambda: _asked(plane), 30, "the API server asks the webhook")
                yield Old(plane, node, wired, AliquotAgent(node, "--cdi=off"))
            finally:
                wired.stop()


def _asked(plane: ControlPlane) -> bool:
    """Whether a broken Pod is refused, some moments after the API server was told of the webhook."""
    try:
        plane.api("POST", "/api/v1/namespaces/default/pods", objects.pod("p", {QCORE: 30}), params={"dryRun": "All"})
    except Refused:
        return True
    return False


@pytest.fixture
def old(running: Old) -> Iterator[Old]:
    yield running
    remove_pods(running.plane, [running.node])
    running.agent.until_empty()


def test_a_pod_has_its_environment_its_card_and_its_quota(old: Old) -> None:
    objects.create(old.plane, probe("one", "fill", limits={MEM: 3}), probe("two", "fill", limits={QCORE: 30, QMEM: 5}))
    for name, gib in (("one", 3), ("two", 5)):
        report = old.node.report(name)
        (uuid,) = granted(objects.get_pod(old.plane, name))["main"]
        assert report["env"]["NVIDIA_VISIBLE_DEVICES"] == uuid
        assert [report[key] for key in ("shim_loaded", "socket_there", "page_writable")] == [True] * 3
        assert [(card["uuid"], card["total"]) for card in report["cuda"]["cards"]] == [(uuid, gib * GIB)]
        filled = old.node.line(name, "filled")
        assert filled["name"] == "CUDA_ERROR_OUT_OF_MEMORY"
        assert 0 < filled["bytes"] <= gib * GIB
    seen = old.node.report("one")["env"]
    assert seen["ALIYUN_COM_GPU_MEM_CONTAINER"] == seen["ALIYUN_COM_GPU_MEM_POD"] == "3"
    Doctor(old.node).quiet()


def test_a_container_that_is_started_again_finds_all_of_it(old: Old) -> None:
    objects.create(old.plane, probe("falls", "exit", "3", limits={MEM: 3}))
    wait_until(lambda: len(old.node.lines("falls")) >= 2, 20, "it is started again")
    first, second, *_ = old.node.lines("falls")
    for what in ("env", "preload", "mounts", "shim_loaded", "socket_there"):
        assert first[what] == second[what]


def test_which_version_of_the_shim_a_pod_was_given_the_kubelet_notes_and_the_others_are_swept_out(old: Old) -> None:
    """Nothing but the kubelet's own notes tells which that is, once the links are gone with a reboot."""
    objects.create(old.plane, probe("keeps", limits={MEM: 3}))
    old.node.report("keeps")
    shims = old.node.path(SHIMS)
    theirs = os.readlink(shims / "current")
    for version in ("0.0.1-older", "0.0.2-later"):
        shutil.copytree(shims / theirs, shims / version)
    old.agent.program.kill()
    for link in old.node.path("/run/aliquot/a").iterdir():
        link.unlink()
    notes = old.node.path("/var/lib/kubelet/device-plugins") / CHECKPOINT
    mounts = {mount for entry in read_checkpoint(notes) or () if (kept := entry.response()) for mount in kept.mounts}
    assert f"{SHIMS}/{theirs}/libaliquot.so" in mounts
    old.agent.start()
    assert sorted(path.name for path in shims.iterdir()) == sorted([theirs, "current"])
    end_container(old.node, "keeps")
    wait_until(lambda: len(old.node.lines("keeps")) >= 2, 20, "it is started again")
    assert [line[what] for line in old.node.lines("keeps") for what in ("shim_loaded", "socket_there")] == [True] * 4


def test_a_pod_that_the_webhook_did_not_see_is_refused_with_what_to_switch_on(old: Old) -> None:
    """It came while the webhook was away: without its variables, an image's own would open all cards to it."""
    configuration = old.plane.api("GET", _WEBHOOK)
    old.wired.ours.signal(signal.SIGSTOP)  # else it would tell the API server of its webhook again
    try:
        old.plane.api("DELETE", _WEBHOOK)
        wait_until(lambda: not _asked(old.plane), 10, "nobody asks the webhook")
        objects.create(old.plane, probe("unseen", limits={MEM: 3}))
    finally:
        again = {**configuration, "metadata": {"name": configuration["metadata"]["name"]}}
        old.plane.api("POST", _WEBHOOK.rpartition("/")[0], again)
        old.wired.ours.signal(signal.SIGCONT)
    seen = old.wired.await_event("unseen", "GPURefused", "without CDI", "--webhook-port", "--env-by-annotation")
    assert "create the Pod again" in seen
    assert old.node.lines("unseen") == []
    (found,) = [finding for finding in Doctor(old.node).wrong() if finding["check"] == "cdi"]
    assert found["about"] == ["default/unseen"]
    assert "kubectl delete pod unseen -n default" in found["fix"]
    wait_until(lambda: _asked(old.plane), 10, "the webhook is asked again")
