"""`aliquot explain` and the scheduler agree on members of PodGroups."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.dialects import DEFAULT_RULES
from aliquot.dialects.podgroups import COSCHEDULING, T9K
from aliquot.dialects.wire.extender import parse_args
from aliquot.model.refusal import Reason
from aliquot.services.explain.overview import look
from aliquot.services.explain.snapshot import take_snapshot
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.verbs import filter_answer
from kit.clusters.podgroups import POD_GROUP, as_group, group_json, member_json
from kit.clusters.watchobjects import as_node, as_pod, node_json, pod_json
from kit.values.manifests import MEM, Json

SHARED = {"gpushare": "true"}
ON_CARD = {"ALIYUN_COM_GPU_MEM_IDX": "0"}


def filtered(cluster: Cluster, pod: Json, names: list[str], *, now: float, keep: bool) -> set[str]:
    question = parse_args(json.dumps({"Pod": pod, "NodeNames": names}).encode())
    return set(json.loads(filter_answer(cluster, question, now=now, keep=keep)[0])["NodeNames"] or ())


def tried(pod: Json, message: str) -> Json:
    """A Pod that kube-scheduler found no node for."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {**pod, "status": {"conditions": [condition]}}


ASKED = "0/1 nodes are available: 1 PodGroup ns/g needs 2 members in their places at once (aliquot:group)."
NOT_ASKED = "0/1 nodes are available: 1 Insufficient cpu."


@st.composite
def scenes(draw: st.DrawFn) -> tuple[list[Json], list[Json], list[Json]]:
    """Nodes, groups, and Pods: of a group or of none, waiting or on a node."""
    nodes = [
        node_json(f"n{at}", *[16] * draw(st.integers(1, 2)), labels=SHARED) for at in range(draw(st.integers(1, 3)))
    ]
    groups = [group_json(name, draw(st.integers(0, 4))) for name in draw(st.sets(st.sampled_from("gh")))]
    pods = []
    for at in range(draw(st.integers(1, 7))):
        gib = draw(st.sampled_from([4, 6, 9, 16]))
        more: Json = {"on": "n0", "annotations": ON_CARD} if gib <= 6 and draw(st.integers(0, 3)) == 0 else {}
        group = draw(st.sampled_from(["g", "g", "h", ""]))
        name, limits = f"p{at}", {MEM: str(gib)}
        pod = member_json(name, group, limits, **more) if group else pod_json(name, limits, **more)
        before = draw(st.sampled_from([None, ASKED, ASKED, NOT_ASKED]))
        pods.append(pod if more or before is None else tried(pod, before))
    return nodes, groups, [{**pod, "kind": "Pod"} for pod in pods]


@settings(max_examples=100, deadline=None)
@given(scenes(), st.booleans())
def test_explain_agrees_with_filter_about_members_of_groups(
    scene: tuple[list[Json], list[Json], list[Json]], book: bool
) -> None:
    nodes, groups, pods = scene
    objects = [*({**node, "kind": "Node"} for node in nodes), *groups, *pods]
    snapshot = take_snapshot(objects, policy="binpack", rules=DEFAULT_RULES)
    cluster = Cluster("binpack", DEFAULT_RULES)
    for group in groups:
        cluster.groups.set_group(T9K, as_group(group))
    for node in nodes:
        cluster.set_node(as_node(node))
    for pod in pods:
        cluster.set_pod(as_pod(pod))
    names = [node["metadata"]["name"] for node in nodes]
    for pod in pods:
        if ASKED in str(pod["status"]):  # before the first Pod of the snapshot is placed
            filtered(cluster, pod, names, now=0.0, keep=False)
    for at, pod in enumerate(pods):
        if "nodeName" in pod["spec"]:
            continue
        verdict = snapshot.place(pod, book=book)
        fit = filtered(cluster, pod, names, now=10.0 * at + 10.0, keep=book)
        assert (verdict.grant is not None) == bool(fit)
        refused = {refusal.node for refusal in verdict.refusals}
        if verdict.grant is None:
            assert refused == set(names)
            assert (verdict.group is not None) >= (Reason.GROUP in {refusal.reason for refusal in verdict.refusals})
            continue
        assert verdict.grant.node in fit
        if book:
            assert verdict.claim is not None
            cluster.hold(verdict.claim, verdict.grant, float("inf"))
            assert not isinstance(cluster.assume(verdict.claim, verdict.grant.node), list)


