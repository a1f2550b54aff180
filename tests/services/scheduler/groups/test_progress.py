"""PodGroups never block each other for good, whatever is lost in between: holds, the scheduler itself, single Pods that
come first."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st

from aliquot.dialects.podgroups import T9K
from aliquot.dialects.wire.extender import parse_args
from aliquot.services.scheduler.cluster import Cluster, Placed
from aliquot.services.scheduler.groups.admission import expire_holds
from aliquot.services.scheduler.verbs import filter_answer
from kit.clusters.podgroups import as_group, group_json, member_json
from kit.clusters.watchobjects import a_cluster, as_pod, bound, claim_of, live_node, pod_json
from kit.values.manifests import MEM, Json


@dataclass
class World:
    """A cluster, and a kube-scheduler that asks and binds in any order and waits for nothing."""

    nodes: dict[str, int]  # cards of 16 GiB
    groups: dict[str, tuple[int, int, int]]  # members, how many are needed, GiB of each
    pods: dict[str, Json] = field(default_factory=dict)  # as the API server has them
    done: set[str] = field(default_factory=set)
    now: float = 0.0

    def __post_init__(self) -> None:
        for group, (members, _, gib) in self.groups.items():
            for at in range(members):
                self.pods[f"{group}{at}"] = member_json(f"{group}{at}", group, {MEM: str(gib)})
        self.restart()

    def restart(self) -> None:
        """A new leader: all that it knows comes from the API server."""
        self.cluster: Cluster = a_cluster(*(live_node(name, *[16] * cards) for name, cards in self.nodes.items()))
        for group, (_, needed, _) in self.groups.items():
            self.cluster.groups.set_group(T9K, as_group(group_json(group, needed)))
        for pod in self.pods.values():
            self.cluster.set_pod(as_pod(pod))

    def ask(self, name: str) -> str | None:
        """The node that a filter call leaves for the Pod."""
        self.now += 2.0
        question = parse_args(json.dumps({"Pod": self.pods[name], "NodeNames": [*self.nodes]}).encode())
        fit = json.loads(filter_answer(self.cluster, question, now=self.now, keep=True)[0])["NodeNames"]
        return fit[0] if fit else None

    def try_pod(self, name: str) -> bool:
        """Ask, and bind at once. Whether it has a node now."""
        pod = self.pods.get(name)
        if pod is None or "nodeName" in pod["spec"]:
            return False
        node = self.ask(name)
        if node is None:
            return False
        if name[0] in self.groups:
            self.check_together(name[0], "a member was sent to a node")
        placed = self.cluster.assume(claim_of(self.cluster, as_pod(pod)), node)
        assert isinstance(placed, Placed), "what filter promises, bind gives"
        decoded = bound(self.cluster, pod, placed)
        self.cluster.set_pod(decoded)
        annotations = decoded.metadata.annotations or {}
        self.pods[name] = {
            **pod,
            "metadata": {**pod["metadata"], "annotations": annotations},
            "spec": {**pod["spec"], "nodeName": node},
        }
        return True

    def bind_without_answer(self, name: str) -> None:
        """The bind of a Pod has no answer; kube-scheduler asks again, and then it turns out not to have happened."""
        pod = self.pods.get(name)
        node = None if pod is None or "nodeName" in pod["spec"] else self.ask(name)
        if pod is None or node is None:
            return
        booked = self.cluster.assume(claim_of(self.cluster, as_pod(pod)), node)
        assert isinstance(booked, Placed), "what filter promises, bind gives"
        self.ask(name)
        assert self.cluster.assumed[f"uid-{name}"] == booked
        assert f"uid-{name}" not in self.cluster.held, "booked twice"
        assert self.cluster.ledger.get(f"uid-{name}") is not None
        self.cluster.unassume(f"uid-{name}")
        self.lose_holds()  # the others' binds are refused too

    def lose_holds(self) -> None:
        self.now += 40.0
        expire_holds(self.cluster, self.now)

    def single(self, gib: int) -> None:
        """A Pod of no group comes."""
        name = f"-{len(self.pods)}"
        self.pods[name] = pod_json(name, {MEM: str(gib)})
        self.cluster.set_pod(as_pod(self.pods[name]))
        self.try_pod(name)

    def end(self, name: str) -> None:
        del self.pods[name]
        self.cluster.drop_pod(f"ns/{name}")

    def placed(self, group: str) -> int:
        return sum("nodeName" in pod["spec"] for name, pod in self.pods.items() if name[0] == group)

    def end_complete_groups(self) -> bool:
        found = [
            group for group in self.groups if group not in self.done and self.placed(group) >= self.groups[group][1]
        ]
        for group in found:
            self.done.add(group)
            for name in [name for name in self.pods if name[0] == group]:
                self.end(name)
        return bool(found)

    def check_together(self, group: str, why: str) -> None:
        held = sum(f"uid-{name}" in self.cluster.held for name in self.pods if name[0] == group)
        assert self.placed(group) + held >= self.groups[group][1], why

    def check(self) -> None:
        board = self.cluster.board
        assert (board.room_memory[: board.rows][board.memory[: board.rows] > 0] >= 0).all(), "a card is overbooked"
        for group in self.groups:
            if any(f"uid-{name}" in self.cluster.held for name in self.pods if name[0] == group):
                self.check_together(group, "a part of a group is held")


GROUPS = st.tuples(st.integers(1, 5), st.integers(1, 5), st.sampled_from([3, 4, 5, 8, 9, 16])).map(
    lambda group: (max(group[:2]), min(group[:2]), group[2])
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.lists(GROUPS, min_size=2, max_size=3),
    st.lists(st.tuples(st.sampled_from("aaaaaabsccu"), st.integers(0, 2), st.integers(0, 4)), max_size=25),
    st.randoms(use_true_random=False),
)
def test_groups_that_fit_the_cluster_all_get_their_turn(
    cards: list[int], sizes: list[tuple[int, int, int]], steps: list[tuple[str, int, int]], chance: object
) -> None:
    groups = dict(zip("xyz", sizes, strict=False))
    nodes = {f"n{at}": count for at, count in enumerate(cards)}
    world = World(nodes, groups)
    for step, group, member in steps:
        if step == "a":
            world.try_pod(f"{'xyz'[group % len(groups)]}{member}")
        elif step == "b":
            world.lose_holds()
        elif step == "c":
            world.restart()
        elif step == "u":
            world.bind_without_answer(f"{'xyz'[group % len(groups)]}{member}")
        else:
            world.single(3 + member)
        world.check()
    begun = sum(0 < world.placed(group) < needed for group, (_, needed, _) in groups.items())
    event(f"{begun} groups have begun and are not complete")
    for name in [name for name in world.pods if name[0] == "-"]:
        world.end(name)
    idle = False
    while True:
        waiting = [name for name in world.pods if "nodeName" not in world.pods[name]["spec"]]
        chance.shuffle(waiting)  # type: ignore[attr-defined]
        progress = [world.try_pod(name) for name in waiting]
        world.check()
        if any(progress) or world.end_complete_groups():
            idle = False
        elif idle:
            break
        else:  # a group may pause
            world.now += 500.0
            idle = True
    room = {size: sum(cards) * (16 // size) for _, _, size in sizes}
    for name, (_, needed, gib) in groups.items():
        assert (name in world.done) == (needed <= room[gib]), f"group {name} is left"
