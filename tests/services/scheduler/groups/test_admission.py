"""Members of a PodGroup get cards together or not at all."""

from __future__ import annotations

import json

import pytest

from aliquot.dialects.podgroups import COSCHEDULING, KUBERNETES, OLDER_POD_GROUP, POD_GROUP
from aliquot.dialects.wire.extender import parse_args, parse_preemption
from aliquot.services.scheduler.cluster import Cluster, Placed
from aliquot.services.scheduler.verbs import filter_answer, preemption_answer
from kit.clusters.podgroups import add_members, member_json, set_group
from kit.clusters.watchobjects import a_cluster, as_pod, bound, claim_of, free, live_node, live_pod
from kit.values.manifests import MEM, Json

NAMES = ("n1", "n2")


def asked(cluster: Cluster, pod: Json, *names: str, now: float = 0.0) -> Json:
    question = parse_args(json.dumps({"Pod": pod, "NodeNames": names or NAMES}).encode())
    answer: Json = json.loads(filter_answer(cluster, question, now=now, keep=True)[0])
    return answer


def bind(cluster: Cluster, pod: Json, node: str) -> None:
    placed = cluster.assume(claim_of(cluster, as_pod(pod)), node)
    assert isinstance(placed, Placed)
    cluster.set_pod(bound(cluster, pod, placed))


def test_no_member_fits_before_enough_of_them_exist() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"))
    set_group(cluster, needed=3)
    a, _ = add_members(cluster, "a", "b")
    answer = asked(cluster, a)
    assert answer["NodeNames"] == []
    assert answer["FailedNodes"] == dict.fromkeys(
        NAMES,
        "PodGroup ns/g needs 3 members in their places at once: has none, lacks 1 Pod not created yet (aliquot:group)",
    )
    assert not cluster.held


def test_no_member_fits_before_all_that_are_needed_find_room_together() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"))
    set_group(cluster, needed=3)
    pods = add_members(cluster, "a", "b", "c", limits={MEM: "9"})
    for pod in pods:
        answer = asked(cluster, pod)
        assert answer["NodeNames"] == []
        assert (
            "needs 3 members in their places at once: has 2 that would fit now, lacks room for 1 more (9 GiB)"
            in answer["FailedNodes"]["n1"]
        )
    assert (free(cluster, "n1"), free(cluster, "n2")) == (16, 16)


def test_members_are_sent_to_the_places_of_one_plan() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"))
    set_group(cluster, needed=2)
    pods = add_members(cluster, "a", "b", limits={MEM: "9"})
    nodes = [asked(cluster, pod)["NodeNames"] for pod in pods]
    assert sorted(nodes) == [["n1"], ["n2"]]
    assert nodes == [asked(cluster, pod)["NodeNames"] for pod in pods]  # and stay there when asked about again


def test_places_of_a_group_are_closed_to_other_pods_until_they_expire() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"))
    set_group(cluster, needed=2)
    a, _ = add_members(cluster, "a", "b", limits={MEM: "9"})
    asked(cluster, a, now=100.0)
    other = pod_of(9)
    assert asked(cluster, other)["NodeNames"] == []
    cluster.drop_late_holds(129.0)
    assert asked(cluster, other)["NodeNames"] == []
    cluster.drop_late_holds(131.0)
    assert asked(cluster, other)["NodeNames"] == ["n1", "n2"]


def pod_of(gib: int) -> Json:
    pod: Json = json.loads(json.dumps(member_json("other", limits={MEM: str(gib)})))
    del pod["metadata"]["labels"]
    return pod


def test_a_group_keeps_its_places_as_long_as_it_asks() -> None:
    cluster = a_cluster(live_node())
    set_group(cluster, "slow", 1, COSCHEDULING, scheduleTimeoutSeconds=120)
    (a,) = add_members(cluster, "a", group="slow", label=POD_GROUP)
    asked(cluster, a, "n1")
    cluster.drop_late_holds(119.0)
    assert cluster.held
    cluster.drop_late_holds(121.0)
    assert not cluster.held


def test_a_group_keeps_its_places_for_two_minutes_at_most() -> None:
    cluster = a_cluster(live_node())
    set_group(cluster, "slow", 1, COSCHEDULING, scheduleTimeoutSeconds=2**31)
    (a,) = add_members(cluster, "a", group="slow", label=POD_GROUP)
    asked(cluster, a, "n1")
    cluster.drop_late_holds(121.0)
    assert not cluster.held


