"""`aliquot doctor` on a node: the agent's checks beside the cluster's, or alone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from aliquot.cli.cluster.doctor import _served, doctor
from kit.agents.fakenode import FakeNode
from kit.agents.kubelet import a_folder
from kit.agents.nodesite import UID, the_agent, the_node, the_pod, the_site
from kit.clusters.kubectl import FakeCluster, invoked
from kit.values.manifests import Json


@pytest.fixture
def node() -> Iterator[FakeNode]:
    """In a folder with a short name, for the sockets' sake; a node of one Pod."""
    with a_folder() as folder:
        made = FakeNode(folder)
        made.tenant(UID)
        yield made


@pytest.fixture
def api(cluster: FakeCluster) -> FakeCluster:
    cluster.show(the_node(), the_pod())
    cluster.answer("/version", {"gitVersion": "v1.36.4"})
    return cluster


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Pod has processes, and what its spec mounts is there."""
    monkeypatch.setattr("aliquot.services.agent.api.control.pods_seen", lambda: {UID: 2})
    exists = os.path.exists
    monkeypatch.setattr("os.path.exists", lambda path: str(path).startswith("/var/lib/aliquot/shim") or exists(path))


def examined(node: FakeNode, *more: str) -> Result:
    places = node.places
    words = (f"--run-dir={places.run}", f"--dbfile={places.database}", f"--kubelet-dir={places.kubelet}")
    return invoked(doctor, *words, f"--cdi-dir={places.cdi}", *more)


def by_check(node: FakeNode, *more: str) -> dict[str, list[Json]]:
    """The findings by their level."""
    result = examined(node, "-o", "json", *more)
    assert result.exit_code in (0, 1), result.output
    found: dict[str, list[Json]] = {}
    for load in json.loads(result.stdout):
        found.setdefault(load["level"], []).append(load)
    return found


def checks(found: list[Json]) -> set[str]:
    return {finding["check"] for finding in found}


OF_THE_NODE = {"kubelet", "agent", "database", "shim", "cards", "resources", "inventory", "cdi", "holdings"}


def test_doctor_checks_the_node_where_a_kubelet_is(node: FakeNode, api: FakeCluster) -> None:
    with ExitStack() as stack:
        node.start(stack)
        found = by_check(node)
    assert checks(found["ok"]) >= OF_THE_NODE
    assert not checks(found.get("finding", [])) & OF_THE_NODE
    assert {"scheduler", "extender"} & checks(found["finding"]), "the cluster is looked at as well"


def test_doctor_on_a_machine_without_cards_gives_a_note(
    node: FakeNode, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control plane's, say: people call the doctor where they are."""
    monkeypatch.setattr("aliquot.services.doctor.site._with_nvml", lambda site: site)
    cluster.show(the_node(labels={}, capacity={}, annotations={}))
    cluster.answer("/version", {"gitVersion": "v1.36.4"})
    node.places.database.unlink()
    shutil.rmtree(node.places.run / "t")
    for spec in (node.places.cdi or Path()).iterdir():
        spec.unlink()
    found = by_check(node, "--nodename=n1")
    assert not checks(found["finding"]) & OF_THE_NODE
    (note,) = [finding for finding in found["note"] if finding["check"] == "agent"]
    assert note["what"].startswith("no agent runs here, and the labels ask for none")


def test_doctor_with_no_node_checks_the_cluster_only(node: FakeNode, api: FakeCluster) -> None:
    found = by_check(node, "--no-node")
    assert not checks([finding for level in found.values() for finding in level]) & {"agent", "kubelet", "shim"}


def test_doctor_without_kubelet_checks_the_cluster_only(api: FakeCluster, tmp_path: Path) -> None:
    result = invoked(doctor, f"--kubelet-dir={tmp_path / 'none'}")
    assert "agent " not in result.stdout


@pytest.mark.parametrize("folder", ["none", "none" * 30], ids=["short", "too long for a socket"])
def test_doctor_with_node_reports_a_missing_kubelet(api: FakeCluster, tmp_path: Path, folder: str) -> None:
    missing = tmp_path / folder
    result = invoked(doctor, "--node", f"--kubelet-dir={missing}", f"--run-dir={missing}", "--nodename=n1")
    assert "kubelet.sock is not there" in result.stdout
    assert "no agent runs" in result.stdout
    assert result.exit_code == 1


