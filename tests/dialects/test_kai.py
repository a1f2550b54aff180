"""KAI's annotations, those of NvFractions, and the shapes of KAI's example manifests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.dialects import PodReader, Rules, kai, parse_node, parse_pod
from aliquot.dialects.kai import LABEL, MARKS, PREFIX
from aliquot.dialects.registry import owner_remarks, remarks
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import PodObject
from aliquot.model.claim import Claim, ContainerClaim, Role, Slice
from aliquot.model.node import Isolation, Node, Offer
from kit.values.manifests import a_container, a_node, a_pod
from kit.values.strategies import anything

RULES = Rules(served=frozenset({"qgpu", "t9k", "gpushare", "hami", "kai"}))
ALONE = Rules(served=frozenset({"kai"}))
OF_C0 = "nvidia.com/container.c0.gpu-memory"
MODE = "nvidia.com/container.c0.gpu-compute.mode"
Json = dict[str, Any]


def parsed(annotations: Json, *limits: Json, rules: Rules = RULES, **more: Any) -> Any:
    containers = [a_container(f"c{at}", amounts) for at, amounts in enumerate(limits or ({},))]
    return parse_pod(a_pod("p", *containers, annotations=annotations, **more), rules)


def refusal_of(annotations: Json, *limits: Json, rules: Rules = RULES) -> str:
    found = parsed(annotations, *limits, rules=rules)
    assert isinstance(found, tuple), found
    return "; ".join(invalid.sentence() for invalid in found)


@pytest.mark.parametrize(
    ("annotations", "part", "count"),
    [
        ({"gpu-fraction": "0.5"}, Slice(memory_percent=50), 1),
        ({"gpu-fraction": ".25"}, Slice(memory_percent=25), 1),
        ({"gpu-fraction": "5e-1"}, Slice(memory_percent=50), 1),
        ({"gpu-fraction": "0.29"}, Slice(memory_percent=29), 1),
        ({"gpu-fraction": "0.125"}, Slice(memory_percent=12.5), 1),
        ({"gpu-memory": "2000"}, Slice(2000), 1),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}, Slice(memory_percent=50), 2),
        ({"gpu-memory": "2000", "gpu-fraction-num-devices": "3"}, Slice(2000), 3),
        ({f"{OF_C0}.request": "7680Mi"}, Slice(7680), 1),
        ({f"{OF_C0}.request": "8Gi", f"{OF_C0}.limit": "8Gi"}, Slice(8192), 1),
        ({f"{OF_C0}.request": "4096Mi", f"{OF_C0}.limit": "8192Mi"}, Slice(8192), 1),
        ({f"{OF_C0}.limit": "1G"}, Slice(954), 1),
        ({f"{OF_C0}.limit": "1Mi"}, Slice(1), 1),
        ({f"{OF_C0}.limit": "1000000000Mi"}, Slice(10**9), 1),
        ({"gpu-fraction": "0.01"}, Slice(memory_percent=1), 1),
        ({"gpu-fraction": "0.5", MODE: "time-slicing"}, Slice(memory_percent=50), 1),
        ({"gpu-fraction": "0.5", "kai.scheduler/gpu-compute-sharing-mode": "time-slicing"}, Slice(0, 50), 1),
        ({"gpu-fraction": "0.5", "mps": "false", "pod-group-name": "g"}, Slice(memory_percent=50), 1),
    ],
)
def test_part_of_each_card(annotations: Json, part: Slice, count: int) -> None:
    claim = parsed(annotations, {"aliquot.dev/card-place": "1"})
    assert isinstance(claim, Claim), claim
    assert claim.containers == (ContainerClaim("c0", 0, Role.MAIN, part, count),)
    assert (claim.dialect, claim.offer, claim.together) == ("kai", Offer.KAI, False)


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"gpu-fraction": "1"}, "at least 0.01 and less than 1"),
        ({"gpu-fraction": "0"}, "at least 0.01 and less than 1"),
        ({"gpu-fraction": "0.001"}, "at least 0.01 and less than 1"),
        ({"gpu-fraction": "-0.5"}, "at least 0.01 and less than 1"),
        ({"gpu-fraction": "500m"}, "at least 0.01 and less than 1"),
        ({"gpu-fraction": "NaN"}, "at least 0.01 and less than 1"),
        ({"gpu-fraction": "0x1p-1"}, "at least 0.01 and less than 1"),
        ({"gpu-memory": "0"}, "whole MiB of each card"),
        ({"gpu-memory": "0.5"}, "whole MiB of each card"),
        ({"gpu-memory": "2k"}, "whole MiB of each card"),
        ({"gpu-memory": "2Gi"}, "whole MiB of each card"),
        ({"gpu-memory": "+5"}, "whole MiB of each card"),
        ({"gpu-memory": 2000}, "in quotes"),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2.0"}, "a whole number of cards"),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": 2}, "in quotes"),
        ({"gpu-fraction": "0.5", "gpu-memory": "2000"}, "either this or gpu-memory"),
        ({"gpu-memory": "2000", f"{OF_C0}.request": "4Gi"}, "either this or nvidia.com/container.NAME.gpu-memory"),
        ({"gpu-fraction-num-devices": "2"}, '"gpu-fraction"] is missing'),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "0"}, "a whole number of cards"),
        ({"gpu-fraction": "0.5", "gpu-fraction-container-name": "other"}, "the name of a container of this Pod: c0"),
        ({"nvidia.com/container.other.gpu-memory.request": "4Gi"}, "the name of a container of this Pod: c0"),
        ({f"{OF_C0}.request": "4Gi", "gpu-fraction-container-name": "c1"}, "the same container as in"),
        ({f"{OF_C0}.request": "8Gi", f"{OF_C0}.limit": "4Gi"}, "at most the limit, 4Gi"),
        ({f"{OF_C0}.request": "4"}, "a Kubernetes quantity of at least 1Mi"),
        ({f"{OF_C0}.request": "1023Ki"}, "a Kubernetes quantity of at least 1Mi"),
        ({f"{OF_C0}.request": "1000000001Mi"}, "a Kubernetes quantity of at least 1Mi"),
        ({f"{OF_C0}.request": 4194304}, "a Kubernetes quantity of at least 1Mi"),
        ({f"nvidia.com/container.{'c' * 233}.gpu-memory.requests": "4Gi"}, "did you mean"),
        ({f"nvidia.com/container.{'c' * 234}.gpu-memory.requests": "4Gi"}, "known are"),
        ({f"{OF_C0}.request": "much"}, "a Kubernetes quantity of at least 1Mi"),
        ({f"{OF_C0}.requests": "4Gi"}, f"did you mean {OF_C0}.request?"),
        ({"nvidia.com/container.c0.gpus": "1"}, "known are nvidia.com/container.NAME.gpu-memory.request"),
        ({"gpu-fraction": "0.5", MODE: "sm-sharing"}, "spec.securityContext.runAsUser"),
        ({"gpu-fraction": "0.5", MODE: ""}, "time-slicing, sm-sharing (docs/together.md), or omit it"),
        ({"gpu-fraction": "0.5", "gpu-fraction-numdevices": "2"}, "did you mean gpu-fraction-num-devices?"),
    ],
)
def test_broken_rule_is_refused_with_its_field(annotations: Json, said: str) -> None:
    assert said in refusal_of(annotations)


@pytest.mark.parametrize(
    ("annotations", "group"),
    [
        ({MODE: "sm-sharing"}, "sm-sharing"),
        ({"kai.scheduler/gpu-compute-sharing-mode": "sm-sharing"}, "sm-sharing"),
        ({"mps": "true"}, "sm-sharing"),
        ({"mps": "true", "aliquot.dev/together": "llm"}, "llm"),
        ({MODE: "time-slicing"}, ""),
        ({"mps": "false"}, ""),
    ],
)
def test_sm_sharing_puts_the_pod_into_a_group_of_its_namespace(annotations: Json, group: str) -> None:
    pod = a_pod("p", a_container("c0"), annotations={"gpu-fraction": "0.5", **annotations})
    pod["spec"]["securityContext"] = {"runAsUser": 1000}
    claim = parse_pod(pod, RULES)
    assert isinstance(claim, Claim), claim
    assert (claim.group, claim.user) == (group, 1000 if group else None)


def test_only_one_container_has_cards() -> None:
    both = {f"{OF_C0}.request": "4Gi", "nvidia.com/container.c1.gpu-memory.request": "4Gi"}
    assert "one container of a Pod has cards" in refusal_of(both, {}, {})


def test_fraction_beside_whole_cards_is_refused() -> None:
    assert "a part of cards or for whole ones" in refusal_of(
        {"gpu-fraction": "0.5"}, {"nvidia.com/gpu": 1}, rules=ALONE
    )
    assert "one dialect per Pod" in refusal_of({"gpu-fraction": "0.5"}, {"nvidia.com/gpu": 1})
    assert '["gpu-fraction"]: "0.5" is not allowed' in refusal_of({"gpu-fraction": "0.5"}, {"nvidia.com/gpu": 1})
    assert "one dialect per Pod" in refusal_of({"gpu-fraction": "0.5"}, {"aliyun.com/gpu-mem": 1})


@pytest.mark.parametrize(
    ("annotations", "name", "role"),
    [
        ({}, "first", Role.MAIN),
        ({"gpu-fraction-container-name": "second"}, "second", Role.MAIN),
        ({"gpu-fraction-container-name": "early"}, "early", Role.INIT),
    ],
)
def test_first_container_has_the_card_unless_another_is_named(annotations: Json, name: str, role: Role) -> None:
    containers = (a_container("first"), a_container("second"))
    pod = a_pod("p", *containers, annotations={"gpu-fraction": "0.5", **annotations}, init=[a_container("early")])
    claim = parse_pod(pod, RULES)
    assert isinstance(claim, Claim)
    assert [(item.name, item.role) for item in claim.containers] == [(name, role)]


def test_kais_annotations_are_left_to_kai_where_it_is_not_served() -> None:
    assert parsed({"gpu-fraction": "0.5"}, rules=Rules()) is None
    assert parsed({"gpu-fraction": "7"}, rules=Rules(), schedulerName="kai-scheduler") is None


def test_what_kai_writes_on_a_pod_that_it_placed_is_not_read() -> None:
    annotations = {f"{OF_C0}.request": "4Gi", "nvidia.com/container.c0.gpus.devices": "GPU-1"}
    claim = parsed(annotations)
    assert isinstance(claim, Claim)
    assert claim.containers[0].slice == Slice(4096)


def test_pods_that_differ_in_a_containers_annotation_only_are_read_apart() -> None:
    reader = PodReader(RULES)
    found = []
    for memory in ("4Gi", "8Gi"):
        pod = a_pod("p", a_container("c0"), annotations={f"{OF_C0}.request": memory})
        read = read_object(pod, PodObject, "pod")
        assert isinstance(read, PodObject)
        claim = reader.read(read).claim
        assert isinstance(claim, Claim)
        found.append(claim.containers[0].slice.memory_mib)
    assert found == [4096, 8192]


@pytest.mark.parametrize(("label", "offered"), [("true", True), ("false", False), ("on", False), (None, False)])
def test_node_offers_kai_by_our_label(label: str | None, offered: bool) -> None:
    node = parse_node(a_node("n1", 16, labels={} if label is None else {LABEL: label}), RULES)
    assert isinstance(node, Node)
    assert (Offer.KAI in node.offers) is offered
    assert node.isolation is Isolation.BEST_EFFORT


def test_node_without_an_inventory_offers_no_fractions() -> None:
    node = parse_node(a_node("n1", labels={LABEL: "true"}, capacity={"nvidia.com/gpu": "2"}), RULES)
    assert isinstance(node, Node)
    assert node.offers == frozenset()


keys = st.sampled_from((*MARKS, f"{OF_C0}.request", f"{OF_C0}.limit", MODE, f"{PREFIX}.gpu-memory.limit", PREFIX))
texts = st.sampled_from(["0.5", "1", "c0", "4Gi", "time-slicing", "sm-sharing", "1e-99", "9" * 40, ""]) | anything


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(keys, texts, max_size=4), st.booleans())
def test_any_annotations_parse_or_are_refused(annotations: Json, misplaced: bool) -> None:
    pod = a_pod("p", a_container("c0"), annotations={} if misplaced else annotations)
    if misplaced:
        pod["annotations"] = annotations
    found = parse_pod(pod, RULES)
    if isinstance(found, tuple):
        assert all(invalid.sentence() for invalid in found)
    elif found is not None:
        assert isinstance(found, Claim)
        piece = found.containers[0].slice
        assert piece.memory_mib > 0 or 1 <= piece.memory_percent < 100


@pytest.mark.parametrize("written", ["gpu-fractions", "gpu-fracton", "gpuFraction", "gpu-memmory", "gpu_memory"])
def test_misspelled_annotation_alone_is_refused_with_the_one_that_was_meant(written: str) -> None:
    """Such a Pod asks for nothing else: it would run without a card."""
    meant = "gpu-memory" if "mem" in written else "gpu-fraction"
    assert f'metadata.annotations["{written}"]' in refusal_of({written: "0.5"})
    assert f"did you mean {meant}?" in refusal_of({written: "0.5"})
    assert parsed({written: "0.5"}, rules=Rules()) is None


@pytest.mark.parametrize("name", ["gpu-memory-note", "gpu-type", "example.com/gpu-fractions"])
def test_other_annotations_of_a_pod_without_cards_pass(name: str) -> None:
    assert parsed({name: "x"}) is None


def test_card_place_written_by_hand_is_refused() -> None:
    """It would give a Pod a device of ours, and no card."""
    place = {"aliquot.dev/card-place": 1}
    assert 'limits["aliquot.dev/card-place"]: 1 is not allowed: only the webhook writes it' in refusal_of({}, place)
    assert isinstance(parsed({"gpu-fraction": "0.5"}, place), Claim)
    assert parsed({}, place, rules=Rules()) is None


@pytest.mark.parametrize(
    ("annotations", "spelled"),
    [
        ({"gpu-fraction": "0.5"}, {"gpu-fraction": "50e-2"}),
        ({"gpu-fraction": "0.125"}, {"gpu-fraction": "12.5e-2"}),
        (
            {"gpu-memory": "2000", "gpu-fraction-num-devices": "3"},
            {"gpu-memory": "2000", "gpu-fraction-num-devices": "3"},
        ),
    ],
)
def test_claim_in_words_has_whole_percents_and_the_number_of_cards(annotations: Json, spelled: Json) -> None:
    claim = parsed(annotations)
    assert isinstance(claim, Claim), claim
    words = kai.words(claim)
    assert words.annotations == {**spelled, "gpu-fraction-container-name": "c0"}
    assert words.limits == {"c0": {"aliquot.dev/card-place": claim.containers[0].count}}


def test_least_members_of_kais_jobs_are_remarked_on_the_job_and_on_its_pods() -> None:
    name = "kai.scheduler/batch-min-member"
    said = f'metadata.annotations["{name}"]: it is not read: each Pod starts by itself; docs/groups.md has the groups '
    said += "that start together"
    pod = a_pod("p", a_container("c0", {}), annotations={"gpu-fraction": "0.5", name: "2"})
    assert remarks(pod, RULES) == [said]
    assert remarks(pod, Rules()) == []
    job = {"metadata": {"annotations": {name: "2"}}, "spec": {"template": pod}}
    assert owner_remarks(job, pod, RULES) == [said]
    assert owner_remarks(job, pod, Rules()) == []
    assert owner_remarks(job, a_pod("p", a_container("c0", {})), RULES) == [], "it asks for no card"
    of_cron = owner_remarks({"metadata": {}, "spec": {"jobTemplate": job}}, pod, RULES)
    assert of_cron == [f"spec.jobTemplate.{said}"]
    assert owner_remarks({"metadata": None}, pod, RULES) == owner_remarks(None, None, RULES) == []


@pytest.mark.parametrize("key", ["gpu-fraction-limit", "gpu-memory-limit"])
def test_limit_beyond_the_fraction_is_remarked(key: str) -> None:
    """It was refused as a misspelled gpu-fraction, which the Pod has."""
    pod = a_pod("p", a_container("c0", {}), annotations={"gpu-fraction": "0.25", key: "0.5"})
    assert isinstance(parse_pod(pod, RULES), Claim)
    said = "it is not read: the Pod gets the part that it requests, and no more"
    assert remarks(pod, RULES) == [f'metadata.annotations["{key}"]: {said}']


@pytest.mark.parametrize(
    ("pod", "fields"),
    [
        (
            a_pod("p", a_container("c0", {}), annotations={"gpu-memory": "1", "pod-group-name": "g"}),
            ["annotations"],
        ),
        (a_pod("p", a_container("c0", {"nvidia.com/gpu": 1}), annotations={"pod-group-name": "g"}), ["annotations"]),
        (a_pod("p", a_container("c0", {"nvidia.com/gpu": 1}), labels={"pod-group-name": "g"}), ["labels"]),
        (a_pod("p", a_container("c0", {}), annotations={"pod-group-name": "g"}), []),
        (a_pod("p", a_container("c0", {}), annotations={"gpu-fraction": "0.5"}), []),
    ],
)
def test_group_of_kai_is_remarked_on_pods_with_cards(pod: Json, fields: list[str]) -> None:
    said = "KAI's PodGroups are not read: the Pod starts by itself; docs/groups.md has the groups that are"
    assert remarks(pod, RULES) == [f'metadata.{field}["pod-group-name"]: {said}' for field in fields]
    assert remarks(pod, Rules()) == []
