"""Cards that another device plugin or DRA driver hands out too: what doctor and the views say about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aliquot.cli.cluster.doctor import doctor
from aliquot.cli.cluster.explain import explain
from aliquot.cli.cluster.kubectl_aliquot import aliquot
from aliquot.dialects import DEFAULT_RULES
from aliquot.model.status.messages import MessageCode
from aliquot.services.doctor.findings import Finding, Level
from aliquot.services.doctor.otherplugins import other_plugin_findings
from aliquot.services.explain.snapshot import take_snapshot
from aliquot.services.scheduler.dashboard.details import Details
from kit.clusters.kubectl import FakeCluster, invoked
from kit.values.manifests import QGPU, QGPU_MEMORY, Json, a_container, a_node, a_pod, asking

SHARE = "aliquot.dev/share-cards-with-other-plugins"
GPU = "nvidia.com/gpu"
HELD, HOLDER = "Pod ns/train holds it by nvidia.com/gpu", {"pod": "ns/train", "resource": GPU}
MIG = "MIG mode is on"
SLICE = {
    "kind": "ResourceSlice",
    "metadata": {"name": "s"},
    "spec": {"driver": "gpu.nvidia.com", "nodeName": "n1", "devices": [{"name": "gpu-0"}]},
}


def a_gpu_node(
    labels: dict[str, str] | None = None, gpus: str | None = "2", withheld: tuple[str, ...] = ("", "")
) -> Json:
    capacity = {QGPU_MEMORY: "32"} if gpus is None else {GPU: gpus, QGPU_MEMORY: "32"}
    node = a_node("n1", 16, 16, labels={**QGPU, **(labels or {})}, capacity=capacity)
    cards = json.loads(node["metadata"]["annotations"]["aliquot.dev/inventory"])
    for card, why in zip(cards["cards"], withheld, strict=True):
        card |= {HELD: {"withheld": "held", "held_by": HOLDER}, MIG: {"withheld": "mig"}}.get(why, {"withheld": why})
    node["metadata"]["annotations"]["aliquot.dev/inventory"] = json.dumps(cards)
    return node


def ours(card: int = 0) -> Json:
    pod = asking({QGPU_MEMORY: 4}, "ours")
    grant = {"v": 1, "node": "n1", "containers": [{"name": "main", "cards": [{"index": card, "memory_mib": 4096}]}]}
    pod["metadata"]["annotations"]["aliquot.dev/grant"] = json.dumps(grant)
    pod["metadata"]["uid"] = "uid"
    pod["spec"]["nodeName"] = "n1"
    return pod


def theirs(gpus: int) -> Json:
    return a_pod("theirs", a_container("main", {GPU: gpus}), on="n1")


def findings(*objects: Json) -> list[Finding]:
    return list(other_plugin_findings(take_snapshot(objects, policy="binpack", rules=DEFAULT_RULES)))


def test_node_of_another_plugin_is_a_finding_with_the_commands() -> None:
    (finding,) = findings(a_gpu_node())
    assert (finding.level, finding.about) == (Level.FINDING, ("n1",))
    assert f"offers nothing: {GPU}" in finding.what
    assert f"kubectl label node n1 {SHARE}=true" in (finding.advice or "")
    assert "kubectl label node n1 --overwrite nvidia.com/gpu.deploy.device-plugin=false" in (finding.advice or "")


def test_node_of_a_dra_driver_is_a_finding() -> None:
    (finding,) = findings(a_gpu_node(gpus=None), SLICE)
    assert "DRA driver gpu.nvidia.com" in finding.what


def test_node_that_its_owner_leaves_to_the_other_plugin_is_only_noted() -> None:
    (finding,) = findings(a_gpu_node({SHARE: "false"}))
    assert finding.level is Level.NOTE


def test_node_without_our_agent_is_no_finding() -> None:
    assert findings(a_node("n1", capacity={GPU: "2"})) == []


def test_shared_node_is_no_finding_and_its_held_cards_are_noted() -> None:
    assert findings(a_gpu_node({SHARE: "true"})) == []
    (finding,) = findings(a_gpu_node({SHARE: "true"}, withheld=(HELD, "")))
    assert (finding.level, finding.about, finding.what) == (Level.NOTE, ("n1, GPU 0",), f"is not offered: {HELD}")


def test_card_that_both_gave_away_is_a_finding() -> None:
    (finding,) = findings(a_gpu_node({SHARE: "true"}, withheld=(HELD, "")), ours(card=0))
    assert finding.level is Level.FINDING
    assert finding.what == f"is allocated twice: {HELD}, and aliquot gave it to default/ours"


@pytest.mark.parametrize(("gpus", "capacity", "twice"), [(2, "2", True), (1, "2", False), (2, "8", False)])
def test_cards_given_away_twice_are_counted_where_no_agent_reports(gpus: int, capacity: str, twice: bool) -> None:
    """A capacity above the number of cards is time-slicing: then numbers say nothing."""
    said = findings(a_gpu_node({SHARE: "true"}, gpus=capacity), ours(), theirs(gpus))
    assert [finding.level for finding in said] == [Level.FINDING] * twice


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster(tmp_path)
    monkeypatch.setenv("KUBECTL", str(fake.binary))
    return fake


def test_kubectl_aliquot_and_explain_say_why_the_node_offers_nothing(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.show(a_gpu_node())
    assert f"offers nothing: {GPU} of another device plugin" in invoked(aliquot).output
    pods = tmp_path / "pods.json"
    pods.write_text(json.dumps(asking({QGPU_MEMORY: 4}, "new")))
    said = invoked(explain, "-f", str(pods))
    assert said.exit_code == 1
    assert "another device plugin or DRA driver hands out its cards" in said.stdout
    assert f"kubectl label node n1 {SHARE}=true" in said.stderr


def test_views_read_resource_slices_by_kubectl(cluster: FakeCluster) -> None:
    slices = {key: value for key, value in SLICE.items() if key != "kind"}
    versions = {"versions": [{"version": "v1"}, {"version": "v1beta1"}]}
    paths = {"/apis/resource.k8s.io": versions, "/apis/resource.k8s.io/v1/resourceslices": [slices]}
    cluster.show(a_gpu_node(gpus=None), **paths)
    assert "offers nothing: DRA driver gpu.nvidia.com" in invoked(aliquot).output
    cluster.answer("/apis/resource.k8s.io/v1/resourceslices", "Error from server (Forbidden): no")
    assert "offers nothing" not in invoked(aliquot).output


def test_kubectl_aliquot_shows_cards_that_are_not_offered(cluster: FakeCluster) -> None:
    cluster.show(a_gpu_node({SHARE: "true"}, withheld=(MIG, HELD)))
    assert "not offered: GPU 0, 1" in invoked(aliquot).output
    assert HELD in invoked(aliquot, "--detail").output
    (node,) = json.loads(invoked(aliquot, "-o", "json").stdout)["nodes"]
    assert [card["withheld"] for card in node["cards"]] == [MIG, HELD]


def test_reason_of_another_release_is_shown_as_it_is(cluster: FakeCluster) -> None:
    """Agents are upgraded before or after the scheduler and the command line."""
    cluster.show(a_gpu_node({SHARE: "true"}, withheld=("too-hot", "")))
    assert "not offered: GPU 0" in invoked(aliquot).output
    assert "too-hot" in invoked(aliquot, "--detail").output
    (finding,) = findings(a_gpu_node({SHARE: "true"}, withheld=("too-hot", "")))
    assert (finding.level, finding.what) == (Level.NOTE, "is not offered: too-hot")


def test_doctor_reports_the_node(cluster: FakeCluster) -> None:
    cluster.show(a_gpu_node(), **{"/version": {"gitVersion": "v1.36.4"}})
    said = invoked(doctor, "--no-node")
    assert said.exit_code == 1
    assert f"n1: offers nothing: {GPU}" in said.output


def test_dashboard_says_why_node_and_card_are_not_offered() -> None:
    snapshot = take_snapshot([a_gpu_node()], policy="binpack", rules=DEFAULT_RULES)
    (trouble,) = Details(snapshot.cluster).trouble("n1")
    assert (trouble.code, trouble.names) == (MessageCode.OTHER_PLUGIN, [GPU])
    shared = a_gpu_node({SHARE: "true"}, withheld=(MIG, ""))
    snapshot = take_snapshot([shared], policy="binpack", rules=DEFAULT_RULES)
    node = Details(snapshot.cluster).node("n1")
    assert node is not None
    why = node.cards[0].why_out
    assert why is not None
    assert (why.code, why.name, why.text) == (MessageCode.WITHHELD, "mig", f"not offered: {MIG}")
    assert node.cards[1].why_out is None
