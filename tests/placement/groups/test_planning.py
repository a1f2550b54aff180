"""Places for several claims at once."""

from __future__ import annotations

from aliquot.placement.groups.planning import Member, Need, place_together
from aliquot.services.scheduler.cluster import Placed
from kit.clusters.watchobjects import a_cluster, as_pod, claim_of, free, live_node, pod_json
from kit.values.manifests import MEM


def test_a_claim_that_has_a_booking_gets_no_second_place_and_keeps_the_first() -> None:
    cluster = a_cluster(live_node())
    claims = [claim_of(cluster, as_pod(pod_json(name, {MEM: "4"}))) for name in ("a", "b")]
    assert isinstance(cluster.assume(claims[0], "n1"), Placed)
    members = [Member(claim) for claim in claims]
    plan = place_together(cluster.ledger, cluster.chooser, members, Need(2, {}), 1.0)
    assert (plan.enough, list(plan.grants), plan.without) == (False, ["uid-b"], claims[0])
    assert (cluster.ledger.get("uid-a") is not None, free(cluster, "n1")) == (True, 12)