def test_no_more_places_are_held_than_are_needed_for_members_that_kube_scheduler_never_asked_about() -> None:
    cluster = a_cluster(live_node("n1", 16, 16, 16, 16))
    set_group(cluster, needed=2)
    a, b, c, d = add_members(cluster, "a", "b", "c", "d", limits={MEM: "9"})
    for pod, held in ((d, 2), (a, 2), (b, 3), (c, 4)):  # the place that was held beside d's is a's
        assert asked(cluster, pod, "n1")["NodeNames"] == ["n1"]
        assert len(cluster.held) == held


def test_a_further_member_moves_no_other_and_waits_where_it_finds_no_place() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"))
    set_group(cluster, needed=2)
    a, _, c = add_members(cluster, "a", "b", "c", limits={MEM: "9"})
    asked(cluster, a)
    held = dict(cluster.held)
    assert asked(cluster, c)["NodeNames"] == []
    assert cluster.held == held


def test_a_member_whose_bind_has_no_answer_keeps_its_one_booking() -> None:
    cluster = a_cluster(live_node())
    set_group(cluster, needed=2)
    (small,) = add_members(cluster, "small", limits={MEM: "5"})
    (large,) = add_members(cluster, "large", limits={MEM: "16"})
    assert isinstance(cluster.assume(claim_of(cluster, as_pod(small)), "n1"), Placed)
    asked(cluster, small, "n1")
    assert not cluster.held  # both do not fit: one must not count twice
    assert asked(cluster, large, "n1", now=2.0)["NodeNames"] == []
    assert (list(cluster.assumed), free(cluster, "n1")) == (["uid-small"], 11)


