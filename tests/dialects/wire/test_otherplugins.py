"""Which nodes' cards other device plugins and DRA drivers hand out, and which cards their device IDs stand for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects.wire.objects import NodeObject
from aliquot.dialects.wire.otherplugins import (
    DEPLOY,
    SHARE,
    CardIds,
    Drivers,
    SliceObject,
    device_uuids,
    hand_out,
    is_other_resource,
    may_label,
    may_serve_nvidia_gpu,
    opted_in,
    other_resources,
    others_of,
    read_slices,
    served_by_other,
)
from aliquot.dialects.wire.schedulerconfig import RESOURCES
from kit.values.manifests import a_node
from kit.values.strategies import anything

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
UUIDS = ("GPU-00000000-aaaa-bbbb-cccc-000000000000", "GPU-11111111-aaaa-bbbb-cccc-111111111111")


def serving_others(node: NodeObject, drivers: Iterable[str] = ()) -> tuple[str, ...]:
    """The resources and drivers that keep us from using the node's cards; none where its owner has opted in."""
    return others_of(None if opted_in(node.metadata.labels) else other_resources(node), tuple(drivers))


def node(labels: dict[str, str] | None = None, **amounts: Any) -> NodeObject:
    found: Json = {"metadata": {"name": "n1", "labels": labels or {}}, "status": {"capacity": amounts}}
    return msgspec.convert(found, NodeObject)


def of(resource: str, amount: str) -> dict[str, Any]:
    return {resource: amount}


def a_slice(name: str = "s", driver: str = "gpu.nvidia.com", **spec: Any) -> Json:
    spec = {"nodeName": "n1", **spec} if not {"allNodes", "nodeSelector", "perDeviceNodeSelection"} & {*spec} else spec
    devices = spec.pop("devices", [{"name": "gpu-0", "attributes": {"uuid": {"string": UUIDS[0]}}}])
    return {"metadata": {"name": name}, "spec": {"driver": driver, "devices": devices, **spec}}


@pytest.mark.parametrize(
    "resource",
    [
        GPU,
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/gpumem",
        "volcano.sh/vgpu-number",
        "nvidia.com/GA102GL_A10",  # for virtual machines: a whole card,
        "nvidia.com/NVIDIA_A10-12Q",  # a part,
        "nvidia.com/pgpu",  # a whole card of any model
        "aliyun.com/gpu",  # ACK's whole cards
    ],
)
def test_node_with_resource_of_another_plugin_is_served_by_it(resource: str) -> None:
    assert serving_others(node(**of(resource, "2"))) == (resource,)
    assert not may_label(node(**of(resource, "2")))


@pytest.mark.parametrize("resource", ["cpu", "nvidia.com/hostdev", "rdma/hca", "amd.com/gpu", *sorted(RESOURCES)])
def test_own_and_unrelated_resources_are_no_other_plugin(resource: str) -> None:
    assert serving_others(node(**of(resource, "2"))) == ()
    assert may_label(node(**of(resource, "2")))


@pytest.mark.parametrize("resource", [GPU, "nvidia.com/mig-1g.10gb", "volcano.sh/vgpu-number"])
def test_amount_of_zero_keeps_the_node_closed(resource: str) -> None:
    """The kubelet writes it after a plugin was removed, and also while it restarts."""
    others = serving_others(node(**of(resource, "0")))
    assert others == (f"{resource} (0 now)",)
    assert hand_out(others) == f"another device plugin registered {resource} (0 now) and may hand out its cards again"
    assert serving_others(node({SHARE: "true"}, **of(resource, "0"))) == ()
    assert not may_label(node(**of(resource, "0")))
    assert may_label(node())


