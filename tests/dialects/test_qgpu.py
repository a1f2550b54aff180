"""qGPU: every rule of the seeds, and the vendor's later ones by a switch."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.dialects import QgpuRules, Rules, parse_node, parse_pod, qgpu
from aliquot.model.claim import AppClass, ContainerClaim, Role, Slice
from aliquot.model.node import Isolation, Node, Offer
from aliquot.model.refusal import Invalid
from kit.values.builders import claim_of as claim

PREFIX = "tke.cloud.tencent.com/"
LATER = Rules(qgpu=QgpuRules.Y2026)


def asking(**amounts: object) -> dict[str, Any]:
    """Resources of a container: asking(memory=5, core=30, core_greedy=20)."""
    limits = {f"{PREFIX}qgpu-{name.replace('_', '-')}": amount for name, amount in amounts.items()}
    return {"resources": {"limits": limits}}


def pod(*containers: dict[str, Any], app_class: object = None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "p"}
    if app_class is not None:
        metadata["annotations"] = {f"{PREFIX}app-class": app_class}
    named = [{"name": f"c{index}", **container} for index, container in enumerate(containers)]
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": named}}


def only_piece(manifest: dict[str, Any], rules: Rules | None = None) -> tuple[Slice, int | None]:
    (container,) = claim(manifest, rules).containers
    return container.slice, container.count


def sentences(manifest: dict[str, Any], rules: Rules | None = None) -> list[str]:
    parsed = parse_pod(manifest, rules or Rules())
    assert isinstance(parsed, tuple), parsed
    return [problem.sentence() for problem in parsed]


def sentence(manifest: dict[str, Any], rules: Rules | None = None) -> str:
    (only,) = sentences(manifest, rules)
    return only


# memory


@pytest.mark.parametrize(("written", "gib"), [(1, 1), ("5", 5), ("16k", 16000), (3.0, 3)])
def test_memory_is_whole_gib(written: object, gib: int) -> None:
    assert only_piece(pod(asking(memory=written))) == (Slice(memory_mib=gib * 1024), 1)


@pytest.mark.parametrize("written", ["1.5", 1.5, "-1", -1, "5Gi", "five", "", None, True, [], {}, "1e99"])
def test_memory_that_is_not_whole_gib_of_at_least_1_is_an_error_that_names_the_field(written: object) -> None:
    said = sentence(pod(asking(memory=written)))
    assert said.startswith('spec.containers[0].resources.limits["tke.cloud.tencent.com/qgpu-memory"]')
    assert "whole GiB, at least 1" in said


@pytest.mark.parametrize("others", [{"core": 30}, {"core_greedy": 30}])
def test_memory_is_required_with_any_of_the_others(others: dict[str, int]) -> None:
    manifest = pod(asking(**others), app_class="offline" if "core_greedy" in others else None)
    assert "qgpu-memory" in sentence(manifest)
    assert "required" in sentence(manifest)


# requests and limits


def both(limit: object, request: object) -> dict[str, Any]:
    key = f"{PREFIX}qgpu-memory"
    return pod({"resources": {"limits": {key: limit}, "requests": {key: request}}})


def test_requests_may_equal_limits_in_any_spelling() -> None:
    assert only_piece(both("16k", 16000)) == (Slice(memory_mib=16000 * 1024), 1)


def test_requests_alone_will_do_as_in_the_seed() -> None:
    manifest = pod({"resources": {"requests": {f"{PREFIX}qgpu-memory": "5"}}})
    assert only_piece(manifest) == (Slice(memory_mib=5120), 1)


def test_requests_that_differ_from_limits_are_an_error() -> None:
    said = sentence(both(5, 4))
    assert said.startswith('spec.containers[0].resources.requests["tke.cloud.tencent.com/qgpu-memory"]: 4 ')
    assert "the same as in limits (5)" in said


def test_requests_alone_are_named_in_their_error() -> None:
    manifest = pod({"resources": {"requests": {f"{PREFIX}qgpu-memory": "5Gi"}}})
    assert sentence(manifest).startswith("spec.containers[0].resources.requests")


# classes


def test_a_normal_pod_asks_for_core_and_memory() -> None:
    parsed = claim(pod(asking(core=30, memory=5)))
    assert parsed.containers == (ContainerClaim("c0", 0, Role.MAIN, Slice(memory_mib=5120, core_milli=300)),)
    assert (parsed.dialect, parsed.offer, parsed.app_class) == ("qgpu", Offer.QGPU, AppClass.NORMAL)


def test_a_normal_pod_may_ask_for_memory_alone() -> None:
    assert only_piece(pod(asking(memory=5)))[0].core_milli is None


def test_the_containers_of_a_normal_pod_may_land_on_several_cards() -> None:
    assert not claim(pod(asking(core=60, memory=5), asking(core=60, memory=5))).together


@pytest.mark.parametrize("core", [1, 99])
def test_core_is_less_than_100(core: int) -> None:
    assert only_piece(pod(asking(core=core, memory=1)))[0].core_milli == core * 10


@pytest.mark.parametrize("core", [100, 160, 200, -5, "1.5"])
def test_core_of_100_or_more_or_of_less_than_1_is_an_error(core: object) -> None:
    assert "1 to 99" in sentence(pod(asking(core=core, memory=1)))


def test_normal_pod_that_asks_for_greedy_core_is_advised_to_become_offline() -> None:
    said = sentence(pod(asking(core_greedy=30, memory=1)))
    assert "add annotation tke.cloud.tencent.com/app-class: offline" in said


def test_an_offline_pod_asks_for_greedy_core_on_one_card() -> None:
    parsed = claim(pod(asking(core_greedy=100, memory=2), app_class="offline"))
    assert parsed.containers[0].slice == Slice(memory_mib=2048, greedy_milli=1000)
    assert (parsed.offer, parsed.app_class, parsed.together) == (Offer.QGPU_MIXED, AppClass.OFFLINE, True)


@pytest.mark.parametrize("greedy", [0, 101, "50.5"])
def test_greedy_core_is_1_to_100(greedy: object) -> None:
    assert "1 to 100" in sentence(pod(asking(core_greedy=greedy, memory=2), app_class="offline"))


def test_an_offline_pod_needs_greedy_core() -> None:
    assert "required for an offline Pod" in sentence(pod(asking(memory=2), app_class="offline"))


def test_an_offline_pod_asks_for_no_core() -> None:
    said = sentence(pod(asking(core=5, core_greedy=5, memory=2), app_class="offline"))
    assert "qgpu-core-greedy instead" in said


def test_the_greedy_core_of_an_offline_pod_is_at_most_100_in_all() -> None:
    manifest = pod(asking(core_greedy=60, memory=2), asking(core_greedy=50, memory=2), app_class="offline")
    said = sentence(manifest)
    assert said.startswith('spec.containers[1].resources.limits["tke.cloud.tencent.com/qgpu-core-greedy"]: 110 ')
    assert "share one card" in said


def test_the_greedy_core_of_init_containers_is_not_added_to_that_of_the_others() -> None:
    manifest = pod(asking(core_greedy=60, memory=2), app_class="offline")
    manifest["spec"]["initContainers"] = [{"name": "i", **asking(core_greedy=100, memory=2)}]
    assert [container.role for container in claim(manifest).containers] == [Role.INIT, Role.MAIN]
    manifest["spec"]["initContainers"][0]["restartPolicy"] = "Always"
    assert "160" in sentence(manifest)


def test_an_online_pod_asks_for_memory_only() -> None:
    parsed = claim(pod(asking(memory=2), app_class="online"))
    assert parsed.containers[0].slice == Slice(memory_mib=2048)
    assert (parsed.offer, parsed.app_class, parsed.together) == (Offer.QGPU_MIXED, AppClass.ONLINE, False)


@pytest.mark.parametrize("other", ["core", "core_greedy"])
def test_an_online_pod_that_asks_for_core_is_an_error(other: str) -> None:
    said = sentence(pod(asking(memory=2, **{other: 30}), app_class="online"))
    assert "an online Pod requests qgpu-memory only" in said


@pytest.mark.parametrize("value", ["Online", "", "batch", 1, [], {}])
def test_any_other_app_class_is_an_error(value: object) -> None:
    said = sentence(pod(asking(memory=2), app_class=value))
    assert said.startswith('metadata.annotations["tke.cloud.tencent.com/app-class"]: ')
    assert '"online" or "offline"' in said


def test_a_pod_with_an_app_class_and_no_gpu_is_not_ours() -> None:
    assert parse_pod(pod({}, app_class="offline")) is None


# the slip in the vendor's example


def test_annotations_beside_metadata_are_reported_once_and_not_by_their_consequences() -> None:
    manifest = pod(asking(core_greedy=30, memory=2))
    manifest["annotations"] = {f"{PREFIX}app-class": "offline"}
    said = sentence(manifest)
    assert said.startswith("annotations: ")
    assert "metadata.annotations" in said


def test_annotations_beside_metadata_with_the_spec_inside_as_the_seed_indents_it() -> None:
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "annotations": {f"{PREFIX}app-class": "offline", "spec": {"containers": []}},
    }
    assert "spec to the top level" in sentence(manifest)


def test_annotations_beside_metadata_of_a_pod_that_is_not_ours_are_not_ours() -> None:
    assert parse_pod({"kind": "Pod", "annotations": {"a": "b"}, "spec": {"containers": [{"name": "c"}]}}) is None


def test_every_violation_is_reported_in_the_pods_order() -> None:
    manifest = pod(asking(memory="1.5", core=100), asking(memory=-1), app_class=None)
    parsed = parse_pod(manifest)
    assert isinstance(parsed, tuple)
    assert [problem.value for problem in parsed] == [100, "1.5", -1]


# the vendor's rules of 2026


@pytest.mark.parametrize("core", [5, 95])
def test_2026_core_below_100_comes_in_steps_of_5(core: int) -> None:
    assert only_piece(pod(asking(core=core, memory=2)), LATER) == (Slice(memory_mib=2048, core_milli=core * 10), 1)


@pytest.mark.parametrize("core", [1, 4, 7, 99])
def test_2026_core_between_the_steps_is_an_error(core: int) -> None:
    assert "steps of 5" in sentence(pod(asking(core=core, memory=2)), LATER)


@pytest.mark.parametrize("memory", [{}, {"memory": 1}, {"memory": 80}])
def test_2026_n_times_100_is_n_whole_cards_and_memory_may_be_left_out(memory: dict[str, int]) -> None:
    whole = Slice(memory_percent=100, core_milli=1000, exclusive=True)
    assert only_piece(pod(asking(core=200, **memory)), LATER) == (whole, 2)


def test_2026_memory_of_whole_cards_is_still_checked() -> None:
    assert "whole GiB" in sentence(pod(asking(core=100, memory="1.5")), LATER)


@pytest.mark.parametrize(
    ("core", "memory", "cards", "per_card"),
    [(160, 60, 2, (80, 30)), (121, 31, 2, (60, 15)), (101, 2, 2, (50, 1)), (250, 10, 3, (83, 3))],
)
def test_2026_core_above_100_is_spread_evenly_and_rounded_down(
    core: int, memory: int, cards: int, per_card: tuple[int, int]
) -> None:
    piece = Slice(memory_mib=per_card[1] * 1024, core_milli=per_card[0] * 10)
    assert only_piece(pod(asking(core=core, memory=memory)), LATER) == (piece, cards)


def test_2026_every_card_of_a_spread_needs_1_gib() -> None:
    assert "at least 3" in sentence(pod(asking(core=250, memory=2)), LATER)
    assert "required" in sentence(pod(asking(core=250)), LATER)


def test_2026_online_and_offline_pods_stay_as_in_the_seeds() -> None:
    assert claim(pod(asking(memory=2), app_class="online"), LATER).app_class is AppClass.ONLINE
    assert claim(pod(asking(memory=2, core_greedy=3), app_class="offline"), LATER).together
    assert "memory only" in sentence(pod(asking(memory=2, core=200), app_class="online"), LATER)


# nodes


def node(memory: int = 64, core: int = 200, rules: Rules | None = None, **labels: object) -> Node | tuple[Invalid, ...]:
    spelled = {name.replace("_", "-"): value for name, value in labels.items()}
    if "policy" in spelled:
        spelled[f"{PREFIX}qgpu-schedule-policy"] = spelled.pop("policy")
    capacity = {f"{PREFIX}qgpu-memory": str(memory), f"{PREFIX}qgpu-core": str(core)}
    manifest = {"metadata": {"name": "n1", "labels": spelled}, "status": {"capacity": capacity}}
    return parse_node(manifest, rules or Rules())


def good(parsed: Node | tuple[Invalid, ...]) -> Node:
    assert isinstance(parsed, Node), parsed
    return parsed


def test_cards_are_qgpu_core_over_100_of_qgpu_memory_each() -> None:
    assert [card.memory_mib for card in good(node(memory=64, core=200)).cards] == [32768, 32768]


def test_a_node_offers_qgpu_only_by_its_label() -> None:
    assert good(node()).offers == frozenset()
    assert good(node(qgpu_device_enable="enable")).offers == {Offer.QGPU}
    assert good(node(qgpu_device_enable="true")).offers == frozenset()


def test_a_node_mixes_online_and_offline_by_the_second_label_unless_the_first_forbids() -> None:
    both = good(node(qgpu_device_enable="enable", mixed_qgpu_enable="enable"))
    assert both.offers == {Offer.QGPU, Offer.QGPU_MIXED}
    assert good(node(mixed_qgpu_enable="enable")).offers == both.offers
    assert good(node(mixed_qgpu_enable="enable", qgpu_device_enable="disable")).offers == frozenset()
    assert good(node(qgpu_device_enable="enable", mixed_qgpu_enable="yes")).offers == {Offer.QGPU}


@pytest.mark.parametrize(
    ("label", "isolation"),
    [
        ("best-effort", Isolation.BEST_EFFORT),
        ("be", Isolation.BEST_EFFORT),
        ("fixed-share", Isolation.FIXED_SHARE),
        ("fs", Isolation.FIXED_SHARE),
        ("burst-share", Isolation.BURST_SHARE),
        ("bs", Isolation.BURST_SHARE),
    ],
)
def test_the_policy_label_takes_full_names_and_short_ones(label: str, isolation: Isolation) -> None:
    assert good(node(policy=label)).isolation is isolation


def test_without_a_policy_label_a_node_is_best_effort() -> None:
    assert good(node()).isolation is Isolation.BEST_EFFORT


@pytest.mark.parametrize("label", ["", "fair", 1, []])
def test_an_unknown_policy_is_an_error(label: object) -> None:
    parsed = node(policy=label)
    assert isinstance(parsed, tuple)
    assert parsed[0].field == 'metadata.labels["tke.cloud.tencent.com/qgpu-schedule-policy"]'
    assert ("fixed-share or fs" if isinstance(label, str) else "text") in parsed[0].allowed


def test_a_card_of_32_gib_takes_8_slices_by_the_seed_and_16_by_the_later_rules() -> None:
    enabled = {"qgpu_device_enable": "enable"}
    assert [card.max_slices for card in good(node(32, 100, None, **enabled)).cards] == [8]
    assert [card.max_slices for card in good(node(32, 100, LATER, **enabled)).cards] == [16]
    assert [card.max_slices for card in good(node(32, 100)).cards] == [None]


@pytest.mark.parametrize(
    ("amounts", "rules"),
    [
        ({"memory": 4, "core": 20}, QgpuRules.SEED),
        ({"memory": 4}, QgpuRules.SEED),
        ({"core": 300}, QgpuRules.Y2026),
        ({"memory": 8, "core": 150}, QgpuRules.Y2026),
        ({"memory": 8, "core": 101}, QgpuRules.Y2026),
        ({"memory": 9, "core": 201}, QgpuRules.Y2026),
        ({"memory": 9, "core": 299}, QgpuRules.Y2026),
    ],
)
def test_claim_in_words_is_the_same_claim(amounts: dict[str, int], rules: QgpuRules) -> None:
    asked = claim(pod(asking(**amounts)), Rules(qgpu=rules))
    (limits,) = qgpu.words(asked).limits.values()
    assert only_piece(pod({"resources": {"limits": limits}}), Rules(qgpu=rules)) == (
        asked.containers[0].slice,
        asked.containers[0].count,
    )


def test_words_of_an_offline_claim_have_its_greedy_compute() -> None:
    asked = claim(pod(asking(memory=4, core_greedy=30), app_class="offline"))
    words = qgpu.words(asked)
    assert list(words.limits.values()) == [{f"{PREFIX}qgpu-memory": 4, f"{PREFIX}qgpu-core-greedy": 30}]
    assert words.annotations == {f"{PREFIX}app-class": "offline"}


def test_policy_that_cannot_be_read_counts_as_best_effort() -> None:
    problems: list[Invalid] = []
    found = qgpu.isolation({qgpu.POLICY_LABEL: "x"}, problems, default=Isolation.FIXED_SHARE)
    assert (found, len(problems)) == (Isolation.BEST_EFFORT, 1)
    assert qgpu.isolation({}, [], default=Isolation.FIXED_SHARE) is Isolation.FIXED_SHARE