def test_faults_of_the_node_are_reported_beside_those_of_the_cluster(node: FakeNode, api: FakeCluster) -> None:
    node.tenant("uid-of-old", "old")
    with ExitStack() as stack:
        node.start(stack)
        result = examined(node)
    lines = result.stdout.splitlines()
    (at,) = [at for at, line in enumerate(lines) if line.startswith("FINDING  tenants ")]
    assert "is the folder of a Pod that is gone" in lines[at]
    assert lines[at + 1].strip().startswith("-> ")
    assert result.exit_code == 1


@pytest.fixture
def no_kubectl(api: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECTL", "/nowhere/kubectl")
    monkeypatch.setenv("KUBECONFIG", "/nowhere/kubeconfig")


def own_account(monkeypatch: pytest.MonkeyPatch, *answer: Any) -> None:
    monkeypatch.setattr("aliquot.services.doctor.site.own_objects", lambda name: answer)


def test_without_kubectl_the_account_of_the_agents_pod_is_used(
    node: FakeNode, no_kubectl: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_account(monkeypatch, the_node(), [the_pod()])
    with ExitStack() as stack:
        node.start(stack)
        result = examined(node)
    assert result.stdout.splitlines()[-1] == "nothing is wrong"
    assert result.exit_code == 0
    assert "note     api" in result.stdout
    assert "only this node was checked" in result.stdout


def test_doctor_without_kubectl_finds_cards_given_twice(
    node: FakeNode, no_kubectl: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = [the_pod(name=name, limits={**_LIMITS, "tke.cloud.tencent.com/qgpu-core": "60"}) for name in ("a", "b")]
    for pod in pods:
        grant = json.loads(pod["metadata"]["annotations"]["aliquot.dev/grant"])
        grant["containers"][0]["cards"][0]["core_milli"] = 600
        pod["metadata"]["annotations"]["aliquot.dev/grant"] = json.dumps(grant)
    own_account(monkeypatch, the_node(), [the_pod(), *pods])
    with ExitStack() as stack:
        node.start(stack)
        found = by_check(node)
    (crowd,) = [finding for finding in found["finding"] if finding["check"] == "over-allocated"]
    assert crowd["about"] == ["n1, GPU 0"]
    assert crowd["what"] == "150% of its compute is allocated"


def test_doctor_without_api_server_checks_the_agent(node: FakeNode, no_kubectl: None) -> None:
    with ExitStack() as stack:
        node.start(stack)
        found = by_check(node)
    (unseen,) = found["cannot look"]
    assert unseen["about"] == ["Node n1"]
    assert checks(found["ok"]) == {"kubelet", "agent", "database", "shim", "cards", "cdi"}


def test_a_cluster_that_does_not_answer_is_reported_and_the_node_is_checked(node: FakeNode, api: FakeCluster) -> None:
    api.answer("/version", "The connection to the server localhost:8080 was refused - did you specify the right host?")
    with ExitStack() as stack:
        node.start(stack)
        result = examined(node)
    assert result.exit_code == 1
    assert "cannot look: The connection to the server" in result.stdout
    assert "ok       agent" in result.stdout


def test_doctor_reports_an_unknown_node_name(node: FakeNode, api: FakeCluster) -> None:
    node.agent.about.node = "nobody"
    with ExitStack() as stack:
        node.start(stack)
        (unseen,) = by_check(node)["cannot look"]
    assert unseen["about"] == ["Node nobody"]
    assert "--nodename" in unseen["fix"]


_LIMITS = {"tke.cloud.tencent.com/qgpu-memory": "4"}


def test_node_is_checked_by_the_dialects_that_its_agent_serves() -> None:
    agent = the_agent()
    assert _served(the_site(agent=agent)) == frozenset({"qgpu", "t9k", "gpushare"}), "it does not say"
    agent.daemon.dialects = ["qgpu", "hami"]
    assert _served(the_site(agent=agent)) == {"qgpu", "hami"}