def test_zero_is_no_offer_once_the_gpu_operator_runs_no_plugin_there() -> None:
    switched_off = {DEPLOY: "false"}
    assert serving_others(node(switched_off, **of(GPU, "0"))) == ()
    assert serving_others(node(switched_off, **of(GPU, "2"))) == (GPU,), "it has not ended yet"
    assert serving_others(node(switched_off, **of("volcano.sh/vgpu-number", "0"))) != ()
    assert serving_others(node({DEPLOY: "true"}, **of(GPU, "0"))) != ()
    assert not may_label(node(switched_off, **of(GPU, "0"))), "whether to share the cards is the owner's decision"


@given(amounts=st.lists(st.sampled_from(["0", "1", "8", "many"]), min_size=1))
def test_node_of_another_plugin_stays_closed_whatever_amounts_follow(amounts: list[str]) -> None:
    assert all(serving_others(node(**of(GPU, amount))) for amount in amounts)


def test_amount_that_cannot_be_read_counts_as_an_offer() -> None:
    assert serving_others(node(**of(GPU, "many"))) == (GPU,)


def test_allocatable_alone_is_an_offer() -> None:
    found = msgspec.convert({"metadata": {"name": "n1"}, "status": {"allocatable": {GPU: "1"}}}, NodeObject)
    assert other_resources(found) == (GPU,)


@pytest.mark.parametrize(("value", "shares"), [("true", True), ("false", False), ("yes", False), ("", False)])
def test_owner_opts_in_by_label(value: str, shares: bool) -> None:
    found = node({SHARE: value}, **of(GPU, "2"))
    assert (serving_others(found, ["gpu.nvidia.com"]) == ()) is shares
    assert may_label(found, ["gpu.nvidia.com"]) is shares


# ResourceSlices.


def test_slice_of_a_gpu_driver_serves_the_node_it_names() -> None:
    drivers = read_slices([a_slice()])
    assert drivers.on("n1", {}) == ("gpu.nvidia.com",)
    assert drivers.on("n2", {}) == ()
    assert serving_others(node(), drivers.on("n1", {})) == ("DRA driver gpu.nvidia.com",)
    assert not may_label(node(), drivers.on("n1", {}))


@pytest.mark.parametrize(
    "found",
    [
        a_slice(driver="dra.net", devices=[{"name": "eth0", "attributes": {"mac": {"string": "00:11"}}}]),
        a_slice(driver="compute-domain.nvidia.com", devices=[{"name": "channel-0"}]),
        a_slice(driver="gpu.nvidia.com", devices=[]),
    ],
)
def test_slice_without_nvidia_cards_serves_no_node(found: Json) -> None:
    assert read_slices([found]).on("n1", {}) == ()


def test_slice_of_an_unknown_driver_is_recognised_by_the_uuids_of_its_devices() -> None:
    beta = [{"name": "a", "basic": {"attributes": {"id": {"string": "MIG-1234"}}}}]
    assert read_slices([a_slice(driver="cards.example.org")]).on("n1", {}) == ("cards.example.org",)
    assert read_slices([a_slice(driver="cards.example.org", devices=beta)]).on("n1", {}) == ("cards.example.org",)


def test_slice_with_a_selector_serves_only_the_nodes_it_selects() -> None:
    terms = [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["7"]}]}]
    drivers = read_slices([a_slice(nodeSelector={"nodeSelectorTerms": terms})])
    assert drivers.on("n1", {"rack": "7"}) == ("gpu.nvidia.com",)
    assert drivers.on("n1", {"rack": "8"}) == drivers.on("n1", None) == ()
    assert read_slices([a_slice(allNodes=True)]).on("any", {}) == ("gpu.nvidia.com",)


def test_slice_whose_devices_select_their_nodes() -> None:
    card = {"attributes": {"uuid": {"string": UUIDS[0]}}}
    devices = [{"name": "a", "nodeName": "n1", **card}, {"name": "b", "nodeName": "n2", **card}]
    drivers = read_slices([a_slice(perDeviceNodeSelection=True, devices=devices)])
    assert [drivers.on(name, {}) for name in ("n1", "n2", "n3")] == [("gpu.nvidia.com",), ("gpu.nvidia.com",), ()]


