"""Round trips, and no JSON whatever raises: it parses, is refused, or is not ours."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.dialects import (
    MemoryUnit,
    PodReader,
    QgpuRules,
    Rules,
    guess_gpushare_unit,
    missing_tolerations,
    native,
    parse_grant,
    parse_node,
    parse_pod,
    parse_unhealthy,
    render_env,
    render_grant,
    render_inventory,
    render_pod,
    taints,
)
from aliquot.dialects.kube.conditions import node_refusals
from aliquot.dialects.kube.manifests import expand
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import NodeObject, PodObject
from aliquot.model.claim import (
    AppClass,
    CardFilter,
    Claim,
    ContainerClaim,
    Preference,
    Role,
    Slice,
    Usage,
    peak,
)
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node, Offer, Order
from aliquot.model.refusal import Invalid
from kit.values.strategies import anything, mutated, places_of

modest = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

SEED, LATER = Rules(), Rules(qgpu=QgpuRules.Y2026, gpushare_unit=MemoryUnit.MIB)
HAMI = Rules(served=frozenset({"qgpu", "t9k", "gpushare", "hami", "kai"}))
words = st.text("abcdefghij-0123456789", min_size=1, max_size=8)

# Claims, each with the rules it was written under.


@st.composite
def placed(draw: st.DrawFn, pieces: st.SearchStrategy[tuple[Slice, int | None]], most: int = 4) -> list[ContainerClaim]:
    """Containers with gaps between them, init containers and sidecars first."""
    names = draw(st.lists(words, min_size=1, max_size=most, unique=True))
    late = [draw(st.booleans()) for _ in names]
    found = []
    for in_main in (False, True):
        index = -1
        for name in (name for name, main in zip(names, late, strict=True) if main is in_main):
            index += draw(st.integers(1, 3))
            role = Role.MAIN if in_main else draw(st.sampled_from([Role.INIT, Role.SIDECAR]))
            found.append(ContainerClaim(name, index, role, *draw(pieces)))
    return found


some_models = st.none() | st.sampled_from([("A100",), ("H200", "TESLA V100")]).map(CardFilter)


def _claim(draw: st.DrawFn, containers: list[ContainerClaim], dialect: str, offer: Offer, **rest: Any) -> Claim:
    namespace = draw(words)
    rest = {"cards": draw(some_models), **rest}
    owner = draw(st.none() | st.builds(f"{{}}/{namespace}/{{}}".format, words, words))
    return Claim(
        uid=draw(words),
        namespace=namespace,
        name=draw(words),
        dialect=dialect,
        offer=offer,
        containers=tuple(containers),
        owner=owner,
        cpu_milli=draw(st.integers(0, 10**6)),
        memory_mib=draw(st.integers(0, 10**6)),
        **rest,
    )


def _spread(cards: int, core: int, memory: int) -> tuple[Slice, int]:
    core = (cards - 1) * 100 + core
    return Slice(memory_mib=max(memory // cards, 1) * 1024, core_milli=core // cards * 10), cards


gib = st.integers(1, 4096)
of_seed = st.builds(
    lambda memory, core: (Slice(memory_mib=memory * 1024, core_milli=core and core * 10), 1),
    gib,
    st.none() | st.integers(1, 99),
)
of_2026 = st.one_of(
    st.builds(
        lambda memory, core: (Slice(memory_mib=memory * 1024, core_milli=core and core * 50), 1),
        gib,
        st.none() | st.integers(1, 19),
    ),
    st.builds(lambda n: (Slice(memory_percent=100, core_milli=1000, exclusive=True), n), st.integers(1, 16)),
    st.builds(_spread, st.integers(2, 8), st.integers(1, 99), gib),
)
online = st.builds(lambda memory: (Slice(memory_mib=memory * 1024), 1), gib)
offline = st.builds(lambda m, g: (Slice(memory_mib=m * 1024, greedy_milli=g * 10), 1), gib, st.integers(1, 25))
cards = st.builds(lambda n: (Slice(memory_percent=100, exclusive=True), n), st.integers(1, 16))
percent = st.builds(lambda n: (Slice(memory_percent=n), 1), st.integers(1, 100))


@st.composite
def qgpu_claims(draw: st.DrawFn) -> tuple[Claim, Rules]:
    app_class = draw(st.sampled_from(AppClass))
    rules = draw(st.sampled_from([SEED, LATER]))
    normal = of_seed if rules is SEED else of_2026
    pieces = {AppClass.NORMAL: normal, AppClass.ONLINE: online, AppClass.OFFLINE: offline}[app_class]
    return _claim(
        draw,
        draw(placed(pieces)),
        "qgpu",
        Offer.QGPU if app_class is AppClass.NORMAL else Offer.QGPU_MIXED,
        app_class=app_class,
        together=app_class is AppClass.OFFLINE,
    ), rules


@st.composite
def t9k_claims(draw: st.DrawFn) -> tuple[Claim, Rules]:
    way = draw(st.sampled_from(["cards", "percent", "node"]))
    if way == "node":
        pieces = st.just((Slice(memory_percent=100, exclusive=True), None))
        containers = draw(placed(pieces, most=1))
        return _claim(draw, containers, "t9k", Offer.T9K_EXCLUSIVE, whole_node=True), SEED
    containers = draw(placed(cards if way == "cards" else percent))
    return _claim(draw, containers, "t9k", Offer.T9K_EXCLUSIVE if way == "cards" else Offer.T9K_SHARED), SEED


@st.composite
def gpushare_claims(draw: st.DrawFn) -> tuple[Claim, Rules]:
    rules, count = draw(st.sampled_from([SEED, LATER])), draw(st.integers(1, 8))
    if draw(st.booleans()):
        return _claim(draw, draw(placed(cards)), "gpushare", Offer.GPUSHARE_WHOLE), rules
    core = st.integers(1, 100).map(lambda part: part * 10) if draw(st.booleans()) else st.none()
    pieces = st.builds(
        lambda n, milli: (Slice(n * rules.gpushare_unit.mib, core_milli=milli), count), st.integers(1, 4096), core
    )
    containers = draw(placed(pieces))
    offer = Offer.GPUSHARE if containers[0].slice.core_milli is None else Offer.GPUSHARE_CORE
    return _claim(draw, containers, "gpushare", offer, together=True), rules


@st.composite
def hami_slices(draw: st.DrawFn) -> tuple[Slice, int]:
    count, core = draw(st.integers(1, 8)), draw(st.none() | st.integers(1, 100))
    mib, percent = draw(
        st.one_of(st.tuples(st.integers(1, 10**6), st.just(0)), st.tuples(st.just(0), st.integers(1, 100)))
    )
    if percent == 100 and core in (None, 100):
        return Slice(memory_percent=100, exclusive=True), count
    return Slice(mib, percent, None if core is None else core * 10, exclusive=core == 100), count


@st.composite
def hami_claims(draw: st.DrawFn) -> tuple[Claim, Rules]:
    lists = [tuple(sorted(draw(st.sets(st.sampled_from(["A100", "V100", "T4"]))))) for _ in range(2)]
    lists += [tuple(sorted(draw(st.sets(words.map("GPU-{}".format), max_size=2)))) for _ in range(2)]
    preference = draw(st.none() | st.builds(Preference, st.sampled_from(Order), st.sampled_from(Order)))
    chosen = CardFilter(*lists) if any(lists) else None
    app_class = draw(st.sampled_from(AppClass))
    containers = draw(placed(hami_slices()))
    if draw(st.booleans()):  # HAMi's policy mutex
        containers = [replace(part, slice=replace(part.slice, exclusive=True)) for part in containers]
    shareable = any(container.count == 1 and not container.slice.exclusive for container in containers)
    return _claim(
        draw,
        containers,
        "hami",
        draw(st.sampled_from([Offer.HAMI, Offer.HAMI_SHARED])) if shareable else Offer.HAMI,
        app_class=app_class,
        cards=chosen,
        preference=preference,
    ), HAMI


@st.composite
def kai_claims(draw: st.DrawFn) -> tuple[Claim, Rules]:
    percent = st.integers(1, 99) | st.integers(1001, 1999).map(lambda parts: parts / 1000)
    pieces = st.tuples(
        percent.map(lambda part: Slice(memory_percent=part)) | st.integers(1, 10**6).map(Slice), st.integers(1, 8)
    )
    return _claim(draw, draw(placed(pieces, most=1)), "kai", Offer.KAI), HAMI


claims = st.one_of(qgpu_claims(), t9k_claims(), gpushare_claims(), hami_claims(), kai_claims())


@modest
@given(claims)
def test_a_claim_written_as_a_pod_and_read_back_is_the_same_claim(case: tuple[Claim, Rules]) -> None:
    claim, rules = case
    assert parse_pod(render_pod(claim, rules), rules) == claim


@modest
@given(claims)
def test_a_pod_read_and_written_again_is_the_same_pod(case: tuple[Claim, Rules]) -> None:
    claim, rules = case
    written = render_pod(claim, rules)
    again = parse_pod(written, rules)
    assert isinstance(again, Claim)
    assert render_pod(again, rules) == written


@modest
@given(claims)
def test_a_list_of_pods_makes_these_pods(case: tuple[Claim, Rules]) -> None:
    written = render_pod(*case)
    assert expand({"kind": "List", "items": [written, written]}) == [written, written]


# Nodes and grants.

inventories = st.lists(
    st.builds(
        Card,
        index=st.integers(0, 63),
        memory_mib=st.integers(1, 10**6),
        uuid=st.just("") | words,
        model=st.text(max_size=12),
        healthy=st.booleans(),
        numa=st.none() | st.integers(0, 7),
    ),
    max_size=8,
    unique_by=(lambda card: card.index, lambda card: card.uuid or card.index),
)


@modest
@given(inventories, st.frozensets(st.integers(0, 63), max_size=3))
def test_an_inventory_written_and_read_back_has_the_same_cards(found: list[Card], sick: frozenset[int]) -> None:
    node = parse_node({"metadata": {"name": "n", "annotations": render_inventory(found)}}, SEED, sick)
    assert isinstance(node, Node)
    ordered = sorted(found, key=lambda card: card.index)
    assert node.cards == tuple(replace(card, healthy=card.healthy and card.index not in sick) for card in ordered)


NODE = Node("n1", tuple(Card(index, 65536, uuid=f"GPU-{index}" if index % 2 else "") for index in range(16)))


@st.composite
def grants(draw: st.DrawFn) -> tuple[Claim, Rules, Grant]:
    claim, rules = draw(claims)
    shared = draw(st.permutations(range(16)))
    containers = []
    for container in claim.containers:
        count = 16 if container.count is None else container.count
        chosen = sorted(shared[:count] if claim.together else draw(st.permutations(range(16)))[:count])
        shares = tuple(
            Share(
                card=index,
                memory_mib=container.slice.memory_on(NODE.cards[index].memory_mib),
                core_milli=container.slice.core_milli,
                greedy_milli=container.slice.greedy_milli,
                exclusive=container.slice.exclusive,
                uuid=NODE.cards[index].uuid,
            )
            for index in chosen
        )
        containers.append(ContainerGrant(container.name, container.index, container.role, shares))
    return claim, rules, Grant(claim.uid, "n1", tuple(containers), claim.whole_node)


def bound(claim: Claim, rules: Rules, annotations: dict[str, str]) -> dict[str, Any]:
    pod = render_pod(claim, rules)
    pod["metadata"].setdefault("annotations", {}).update(annotations)
    pod["spec"]["nodeName"] = "n1"
    return pod


@modest
@given(grants())
def test_a_grant_written_and_read_back_is_the_same_grant(case: tuple[Claim, Rules, Grant]) -> None:
    claim, rules, grant = case
    pod = bound(claim, rules, render_grant(claim, grant, NODE, 1, rules))
    assert parse_grant(pod, claim, NODE) == grant
    assert parse_pod(pod, rules) == claim


@modest
@given(grants())
def test_a_grant_alone_books_what_it_books_with_its_request(case: tuple[Claim, Rules, Grant]) -> None:
    claim, rules, grant = case
    written = render_grant(claim, grant, NODE, 1, rules)
    roles = {container.name: container.role for container in claim.containers}
    alone = native.claim_of_grant(written, claim.uid, claim.namespace, claim.name, roles)
    assert alone is not None
    read = native.parse_grant(written, alone, "n1", NODE)
    assert isinstance(read, Grant)
    assert (read.usage(), read.whole_node) == (grant.usage(), grant.whole_node)


@modest
@given(grants())
def test_a_gpushare_grant_reads_the_same_from_the_peers_annotations_alone(case: tuple[Claim, Rules, Grant]) -> None:
    claim, rules, grant = case
    written = render_grant(claim, grant, NODE, 1, rules)
    del written["aliquot.dev/grant"]
    alone = parse_grant(bound(claim, rules, written), claim, NODE)
    parts = [container for container in claim.containers if not container.slice.exclusive]  # peers have no such request
    if claim.dialect == "gpushare" and any(container.role is Role.MAIN for container in parts):
        assert isinstance(alone, Grant)
        assert alone.usage() == grant.usage()


@modest
@given(grants())
def test_environment_has_cards_as_text(
    case: tuple[Claim, Rules, Grant],
) -> None:
    claim, rules, grant = case
    for container in claim.containers:
        env = render_env(claim, grant, NODE, container.name, rules)
        assert env["NVIDIA_VISIBLE_DEVICES"]
        assert all(isinstance(value, str) for value in env.values())


@modest
@given(st.lists(st.tuples(st.sampled_from(Role), st.integers(0, 100)), max_size=6))
def test_the_peak_lies_between_the_largest_and_the_sum(parts: list[tuple[Role, int]]) -> None:
    parts.sort(key=lambda part: part[0] is Role.MAIN)
    most = peak((role, Usage(memory_mib=amount)) for role, amount in parts).memory_mib
    assert max((amount for _, amount in parts), default=0) <= most <= sum(amount for _, amount in parts)


# Nothing raises.

pods = st.one_of(
    claims.map(lambda case: render_pod(*case)),
    grants().map(lambda case: bound(case[0], case[1], render_grant(case[0], case[2], NODE, 1, case[1]))),
).map(
    lambda pod: {
        **pod,
        "spec": {
            **pod["spec"],
            "tolerations": [{"key": "a", "operator": "Exists"}],
            "nodeSelector": {"a": "b"},
            "overhead": {"cpu": "1"},
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}]
                    }
                }
            },
        },
    }
)
nodes = inventories.map(
    lambda found: {
        "kind": "Node",
        "metadata": {
            "name": "n1",
            "annotations": render_inventory(found),
            "labels": {
                "qgpu-device-enable": "enable",
                "tke.cloud.tencent.com/qgpu-schedule-policy": "fs",
                "sched.tensorstack.dev/accelerator": "nvidia-gpu",
                "sched.tensorstack.dev/node-alloc-mode": "xgn",
            },
        },
        "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}], "unschedulable": False},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "capacity": {
                "aliyun.com/gpu-mem": "64",
                "aliyun.com/gpu-count": "4",
                "tke.cloud.tencent.com/qgpu-memory": "64",
                "tke.cloud.tencent.com/qgpu-core": "400",
                "tensorstack.dev/nvidia-gpu": "4",
            },
            "allocatable": {"cpu": "4", "memory": "8Gi"},
        },
    }
)
CLAIM = Claim("u", "d", "p", "gpushare", Offer.GPUSHARE, (ContainerClaim("c", 0, Role.MAIN, Slice(1024)),))


def read_all(pod: object, node: object, rules: Rules) -> None:
    """Everything that is read from outside, at once; what comes out is always of a kind that was promised."""
    parsed_node = parse_node(node, rules)
    assert isinstance(parsed_node, (Node, tuple))
    claim = parse_pod(pod, rules)
    assert claim is None or isinstance(claim, (Claim, tuple))
    made = expand(pod)
    answers = [answer for answer in (claim, parsed_node) if isinstance(answer, tuple)]
    answers += [(made,)] if isinstance(made, Invalid) else []
    for problems in answers:
        assert problems
        assert all(problem.sentence() and problem.field for problem in problems)
    for of_claim in (claim if isinstance(claim, Claim) else CLAIM, CLAIM):
        grant = parse_grant(pod, of_claim, parsed_node if isinstance(parsed_node, Node) else None)
        assert grant is None or isinstance(grant, (Grant, tuple))
        missing_tolerations(pod, of_claim)
        read = read_object(node, NodeObject, "node")
        if isinstance(read, NodeObject):
            node_refusals(pod, of_claim, read)
            taints(read.metadata.labels or {}, read.spec.taints or ())
    parse_unhealthy(pod)
    guess_gpushare_unit([node])
    typed = read_object(pod, PodObject, "pod")
    if isinstance(typed, PodObject):
        asked = PodReader(rules).read(typed)
        assert min(asked.cpu_milli, asked.memory_mib) >= 0
        assert isinstance(typed.daemon, bool)
        assert isinstance(typed.finished, bool)


def test_nothing_raises_on_a_number_too_long_to_print() -> None:
    """YAML makes such a number of 0xfff...; hypothesis could not print it."""
    enormous = 16**5000
    valid = render_pod(CLAIM)
    for holder, key in places_of(valid):
        before, holder[key] = holder[key], enormous
        read_all(valid, {"metadata": {"name": "n"}, "status": {"capacity": {"aliyun.com/gpu-mem": enormous}}}, SEED)
        holder[key] = before


@settings(modest, max_examples=200)
@given(anything, anything, st.sampled_from([SEED, LATER]))
def test_nothing_raises_on_any_json(pod: object, node: object, rules: Rules) -> None:
    read_all(pod, node, rules)


@settings(modest, max_examples=400)
@given(mutated(pods), mutated(nodes), st.sampled_from([SEED, LATER]))
def test_nothing_raises_on_a_valid_object_with_some_of_it_replaced(pod: object, node: object, rules: Rules) -> None:
    read_all(pod, node, rules)


OUR_JSON = {
    "aliquot.dev/grant": {
        "v": 1,
        "node": "n1",
        "containers": [{"name": "c", "cards": [{"index": 0, "memory_mib": 1}]}],
    },
    "scheduler.framework.gpushare.allocation": {"0": {"0": 1}},
    "aliquot.dev/inventory": {"v": 1, "cards": [{"index": 0, "memory_mib": 1, "uuid": "a", "numa": 0}]},
}


@modest
@given(st.sampled_from(list(OUR_JSON)).flatmap(lambda key: st.tuples(st.just(key), mutated(st.just(OUR_JSON[key])))))
def test_nothing_raises_on_an_annotation_with_some_of_its_json_replaced(case: tuple[str, object]) -> None:
    key, value = case
    pod = bound(CLAIM, SEED, {key: json.dumps(value)})
    read_all(pod, {"metadata": {"name": "n1", "annotations": {key: json.dumps(value)}}}, SEED)


UNHEALTHY = {
    "kind": "ConfigMap",
    "metadata": {"name": "unhealthy-gpu-n", "namespace": "kube-system"},
    "data": {"gpus": "0,2"},
}


@modest
@given(mutated(st.just(UNHEALTHY)))
def test_nothing_raises_on_an_unhealthy_list_with_some_of_it_replaced(configmap: object) -> None:
    parsed = parse_unhealthy(configmap)
    assert parsed is None or isinstance(parsed, (tuple, Invalid))