def test_pods_of_a_file_count_for_each_other() -> None:
    nodes = [{**node_json("n1", 16, 16, labels=SHARED), "kind": "Node"}]
    snapshot = take_snapshot(nodes, policy="binpack", rules=DEFAULT_RULES)
    snapshot.add_group(group_json("g", 2, COSCHEDULING))
    pods = [member_json(name, limits={MEM: "9"}, label=POD_GROUP) for name in ("a", "b")]
    assert not snapshot.place(pods[0]).fits
    snapshot.expect(pods)
    assert [snapshot.place(pod).fits for pod in pods] == [True, True]


def test_a_member_waits_for_another_that_kubernetes_keeps_away() -> None:
    far = member_json("far", limits={MEM: "4"})
    far["spec"]["nodeSelector"] = {"zone": "far"}
    near = member_json("near", limits={MEM: "4"})
    objects = [
        {**node_json("n1", labels=SHARED), "kind": "Node"},
        group_json("g", 2),
        *({**pod, "kind": "Pod"} for pod in (far, near)),
    ]
    verdict = take_snapshot(objects, policy="binpack", rules=DEFAULT_RULES).place(near)
    assert verdict.group is not None
    assert (verdict.group.needed, verdict.group.fitting) == (2, 1)
    overview = look(objects, DEFAULT_RULES)
    assert overview.why_waits(overview.waiting[1]) == (
        "PodGroup ns/g needs 2 members in their places at once: has 1 that would fit now, lacks room for 1 more (4 GiB)"
    )


def test_a_group_that_cannot_be_read_is_a_note() -> None:
    group = group_json("g", 2)
    group["spec"]["minMember"] = "two"
    snapshot = take_snapshot([group], policy="binpack", rules=DEFAULT_RULES)
    assert [(note.about, note.text) for note in snapshot.notes] == [
        ("ns/g", 'keeps its Pods waiting: spec.minMember: "two" is not allowed: a whole number, at least 0')
    ]


def test_room_is_left_for_a_member_that_kube_scheduler_has_asked_about() -> None:
    first = member_json("old1", "old", {MEM: "16"}, on="n1", annotations=ON_CARD)
    rest = member_json("old2", "old", {MEM: "16"})
    new = [member_json(name, "new", {MEM: "16"}) for name in ("new1", "new2")]
    nodes = [{**node_json(name, labels=SHARED), "kind": "Node"} for name in ("n1", "n2", "n3")]
    groups = [group_json("old", 2), group_json("new", 2)]
    for message, waits in ((ASKED, True), (NOT_ASKED, False)):
        pods = [{**pod, "kind": "Pod"} for pod in (first, tried(rest, message), *new)]
        snapshot = take_snapshot([*nodes, *groups, *pods], policy="binpack", rules=DEFAULT_RULES)
        assert (snapshot.place(new[0]).group is not None) == waits


def test_a_member_that_runs_keeps_its_card_when_its_manifest_is_read_again() -> None:
    running = {**member_json("a", limits={MEM: "9"}, on="n1", annotations=ON_CARD), "kind": "Pod"}
    nodes = [{**node_json("n1", 16, labels=SHARED), "kind": "Node"}]
    snapshot = take_snapshot([*nodes, group_json("g", 2), running], policy="binpack", rules=DEFAULT_RULES)
    pod = member_json("a", limits={MEM: "9"})
    del pod["metadata"]["uid"]
    snapshot.expect([pod])
    assert snapshot.place(pod).remark == "runs there already"
    assert not snapshot.place(pod_json("other", {MEM: "9"})).fits