def test_put_and_drop_return_the_nodes_for_which_that_matters() -> None:
    drivers = Drivers()
    named, moved = (msgspec.convert(a_slice(nodeName=name), SliceObject) for name in ("n1", "n2"))
    assert drivers.put(named) == frozenset({"n1"})
    assert drivers.put(moved) == frozenset({"n1", "n2"})
    assert drivers.on("n1", {}) == ()
    assert drivers.put(msgspec.convert(a_slice("all", allNodes=True), SliceObject)) is None
    assert drivers.put(named) is None, "with a slice that selects nodes, their labels matter"
    assert drivers.drop("all") is None
    assert drivers.drop("s") == frozenset({"n1"})
    assert drivers.drop("s") == frozenset()
    assert drivers.on("n1", {}) == ()


@given(steps=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["n1", "n2", "all", "gone"]))))
def test_drivers_by_node_are_those_of_the_slices_there_are(steps: list[tuple[str, str]]) -> None:
    drivers, there = Drivers(), dict[str, str]()
    for name, where in steps:
        if where == "gone":
            there.pop(name, None)
            drivers.drop(name)
            continue
        there[name] = where
        place: Json = {"allNodes": True} if where == "all" else {"nodeName": where}
        drivers.put(msgspec.convert(a_slice(name, f"gpu-{name}.example.org", **place), SliceObject))
    for node_name in ("n1", "n2"):
        wanted = sorted(f"gpu-{name}.example.org" for name, where in there.items() if where in (node_name, "all"))
        assert list(drivers.on(node_name, {})) == wanted


def test_devices_of_slices_have_their_uuids() -> None:
    beta = {"name": "part", "basic": {"attributes": {"uuid": {"string": "MIG-1"}, "parentUUID": {"string": UUIDS[1]}}}}
    found = device_uuids([a_slice(), a_slice(devices=[beta, {"name": "none"}])])
    driver = "gpu.nvidia.com"
    assert found == {(driver, "gpu-0"): UUIDS[0], (driver, "part"): f"{UUIDS[1]} MIG-1", (driver, "none"): ""}
    ids = CardIds({UUIDS[0]: 0, UUIDS[1]: 1}, {}, frozenset(), found)
    for name, cards in (("gpu-0", {UUIDS[0]}), ("part", {UUIDS[1]}), ("none", {*UUIDS}), ("0", {*UUIDS})):
        assert ids.cards(f"DRA driver {driver}", name) == cards
    assert ids.cards("DRA driver dra.net", "gpu-0") == frozenset()


@given(anything)
def test_anything_instead_of_slices_is_left_out(value: object) -> None:
    objects = [value, {"metadata": {"name": "s"}, "spec": value}]
    read_slices(objects).on("n1", {})
    device_uuids(objects)


# Device IDs.


@pytest.mark.parametrize(
    ("device", "cards"),
    [
        (UUIDS[1], {1}),
        (f"{UUIDS[1]}::3", {1}),
        (f"{UUIDS[0]}-9", {0}),
        (f"MIG-{UUIDS[1]}/1/0", {1}),
        ("1", {1}),
        ("0::2", {0}),
        ("nvidia0", {1}),
        ("nvidia1/vgpu3", {0}),
        ("7", {0, 1}),
        ("nvidia9", {0, 1}),
        ("MIG-22222222-aaaa-bbbb-cccc-222222222222", {0, 1}),
        ("GPU-33333333-aaaa-bbbb-cccc-333333333333", {0, 1}),
        ("", {0, 1}),
    ],
)
def test_device_id_stands_for_cards(device: str, cards: set[int]) -> None:
    ids = CardIds({UUIDS[0]: 0, UUIDS[1]: 1}, {UUIDS[0]: 1, UUIDS[1]: 0}, frozenset())
    assert ids.cards(GPU, device) == {UUIDS[card] for card in cards}


