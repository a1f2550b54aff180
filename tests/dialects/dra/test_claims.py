"""Allocated claims become grants, and everything that is wrong with one is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects.dra.claims import AllocatedClaim, ClaimObject, parse_claim
from aliquot.dialects.dra.config import ClaimConfig, parse_config, render_config
from aliquot.model.claim import AppClass
from aliquot.model.device import Card
from aliquot.model.grant import Share
from aliquot.model.node import Isolation
from aliquot.model.refusal import Invalid
from aliquot.model.tenancy import shares_of
from kit.agents.draclaims import a_claim, a_config, a_result, parameters
from kit.values.anyjson import any_json

CARDS = tuple(Card(at, 16384, f"GPU-{at}") for at in range(3))


def parsed(claim: dict[str, Any]) -> AllocatedClaim:
    found = parse_claim(msgspec.convert(claim, ClaimObject), "n1", CARDS)
    assert isinstance(found, AllocatedClaim), found
    return found


def problems(claim: dict[str, Any]) -> list[str]:
    found = parse_claim(msgspec.convert(claim, ClaimObject), "n1", CARDS)
    assert isinstance(found, list)
    return [problem.sentence() for problem in found]


def test_claim_has_the_share_that_was_consumed() -> None:
    claim = parsed(a_claim(a_result(CARDS[1], 4096, 30)))
    assert shares_of(claim.grant, {}) == (Share(1, 4096, 300, uuid="GPU-1"),)
    (device,) = claim.devices
    assert (device.request, device.pool, device.name, device.uuid) == ("gpu", "n1", "gpu-1", "GPU-1")


def test_claim_on_a_cluster_without_consumable_capacity_has_whole_cards() -> None:
    assert shares_of(parsed(a_claim(a_result(CARDS[0], None))).grant, {}) == (
        Share(0, 16384, exclusive=True, uuid="GPU-0"),
    )


def test_all_memory_is_the_whole_card() -> None:
    assert shares_of(parsed(a_claim(a_result(CARDS[0], 16384))).grant, {})[0].exclusive


def test_requests_on_one_card_add_up_and_subrequests_go_by_their_request() -> None:
    claim = parsed(a_claim(a_result(CARDS[0], 1024, request="a/small"), a_result(CARDS[0], 2048, 10, request="b")))
    assert shares_of(claim.grant, {}) == (Share(0, 3072, 100, uuid="GPU-0"),)
    assert [device.request for device in claim.devices] == ["a", "b"]


def test_compute_of_an_offline_claim_is_offline_compute() -> None:
    config = a_config(parameters(class_="offline"), source="FromClass")
    claim = parsed(a_claim(a_result(CARDS[0], 1024, 50), config=[config]))
    assert claim.app_class is AppClass.OFFLINE
    assert shares_of(claim.grant, {}) == (Share(0, 1024, None, 500, uuid="GPU-0"),)


def test_configuration_of_another_request_or_driver_does_not_apply() -> None:
    other = a_config(parameters(class_="offline"), requests=["other"])
    foreign = {"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}}
    assert parsed(a_claim(a_result(CARDS[0], 1024), config=[other, foreign])).app_class is AppClass.NORMAL


def test_configuration_of_a_request_applies_to_its_subrequest() -> None:
    config = a_config(parameters(class_="online"), requests=["gpu"])
    claim = parsed(a_claim(a_result(CARDS[0], 1024, request="gpu/large"), config=[config]))
    assert claim.app_class is AppClass.ONLINE


_AT = "status.allocation.devices.config[0].opaque.parameters"


@pytest.mark.parametrize(
    ("given_parameters", "sentence"),
    [
        (parameters(klass="online"), f'{_AT}.klass: "online" is not allowed: fields are apiVersion, kind, class, '),
        (parameters(class_="best"), f'{_AT}.class: "best" is not allowed: one of normal, online, offline'),
        (parameters(class_=["online"]), f"{_AT}.class: a list of 1 is not allowed: one of normal, online, offline"),
        (parameters(policy="fair"), f'{_AT}.policy: "fair" is not allowed: one of best-effort, fixed-share, burst'),
        (parameters(parking="idle"), f'{_AT}.parking: "idle" is not allowed: one of never'),
        (parameters(latency="soon"), f'{_AT}.latency: "soon" is not allowed: a time from 0.1ms to 10s, for example "2'),
        (parameters(latency=2), f"{_AT}.latency: 2 is not allowed: a time from 0.1ms to 10s"),
        (
            parameters(latency="2ms"),
            f'{_AT}.latency: "2ms" is not allowed: the claim is not online, and only online work',
        ),
        ({"class": "online"}, f"{_AT}.apiVersion is missing: aliquot.dev/v1"),
        (None, f"{_AT} is missing: a mapping with apiVersion: aliquot.dev/v1 and kind: ClaimConfig"),
    ],
)
def test_wrong_configuration_is_named(given_parameters: Any, sentence: str) -> None:
    found = problems(a_claim(a_result(CARDS[0], 1024), config=[a_config(given_parameters)]))
    assert found[0].startswith(sentence)


def test_claim_cannot_change_the_class_of_its_device_class() -> None:
    config = [
        a_config(parameters(class_="offline"), source="FromClass"),
        a_config(parameters(class_="online"), source="FromClaim"),
    ]
    (found,) = problems(a_claim(a_result(CARDS[0], 1024), config=config))
    assert 'config[1].opaque.parameters.class: "online" is not allowed: offline, which the DeviceClass' in found


def test_latency_is_of_the_claim_or_its_device_class_which_the_claim_cannot_change() -> None:
    online, mine = a_config(parameters(class_="online"), source="FromClass"), a_config(parameters(latency="2ms"))
    theirs = a_config(parameters(class_="online", latency="1ms"), source="FromClass")
    assert parsed(a_claim(a_result(CARDS[0], 1024), config=[online])).latency is None
    assert parsed(a_claim(a_result(CARDS[0], 1024), config=[mine, online])).latency == pytest.approx(0.002)
    assert parsed(a_claim(a_result(CARDS[0], 1024), config=[theirs])).latency == pytest.approx(0.001)
    (found,) = problems(a_claim(a_result(CARDS[0], 1024), config=[mine, theirs]))
    assert 'config[0].opaque.parameters.latency: "2ms" is not allowed: 1ms, which the DeviceClass' in found


def test_latency_of_one_request_holds_for_the_claim_and_two_are_refused() -> None:
    online = a_config(parameters(class_="online"))
    latencies = [a_config(parameters(latency=text), requests=[name]) for name, text in (("a", "2ms"), ("b", "1ms"))]
    results = (a_result(CARDS[0], 1024, request="a"), a_result(CARDS[1], 1024, request="b"))
    assert parsed(a_claim(*results, config=[online, latencies[0]])).latency == pytest.approx(0.002)
    (found,) = problems(a_claim(*results, config=[online, *latencies]))
    assert found.endswith('"1ms, 2ms" is not allowed: one latency for all requests of a claim')


def test_requests_of_a_claim_have_one_class() -> None:
    config = [a_config(parameters(class_="offline"), requests=["a"])]
    results = (a_result(CARDS[0], 1024, request="a"), a_result(CARDS[1], 1024, request="b"))
    (found,) = problems(a_claim(*results, config=config))
    assert found.endswith('"normal, offline" is not allowed: one class for all requests of a claim')


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        ({"device": "gpu-9"}, 'results[0].device: "n1/gpu-9" is not allowed: a card of node n1'),
        ({"pool": "n2"}, 'results[0].device: "n2/gpu-0" is not allowed: a card of node n1'),
        ({"adminAccess": True}, "results[0].adminAccess: True is not allowed: no administrative access"),
        ({"consumedCapacity": {"memory": "20Gi"}}, '["memory"]: "20Gi" is not allowed: 1Mi to 16384Mi in whole MiB'),
        ({"consumedCapacity": {"memory": "1k"}}, '["memory"]: "1k" is not allowed: 1Mi to 16384Mi in whole MiB'),
        ({"consumedCapacity": {"memory": "0"}}, '["memory"]: "0" is not allowed: 1Mi to 16384Mi in whole MiB'),
        ({"consumedCapacity": {"core": "101"}}, '["core"]: "101" is not allowed: 0 to 100'),
        ({"driver": "gpu.nvidia.com"}, "a claim that kube-scheduler has allocated devices of driver aliquot.dev to"),
    ],
)
def test_wrong_result_is_named(result: dict[str, Any], sentence: str) -> None:
    (found,) = problems(a_claim({**a_result(CARDS[0], 1024), **result}))
    assert sentence in found


def test_pods_of_a_claim_are_those_it_is_reserved_for() -> None:
    claim = msgspec.convert(a_claim(a_result(CARDS[0], 1), pods={"u1": "p1", "u2": "p2"}), ClaimObject)
    assert claim.pods == {"u1": "p1", "u2": "p2"}
    assert claim.holds("n1")
    assert not claim.holds("n2")


@given(
    st.lists(st.tuples(st.sampled_from(CARDS), st.integers(1, 5000), st.integers(0, 30)), min_size=1, max_size=3),
    st.sampled_from(AppClass),
)
def test_claim_round_trip(asked: list[tuple[Card, int, int]], app_class: AppClass) -> None:
    results = [a_result(card, memory, core, request=f"r{at}") for at, (card, memory, core) in enumerate(asked)]
    config = a_config(render_config(ClaimConfig(app_class)), source="FromClass")
    claim = parsed(a_claim(*results, config=[config]))
    assert claim.app_class is app_class
    for card in CARDS:
        ours = [(memory, core) for asked_card, memory, core in asked if asked_card == card]
        share = next((share for share in shares_of(claim.grant, {}) if share.uuid == card.uuid), None)
        assert (share is None) == (not ours)
        if share is not None:
            assert share.memory_mib == sum(memory for memory, _ in ours)
            booked = share.greedy_milli if app_class is AppClass.OFFLINE else share.core_milli
            assert (booked or 0) == 10 * sum(core for _, core in ours)


@given(
    st.sampled_from([None, *AppClass]),
    st.sampled_from([None, *Isolation]),
    st.none() | st.integers(100, 10_000_000).map(lambda microseconds: microseconds / 1e6),
)
def test_config_round_trip(app_class: AppClass | None, policy: Isolation | None, latency: float | None) -> None:
    config = ClaimConfig(app_class, policy, latency)
    assert parse_config(render_config(config), "parameters") == config


@given(any_json())
def test_any_configuration_is_read_or_refused_with_a_sentence(value: Any) -> None:
    found = parse_config(value, "parameters")
    assert isinstance(found, ClaimConfig) or all(
        isinstance(problem, Invalid) and problem.sentence() for problem in found
    )


@pytest.mark.parametrize(("core", "milli"), [(0, None), (1, 10), (100, 1000)])
def test_compute_of_a_claim_is_at_most_one_card(core: int, milli: int | None) -> None:
    assert shares_of(parsed(a_claim(a_result(CARDS[0], 1024, core))).grant, {})[0].core_milli == milli
    assert "0 to 100" in problems(a_claim(a_result(CARDS[0], 1024, 101)))[0]
