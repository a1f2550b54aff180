"""What comes from the API server and from kube-scheduler: a Pod's author writes it, or an attacker on a node."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st

from aliquot import dialects
from aliquot.dialects.dra.claims import AllocatedClaim, ClaimObject, parse_claim
from aliquot.dialects.dra.requests import requested
from aliquot.dialects.dra.slices import device_name
from aliquot.dialects.kube.conditions import node_refusals
from aliquot.dialects.kube.manifests import expand
from aliquot.dialects.wire import extender as wire
from aliquot.dialects.wire.leases import LeaseObject
from aliquot.dialects.wire.leftovers import LeftBehind, node_leftovers, parse_left_behind, render_left_behind
from aliquot.dialects.wire.objects import NodeObject, PodObject
from aliquot.dialects.wire.webhook.admission import AdmissionSettings, review
from aliquot.dialects.wire.webhook.configuration import parse_secret
from aliquot.model.claim import Claim
from aliquot.model.node import Node
from aliquot.model.numbers.quantity import QuantityError, parse_count, parse_quantity
from aliquot.model.refusal import Invalid
from aliquot.model.status import dashboard
from aliquot.model.text import printable
from aliquot.services.daemon.calls import Calls
from aliquot.services.scheduler import reports, verbs
from aliquot.services.scheduler.dashboard.agentclient import merged
from aliquot.services.scheduler.dashboard.claims import Claims
from kit.clusters.watchobjects import a_cluster, as_node, as_pod, live_node, node_json, pod_json
from kit.values.manifests import (
    APP_CLASS,
    COUNT,
    MEM,
    QGPU_CORE,
    QGPU_GREEDY,
    QGPU_MEMORY,
    T9K_CARDS,
    T9K_NODE,
    T9K_PERCENT,
)

from .inputs import any_json, as_bytes, atoms, changed, damaged, texts
from .target import Target, plain, refused

GRANT = "aliquot.dev/grant"
LEFT_BEHIND = "aliquot.dev/left-behind"
_CLAIM_CONFIG = {
    "apiVersion": "aliquot.dev/v1", "kind": "ClaimConfig", "class": "online", "policy": "burst-share", "latency": "2ms"
}  # fmt: skip


def _granted(limits: dict[str, Any], **share: Any) -> dict[str, Any]:
    card = {"index": 0, "uuid": "n1-0", "memory_mib": 4096, **share}
    grant = {"v": 1, "node": "n1", "containers": [{"name": "main", "cards": [card]}]}
    return pod_json("p", limits, on="n1", annotations={GRANT: json.dumps(grant)})


PODS = [
    pod_json("p"),
    pod_json("p", {MEM: "8"}, labels={COUNT: "2"}, on="n1"),
    pod_json("p", {QGPU_CORE: "30", QGPU_MEMORY: "5"}, annotations={APP_CLASS: "offline"}),
    pod_json("p", {QGPU_GREEDY: "30", QGPU_MEMORY: "5"}, annotations={APP_CLASS: "offline"}),
    pod_json("p", {T9K_CARDS: "2"}),
    pod_json("p", {T9K_PERCENT: "25"}),
    pod_json("p", {T9K_NODE: "1"}),
    _granted({MEM: "4"}),
    pod_json("p", on="n1", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "4"}),
    pod_json("p", on="n1", annotations={"scheduler.framework.gpushare.allocation": '{"0":{"0":4}}'}),
]
NODES = [
    node_json("n1", 16, 24),
    node_json("n1") | {"status": {"capacity": {MEM: "32", COUNT: "2"}}},
    node_json("n2", labels={}),
    node_json("n2") | {"status": {"capacity": {"\0": False}}},
]


def _parsed(parsed_node: object) -> Node:
    found = dialects.parse_node(parsed_node)
    assert isinstance(found, Node)
    return found


_NODE = _parsed(NODES[0])


def _said(found: object) -> None:
    """Every refusal has a sentence, and the sentence names the field."""
    for problem in found if isinstance(found, tuple | list) else (found,):
        if isinstance(problem, Invalid):
            assert problem.field
            assert printable(problem.field[:20]) in problem.sentence()
            assert len(problem.sentence()) < 20_000


def _pod(value: Any) -> None:
    claim = dialects.parse_pod(value)
    _said(claim)
    if isinstance(claim, Claim):
        dialects.missing_tolerations(value, claim)
        _said(dialects.parse_grant(value, claim, _NODE))
        node_refusals(value, claim, as_node(NODES[0]))
    _said(expand({"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 3, "template": value}}))
    try:
        decoded = msgspec.json.decode(msgspec.json.encode(value), type=PodObject)
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError):  # what the reflector passes over
        return
    cluster = a_cluster(live_node("n1", 16, 24))
    cluster.set_pod(decoded)
    reports.status_answer(cluster, leading=True, calls=Calls(lambda: "now"))


def _node(value: Any) -> None:
    found = dialects.parse_node(value)
    _said(found)
    dialects.guess_gpushare_unit([value])
    try:
        decoded = as_node(value)
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError):
        return
    cluster = a_cluster(live_node("other"), decoded)
    cluster.set_pod(as_pod(PODS[0]))
    reports.status_answer(cluster, leading=True, calls=Calls(lambda: "now"))
    reports.inspect_answer(cluster)
    assert cluster.reported.addresses.keys() <= {"other", decoded.metadata.name}


def _left_behind(text: Any) -> None:
    """By what it says, a Pod as root is made that takes folders away."""
    node = {"metadata": {"name": "n1", "annotations": {LEFT_BEHIND: text}}}
    found = parse_left_behind(node)
    _said(found)
    node_leftovers(node)
    if isinstance(found, LeftBehind):
        assert re.fullmatch(r"[A-Za-z0-9_.:/@+-]{1,512}", found.image)
        assert re.fullmatch(r"(/[A-Za-z0-9_.+-]+)+", found.kubelet)
        assert not {".", ".."} & set(found.kubelet.split("/"))
        again = {"metadata": {"name": "n1", "annotations": {LEFT_BEHIND: render_left_behind(found)}}}
        assert parse_left_behind(again) == found


def _review(value: Any) -> None:
    for settings in (AdmissionSettings(), AdmissionSettings("s", {}, env_by_field_ref=True)):
        said = review(value, dialects.Rules(), settings)
        if isinstance(said, Invalid):
            _said(said)
        else:
            msgspec.json.encode(said)


def _extender(body: bytes) -> None:
    cluster = a_cluster(live_node("n1", 16), live_node("n2", 2))
    calls: tuple[tuple[Callable[[bytes], Any], Callable[..., object]], ...] = (
        (wire.parse_args, verbs.filter_answer),
        (wire.parse_args, verbs.scores_answer),
        (wire.parse_preemption, verbs.preemption_answer),
    )
    for read, answer in calls:
        try:
            answer(cluster, read(body))
        except wire.WireError as error:
            refused(str(error))
    try:
        binding = wire.parse_binding(body)
    except wire.WireError:
        return
    for name in (binding.PodName, binding.PodNamespace, binding.Node):  # they become a path of the API
        assert "/" not in name
        assert name not in ("", ".", "..")


def _quantity(value: Any) -> None:
    for read in (parse_quantity, parse_count):
        try:
            read(value)
        except QuantityError as error:
            refused(str(error))


def _agent_answer(value: Any) -> None:
    try:
        live = msgspec.convert(value, dashboard.Node)
    except msgspec.ValidationError:
        return
    found = merged(dashboard.Node("n1", [], "best-effort"), live)
    assert found.name == "n1"
    msgspec.json.encode(found)


def _small(value: Any) -> None:
    """The rest of what is read from objects."""
    parse_secret(value)
    _said(dialects.parse_unhealthy(value))
    for kind in (LeaseObject, NodeObject, PodObject):
        try:
            msgspec.json.decode(msgspec.json.encode(value), type=kind)
        except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError):
            continue


def _as_text(body: bytes) -> str:
    return body.decode(errors="replace")


def _reviewed(pod: Any) -> dict[str, Any]:
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {"uid": "u", "kind": kind, "operation": "CREATE", "object": pod, "namespace": "ns"}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


_ARGS = [{"Pod": pod, "Nodes": None, "NodeNames": ["n1", "n2"]} for pod in PODS] + [
    {"Pod": PODS[0], "Nodes": {"items": NODES}, "NodeNames": None},
    {"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "n1"},
    {"Pod": PODS[0], "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}}},
]
_TENANT = {"key": "ns/p", "memory_used_mib": 1, "share": 0.5, "state": "running", "preemptions": 0, "paused_seconds": 0}
_LIVE = {
    "cards": [{"uuid": "a", "memory_used_mib": 1, "busy": 0.5, "why_out": None, "tenants": [_TENANT]}],
    "release_delay_seconds": 0.1,
    "notes": [],
    "timeline": [],
}
_LEFT = [
    {"v": 1, "image": "r.example:5000/aliquot@sha256:0a", "kubelet": "/var/lib/k0s/kubelet"},
    {"v": 1, "image": "a"},
]
_SMALL = [
    {"metadata": {"name": "unhealthy-gpu-n1"}, "data": {"gpus": "0,2"}},
    {"metadata": {"name": "s", "resourceVersion": "1"}, "data": {"tls.crt": "YQ==", "tls.key": "YQ=="}},
    {
        "metadata": {"name": "aliquot", "annotations": {"aliquot.dev/address": "1.2.3.4:5"}},
        "spec": {"holderIdentity": "a"},
    },
]

CLAIMS: list[dict[str, Any]] = [
    {
        "metadata": {"name": "c", "namespace": "ml", "uid": "u"},
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "gpu",
                        "exactly": {
                            "deviceClassName": "online.aliquot.dev",
                            "count": 2,
                            "allocationMode": "ExactCount",
                            "capacity": {"requests": {"memory": "8Gi", "aliquot.dev/core": "30"}},
                        },
                    },
                    {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": "aliquot.dev"}]},
                ],
                "config": [{"requests": ["gpu"], "opaque": {"driver": "aliquot.dev", "parameters": _CLAIM_CONFIG}}],
            }
        },
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {
                            "request": "gpu/a",
                            "driver": "aliquot.dev",
                            "pool": "n1",
                            "device": device_name("n1-0"),
                            "shareID": "s",
                            "consumedCapacity": {"memory": "8Gi", "core": 30},
                        }
                    ],
                    "config": [
                        {
                            "source": "FromClass",
                            "requests": ["gpu"],
                            "opaque": {"driver": "aliquot.dev", "parameters": _CLAIM_CONFIG},
                        }
                    ],
                }
            },
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "x"}],
        },
    }
]


def _claim(value: Any) -> None:
    """Its author writes what it asks for; who may write its status, what it has."""
    try:
        claim = msgspec.json.decode(msgspec.json.encode(value), type=ClaimObject)
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError):  # what the reflector passes over
        return
    found = parse_claim(claim, "n1", _NODE.cards)
    _said(found)
    if isinstance(found, AllocatedClaim):
        assert all(0 < share.memory_mib <= 16 * 1024 for share in found.grant.containers[0].shares)
    requested(claim)
    _ = (claim.key, claim.pods, claim.allocated_elsewhere, claim.wants_ours, claim.node, claim.holds("n1"))
    cluster = a_cluster(live_node("n1", 16, 24))
    claims = Claims(cluster)
    for _ in range(2):
        claims.put(claim)
        claims.on("n1")
        claims.standing(claim)
    claims.drop(claim.key)


TARGETS: tuple[Target, ...] = (
    plain("pod", changed(PODS) | any_json(), _pod),
    plain("resource-claim", changed(CLAIMS) | any_json(), _claim),
    plain(
        "pod-annotations",
        st.dictionaries(st.sampled_from([GRANT, "ALIYUN_COM_GPU_MEM_IDX", APP_CLASS, COUNT]), texts).map(
            lambda notes: pod_json("p", on="n1", annotations=notes)
        ),
        _pod,
    ),
    plain("node", changed(NODES) | any_json(), _node),
    plain(
        "inventory",
        changed([json.loads(NODES[0]["metadata"]["annotations"]["aliquot.dev/inventory"])]).map(
            lambda parsed_node: {
                "metadata": {
                    "name": "n1",
                    "labels": {"gpushare": "true"},
                    "annotations": {"aliquot.dev/inventory": json.dumps(parsed_node)},
                }
            }
        ),
        _node,
    ),
    plain(
        "left-behind",
        changed(_LEFT).map(json.dumps) | damaged([json.dumps(item).encode() for item in _LEFT]).map(_as_text) | texts,
        _left_behind,
    ),
    plain("admission-review", changed([_reviewed(pod) for pod in PODS]) | any_json(), _review),
    plain(
        "extender",
        as_bytes(changed(_ARGS)) | damaged([json.dumps(arg).encode() for arg in _ARGS]) | st.binary(),
        _extender,
    ),
    plain(
        "quantity",
        atoms | st.from_regex(r"[+-]?[0-9.]{0,70}([eE][+-]?[0-9]{0,5}|[numkKMGTPE]i?)?", fullmatch=True),
        _quantity,
        200,
    ),
    plain("agent-answer", changed([_LIVE]) | any_json(), _agent_answer),
    plain("secret-lease-configmap", changed(_SMALL) | any_json(), _small),
)