def test_a_question_about_a_running_pod_that_names_a_group_leaves_its_cards_booked() -> None:
    cluster = a_cluster(live_node())
    cluster.set_pod(live_pod("runs", {MEM: "8"}, on="n1", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"}))
    set_group(cluster, needed=1)
    for gib in "2", "3":
        asked(cluster, member_json("runs", limits={MEM: gib}), "n1")
    assert (free(cluster, "n1"), len(cluster.held)) == (8, 0)


def test_members_on_nodes_count() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"))
    set_group(cluster, needed=2)
    (a,) = add_members(cluster, "a", limits={MEM: "9"})
    cluster.set_pod(as_pod(member_json("b", limits={MEM: "9"}, on="n1", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"})))
    assert asked(cluster, a)["NodeNames"] == ["n2"]


def test_members_that_ended_well_count_and_those_that_failed_or_end_do_not() -> None:
    cluster = a_cluster(live_node())
    set_group(cluster, needed=2)
    (a,) = add_members(cluster, "a")
    other = member_json("b", on="n1")
    cluster.set_pod(as_pod({**other, "status": {"phase": "Failed"}}))
    assert asked(cluster, a, "n1")["NodeNames"] == []
    ending = {**other, "metadata": {**other["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    cluster.set_pod(as_pod(ending))
    assert asked(cluster, a, "n1")["NodeNames"] == []
    cluster.set_pod(as_pod({**other, "status": {"phase": "Succeeded"}}))
    assert asked(cluster, a, "n1")["NodeNames"] == ["n1"]


def test_members_that_need_no_card_count_as_soon_as_they_exist() -> None:
    cluster = a_cluster(live_node())
    set_group(cluster, needed=2)
    (a,) = add_members(cluster, "a")
    add_members(cluster, "parameter-server", limits={"cpu": "1"})
    assert asked(cluster, a, "n1")["NodeNames"] == ["n1"]


def test_a_member_behind_a_scheduling_gate_does_not_count() -> None:
    cluster = a_cluster(live_node())
    set_group(cluster, needed=2)
    (a,) = add_members(cluster, "a")
    gated = member_json("b")
    gated["spec"]["schedulingGates"] = [{"name": "wait"}]
    cluster.set_pod(as_pod(gated))
    assert asked(cluster, a, "n1")["NodeNames"] == []


def test_further_members_go_by_themselves_once_enough_have_their_places() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"))
    set_group(cluster, needed=1)
    a, b = add_members(cluster, "a", "b", limits={MEM: "9"})
    bind(cluster, a, asked(cluster, a)["NodeNames"][0])
    cluster.set_pod(live_pod("full", {MEM: "16"}, on="n2", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"}))
    answer = asked(cluster, b)
    assert answer["NodeNames"] == []
    assert "aliquot:memory" in answer["FailedNodes"]["n1"]


def test_roles_are_needed_too() -> None:
    cluster = a_cluster(live_node())
    set_group(cluster, needed=2, roles=[{"name": "master", "minMember": 1}, {"name": "worker", "minMember": 1}])
    workers = [member_json(name) for name in ("a", "b")]
    for pod in workers:
        pod["metadata"]["labels"]["scheduler.tensorstack.dev/role"] = "worker"
        cluster.set_pod(as_pod(pod))
    said = asked(cluster, workers[0], "n1")["FailedNodes"]["n1"]
    assert said.startswith("PodGroup ns/g needs 1 member of role master in their places at once: has none, lacks 1 Pod")
    master = member_json("c")
    master["metadata"]["labels"]["scheduler.tensorstack.dev/role"] = "master"
    cluster.set_pod(as_pod(master))
    assert asked(cluster, workers[0], "n1")["NodeNames"] == ["n1"]


@pytest.mark.parametrize("label", [POD_GROUP, OLDER_POD_GROUP])
def test_groups_of_the_coscheduling_plugin_are_found_by_either_label(label: str) -> None:
    cluster = a_cluster(live_node())
    set_group(cluster, "g", 2, COSCHEDULING)
    (a,) = add_members(cluster, "a", label=label)
    assert asked(cluster, a, "n1")["NodeNames"] == []
    add_members(cluster, "b", label=label)
    assert asked(cluster, a, "n1", now=10.0)["NodeNames"] == ["n1"]


def test_groups_of_kubernetes_itself_are_found_by_the_field() -> None:
    cluster = a_cluster(live_node())
    set_group(cluster, "g", 2, KUBERNETES)
    pods = [member_json(name, label="app") for name in ("a", "b")]
    for pod in pods:
        pod["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    cluster.set_pod(as_pod(pods[0]))
    assert asked(cluster, pods[0], "n1")["NodeNames"] == []
    cluster.set_pod(as_pod(pods[1]))
    assert asked(cluster, pods[0], "n1")["NodeNames"] == ["n1"]


def test_a_group_name_without_a_group_changes_nothing_and_is_reported_once() -> None:
    cluster = a_cluster(live_node())
    (a,) = add_members(cluster, "a")
    assert asked(cluster, a, "n1")["NodeNames"] == ["n1"]
    assert [stray.key for stray in cluster.groups.take_strays()] == ["ns/a"]
    cluster.set_pod(as_pod(a))
    assert cluster.groups.take_strays() == []


def test_members_of_a_group_that_cannot_be_read_wait_with_the_reason() -> None:
    cluster = a_cluster(live_node())
    set_group(cluster, needed="two")  # type: ignore[arg-type]
    (a,) = add_members(cluster, "a")
    assert asked(cluster, a, "n1")["FailedNodes"]["n1"] == (
        'PodGroup ns/g is invalid: spec.minMember: "two" is not allowed: a whole number, at least 0 (aliquot:group)'
    )


def test_a_finished_group_starts_no_more_members() -> None:
    cluster = a_cluster(live_node())
    set_group(cluster, needed=1, finished=True)
    (a,) = add_members(cluster, "a")
    assert "is finished (spec.finished)" in asked(cluster, a, "n1")["FailedNodes"]["n1"]


def test_a_waiting_group_evicts_no_pod() -> None:
    cluster = a_cluster(live_node("n1"))
    cluster.set_pod(live_pod("low", {MEM: "16"}, on="n1", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"}))
    set_group(cluster, needed=2)
    (a,) = add_members(cluster, "a")
    a["spec"]["priority"] = 10
    victims = {"n1": {"Pods": [{"UID": "uid-low"}], "NumPDBViolations": 0}}
    question = parse_preemption(json.dumps({"Pod": a, "NodeNameToMetaVictims": victims}).encode())
    assert preemption_answer(cluster, question) == {}
    cluster.groups.drop_group("scheduler.tensorstack.dev/ns/g")
    assert list(preemption_answer(cluster, question)) == ["n1"]


def test_a_member_is_planned_only_on_nodes_that_kube_scheduler_asked_about() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"))
    set_group(cluster, needed=2)
    a, b = add_members(cluster, "a", "b", limits={MEM: "9"})
    assert asked(cluster, b, "n1", now=1.0)["NodeNames"] == []  # as far as is known, both must go to n1
    assert asked(cluster, a, now=3.0)["NodeNames"] == ["n2"]
    assert asked(cluster, b, "n1", now=3.0)["NodeNames"] == ["n1"]


def test_a_node_that_went_is_planned_around() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"), live_node("n3"))
    set_group(cluster, needed=2)
    a, b = add_members(cluster, "a", "b", limits={MEM: "9"})
    asked(cluster, a, "n1", "n2", "n3")
    cluster.drop_node("n1")
    nodes = [asked(cluster, pod, "n2", "n3", now=2.0)["NodeNames"][0] for pod in (a, b)]
    assert sorted(nodes) == ["n2", "n3"]


def begun(cluster: Cluster, group: str, node: str, *, asks: bool = True) -> None:
    """A group of two has one member on the node's card 0, and lost the place of the other, if kube-scheduler asked."""
    set_group(cluster, group, 2)
    first = member_json(f"{group}1", group, {MEM: "16"}, on=node, annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"})
    cluster.set_pod(as_pod(first))
    (second,) = add_members(cluster, f"{group}2", group=group, limits={MEM: "16"})
    if asks:
        asked(cluster, second, "n1", "n2", "n3", now=-100.0)
        cluster.drop_late_holds(0.0)


def test_a_group_that_has_begun_is_left_room_for_the_rest() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"), live_node("n3"))
    begun(cluster, "old", "n1")
    set_group(cluster, "new", 2)
    new, _ = add_members(cluster, "b1", "b2", group="new", limits={MEM: "16"})
    answer = asked(cluster, new, "n2", "n3")
    assert answer["NodeNames"] == []
    assert "has 1 that would fit now, lacks room for 1 more" in answer["FailedNodes"]["n2"]
    assert not cluster.held
    old = member_json("old2", "old", {MEM: "16"})
    assert asked(cluster, old, "n2", "n3")["NodeNames"] == ["n2"]


def test_no_room_is_left_for_members_that_kube_scheduler_never_asked_about() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"), live_node("n3"))
    begun(cluster, "old", "n1", asks=False)
    set_group(cluster, "new", 2)
    pods = add_members(cluster, "b1", "b2", group="new", limits={MEM: "16"})
    assert sorted(asked(cluster, pod, "n2", "n3")["NodeNames"] for pod in pods) == [["n2"], ["n3"]]


def test_a_change_of_one_group_lets_no_other_be_planned_again() -> None:
    cluster = a_cluster(live_node())
    for name in "x", "y":
        set_group(cluster, name, 2)
        (pod,) = add_members(cluster, f"{name}1", group=name)
        asked(cluster, pod, "n1")
    x, y = (f"scheduler.tensorstack.dev/ns/{name}" for name in "xy")
    version = cluster.groups.version
    set_group(cluster, "x", 2)  # the same again
    assert (list(cluster.groups.refused), cluster.groups.version) == ([x, y], version)
    set_group(cluster, "x", 3)
    assert list(cluster.groups.refused) == [y]
    add_members(cluster, "y2", group="y")
    assert not cluster.groups.refused


def test_a_large_group_that_was_found_short_is_planned_again_later_than_a_small_one() -> None:
    """A plan of thousands of members every second would leave no time for other Pods."""
    plans = {}
    for members in 2, 1000:
        cluster = a_cluster(live_node())
        set_group(cluster, "x", members)
        pod, *_ = add_members(cluster, *(f"x{at}" for at in range(members)), group="x", limits={MEM: "9"})
        made = set()
        for now in range(11):
            asked(cluster, pod, "n1", now=float(now))
            ((at, _),) = cluster.groups.refused.values()
            made.add(at)
        plans[members] = sorted(made)
    assert plans == {2: list(range(11)), 1000: [0, 5, 10]}


def test_of_two_groups_that_have_begun_the_older_goes_first() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"), live_node("n3"))
    begun(cluster, "a", "n1")
    begun(cluster, "b", "n2")
    a, b = (member_json(f"{group}2", group, {MEM: "16"}) for group in "ab")
    assert asked(cluster, b, "n3")["NodeNames"] == []
    assert asked(cluster, a, "n3", now=2.0)["NodeNames"] == ["n3"]


def test_of_two_groups_that_have_begun_the_more_important_goes_first() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"), live_node("n3"))
    begun(cluster, "a", "n1")
    begun(cluster, "b", "n2")
    set_group(cluster, "b", 2, priority=50)
    a, b = (member_json(f"{group}2", group, {MEM: "16"}) for group in "ab")
    assert asked(cluster, a, "n3")["NodeNames"] == []
    assert asked(cluster, b, "n3", now=2.0)["NodeNames"] == ["n3"]
