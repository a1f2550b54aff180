"""`aliquot explain` and the scheduler give one answer: both are the scheduler's own cluster."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.dialects import DEFAULT_RULES, Rules, guess_gpushare_unit
from aliquot.dialects.wire.extender import parse_args
from aliquot.dialects.wire.objectreading import _without_nulls, read_object
from aliquot.dialects.wire.objects import ConfigMapObject, NodeObject, PodObject
from aliquot.model.refusal import Reason
from aliquot.services.explain.snapshot import Snapshot, take_snapshot
from aliquot.services.explain.verdicts import Verdict
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.verbs import filter_answer
from aliquot.services.scheduler.watches.sinks import ConfigSink, NodeSink, PodSink
from kit.values.manifests import Json, gpushare_node, gpushare_pod, on_card
from kit.values.strategies import NODE_NAMES, ClusterObjects, clusters

# Said by kube-scheduler itself: it would not ask the extender about such a node.
_GATE = {Reason.UNSCHEDULABLE, Reason.NOT_READY, Reason.TAINT, Reason.SELECTOR}


def watched(objects: ClusterObjects, rules: Rules) -> Cluster:
    """The cluster as the scheduler has it after the first lists of its watches. Reflectors pass over what they cannot
    decode."""
    cluster = Cluster("binpack", rules)
    configs = ConfigSink(cluster, None)
    for item in objects.config_maps:
        config = read_object(item, ConfigMapObject, "ConfigMap")
        if isinstance(config, ConfigMapObject):
            configs.changed(config)
    nodes = NodeSink(cluster, None, unit_known=True, reread=lambda: None)
    nodes.listing()
    for item in objects.nodes:
        node = read_object(item, NodeObject, "node")
        if isinstance(node, NodeObject) and node.metadata.name:
            nodes.changed(node)
    nodes.listed(0)
    pods = PodSink(cluster)
    pods.listing()
    for item in objects.pods:
        pod = read_object(item, PodObject, "pod")
        if isinstance(pod, PodObject):
            pods.changed(pod)
    pods.listed(0)
    return cluster


def filtered(cluster: Cluster, pod: Json, names: list[str]) -> tuple[set[str], set[str]]:
    """The nodes that the extender's filter lets through, and those that it says will never do."""
    sent = msgspec.json.encode({"Pod": _without_nulls(pod), "NodeNames": names})  # as Go writes it
    answer, _ = filter_answer(cluster, parse_args(sent))
    read = msgspec.json.decode(answer)
    return set(read["NodeNames"] or ()), set(read["FailedAndUnresolvableNodes"] or ())


def explained(verdict: Verdict, names: list[str]) -> tuple[set[str], set[str]]:
    """The nodes that explain finds room on, among those that kube-scheduler would ask about; and those without a word
    of ours but kube-scheduler's."""
    ours = {refusal.node for refusal in verdict.refusals if refusal.reason not in _GATE}
    gated = {refusal.node for refusal in verdict.refusals if refusal.reason in _GATE}
    return {name for name in names if name not in ours and name not in gated}, gated


def names_of(snapshot: Snapshot) -> list[str]:
    return [name for name in NODE_NAMES if name in snapshot.nodes or name in snapshot.cluster.reported.unusable]


@settings(max_examples=200, deadline=None)
@given(clusters(), st.booleans())
def test_explain_agrees_with_the_extenders_filter(objects: ClusterObjects, book: bool) -> None:
    rules = Rules(gpushare_unit=guess_gpushare_unit(objects.nodes))
    snapshot = take_snapshot(objects.all, policy="binpack", rules=rules)
    cluster = watched(objects, rules)
    names = names_of(snapshot)
    waiting = [pod.manifest for pod in snapshot.pods if pod.read.metadata.uid in cluster.pending]
    for pod in [*waiting, *objects.new]:
        verdict = snapshot.place(pod, book=book)
        fit, never = filtered(cluster, pod, names)
        if verdict.gates:
            continue
        if not verdict.ours:
            assert fit == set(names)
            continue
        if verdict.broken:
            assert fit == set()
            continue
        room, gated = explained(verdict, names)
        assert room == fit - gated
        assert (verdict.grant is not None) == bool(room)
        by_node = {name: [refusal for refusal in verdict.refusals if refusal.node == name] for name in names}
        assert never - gated <= {name for name in names if any(refusal.never for refusal in by_node[name])}
        if verdict.grant is not None:
            assert verdict.grant.node in fit
            if book:
                claim = verdict.claim
                assert claim is not None
                cluster.hold(claim, verdict.grant, float("inf"))
                assert not isinstance(cluster.assume(claim, verdict.grant.node), list)


def away(node: Json) -> Json:
    node["metadata"]["annotations"]["aliquot.dev/agent"] = "away"
    return node


def test_explain_refuses_a_node_whose_agent_is_away() -> None:
    node, pod = away(gpushare_node("n1", 16)), gpushare_pod("p", 1)
    snapshot = take_snapshot([node], policy="binpack", rules=DEFAULT_RULES)
    verdict = snapshot.place(pod)
    assert not verdict.fits
    assert [refusal.reason for refusal in verdict.refusals] == [Reason.HEALTH]
    assert [note.text for note in snapshot.notes] == ["takes no new GPU Pods for now: its agent is away"]
    assert filtered(watched(ClusterObjects([node], [], [], []), DEFAULT_RULES), pod, ["n1"]) == (set(), set())


def test_explain_keeps_pods_booked_on_a_node_whose_agent_is_away() -> None:
    snapshot = take_snapshot([away(gpushare_node("n1", 16)), on_card("r", 5, 0)], policy="binpack", rules=DEFAULT_RULES)
    assert snapshot.cluster.board.usage("n1", 0).memory_mib == 5 * 1024
