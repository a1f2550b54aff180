"""The claims of a Pod: by name, from a template, or made for an extended resource."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aliquot.dialects.dra.claims import ClaimObject
from aliquot.dialects.dra.pods import claim_names, container_with_several, waits_for_card
from aliquot.dialects.wire.objects import PodObject
from aliquot.model.device import Card
from kit.agents.draclaims import a_claim, a_request, a_result, a_waiting_claim
from kit.clusters.watchobjects import as_pod

Json = dict[str, Any]
CARD = Card(0, 16384, "GPU-0")


def pod(*containers: Json, claims: list[Json] | None = None, status: Json | None = None, **spec: Any) -> PodObject:
    whole = {"containers": list(containers), "resourceClaims": claims, **spec}
    return as_pod({"metadata": {"name": "p", "namespace": "team"}, "spec": whole, "status": status})


def using(*claims: str) -> Json:
    return {"name": f"uses {','.join(claims)}", "resources": {"claims": [{"name": claim} for claim in claims]}}


@pytest.mark.parametrize(
    ("claims", "status", "names"),
    [
        (None, None, {}),
        ([{"name": "a", "resourceClaimName": "x"}], None, {"a": "x"}),
        ([{"name": "a", "resourceClaimTemplateName": "t"}], None, {}),
        ([{"name": "a", "resourceClaimTemplateName": "t"}], {"resourceClaimStatuses": None}, {}),
        (
            [{"name": "a", "resourceClaimTemplateName": "t"}, {"name": "b", "resourceClaimName": "y"}],
            {"resourceClaimStatuses": [{"name": "a", "resourceClaimName": "made"}]},
            {"a": "made", "b": "y"},
        ),
        (None, {"extendedResourceClaimStatus": {"resourceClaimName": "of-resources"}}, {"": "of-resources"}),
    ],
)
def test_names_of_the_claims_that_exist(claims: Any, status: Any, names: dict[str, str]) -> None:
    assert claim_names(pod(claims=claims, status=status)) == names


def claim(manifest: Json) -> ClaimObject:
    return msgspec.convert(manifest, ClaimObject)


def test_pod_waits_while_a_claim_for_our_cards_has_none() -> None:
    waiting = claim(a_waiting_claim("w", a_request()))
    other = claim(a_waiting_claim("o", a_request("other.example.com")))
    given = msgspec.structs.replace(claim(a_claim(a_result(CARD, 1024))), spec=waiting.spec)
    both = pod(claims=[{"name": "a", "resourceClaimName": "x"}, {"name": "b", "resourceClaimName": "y"}])
    assert (waiting.wants_ours, other.wants_ours, given.wants_ours) == (True, False, True)
    assert waits_for_card(both, {"team/x": given, "team/y": waiting})
    assert not waits_for_card(both, {"team/x": given, "team/y": other})
    assert not waits_for_card(both, {"other/x": waiting, "other/y": waiting})
    assert not waits_for_card(both, {})


@pytest.mark.parametrize(
    ("containers", "init", "named"),
    [
        ([using("a")], [], None),
        ([using("a", "b")], [], "uses a,b"),
        ([using("a"), using("b")], [], None),
        ([using("a", "other")], [], None),
        ([using("a", "again")], [], None),
        ([using("a", "not there")], [], None),
        ([{"name": "none"}, using("a", "b")], [], "uses a,b"),
        ([using("a")], [using("b", "a")], "uses b,a"),
    ],
)
def test_container_with_two_of_our_claims_is_named(containers: Any, init: Any, named: str | None) -> None:
    names = {"a": "x", "b": "y", "other": "z", "again": "x"}
    claims = [{"name": name, "resourceClaimName": claim} for name, claim in names.items()]
    made = pod(*containers, claims=claims, initContainers=init)
    assert container_with_several(made, {"x", "y"}) == named


def test_what_a_claim_says_of_its_cards() -> None:
    waiting, given = claim(a_waiting_claim("w", a_request())), claim(a_claim(a_result(CARD, 1024)))
    assert (given.node, given.key) == ("n1", "ml/claim")
    assert (waiting.node, waiting.allocated, waiting.allocated_elsewhere) == ("", False, False)
    assert (given.allocated, given.allocated_elsewhere) == (True, False)
    assert given.holds("n1")
    assert not given.holds("another")
    elsewhere = claim(a_claim({**a_result(CARD, 1024), "driver": "other.example.com"}))
    assert (elsewhere.allocated, elsewhere.allocated_elsewhere, elsewhere.node) == (False, True, "")
    nowhere = claim({"metadata": {"name": "c"}, "status": {}})
    assert (nowhere.allocated, nowhere.allocated_elsewhere) == (False, False)


@pytest.mark.parametrize(
    ("request_", "ours"),
    [
        ({"exactly": {"deviceClassName": "offline.aliquot.dev"}}, True),
        ({"firstAvailable": [{"deviceClassName": "x"}, {"deviceClassName": "offline.aliquot.dev"}]}, True),
        ({"exactly": {"deviceClassName": "x"}}, False),
        ({"exactly": {}}, False),
        ({}, False),
    ],
)
def test_claim_asks_for_our_cards_by_the_device_class(request_: Json, ours: bool) -> None:
    spec = {"devices": {"requests": [{"exactly": {"deviceClassName": "x"}}, request_]}}
    assert claim({"metadata": {"name": "c"}, "spec": spec}).wants_ours is ours
