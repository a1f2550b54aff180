"""gpushare: gpu-mem in one unit for the cluster, several cards by gpu-count, annotations old and new."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from aliquot.dialects import (
    MemoryUnit,
    Rules,
    gpushare,
    guess_gpushare_unit,
    parse_grant,
    parse_node,
    parse_pod,
    parse_unhealthy,
    render_env,
    render_grant,
    render_inventory,
)
from aliquot.dialects.gpushare.grants import render_totals
from aliquot.dialects.gpushare.names import card_number
from aliquot.dialects.registry import remarks
from aliquot.model.claim import Claim, Role, Slice
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node, Offer
from aliquot.model.refusal import Invalid
from kit.values.builders import claim_of as claim

MEM, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
IN_MIB = Rules(gpushare_unit=MemoryUnit.MIB)
ALLOCATION = "scheduler.framework.gpushare.allocation"


def pod(
    *limits: dict[str, object],
    labels: Mapping[str, object] | None = None,
    annotations: Mapping[str, object] | None = None,
    **spec: object,
) -> dict[str, Any]:
    containers = [{"name": f"c{index}", "resources": {"limits": amounts}} for index, amounts in enumerate(limits)]
    metadata = {"name": "p", "labels": labels and dict(labels), "annotations": annotations and dict(annotations)}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": containers, **spec}}


def sentence(manifest: dict[str, Any]) -> str:
    parsed = parse_pod(manifest)
    assert isinstance(parsed, tuple), parsed
    (only,) = parsed
    return only.sentence()


def pieces(parsed: Claim) -> list[tuple[Slice, int | None]]:
    return [(container.slice, container.count) for container in parsed.containers]


def test_gpu_mem_is_in_gib_by_default() -> None:
    parsed = claim(pod({MEM: 3}))
    assert pieces(parsed) == [(Slice(memory_mib=3072), 1)]
    assert (parsed.dialect, parsed.offer, parsed.together) == ("gpushare", Offer.GPUSHARE, True)


def test_gpu_mem_is_in_mib_if_configured() -> None:
    assert pieces(claim(pod({MEM: "3k"}), IN_MIB)) == [(Slice(memory_mib=3000), 1)]


@pytest.mark.parametrize("written", [-1, "1.5", "3Gi", None, "many"])
def test_gpu_mem_is_a_whole_number_of_at_least_1(written: object) -> None:
    said = sentence(pod({MEM: written}))
    assert said.startswith('spec.containers[0].resources.limits["aliyun.com/gpu-mem"]')
    assert "whole GiB, at least 1" in said


@pytest.mark.parametrize(
    "manifest",
    [
        pod({MEM: 12}, labels={COUNT: "4"}),
        pod({MEM: 12}, annotations={COUNT: "4"}),
        pod({MEM: 12, COUNT: 4}),
        pod({MEM: 12, COUNT: 4}, labels={COUNT: "4"}, annotations={COUNT: "4"}),
    ],
)
def test_gpu_count_4_with_gpu_mem_12_is_4_cards_of_3(manifest: dict[str, Any]) -> None:
    assert pieces(claim(manifest)) == [(Slice(memory_mib=3072), 4)]


def test_gpu_count_holds_for_every_container_of_the_pod() -> None:
    parsed = claim(pod({MEM: 4}, {MEM: 2, COUNT: 2}))
    assert pieces(parsed) == [(Slice(memory_mib=2048), 2), (Slice(memory_mib=1024), 2)]


def test_gpu_mem_that_does_not_divide_evenly_over_the_cards_is_an_error() -> None:
    assert "a multiple of 4" in sentence(pod({MEM: 10}, labels={COUNT: "4"}))


def test_gpu_counts_that_disagree_are_an_error_that_names_both() -> None:
    said = sentence(pod({MEM: 12}, labels={COUNT: "4"}, annotations={COUNT: "3"}))
    assert 'metadata.annotations["aliyun.com/gpu-count"]' in said
    assert 'metadata.labels["aliyun.com/gpu-count"] (4)' in said


@pytest.mark.parametrize("count", ["0", "x", "1.5", "-1"])
def test_gpu_count_is_a_whole_number_of_at_least_1(count: str) -> None:
    assert "at least 1" in sentence(pod({MEM: 12}, labels={COUNT: count}))


# nodes


def node(
    capacity: dict[str, object], labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1", "labels": labels, "annotations": annotations},
        "status": {"capacity": capacity},
    }


def good(manifest: dict[str, Any], rules: Rules | None = None) -> Node:
    parsed = parse_node(manifest, rules or Rules())
    assert isinstance(parsed, Node), parsed
    return parsed


def test_cards_are_gpu_count_of_gpu_mem_each_as_in_the_seeds_node_of_8_a30() -> None:
    parsed = good(node({MEM: "184", COUNT: "8"}))
    assert [card.memory_mib for card in parsed.cards] == [23 * 1024] * 8
    assert parsed.notes == ()


def test_a_node_offers_gpushare_if_it_advertises_gpu_mem() -> None:
    assert good(node({MEM: "184", COUNT: "8"})).offers == {Offer.GPUSHARE}
    assert good(node({MEM: "0", COUNT: "8"})).offers == frozenset()
    assert good(node({}, labels={"gpushare": "true"})).offers == frozenset()


def test_a_node_with_an_inventory_offers_gpushare_by_its_label() -> None:
    inventory = render_inventory([Card(0, 16384)])
    assert good(node({}, {"gpushare": "true"}, inventory)).offers == {Offer.GPUSHARE, Offer.GPUSHARE_WHOLE}
    assert good(node({}, {"gpushare": "false"}, inventory)).offers == frozenset()


def test_gpushare_capacity_of_removed_plugin_is_no_offer() -> None:
    inventory = render_inventory([Card(0, 16384)])
    left = node({MEM: "16", COUNT: "1"}, annotations=inventory)
    left["status"]["allocatable"] = {MEM: "0", COUNT: "0"}
    assert good(left).offers == frozenset()
    left["status"]["allocatable"] = {MEM: "16", COUNT: "1"}  # a plugin of gpushare's own still runs
    assert good(left).offers == {Offer.GPUSHARE, Offer.GPUSHARE_WHOLE}


def test_gpushare_node_without_plugin_has_no_cards() -> None:
    assert good(node({MEM: "0", COUNT: "8"})).cards == ()


@pytest.mark.parametrize(
    ("capacity", "unit"),
    [
        ({MEM: "184", COUNT: "8"}, MemoryUnit.GIB),
        ({MEM: "1128", COUNT: "8"}, MemoryUnit.GIB),
        ({MEM: "184k", COUNT: "8"}, MemoryUnit.MIB),
        ({MEM: "8192", COUNT: "8"}, MemoryUnit.MIB),
        ({MEM: "16384"}, MemoryUnit.MIB),
        ({MEM: "nonsense"}, MemoryUnit.GIB),
        ({}, MemoryUnit.GIB),
    ],
)
def test_gpu_mem_unit_is_guessed_from_card_size(capacity: dict[str, object], unit: MemoryUnit) -> None:
    assert guess_gpushare_unit([None, node({}), node(capacity)]) is unit


# the unhealthy list


def unhealthy_list(gpus: object, name: object = "unhealthy-gpu-n1", namespace: str = "kube-system") -> dict[str, Any]:
    return {"kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": {"gpus": gpus}}


@pytest.mark.parametrize(
    ("gpus", "cards"), [("0,2", {0, 2}), ("1", {1}), ("", set()), (" 0 , 2 ", {0, 2}), ("0,", {0})]
)
def test_the_unhealthy_list_names_a_nodes_sick_cards(gpus: str, cards: set[int]) -> None:
    assert parse_unhealthy(unhealthy_list(gpus)) == ("n1", frozenset(cards))


@pytest.mark.parametrize("gpus", ["0;2", "GPU-a", "-1", "²", 3, ["0"], "99999"])
def test_an_unhealthy_list_that_cannot_be_read_is_an_error(gpus: object) -> None:
    parsed = parse_unhealthy(unhealthy_list(gpus))
    assert isinstance(parsed, Invalid)
    assert parsed.field == "data.gpus"


@pytest.mark.parametrize(
    "other",
    [
        unhealthy_list("0", name="something-else"),
        unhealthy_list("0", namespace="default"),
        {**unhealthy_list("0"), "kind": "Secret"},
        None,
        [],
    ],
)
def test_parse_unhealthy_ignores_other_objects(other: object) -> None:
    assert parse_unhealthy(other) is None


def test_cards_on_the_unhealthy_list_are_sick() -> None:
    parsed = parse_node(node({MEM: "48", COUNT: "3"}), Rules(), frozenset({0, 2}))
    assert isinstance(parsed, Node)
    assert [card.healthy for card in parsed.cards] == [False, True, False]


# what a Pod got

NODE = Node("n1", tuple(Card(index, 23 * 1024, uuid=f"GPU-{index}") for index in range(4)))


def granted(parsed: Claim, *cards: int) -> Grant:
    return Grant(
        "u",
        "n1",
        tuple(
            ContainerGrant(
                container.name,
                container.index,
                container.role,
                tuple(Share(card, container.slice.memory_mib) for card in cards),
            )
            for container in parsed.containers
        ),
    )


def test_a_grant_is_written_in_the_old_form_and_the_new_and_our_own() -> None:
    parsed = claim(pod({MEM: 3}, {MEM: 2}))
    written = render_grant(parsed, granted(parsed, 1), NODE, 1_700_000_000_000_000_000)
    assert json.loads(written.pop("aliquot.dev/grant"))["node"] == "n1"
    assert written == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "23",
        "ALIYUN_COM_GPU_MEM_POD": "5",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000",
        ALLOCATION: '{"0":{"1":3},"1":{"1":2}}',
    }


def test_a_grant_of_several_cards_names_the_first_in_the_old_form_and_all_in_the_new() -> None:
    parsed = claim(pod({MEM: 12}, labels={COUNT: "4"}))
    written = render_grant(parsed, granted(parsed, 0, 1, 2, 3), NODE, 0)
    assert written["ALIYUN_COM_GPU_MEM_IDX"] == "0"
    assert written["ALIYUN_COM_GPU_MEM_POD"] == "12"
    assert written[ALLOCATION] == '{"0":{"0":3,"1":3,"2":3,"3":3}}'


def test_a_container_gets_the_five_promised_variables_with_the_card_by_uuid() -> None:
    parsed = claim(pod({MEM: 3}, {MEM: 2}))
    assert render_env(parsed, granted(parsed, 1), NODE, "c1") == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-1",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "5",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "2",
        "ALIYUN_COM_GPU_MEM_DEV": "23",
    }


def test_amounts_are_written_in_the_clusters_unit() -> None:
    parsed = claim(pod({MEM: 3000}), IN_MIB)
    written = render_grant(parsed, granted(parsed, 0), NODE, 0, IN_MIB)
    assert (written["ALIYUN_COM_GPU_MEM_POD"], written["ALIYUN_COM_GPU_MEM_DEV"]) == ("3000", "23552")
    assert render_env(parsed, granted(parsed, 0), NODE, "c0", IN_MIB)["ALIYUN_COM_GPU_MEM_CONTAINER"] == "3000"


def shares(manifest: dict[str, Any], rules: Rules | None = None) -> list[list[tuple[int, int]]]:
    parsed = parse_grant(manifest, claim(manifest, rules), NODE)
    assert isinstance(parsed, Grant), parsed
    return [[(share.card, share.memory_mib) for share in container.shares] for container in parsed.containers]


def test_the_new_annotation_is_read() -> None:
    manifest = pod({MEM: 4}, {MEM: 2}, annotations={COUNT: "2", ALLOCATION: '{"0":{"0":2,"3":2},"1":{"0":1,"3":1}}'})
    manifest["spec"]["nodeName"] = "n1"
    assert shares(manifest) == [[(0, 2048), (3, 2048)], [(0, 1024), (3, 1024)]]


def test_card_of_which_the_new_annotation_gives_nothing_is_left_out() -> None:
    manifest = pod({MEM: 3}, annotations={ALLOCATION: '{"0":{"2":3,"3":0}}'}, nodeName="n1")
    assert shares(manifest) == [[(2, 3072)]]


def test_new_annotation_unit_follows_pod_request() -> None:
    manifest = pod({MEM: 3000}, annotations={ALLOCATION: '{"0":{"2":3000}}'}, nodeName="n1")
    assert shares(manifest, IN_MIB) == [[(2, 3000)]]


def test_the_new_annotation_wins_over_the_old() -> None:
    manifest = pod({MEM: 3}, annotations={ALLOCATION: '{"0":{"2":3}}', "ALIYUN_COM_GPU_MEM_IDX": "1"}, nodeName="n1")
    assert shares(manifest) == [[(2, 3072)]]


def test_the_old_annotations_are_read_for_every_container() -> None:
    old = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "5"}
    assert shares(pod({MEM: 3}, {MEM: 2}, annotations=old, nodeName="n1")) == [[(1, 3072)], [(1, 2048)]]


def test_old_annotation_places_multi_card_pod_on_one_card() -> None:
    old = {COUNT: "4", "ALIYUN_COM_GPU_MEM_IDX": "1"}
    assert shares(pod({MEM: 12}, annotations=old, nodeName="n1")) == [[(1, 12288)]]


def test_init_containers_run_on_the_pods_cards() -> None:
    manifest = pod({MEM: 4}, annotations={COUNT: "2", ALLOCATION: '{"0":{"1":2,"3":2}}'}, nodeName="n1")
    manifest["spec"]["initContainers"] = [{"name": "i", "resources": {"limits": {MEM: 6}}}]
    assert shares(manifest) == [[(1, 3072), (3, 3072)], [(1, 2048), (3, 2048)]]


@pytest.mark.parametrize(
    "annotations",
    [
        {"ALIYUN_COM_GPU_MEM_IDX": "-1"},
        {"ALIYUN_COM_GPU_MEM_IDX": "x"},
        {"ALIYUN_COM_GPU_MEM_IDX": 1},
        {ALLOCATION: "{"},
        {ALLOCATION: "[" * 100_000},
        {ALLOCATION: '{"0":{"x":3}}'},
        {ALLOCATION: '{"0":{"1":4}}'},
        {ALLOCATION: '{"1":{"1":3}}'},
        {ALLOCATION: '{"0":{"1":-3,"2":6}}'},
        {ALLOCATION: 7},
    ],
)
def test_contradicting_gpushare_annotations_are_errors(annotations: dict[str, object]) -> None:
    manifest = pod({MEM: 3}, annotations=annotations, nodeName="n1")
    parsed = parse_grant(manifest, claim(manifest), NODE)
    assert isinstance(parsed, tuple)
    assert parsed[0].field.startswith("metadata.annotations[")


def test_gpushare_grant_without_annotation_is_none() -> None:
    manifest = pod({MEM: 3}, nodeName="n1")
    assert parse_grant(manifest, claim(manifest), NODE) is None


def test_gpushare_grant_of_unbound_pod_is_none() -> None:
    manifest = pod({MEM: 3}, annotations={"ALIYUN_COM_GPU_MEM_IDX": "1"})
    assert parse_grant(manifest, claim(manifest), NODE) is None


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("7", 7), ("0007", 7), ("00007", None), ("-1", None), ("x", None), ("", None)]
)
def test_number_of_a_card_in_the_peers_form(text: str, number: int | None) -> None:
    assert card_number(text) == number


def test_size_in_the_annotations_is_that_of_the_first_card_of_the_pod() -> None:
    node = Node("n1", (Card(0, 8192), Card(1, 16384), Card(2, 32768)))
    parts = ContainerGrant("c", 0, Role.MAIN, (Share(2, 2048), Share(1, 1024)))
    assert render_totals(Grant("u", "n1", (parts,)), node, MemoryUnit.GIB) == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "ALIYUN_COM_GPU_MEM_POD": "3",
    }


@pytest.mark.parametrize(("cards", "annotations"), [("1", {}), ("2", {COUNT: "2"}), ("3", {COUNT: "3"})])
def test_words_of_a_claim_on_several_cards_have_their_number(cards: str, annotations: dict[str, str]) -> None:
    asked = claim(pod({MEM: 6}, annotations={COUNT: cards}))
    words = gpushare.words(asked, MemoryUnit.GIB)
    assert (words.annotations, list(words.limits.values())) == (annotations, [{MEM: 6}])


@pytest.mark.parametrize(
    ("asks_nothing", "place"),
    [(pod({}, labels={COUNT: "2"}), "labels"), (pod({}, annotations={COUNT: "2"}), "annotations")],
)
def test_count_of_a_pod_that_asks_for_nothing_is_remarked_and_not_refused(
    asks_nothing: dict[str, Any], place: str
) -> None:
    assert parse_pod(asks_nothing) is None
    (said,) = remarks(asks_nothing)
    assert said.startswith(f'metadata.{place}["{COUNT}"]: is ignored')
    assert remarks(pod({MEM: 4}, labels={COUNT: "2"})) == []