def test_part_of_a_card_is_on_a_card_in_mig_mode() -> None:
    ids = CardIds({UUIDS[0]: 0, UUIDS[1]: 1}, {}, frozenset({UUIDS[1]}))
    assert ids.cards("nvidia.com/mig-1g.10gb", "MIG-22222222-aaaa-bbbb-cccc-222222222222") == {UUIDS[1]}


def test_device_file_without_known_number_may_be_any_card() -> None:
    ids = CardIds({UUIDS[0]: 0, UUIDS[1]: 1}, {}, frozenset())
    assert ids.cards(GPU, "nvidia0") == set(UUIDS)


def test_devices_of_unrelated_resources_are_no_cards_unless_they_name_one() -> None:
    ids = CardIds({UUIDS[0]: 0, UUIDS[1]: 1}, {UUIDS[0]: 0}, frozenset())
    assert ids.cards("rdma/hca", "0") == ids.cards("example.org/fpga", "nvidia0") == frozenset()
    assert ids.cards("example.org/renamed-gpu", UUIDS[0]) == {UUIDS[0]}


@given(device=st.text(max_size=80), resource=st.sampled_from([GPU, "nvidia.com/mig-2g.20gb", "volcano.sh/vgpu-number"]))
def test_no_device_of_another_plugin_is_on_no_card(device: str, resource: str) -> None:
    """Whatever the ID: where nothing is known, every card may be held."""
    assert CardIds({UUIDS[0]: 0, UUIDS[1]: 1}, {UUIDS[0]: 0}, frozenset()).cards(resource, device)


@given(st.sampled_from(sorted(RESOURCES)))
def test_no_resource_of_our_agent_counts_as_another_plugin(resource: str) -> None:
    assert not is_other_resource(resource)


def test_kit_node_is_served_by_no_other_plugin() -> None:
    assert serving_others(msgspec.convert(a_node("n1"), NodeObject)) == ()


SERVE, SHARED = "aliquot.dev/serve-nvidia-gpu", "nvidia.com/gpu.shared"


def labelled(value: str, capacity: str, allocatable: str | None = None) -> NodeObject:
    """A node with two cards in our inventory, and that much of nvidia.com/gpu."""
    found = a_node("n1", 16, 16, labels={SERVE: value}, capacity={GPU: capacity})
    found["status"]["allocatable"] = {} if allocatable is None else {GPU: allocatable}
    return msgspec.convert(found, NodeObject)


@pytest.mark.parametrize(
    ("capacity", "allocatable", "others"),
    [
        ("200", "200", ()),  # as we advertise it
        ("200", "100", ()),  # one card is unhealthy
        ("200", "0", ()),  # our agent restarts
        ("0", "0", (f"{GPU} (0 now)",)),  # the kubelet has restarted: whose plugin comes back?
        ("2", "0", (GPU,)),  # NVIDIA's plugin restarts
        ("2", "2", (GPU,)),  # NVIDIA's plugin
        ("20", "20", (GPU,)),  # HAMi's
        ("2", None, (GPU,)),
        ("x", "x", (GPU,)),
    ],
)
def test_node_labelled_for_us_is_ours_only_while_no_other_plugin_serves_nvidia_gpu(
    capacity: str, allocatable: str | None, others: tuple[str, ...]
) -> None:
    for value in ("true", "false"):
        assert serving_others(labelled(value, capacity, allocatable)) == others


def test_labelled_node_at_zero_opens_where_the_gpu_operator_runs_no_plugin() -> None:
    node = labelled("false", "0", "0")
    assert node.metadata.labels is not None
    node.metadata.labels[DEPLOY] = "false"
    assert serving_others(node) == ()


def test_zero_cards_in_the_inventory_advertise_nothing_of_nvidia_gpu() -> None:
    found = a_node("n1", labels={SERVE: "true"}, capacity={GPU: "0"})
    assert serving_others(msgspec.convert(found, NodeObject)) == (f"{GPU} (0 now)",)


