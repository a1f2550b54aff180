"""The live cluster under any sequence of events: the board is what the facts make it."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aliquot.dialects.native import GRANT
from aliquot.model.claim import Claim
from aliquot.model.device import Card
from aliquot.placement.board import Board
from aliquot.placement.book import occupant_of
from aliquot.placement.choose import POLICIES
from aliquot.services.scheduler.cluster import Cluster, Placed
from kit.clusters.watchobjects import (
    ALL,
    SHARED,
    as_node,
    as_pod,
    bound_json,
    inventory_json,
    pod_json,
    unhealthy,
)
from kit.values.builders import GIB
from kit.values.manifests import (
    APP_CLASS,
    COUNT,
    MEM,
    QGPU_CORE,
    QGPU_GREEDY,
    QGPU_MEMORY,
    T9K_CARDS,
    T9K_NODE,
    T9K_PERCENT,
    Json,
)

NODES = ("n1", "n2", "n3")
ASKED: list[tuple[Json, Json]] = [
    ({MEM: "4"}, {}),
    ({MEM: "8"}, {COUNT: "2"}),
    ({QGPU_MEMORY: "3", QGPU_CORE: "40"}, {}),
    ({QGPU_MEMORY: "3"}, {APP_CLASS: "online"}),
    ({QGPU_MEMORY: "3", QGPU_GREEDY: "60"}, {APP_CLASS: "offline"}),
    ({T9K_CARDS: "1"}, {}),
    ({T9K_PERCENT: "30"}, {}),
    ({T9K_NODE: "1"}, {}),
    ({"cpu": "1"}, {}),
    ({MEM: "5Gi"}, {}),
]


BOOKED = ("used_memory", "used_core", "used_greedy", "used_slices", "exclusive", "online", "offline", "pods", "taken")


def contents(board: Board) -> dict[str, dict[str, Any]]:
    """What the board says of each node, but for where it stands and when it changed.

    Of a node that is gone, how much is booked on it: which numbers its cards have is known when it is back.
    """
    board._widen(8)  # so that it holds what is booked on cards that no node has
    columns = {name: column for name, column in vars(board).items() if isinstance(column, np.ndarray)}
    return {
        node: {
            name: column[row].tolist() if board.present[row] else column[row].sum().item()
            for name, column in columns.items()
            if (name in BOOKED or board.present[row]) and name not in ("changed", "model")
        }
        for node, row in board.row_of.items()
    }


class Events(RuleBasedStateMachine):
    """Random events, told to a cluster as a reflector and a binder would; after each, a cluster that hears only what
    is so now must come to the same board."""

    @initialize(policy=st.sampled_from(sorted(POLICIES)), guesses=st.booleans())
    def begin(self, policy: str, guesses: bool) -> None:
        self.cluster, self.guesses = Cluster(policy), guesses
        self.nodes: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}  # by key
        self.sick: dict[str, str] = {}
        self.count, self.now = 0, 0.0

    # --- nodes

    @rule(
        name=st.sampled_from(NODES),
        sizes=st.lists(st.sampled_from([8, 16]), max_size=3),
        order=st.permutations(range(3)),
        sick=st.sampled_from([None, None, None, 0, 1]),
        labels=st.sampled_from([ALL, ALL, SHARED, {"sched.tensorstack.dev/node-alloc-mode": "typo"}]),
    )
    def a_node_is_there_or_changes(
        self, name: str, sizes: list[int], order: list[int], sick: int | None, labels: dict[str, str]
    ) -> None:
        """Cards keep their UUID, whatever their number. All three are always told: one that is gone has no number."""
        sizes = [*sizes, 8, 8, 8][:3]
        cards = [Card(order[at], size * GIB, f"{name}-{at}", healthy=at != sick) for at, size in enumerate(sizes)]
        self.nodes[name] = inventory_json(name, cards, labels)
        self.cluster.set_node(as_node(self.nodes[name]))

    @rule(name=st.sampled_from(NODES))
    def a_node_is_gone(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.cluster.drop_node(name)

    @rule(name=st.sampled_from(NODES), cards=st.sampled_from(["0", "1,2", ""]))
    def cards_are_taken_out(self, name: str, cards: str) -> None:
        self.sick[name] = cards
        self.cluster.set_unhealthy(unhealthy(name, cards))

    @rule(name=st.sampled_from(NODES))
    def cards_are_given_back(self, name: str) -> None:
        self.sick.pop(name, None)
        self.cluster.drop_unhealthy(f"kube-system/unhealthy-gpu-{name}")

    # --- Pods

    @rule(asked=st.sampled_from(ASKED), name=st.sampled_from("abcdef"), daemon=st.booleans())
    def a_pod_is_made(self, asked: tuple[Json, Json], name: str, daemon: bool) -> None:
        """One of that name may be there: it is gone, and this one made, between two looks."""
        self.count += 1
        limits, annotations = asked
        self._tell(
            pod_json(
                name,
                limits,
                uid=f"uid-{self.count}",
                annotations=annotations,
                owner="DaemonSet/d" if daemon else "ReplicaSet/r",
            )
        )

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), node=st.sampled_from(NODES))
    def we_assume(self, data: st.DataObject, node: str) -> None:
        pod = self._some(data)
        pending = self.cluster.pending.get(pod["metadata"]["uid"])
        if pending is None or not isinstance(pending.claim, Claim) or pending.uid in self.cluster.assumed:
            return
        placed = self.cluster.assume(pending.claim, node)
        if isinstance(placed, list):
            assert placed, "a refusal says why"
            return
        self._fits(placed)

    def _fits(self, placed: Placed) -> None:
        board, row = self.cluster.board, self.cluster.board.row_of[placed.grant.node]
        assert board.present[row]
        assert placed.grant.usage(), "cards were asked for"
        for card, use in placed.grant.usage().items():
            assert board.healthy[row, card]
            assert board.used_memory[row, card] <= board.memory[row, card]
            assert not use.core_milli or board.used_core[row, card] <= 1000
            assert not use.greedy_milli or board.used_greedy[row, card] <= 1000
            assert board.used_slices[row, card] == 1 or not board.exclusive[row, card]
        assert board.taken[row] == 0 or board.pods[row] == 1

    @precondition(lambda self: self.cluster.assumed)
    @rule(data=st.data())
    def the_api_server_says_yes(self, data: st.DataObject) -> None:
        placed = data.draw(st.sampled_from(list(self.cluster.assumed.values())))
        node = self.cluster.board.node(placed.grant.node)
        if node is not None:
            self._tell(bound_json(self.pods[placed.claim.key], placed.claim, placed.grant, node, self.cluster.rules))

    @precondition(lambda self: self.cluster.assumed)
    @rule(data=st.data())
    def the_api_server_says_no(self, data: st.DataObject) -> None:
        self.cluster.unassume(data.draw(st.sampled_from(list(self.cluster.assumed))))

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), node=st.sampled_from(NODES), card=st.sampled_from([None, "0", "2"]))
    def somebody_else_binds(self, data: st.DataObject, node: str, card: str | None) -> None:
        pod = self._some(data)
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        tells = MEM in limits and card is not None
        ours = not limits.keys() & {"cpu"} and limits.get(MEM) != "5Gi"
        if pod["spec"].get("nodeName") or (ours and not tells and not self.guesses):
            return
        annotations = {**pod["metadata"]["annotations"], **({"ALIYUN_COM_GPU_MEM_IDX": card} if tells else {})}
        self._tell(
            {
                **pod,
                "metadata": {**pod["metadata"], "annotations": annotations},
                "spec": {**pod["spec"], "nodeName": node},
            }
        )

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_is_told_again(self, data: st.DataObject) -> None:
        self.cluster.set_pod(as_pod(self._some(data)))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_has_run_to_its_end(self, data: st.DataObject) -> None:
        self._tell({**self._some(data), "status": {"phase": "Succeeded"}})

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_is_gone(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.pods)))
        del self.pods[key]
        self.cluster.drop_pod(key)

    @rule(data=st.data(), lost=st.booleans())
    def everything_is_listed_anew(self, data: st.DataObject, lost: bool) -> None:
        """List again, as after 410: in any order, and without Pods whose deletion was never reported."""
        if lost and self.pods:
            key = data.draw(st.sampled_from(sorted(self.pods)))
            del self.pods[key]
            gone = [key]
        else:
            gone = []
        for listed, tell in (
            (list(self.nodes.values()), lambda node: self.cluster.set_node(as_node(node))),
            (list(self.pods.values()), lambda pod: self.cluster.set_pod(as_pod(pod))),
        ):
            self.cluster.begin()
            for item in data.draw(st.permutations(listed)):
                tell(item)  # type: ignore[no-untyped-call]
            for key in gone:
                self.cluster.drop_pod(key)
            self.cluster.end()

    # --- holds

    @precondition(lambda self: self.cluster.pending)
    @rule(data=st.data())
    def a_place_is_held(self, data: st.DataObject) -> None:
        pending = data.draw(st.sampled_from(list(self.cluster.pending.values())))
        if isinstance(pending.claim, Claim):
            self.cluster.filter(pending.claim, [*NODES, "unknown"])
            found = self.cluster.filter(pending.claim, [*NODES, "unknown"])  # the first may come without reasons
            assert len(found.fit) + len(found.codes) + len(found.unknown) == len(NODES) + 1
            ranks, best = self.cluster.rank(pending.claim, NODES)
            assert (best is None) == (not set(found.fit))
            assert best is None or (best.node in found.fit and 0 <= min(ranks) < max(ranks) == 10)
            if best is not None and pending.uid not in self.cluster.assumed:
                self.cluster.hold(pending.claim, best, self.now + 2.0)

    @rule(seconds=st.sampled_from([0.5, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.cluster.drop_late_holds(self.now)

    # --- what must hold

    @invariant()
    def a_pod_is_in_one_state(self) -> None:
        cluster = self.cluster
        assert not cluster.placed.keys() & (cluster.pending.keys() | cluster.assumed.keys() | cluster.held.keys())
        assert not cluster.assumed.keys() & cluster.held.keys()
        assert cluster.seen == {key: pod["metadata"]["uid"] for key, pod in self.pods.items()}
        there = set(cluster.seen.values())
        assert there >= cluster.placed.keys() | cluster.pending.keys() | cluster.assumed.keys() | cluster.held.keys()
        bookings = {booking.uid for booking in cluster.ledger}
        assert bookings >= cluster.placed.keys() | cluster.assumed.keys() | cluster.held.keys()
        assert there >= bookings
        assert not cluster._unnamed

    @invariant()
    def the_board_is_what_the_facts_make_it(self) -> None:
        if any(placed.doubt or self._by_its_node(placed) for placed in self.cluster.placed.values()):
            return  # guesses depend on who was there when they were made
        fresh = Cluster(self.cluster.policy)
        for name, cards in self.sick.items():
            fresh.set_unhealthy(unhealthy(name, cards))
        fresh.begin()
        for node in self.nodes.values():
            fresh.set_node(as_node(node))
        fresh.end()
        fresh.begin()
        for pod in self.pods.values():
            fresh.set_pod(as_pod(pod))
        fresh.end()
        for placed in self.cluster.assumed.values():
            fresh.ledger.confirm(placed.claim.uid, placed.grant.node, occupant_of(placed.claim, placed.grant))
        for uid in self.cluster.held:
            booking = self.cluster.ledger.get(uid)
            assert booking is not None
            fresh.ledger.confirm(uid, booking.node, booking.occupant)
        assert contents(self.cluster.board) == contents(fresh.board)
        for uid, placed in self.cluster.placed.items():
            here = placed.grant.node in self.nodes and placed.grant.node not in fresh.reported.unusable
            assert placed == fresh.placed[uid] if here else uid in fresh.placed
        assert len(self.cluster.placed) == len(fresh.placed)
        assert self.cluster.reported.unusable == fresh.reported.unusable
        assert set(self.cluster.pending) == set(fresh.pending)

    def _by_its_node(self, placed: Placed) -> bool:
        """A whole node's Pod that no annotation tells of has the cards that its node had when it was last seen."""
        return placed.claim.whole_node and not self.pods[placed.claim.key]["metadata"].get("annotations", {}).get(GRANT)

    def teardown(self) -> None:
        if not hasattr(self, "cluster"):
            return
        cluster = self.cluster
        for key in list(self.pods):
            cluster.drop_pod(key)
        left = (cluster.held, cluster.assumed, cluster.placed, cluster.pending, cluster.seen, cluster._unnamed)
        assert not any(left)
        assert len(cluster.ledger) == 0
        board = cluster.board
        for column in BOOKED:
            assert not getattr(board, column)[: board.rows].any()
        assert board.replicas == {}
        for name in NODES:
            cluster.drop_node(name)
        assert board.row_of == {}

    def _tell(self, pod: Json) -> None:
        self.pods[f"ns/{pod['metadata']['name']}"] = pod
        self.cluster.set_pod(as_pod(pod))

    def _some(self, data: st.DataObject) -> Json:
        pod: Json = self.pods[data.draw(st.sampled_from(sorted(self.pods)))]
        return pod


TestEvents = Events.TestCase
TestEvents.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
