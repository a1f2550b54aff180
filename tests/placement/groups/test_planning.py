"""Places for several claims at once."""

from __future__ import annotations

import numpy as np
import pytest

from aliquot.model.claim import Claim
from aliquot.model.refusal import Refusal
from aliquot.placement.book import Ledger
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.placement.groups.planning import Member, Need, _in_turn, place_together
from aliquot.services.scheduler.cluster import Placed
from kit.clusters.watchobjects import a_cluster, as_pod, claim_of, free, live_node, pod_json
from kit.values.builders import a_board, a_claim, a_container, a_node, a_slice, asking, whole_node
from kit.values.manifests import MEM


@pytest.mark.parametrize(("needed", "why"), [(1, []), (2, ["uid-b"])])
def test_what_a_claim_lacks_is_asked_only_where_too_few_have_a_place(needed: int, why: list[str]) -> None:
    cluster = a_cluster(live_node())
    claims = [claim_of(cluster, as_pod(pod_json(name, {MEM: "10"}))) for name in ("a", "b")]
    asked: list[str] = []

    def lacks(claim: Claim) -> list[Refusal]:
        asked.append(claim.uid)
        return []

    plan = place_together(
        cluster.ledger, cluster.chooser, [Member(claim) for claim in claims], Need(needed, {}), 1.0, lacks
    )
    assert (plan.enough, plan.without, asked) == (needed == 1, claims[1], why)
    assert free(cluster, "n1") == (6 if plan.enough else 16)


def test_a_claim_that_has_a_booking_gets_no_second_place_and_keeps_the_first() -> None:
    cluster = a_cluster(live_node())
    claims = [claim_of(cluster, as_pod(pod_json(name, {MEM: "4"}))) for name in ("a", "b")]
    assert isinstance(cluster.assume(claims[0], "n1"), Placed)
    members = [Member(claim) for claim in claims]
    plan = place_together(cluster.ledger, cluster.chooser, members, Need(2, {}), 1.0)
    assert (plan.enough, list(plan.grants), plan.without) == (False, ["uid-b"], claims[0])
    assert (cluster.ledger.get("uid-a") is not None, free(cluster, "n1")) == (True, 12)


@pytest.mark.parametrize(
    ("need", "roles", "met"),
    [
        (Need(2, {}), ["a"], False),
        (Need(2, {}), ["a", "b"], True),
        (Need(0, {}), [], True),
        (Need(1, {"a": 2}), ["a", "b"], False),
        (Need(1, {"a": 2}), ["a", "a"], True),
        (Need(1, {"a": 1, "b": 1}), ["a", "a"], False),
        (Need(3, {"a": 1, "b": 1}), ["a", "b"], False),
        (Need(3, {"a": 1, "b": 1}), ["a", "b", "c"], True),
    ],
)
def test_need_counts_all_and_each_role(need: Need, roles: list[str], met: bool) -> None:
    assert need.met(roles) is met


@pytest.mark.parametrize(
    ("roles", "names"),
    [
        ({}, ["c1", "a1", "a2", "a3", "b1"]),
        ({"a": 2, "b": 1}, ["a1", "a2", "b1", "c1", "a3"]),
        ({"a": 1}, ["a1", "c1", "a2", "a3", "b1"]),
        ({"b": 3, "x": 1}, ["b1", "c1", "a1", "a2", "a3"]),
    ],
)
def test_as_many_of_each_role_as_are_needed_come_first_the_largest_before_others(
    roles: dict[str, int], names: list[str]
) -> None:
    sizes = {"a3": 6, "b1": 2, "a1": 8, "c1": 9, "a2": 7}
    members = [Member(asking(size, name=name), role=name[0]) for name, size in sizes.items()]
    assert [member.claim.name for member in _in_turn(members, roles)] == names


def test_members_come_by_the_largest_of_their_containers() -> None:
    members = [
        Member(a_claim(*(a_container(a_slice(size), name=f"c{size}") for size in sizes), name=name))
        for name, sizes in (("b", (5, 6)), ("a", (1, 8)), ("c", (9,)))
    ]
    assert [member.claim.name for member in _in_turn(members, {})] == ["a", "b", "c"]
    members.append(Member(whole_node("node")))
    assert [member.claim.name for member in _in_turn(members, {})] == ["node", "a", "b", "c"]


@pytest.mark.parametrize(("rows", "placed"), [((0, 1), ["b"]), ((0, 0), []), ((1, 0), ["a"]), ((None, None), ["a"])])
def test_claims_of_one_kind_are_tried_on_the_nodes_of_each(rows: tuple[int | None, ...], placed: list[str]) -> None:
    """The first node is too small for both, and the second has room for one."""
    board = a_board(a_node("n1", 8), a_node("n2", 16))
    members = [
        Member(asking(10, name=name), rows=None if row is None else np.array([row]))
        for name, row in zip("ab", rows, strict=True)
    ]
    plan = place_together(Ledger(board), Chooser(board, POLICIES["binpack"]()), members, Need(1, {}), 1.0)
    assert list(plan.grants) == placed
