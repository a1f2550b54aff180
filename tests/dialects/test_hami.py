"""HAMi's resources and annotations, and the shapes of its example manifests."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects import NodeReader, PodReader, Rules, hami, parse_grant, parse_node, parse_pod, render_pod
from aliquot.dialects.hami import LABEL
from aliquot.dialects.registry import remarks
from aliquot.dialects.rules import DEFAULT_RULES, EVERY
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import NodeObject, PodObject
from aliquot.model.claim import AppClass, CardFilter, Claim, ContainerClaim, Preference, Role, Slice
from aliquot.model.device import Card
from aliquot.model.grant import Grant
from aliquot.model.node import Isolation, Node, Offer, Order
from aliquot.model.refusal import Invalid
from kit.values.manifests import a_container, a_node, a_pod
from kit.values.strategies import anything

RULES = Rules(served=frozenset({"qgpu", "t9k", "gpushare", "hami"}))
GPU, MEM, PERCENT = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage"
CORES, PRIORITY = "nvidia.com/gpucores", "nvidia.com/priority"
SHARED = "nvidia.com/gpu.shared"
WHOLE = Slice(memory_percent=100, exclusive=True)
Json = dict[str, Any]


def claim_of(*limits: Json, annotations: dict[str, str] | None = None) -> Claim:
    containers = [a_container(f"c{at}", amounts) for at, amounts in enumerate(limits)]
    claim = parse_pod(a_pod("p", *containers, annotations=annotations), RULES)
    assert isinstance(claim, Claim), claim
    return claim


def refusal_of(*limits: Json, annotations: dict[str, str] | None = None) -> str:
    containers = [a_container(f"c{at}", amounts) for at, amounts in enumerate(limits)]
    found = parse_pod(a_pod("p", *containers, annotations=annotations), RULES)
    assert isinstance(found, tuple), found
    return "; ".join(invalid.sentence() for invalid in found)


@pytest.mark.parametrize(
    ("limits", "part", "count"),
    [
        ({GPU: 1, MEM: 3000}, Slice(3000), 1),
        ({GPU: 1, MEM: 3000, CORES: 30}, Slice(3000, core_milli=300), 1),
        ({GPU: 2, MEM: "3000"}, Slice(3000), 2),
        ({GPU: 2, PERCENT: 50, CORES: 30}, Slice(memory_percent=50, core_milli=300), 2),
        ({GPU: 2}, WHOLE, 2),
        ({GPU: 2, PERCENT: 100}, WHOLE, 2),
        ({GPU: 2, PERCENT: 100, CORES: 100}, WHOLE, 2),
        ({GPU: 1, CORES: 100}, WHOLE, 1),
        ({GPU: 1, CORES: 30}, Slice(memory_percent=100, core_milli=300), 1),
        ({GPU: 1, MEM: 3000, CORES: 100}, Slice(3000, core_milli=1000, exclusive=True), 1),
        ({GPU: 1, MEM: 0, CORES: 0}, WHOLE, 1),
        ({MEM: 3000}, Slice(3000), 1),
        ({PERCENT: 25}, Slice(memory_percent=25), 1),
        ({CORES: 30}, Slice(memory_percent=100, core_milli=300), 1),
        ({PERCENT: 100}, WHOLE, 1),
    ],
)
def test_part_of_each_card(limits: Json, part: Slice, count: int) -> None:
    claim = claim_of(limits)
    assert claim.containers == (ContainerClaim("c0", 0, Role.MAIN, part, count),)
    assert (claim.dialect, claim.offer, claim.app_class) == ("hami", Offer.HAMI, AppClass.NORMAL)


@pytest.mark.parametrize(
    ("limits", "part"),
    [
        ({SHARED: 1}, Slice(memory_percent=25)),
        ({SHARED: "1"}, Slice(memory_percent=25)),
        ({SHARED: 1, GPU: 0}, Slice(memory_percent=25)),
        ({SHARED: 1, MEM: 3000}, Slice(3000)),
        ({SHARED: 1, PERCENT: 10, CORES: 30}, Slice(memory_percent=10, core_milli=300)),
        ({SHARED: 1, PERCENT: 100, CORES: 100}, Slice(memory_percent=100, core_milli=1000)),
    ],
)
def test_shared_card_is_a_quarter_of_one_unless_the_pod_says_how_much(limits: Json, part: Slice) -> None:
    claim = claim_of(limits)
    assert claim.containers == (ContainerClaim("c0", 0, Role.MAIN, part, 1),)
    assert (claim.dialect, claim.offer) == ("hami", Offer.HAMI_SHARED)


def test_pod_may_have_whole_and_shared_cards_in_different_containers() -> None:
    claim = claim_of({GPU: 1}, {SHARED: 1})
    assert [item.slice for item in claim.containers] == [WHOLE, Slice(memory_percent=25)]
    assert claim.offer is Offer.HAMI_SHARED


def test_shared_cards_are_left_to_nvidias_plugin_where_hami_is_not_served() -> None:
    assert parse_pod(a_pod("p", a_container("c", {SHARED: 1}))) is None


def test_each_container_asks_for_its_own_cards() -> None:
    claim = claim_of({GPU: 1, MEM: 3000}, {}, {GPU: 1, MEM: 5000})
    assert [(item.name, item.slice.memory_mib) for item in claim.containers] == [("c0", 3000), ("c2", 5000)]
    assert not claim.together


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({PRIORITY: 1}, f'limits["{GPU}"] is missing: the number of cards'),
        ({PERCENT: 25, GPU: 0}, "for no card remove those as well"),
        ({GPU: "0.5"}, "a whole number of cards"),
        ({GPU: 1, MEM: "3Gi"}, "whole MiB of each card"),
        ({GPU: 1, MEM: -1}, "whole MiB of each card"),
        ({GPU: 1, PERCENT: 101}, "1 to 100 percent of each card's memory"),
        ({GPU: 1, CORES: 101}, "1 to 100 percent of each card's compute"),
        ({GPU: 1, MEM: 3000, PERCENT: 50}, f"either {MEM} or {PERCENT}"),
        ({SHARED: 2}, f"1, a part of one card: for more of it add {PERCENT}, for several cards request {GPU}"),
        ({SHARED: 1, GPU: 1}, f"either {GPU} or {SHARED}"),
        ({SHARED: "half"}, "1, a part of one card"),
        ({GPU: 1, PRIORITY: 2}, "0 (high: online) or 1 (low: offline)"),
        ({GPU: 1, "nvidia.com/gpumemory": 3000}, f"did you mean {MEM}?"),
        ({GPU: 1, "aliyun.com/gpu-mem": 3}, "one dialect per Pod"),
    ],
)
def test_broken_rule_is_refused_with_its_field(limits: Json, said: str) -> None:
    assert said in refusal_of(limits)


@pytest.mark.parametrize(
    ("priority", "app_class"), [(0, AppClass.ONLINE), ("0", AppClass.ONLINE), (1, AppClass.OFFLINE)]
)
def test_priority_is_the_class(priority: object, app_class: AppClass) -> None:
    assert claim_of({GPU: 1, MEM: 1, PRIORITY: priority}, {}).app_class is app_class


def test_containers_with_cards_have_one_priority() -> None:
    assert "the same priority in all containers with cards: 0" in refusal_of({GPU: 1, PRIORITY: 0}, {GPU: 1})
    assert "the same priority in all containers with cards: 0" in refusal_of(
        {GPU: 1, PRIORITY: 0}, {GPU: 1, PRIORITY: 1}
    )


def test_cards_are_chosen_by_type_and_uuid() -> None:
    annotations = {
        "nvidia.com/use-gputype": "A100, v100,",
        "nvidia.com/nouse-gputype": "1080",
        "nvidia.com/use-gpuuuid": "GPU-b,GPU-a",
        "nvidia.com/nouse-gpuuuid": " ",
    }
    cards = claim_of({GPU: 2}, annotations=annotations).cards
    assert cards == CardFilter(("A100", "V100"), ("1080",), ("GPU-a", "GPU-b"))
    assert cards.allows_model("NVIDIA A100-SXM4-80GB")
    assert cards.allows_model("Tesla V100-PCIE-32GB")
    assert not cards.allows_model("NVIDIA T4")
    assert not cards.allows_model("V100 1080")
    allows_card = cards.card_rule()
    assert allows_card("GPU-a")
    assert not allows_card("GPU-c")
    assert CardFilter(("NVIDIA-TESLA V100",)).allows_model("Tesla V100-PCIE-32GB")


@pytest.mark.parametrize(
    ("annotations", "preference"),
    [
        (
            {"hami.io/node-scheduler-policy": "spread", "hami.io/gpu-scheduler-policy": "binpack"},
            (Order.SPREAD, Order.BINPACK),
        ),
        ({"hami.io/node-scheduler-policy": "spread"}, (Order.SPREAD, Order.SPREAD)),
        ({"hami.io/gpu-scheduler-policy": "binpack"}, (Order.BINPACK, Order.BINPACK)),
    ],
)
def test_scheduler_policies_are_the_pods_own_preference(
    annotations: dict[str, str], preference: tuple[Order, Order]
) -> None:
    assert claim_of({GPU: 1, MEM: 1}, annotations=annotations).preference == Preference(*preference)


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("hami.io/node-scheduler-policy", "mutex", "binpack or spread"),
        ("hami.io/gpu-scheduler-policy", "topology-aware", "binpack, spread or mutex"),
        ("hami.io/gpu-scheduler-policy", "binpack,topology-aware", "binpack, spread or mutex"),
        ("hami.io/gpu-scheduler-policy", "numa", "does not place by NUMA node"),
        ("hami.io/gpu-scheduler-policy", "mutex,numa,binpack", "does not place by NUMA node"),
        ("hami.io/node-scheduler-policy", "binpack,spread", "binpack or spread"),
        ("nvidia.com/vgpu-mode", "mig", "without MIG and MPS"),
        ("nvidia.com/numa-bind", "true", "does not place by NUMA node"),
        ("hami.io/device-scoring-weights", "{}", "no such weights"),
        ("nvidia.com/use-gputypes", "A100", "did you mean nvidia.com/use-gputype?"),
    ],
)
def test_unsupported_annotation_is_refused(key: str, text: str, said: str) -> None:
    assert said in refusal_of({GPU: 1, MEM: 1}, annotations={key: text})


@pytest.mark.parametrize(
    ("text", "preference"),
    [
        ("mutex", None),
        (" binpack , mutex ", Preference(Order.BINPACK, Order.BINPACK)),
        ("mutex,spread", Preference(Order.BINPACK, Order.SPREAD)),
    ],
)
def test_mutex_takes_cards_for_the_pod_alone(text: str, preference: Preference | None) -> None:
    claim = claim_of({GPU: 2, MEM: 3000}, {GPU: 1}, annotations={hami.CARD_POLICY: text})
    assert [part.slice for part in claim.containers] == [Slice(3000, exclusive=True), WHOLE]
    assert claim.preference == preference
    assert parse_pod(render_pod(claim, RULES), RULES) == claim


@pytest.mark.parametrize(
    ("text", "order", "alone", "remarked"),
    [
        ("mutex,binpack,numa", Order.BINPACK, True, True),
        ("binpack,numa", Order.BINPACK, False, True),
        ("spread, numa ,binpack,numa", Order.SPREAD, False, True),
        ("binpack,spread", Order.BINPACK, False, False),
        ("spread,mutex,spread,", Order.SPREAD, True, False),
    ],
)
def test_first_order_of_a_chain_of_policies_decides(text: str, order: Order, alone: bool, remarked: bool) -> None:
    claim = claim_of({GPU: 1, MEM: 3000}, annotations={hami.CARD_POLICY: text})
    assert claim.preference == Preference(Order.BINPACK, order)
    assert [part.slice.exclusive for part in claim.containers] == [alone]
    assert parse_pod(render_pod(claim, RULES), RULES) == claim
    pod = a_pod("p", a_container("c", {GPU: 1, MEM: 3000}), annotations={hami.CARD_POLICY: text})
    said = f'metadata.annotations["{hami.CARD_POLICY}"]: numa is ignored: aliquot does not place by NUMA node'
    assert remarks(pod, RULES) == ([said] if remarked else [])
    assert remarks(pod, DEFAULT_RULES) == []


def test_mutex_is_refused_for_a_part_of_a_shared_card() -> None:
    assert "is a part of a card that others use too" in refusal_of({SHARED: 1}, annotations={hami.CARD_POLICY: "mutex"})


def test_part_of_a_card_without_a_number_is_refused_in_a_pod_that_the_webhook_has_not_seen() -> None:
    pod = a_pod("p", a_container("c", {MEM: 3000}))
    read = read_object(pod, PodObject, "pod")
    assert isinstance(read, PodObject)
    found = PodReader(RULES).read(read).claim
    assert isinstance(found, tuple)
    assert found == parse_pod(pod, RULES, created=True)
    assert found[0].sentence() == (
        f'spec.containers[0].resources.limits["{GPU}"] is missing: the number of cards: the webhook adds 1 to new'
        " Pods, so create the Pod again; without it write 1"
    )


@pytest.mark.parametrize(("key", "text"), [("nvidia.com/vgpu-mode", "hami-core"), ("nvidia.com/numa-bind", "false")])
def test_annotation_that_says_what_aliquot_does_is_accepted(key: str, text: str) -> None:
    assert claim_of({GPU: 1}, annotations={key: text}).containers[0].slice == WHOLE


def test_pods_that_differ_in_annotations_only_are_read_apart() -> None:
    reader = PodReader(RULES)
    found = []
    for kind in ("A100", "V100"):
        pod = a_pod("p", a_container("c", {GPU: 1}), annotations={"nvidia.com/use-gputype": kind})
        read = read_object(pod, PodObject, "pod")
        assert isinstance(read, PodObject)
        claim = reader.read(read).claim
        assert isinstance(claim, Claim)
        found.append(claim.cards)
    assert found == [CardFilter(("A100",)), CardFilter(("V100",))]


def test_nvidia_gpu_is_left_to_others_where_hami_is_not_served() -> None:
    assert parse_pod(a_pod("p", a_container("c", {GPU: 1, MEM: 3000}))) is None


@pytest.mark.parametrize(("label", "offered"), [("true", True), ("false", False), ("on", False), (None, False)])
def test_node_offers_hami_by_our_label(label: str | None, offered: bool) -> None:
    labels = {"gpu": "on", **({} if label is None else {LABEL: label})}
    node = parse_node(a_node("n1", 16, labels=labels), RULES)
    assert isinstance(node, Node)
    assert (Offer.HAMI in node.offers) is offered
    assert node.isolation is (Isolation.BURST_SHARE if offered else Isolation.BEST_EFFORT)


@pytest.mark.parametrize(("resource", "offer"), [(GPU, Offer.HAMI), (SHARED, Offer.HAMI_SHARED)])
@pytest.mark.parametrize(("amount", "offered"), [("200", True), ("100", True), ("0", False), (None, False)])
def test_node_offers_hami_only_while_the_kubelet_has_nvidia_gpu(
    amount: str | None, offered: bool, resource: str, offer: Offer
) -> None:
    """kube-scheduler ignores the resource, and a kubelet that does not know it starts Pods without a card."""
    for read in (parse_node, lambda node, rules: NodeReader(rules).read(msgspec.convert(node, NodeObject))):
        found = a_node("n1", 16, 16, labels={LABEL: "true"}, capacity={"cpu": "4"})
        found["status"]["allocatable"] = {"cpu": "4", **({} if amount is None else {resource: amount})}
        node = read(found, RULES)
        assert isinstance(node, Node)
        assert node.offers & hami.OFFERS == ({offer} if offered else set())


def test_policy_label_rules_on_a_node_of_hami() -> None:
    labels = {LABEL: "true", "tke.cloud.tencent.com/qgpu-schedule-policy": "fs"}
    node = parse_node(a_node("n1", 16, labels=labels), RULES)
    assert isinstance(node, Node)
    assert node.isolation is Isolation.FIXED_SHARE


# The manifests in HAMi's folder examples/nvidia, by name: resources and annotations of their shape.
EXAMPLES: dict[str, tuple[Json, dict[str, str], Slice | str]] = {
    "default_use": ({GPU: 1, MEM: 3000, CORES: 30}, {}, Slice(3000, core_milli=300)),
    "default_use_legacy": ({GPU: 2}, {}, WHOLE),
    "dynamic_mig_example": ({GPU: 2, MEM: 8000}, {"nvidia.com/vgpu-mode": "mig"}, "without MIG and MPS"),
    "example": ({GPU: 1, MEM: 3000}, {}, Slice(3000)),
    "mig_example": ({"nvidia.com/mig-3g.20gb": 1}, {}, "not ours"),
    "specify_card_type_not_use": ({GPU: 2}, {"nvidia.com/nouse-gputype": "1080,2080"}, WHOLE),
    "specify_card_type_to_use": ({GPU: 2}, {"nvidia.com/use-gputype": "A100,V100"}, WHOLE),
    "specify_scheduling_policy": (
        {GPU: 1},
        {"hami.io/node-scheduler-policy": "spread", "hami.io/gpu-scheduler-policy": "binpack"},
        WHOLE,
    ),
    "specify_uuid_not_use": ({GPU: 2}, {"nvidia.com/nouse-gpuuuid": "GPU-1"}, WHOLE),
    "specify_uuid_to_use": ({GPU: 1}, {"nvidia.com/use-gpuuuid": "GPU-1,GPU-2"}, WHOLE),
    "use_as_normal": ({GPU: 1}, {}, WHOLE),
    "use_exclusive_card": ({GPU: 2, PERCENT: 100, CORES: 100}, {}, WHOLE),
    "use_memory_fraction": ({GPU: 2, PERCENT: 50, CORES: 30}, {}, Slice(memory_percent=50, core_milli=300)),
    "use_sharing_card": ({GPU: 1, PERCENT: 40, CORES: 60}, {}, Slice(memory_percent=40, core_milli=600)),
    "vllm_cross_vgpu": ({GPU: 2, PERCENT: 30, CORES: 30}, {}, Slice(memory_percent=30, core_milli=300)),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_hamis_example_runs_or_is_refused_with_a_sentence(name: str) -> None:
    limits, annotations, outcome = EXAMPLES[name]
    found = parse_pod(a_pod("p", a_container("c", limits), annotations=annotations), RULES)
    if outcome == "not ours":
        assert found is None
    elif isinstance(outcome, str):
        assert isinstance(found, tuple)
        assert outcome in found[0].sentence()
    else:
        assert isinstance(found, Claim)
        assert found.containers[0].slice == outcome


# What HAMi's own scheduler wrote, for the Pods that run when Aliquot takes over.

CARDS = Node("n1", tuple(Card(at, 16384, uuid=f"GPU-{at}") for at in range(3)))
ALLOCATED = "hami.io/vgpu-devices-allocated"


def granted(text: str, *limits: Json, node: Node | None = CARDS) -> object:
    containers = [a_container(f"c{at}", amounts) for at, amounts in enumerate(limits)]
    pod = a_pod("p", *containers, annotations={ALLOCATED: text}, on="n1")
    claim = parse_pod(pod, RULES)
    assert isinstance(claim, Claim)
    found = parse_grant(pod, claim, node)
    if not isinstance(found, Grant):
        return found
    return [[(share.card, share.memory_mib) for share in item.shares] for item in found.containers]


def test_hamis_own_assignment_is_a_grant() -> None:
    assert granted("GPU-1,NVIDIA,3000,30:;", {GPU: 1, MEM: 3000, CORES: 30}) == [[(1, 3000)]]
    assert granted("GPU-2,NVIDIA,8192,0:GPU-0,NVIDIA,8192,0:;", {GPU: 2, PERCENT: 50}) == [[(0, 8192), (2, 8192)]]
    two: tuple[Json, ...] = ({GPU: 1, MEM: 3000}, {}, {GPU: 1, MEM: 5000})
    assert granted("GPU-1,NVIDIA,3000,0:;;GPU-1,NVIDIA,5000,0:;", *two) == [[(1, 3000)], [(1, 5000)]]
    assert granted("GPU-1,NVIDIA,3000,30:;", {GPU: 1, MEM: 3000}, node=None) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "GPU-9,NVIDIA,3000,0:;",  # not a card of the node
        "GPU-1,NVIDIA,2999,0:;",  # less than the Pod asks for
        "GPU-1,NVIDIA,much,0:;",
        "GPU-1,NVIDIA:;",
        "GPU-1,NVIDIA,3000,0:GPU-2,NVIDIA,3000,0:;",  # two cards, one is asked for
        "GPU-1,NVIDIA,3000,0:;GPU-1,NVIDIA,3000,0:;",  # two containers
    ],
)
def test_assignment_that_is_not_what_the_pod_asks_for_is_no_grant(text: str) -> None:
    found = granted(text, {GPU: 1, MEM: 3000})
    assert isinstance(found, tuple)
    assert ALLOCATED in found[0].field


@given(anything)
def test_any_assignment_parses_or_is_refused(value: object) -> None:
    claim = claim_of({GPU: 2, PERCENT: 50}, {GPU: 1})
    found = hami.parse_grant({ALLOCATED: value}, claim, CARDS)
    assert found is None or isinstance(found, (tuple, Invalid))


@given(st.text("GPU-012,NVIDIA5000:; ", max_size=60))
def test_any_text_of_an_assignment_parses_or_is_refused(text: str) -> None:
    found = granted(text, {GPU: 1, MEM: 1})
    assert isinstance(found, (tuple, list))


@pytest.mark.parametrize("priority", ["high", "-1", 2, "0.5", None])
def test_priority_that_is_neither_0_nor_1_is_refused(priority: object) -> None:
    assert "0 (high: online) or 1 (low: offline)" in refusal_of({GPU: 1, PRIORITY: priority})


@pytest.mark.parametrize(
    "key",
    ["nvidia.com/use-gputype", "nvidia.com/nouse-gputype", "aliquot.dev/card-models"],
)
def test_list_of_very_many_models_is_refused(key: str) -> None:
    """Each model of the cluster is compared with each word, inside the scheduler's loop: 40,000 words took 12 s."""

    def read(count: int) -> object:
        words = ",".join(f"w{at}" for at in range(count))
        return parse_pod(
            a_pod("p", a_container("main", {GPU: "1"}), annotations={key: words}), Rules(served=frozenset(EVERY))
        )

    assert isinstance(read(256), Claim)
    refused = read(257)
    assert isinstance(refused, tuple)
    sentence = f'metadata.annotations["{key}"]: "257 names" is not allowed: at most 256 names, separated by commas'
    assert [problem.sentence() for problem in refused] == [sentence]


def test_any_number_of_uuids_may_be_listed() -> None:
    """33 nodes of 8 cards have more than 256."""
    uuids = tuple(f"GPU-{at:05}" for at in range(7000))
    for key in ("nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"):
        pod = a_pod("p", a_container("main", {GPU: "1"}), annotations={key: ",".join(uuids)})
        claim = parse_pod(pod, Rules(served=frozenset(EVERY)))
        assert isinstance(claim, Claim)
        assert claim.cards is not None
        assert uuids in (claim.cards.uuids, claim.cards.not_uuids)