@pytest.mark.parametrize(
    ("shared", "others"),
    [("200", ()), ("0", (f"{SHARED} (0 now)",)), ("8", (SHARED,))],  # ours; whose?; NVIDIA's plugin, renamed
)
def test_shared_cards_of_nvidias_plugin_close_a_node_that_is_labelled_for_us(
    shared: str, others: tuple[str, ...]
) -> None:
    node = labelled("true", "200", "200")
    assert node.status.capacity is not None
    node.status.capacity[SHARED] = shared
    assert serving_others(node) == others
    assert may_serve_nvidia_gpu(node) is (shared != "8")
    assert served_by_other(node, 200) is (shared == "8")


@pytest.mark.parametrize(
    ("capacity", "allocatable", "ours"),
    [
        ({GPU: "200", SHARED: "200"}, {GPU: "0", SHARED: "0"}, True),  # the kubelet keeps it for five minutes
        ({GPU: "0", SHARED: "0"}, {GPU: "0", SHARED: "0"}, True),
        ({GPU: "0"}, {GPU: "0"}, False),  # NVIDIA's plugin was there
        ({GPU: "8", SHARED: "0"}, {GPU: "0", SHARED: "0"}, False),  # NVIDIA's plugin restarts
        ({GPU: "0", SHARED: "8"}, {GPU: "0", SHARED: "8"}, False),
    ],
)
def test_what_we_leave_when_the_label_goes_is_no_other_plugins(
    capacity: dict[str, str], allocatable: dict[str, str], ours: bool
) -> None:
    found = a_node("n1", 16, 16, labels={}, capacity=capacity)
    found["status"]["allocatable"] = allocatable
    assert (serving_others(msgspec.convert(found, NodeObject)) == ()) is ours


def test_ten_cards_advertise_what_kubernetes_writes_as_1k() -> None:
    found = a_node("n1", *[16] * 10, labels={SERVE: "true"}, capacity={GPU: "1k", SHARED: "1k"})
    node = msgspec.convert(found, NodeObject)
    assert serving_others(node) == ()
    assert may_serve_nvidia_gpu(node)
    assert not served_by_other(node, 1000)
    assert served_by_other(node, 900)


def test_label_for_nvidia_gpu_says_nothing_of_other_resources() -> None:
    node = labelled("true", "200", "200")
    assert node.status.capacity is not None
    node.status.capacity["nvidia.com/mig-1g.10gb"] = "1"
    assert serving_others(node) == ("nvidia.com/mig-1g.10gb",)


def test_our_own_slices_are_no_other_driver() -> None:
    devices = [{"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-0"}}}]
    theirs, ours = (
        msgspec.convert(a_slice(driver=driver, nodeName="n1", devices=devices), SliceObject)
        for driver in ("gpu.example.com", "aliquot.dev")
    )
    assert (theirs.has_cards, ours.has_cards) == (True, False)


@pytest.mark.parametrize(
    "resource", ["nvidia.com/CX7_VF", "nvidia.com/BF3_P0_SF", "nvidia.com/hostdev", "nvidia.com/cx7_qsfp"]
)
def test_network_cards_of_nvidia_are_no_cards(resource: str) -> None:
    """Their owner names them; a node that has some is not another plugin's."""
    assert not is_other_resource(resource)


def test_slice_of_an_unknown_driver_needs_one_card_among_its_devices() -> None:
    card = {"name": "gpu-0", "attributes": {"uuid": {"string": UUIDS[0]}}}
    for devices, has_cards in (([{"name": "nic"}, card], True), ([{"name": "nic"}], False), ([], False)):
        found = msgspec.convert(a_slice(driver="cards.example.org", devices=devices), SliceObject)
        assert found.has_cards is has_cards


def test_resource_that_only_one_side_has_is_an_offer_of_that_side() -> None:
    found = {"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "1"}, "allocatable": {GPU: "1"}}}
    assert other_resources(msgspec.convert(found, NodeObject)) == (GPU,)
