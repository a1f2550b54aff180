"""A group whose members never all come leaves its cards to others most of the time, and still starts when they do."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.dialects.podgroups import COSCHEDULING, POD_GROUP
from aliquot.dialects.wire.extender import parse_args
from aliquot.placement.groups.attempts import Attempts, pause_after
from aliquot.services.scheduler.cluster import Cluster, Placed
from aliquot.services.scheduler.groups.admission import count, expire_holds
from aliquot.services.scheduler.groups.gathering import LIMIT, Gathering
from aliquot.services.scheduler.groups.waiting import WaitingGroups
from aliquot.services.scheduler.verbs import filter_answer
from kit.clusters.podgroups import add_members, member_json, set_group
from kit.clusters.watchobjects import a_cluster, as_pod, claim_of, live_node
from kit.running.virtualclock import play
from kit.values.manifests import MEM, Json

KEY = "scheduling.x-k8s.io/ns/g"


def filtered(cluster: Cluster, pod: Json, now: float) -> tuple[list[str], str]:
    question = parse_args(json.dumps({"Pod": pod, "NodeNames": ["n1"]}).encode())
    answer = json.loads(filter_answer(cluster, question, now=now, keep=True)[0])
    return answer["NodeNames"], (answer["FailedNodes"] or {}).get("n1", "")


def a_group(needed: int, patience: int = 0) -> tuple[Cluster, list[Json]]:
    """On one node, with as many cards as there are members."""
    cluster = a_cluster(live_node("n1", *[16] * needed))
    set_group(cluster, needed=needed, api=COSCHEDULING, scheduleTimeoutSeconds=patience)
    return cluster, add_members(cluster, *"abcd"[:needed], limits={MEM: "9"}, label=POD_GROUP)


@dataclass
class World:
    """A kube-scheduler that asks about the members that it lets on the node, and binds them or not, in virtual time."""

    cluster: Cluster
    members: list[Json]
    binds: bool
    every: float  # seconds between two questions about a Pod
    now: float = 0.0
    came: dict[str, float] = field(default_factory=dict)  # by name: when its bind came

    def run(self, until: float, away: Json | None) -> float:
        """Until then, or until all are bound. Returns the seconds without a held card."""
        free, due = 0.0, dict.fromkeys(range(len(self.members)), self.now)
        group = self.cluster.groups.group_of("uid-a")
        assert group is not None
        while self.now < until and not count(self.cluster, group).met:
            expire_holds(self.cluster, self.now)
            late = [name for name, at in self.came.items() if self.now - at >= LIMIT]
            if late:  # as Gathering does
                came = len(self.came)
                for name in late:
                    del self.came[name]
                    self.cluster.unassume(f"uid-{name}")
                for uid in list(self.cluster.held):
                    self.cluster.release_hold(uid)
                self.cluster.groups.attempts.fail(KEY, self.now, came)
            for at, pod in enumerate(self.members):
                if pod is not away and due[at] <= self.now and pod["metadata"]["name"] not in self.came:
                    due[at] = self.now + self.every
                    self.ask(pod)
            free += 1.0 if not self.cluster.held and not self.cluster.assumed else 0.0
            self.now += 1.0
        return free

    def ask(self, pod: Json) -> None:
        nodes, _ = filtered(self.cluster, pod, self.now)
        if nodes and self.binds:
            assert isinstance(self.cluster.assume(claim_of(self.cluster, as_pod(pod)), nodes[0]), Placed)
            self.came[pod["metadata"]["name"]] = self.now


@settings(max_examples=12, deadline=None)
@given(
    st.integers(2, 4),
    st.sampled_from([0, 5, 60]),
    st.booleans(),
    st.booleans(),
    st.integers(1, 12),
    st.integers(0, 300),
)
def test_others_have_the_cards_most_of_the_time_and_the_group_starts_soon_after_it_can(
    needed: int, patience: int, binds: bool, asked_before: bool, every: int, more: int
) -> None:
    cluster, members = a_group(needed, patience)
    world = World(cluster, members, binds, float(every))
    if asked_before:  # nothing is new about the last member then
        cluster.groups.remember_rows(f"uid-{members[-1]['metadata']['name']}", cluster.board.present.nonzero()[0])
    seconds = 300.0 + more
    assert world.run(seconds, away=members[-1]) > 0.5 * seconds  # two thirds in the long run
    world.binds = True
    longest = pause_after(100, min(patience or 30, 120))
    world.run(world.now + 2 * longest, away=None)
    group = cluster.groups.group_of("uid-a")
    assert group is not None
    assert count(cluster, group).met
    assert world.now - seconds <= (longest if asked_before else LIMIT) + (patience or 30) + every + LIMIT


@given(st.integers(1, 1000), st.floats(0.0, 120.0))
def test_pauses_grow_and_are_bounded(failures: int, held: float) -> None:
    pause = pause_after(failures, held)
    assert 2.0 * held <= pause <= pause_after(failures + 1, held) <= max(60.0, 4.0 * held)


def test_a_failed_attempt_counts_once() -> None:
    attempts = Attempts()
    for failures, now in enumerate((0.0, 100.0, 200.0), start=1):
        attempts.begin("g", now, anew=True)
        for _ in range(3):  # members report it
            attempts.fail("g", now + 3.0, 1)
        pause = attempts.pause("g", now + 3.0)
        assert pause is not None
        assert pause.seconds == pause_after(failures, 3.0)
        assert attempts.pause("g", pause.until) is None


def failed(now: float = 100.0) -> tuple[Cluster, list[Json]]:
    """A group in a pause: its places were held for 30 seconds and no bind came."""
    cluster, members = a_group(3)
    for pod in members[:2]:
        assert filtered(cluster, pod, now - 30.0)[0] == ["n1"]
    expire_holds(cluster, now)
    return cluster, members


def test_a_group_that_pauses_says_so_and_holds_nothing() -> None:
    cluster, members = failed()
    nodes, why = filtered(cluster, members[0], 101.0)
    assert nodes == []
    assert not cluster.held
    assert why == (
        "PodGroup ns/g needs 3 members in their places at once: none came to a place that was held, so no cards are"
        " held for it for 60 s. Events of the other members say what keeps them away (aliquot:group)"
    )
    assert filtered(cluster, members[0], 161.0)[0] == ["n1"]


def test_a_member_asked_about_for_the_first_time_ends_the_pause() -> None:
    cluster, members = failed()
    assert filtered(cluster, members[2], 101.0)[0] == ["n1"]


def test_a_new_member_and_a_changed_group_end_the_pause() -> None:
    for change in (
        lambda cluster: cluster.set_pod(as_pod(member_json("new", label=POD_GROUP, limits={MEM: "9"}))),
        lambda cluster: set_group(cluster, needed=2, api=COSCHEDULING),
    ):
        cluster, members = failed()
        change(cluster)
        assert filtered(cluster, members[0], 101.0)[0] == ["n1"]


def test_places_that_are_planned_again_are_not_held_for_longer() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"), live_node("n3"))
    set_group(cluster, needed=2)
    a, _ = add_members(cluster, "a", "b", limits={MEM: "9"})
    for at in range(10):  # kube-scheduler asks about other nodes each time
        question = parse_args(json.dumps({"Pod": a, "NodeNames": [f"n{at % 3 + 1}"]}).encode())
        filter_answer(cluster, question, now=3.0 * at, keep=True)
    expire_holds(cluster, 30.0)
    assert not cluster.held


def test_waiting_groups_retries_a_group_when_its_pause_ends() -> None:
    cluster, _ = failed()
    waiting = WaitingGroups(cluster, known=lambda: True, clock=lambda: 0.0)
    waiting.look(cluster.pending)
    assert waiting.ready(101.0) == []
    assert "no cards are held for it" in (waiting.sentence("uid-a", 101.0)[0] or "")
    assert waiting.ready(161.0) == ["uid-a", "uid-b", "uid-c"]


def test_a_bind_that_comes_in_a_pause_does_not_wait() -> None:
    async def scene() -> None:
        clock = asyncio.get_running_loop().time
        cluster, members = failed(now=clock())
        assert isinstance(cluster.assume(claim_of(cluster, as_pod(members[0])), "n1"), Placed)
        began = clock()
        assert "1 came within 3 s" in (await Gathering(cluster).wait("uid-a") or "")
        assert clock() == began

    play(scene())


def test_binds_that_wait_in_vain_are_one_failed_attempt() -> None:
    async def scene() -> None:
        clock = asyncio.get_running_loop().time
        cluster, members = a_group(3)
        for pod in members[:2]:
            nodes, _ = filtered(cluster, pod, clock())
            assert isinstance(cluster.assume(claim_of(cluster, as_pod(pod)), nodes[0]), Placed)
        gathering = Gathering(cluster)
        await asyncio.gather(gathering.wait("uid-a"), gathering.wait("uid-b"))
        pause = cluster.groups.attempts.pause(KEY, clock())
        assert pause is not None
        assert (pause.seconds, pause.came) == (pause_after(1, LIMIT), 2)

    play(scene())


def test_a_group_that_has_begun_and_pauses_leaves_its_room_to_others() -> None:
    cluster = a_cluster(live_node("n1"), live_node("n2"), live_node("n3"))
    set_group(cluster, "old", 2)
    on_card = {"ALIYUN_COM_GPU_MEM_IDX": "0"}
    cluster.set_pod(as_pod(member_json("old1", "old", {MEM: "16"}, on="n1", annotations=on_card)))
    (rest,) = add_members(cluster, "old2", group="old", limits={MEM: "16"})
    set_group(cluster, "new", 2)
    new, _ = add_members(cluster, "new1", "new2", group="new", limits={MEM: "16"})

    def asked(pod: Json, now: float) -> list[str]:
        question = parse_args(json.dumps({"Pod": pod, "NodeNames": ["n2", "n3"]}).encode())
        fit: list[str] = json.loads(filter_answer(cluster, question, now=now, keep=True)[0])["NodeNames"]
        return fit

    assert asked(rest, 0.0)
    assert asked(new, 1.0) == []
    expire_holds(cluster, 30.0)
    assert asked(new, 31.0)
