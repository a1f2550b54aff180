"""Round trips: what is written reads back the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aliquot.dialects import (
    Rules,
    native,
    parse_grant,
    parse_node,
    parse_pod,
    render_env,
    render_grant,
    render_inventory,
    render_pod,
)
from aliquot.dialects.kube.manifests import expand
from aliquot.model.claim import Claim, Role, Usage, peak
from aliquot.model.device import Card
from aliquot.model.grant import Grant
from aliquot.model.node import Node
from kit.values.claims import NODE, SEED, bound, claims, grants, inventories, modest


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


@modest
@given(inventories, st.frozensets(st.integers(0, 63), max_size=3))
def test_an_inventory_written_and_read_back_has_the_same_cards(found: list[Card], sick: frozenset[int]) -> None:
    node = parse_node({"metadata": {"name": "n", "annotations": render_inventory(found)}}, SEED, sick)
    assert isinstance(node, Node)
    ordered = sorted(found, key=lambda card: card.index)
    assert node.cards == tuple(replace(card, healthy=card.healthy and card.index not in sick) for card in ordered)


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
