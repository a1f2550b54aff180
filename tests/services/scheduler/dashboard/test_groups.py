"""The dashboard says why the members of a PodGroup wait: what the group has and what it lacks."""

from __future__ import annotations

import json
from typing import Any

from aliquot.dialects.wire.extender import parse_args
from aliquot.model.status.messages import MessageCode
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.dashboard.details import Details
from aliquot.services.scheduler.dashboard.view import ClusterView, Surroundings
from aliquot.services.scheduler.groups.admission import expire_holds
from aliquot.services.scheduler.verbs import filter_answer
from kit.clusters.podgroups import add_members, set_group
from kit.clusters.watchobjects import a_cluster, live_node
from kit.machines.fakeview import JsonView
from kit.values.manifests import MEM, Json


def reasons(cluster: Cluster) -> list[Json]:
    """Of the list and of the Pod's own page, which must be the same."""
    around = Surroundings(name="lab", leading=lambda: True, metrics=lambda: b"")
    view = JsonView(ClusterView(cluster, Details(cluster), around))
    waiting: Any = view.state(1000.0)["waiting"]["pods"]
    for pod in waiting:
        page = view.pod(pod["key"], 1000.0)
        assert page is not None
        assert page["why"][2:] == [pod["reason"]]
    return [pod["reason"] for pod in waiting]


def ask(cluster: Cluster, pod: Json, now: float) -> None:
    filter_answer(cluster, parse_args(json.dumps({"Pod": pod, "NodeNames": ["n1"]}).encode()), now=now, keep=True)


def test_a_group_without_room_says_what_it_has_and_what_it_lacks() -> None:
    cluster = a_cluster(live_node("n1"))
    set_group(cluster, needed=3)
    pods = add_members(cluster, "a", "b", "c", limits={MEM: "8"}, refused=True)
    ask(cluster, pods[0], 0.0)
    (reason, *others) = reasons(cluster)
    assert others == [reason] * 2
    assert reason == {
        "code": MessageCode.GROUP_WAITS.value,
        "text": "PodGroup ns/g needs 3 members in their places at once: has 2 that would fit now, lacks room for 1"
        " more (8 GiB)",
        "name": "ns/g",
        "of": 3,
        "count": 0,
        "number": 2,
        "wants": [{"memory_mib": 8192}],
    }
    assert not cluster.held


def test_looking_at_a_group_changes_nothing() -> None:
    """Otherwise a page that somebody has open takes the places held for members, and has groups planned for ever."""
    cluster = a_cluster(live_node("n1", 16, 16, 16))
    set_group(cluster, needed=3)
    a, b, _ = add_members(cluster, "a", "b", "c", limits={MEM: "9"}, refused=True)
    ask(cluster, a, 0.0)
    cluster.release_hold(b["metadata"]["uid"])
    held, clock = dict(cluster.held), cluster.board.clock
    assert len(held) == 2
    assert len(reasons(cluster)) == 3
    assert (cluster.held, cluster.board.clock) == (held, clock)


def test_a_group_whose_members_are_not_all_created_says_how_many() -> None:
    cluster = a_cluster(live_node("n1"))
    set_group(cluster, needed=3)
    add_members(cluster, "a", limits={MEM: "8"}, refused=True)
    (reason,) = reasons(cluster)
    assert (reason["code"], reason["of"], reason["more"]) == ("group-waits", 3, 2)


def test_a_group_that_pauses_says_so() -> None:
    cluster = a_cluster(live_node("n1", 16, 16))
    set_group(cluster, needed=2)
    a, _ = add_members(cluster, "a", "b", limits={MEM: "9"}, refused=True)
    ask(cluster, a, 0.0)
    expire_holds(cluster, 30.0)
    ask(cluster, a, 31.0)
    reason = reasons(cluster)[0]
    assert (reason["code"], reason["of"], reason["count"], reason["number"]) == ("group-pauses", 2, 0, 60)


def test_a_group_that_breaks_a_rule_says_which() -> None:
    cluster = a_cluster(live_node("n1"))
    set_group(cluster, minMember="two")
    add_members(cluster, "a", refused=True)
    (reason,) = reasons(cluster)
    assert (reason["code"], reason["name"]) == ("group-invalid", "ns/g")
    assert reason["detail"] == 'spec.minMember: "two" is not allowed: a whole number, at least 0'


def test_a_further_member_of_a_complete_group_says_why_no_node_takes_it() -> None:
    cluster = a_cluster(live_node("n1"))
    set_group(cluster, needed=0)
    add_members(cluster, "a", limits={MEM: "99"}, refused=True)
    around = Surroundings(name="lab", leading=lambda: True, metrics=lambda: b"")
    view = JsonView(ClusterView(cluster, Details(cluster), around))
    assert [pod["reason"]["code"] for pod in view.state(1000.0)["waiting"]["pods"]] == ["no-fitting-node"]
