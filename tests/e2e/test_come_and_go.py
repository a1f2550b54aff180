"""Pods come and go: a real kube-scheduler places them, and lets them wait, as `aliquot simulate --load` does.

The steps are the simulator's, in its order, without its hours in between. At most one Pod waits at a time: in which
order kube-scheduler retries several is not the simulator's to say.
"""

from __future__ import annotations

import itertools

from aliquot.model.node import Offer
from aliquot.sim.churn import Step, churn, come_and_go
from aliquot.sim.trace import PodSpec
from kit.values.builders import a_node
from kit.values.manifests import COUNT, MEM
from testbed import objects
from testbed.cards import assert_board_is_true
from testbed.gpus import gpushare_node
from testbed.objects import Object, pod
from testbed.processes import wait_until
from testbed.programs.wired import Wired

SCHEDULER_ARGS = ("--priority=dense", "--shortlist=1")  # the simulator has no plugins that score nodes
# kube-scheduler hears of a departure by its own watch, perhaps later than the next Pod, and would leave out a node that
# has room again. Here only ours counts the cards, and the test waits until it has heard.
EXTENDER = {"managedResources": [{"name": name, "ignoredByScheduler": True} for name in (MEM, COUNT)]}

NODES, CARDS, CARD_GIB, CORES = 6, 4, 16, 64
QUARTER, HALF = PodSpec(2_000, 0, 1, 250), PodSpec(4_000, 0, 1, 500)
ONE, FOUR = PodSpec(8_000, 0, 1, 1000), PodSpec(32_000, 0, 4, 1000)
MIX = [QUARTER, ONE, QUARTER, HALF, FOUR, QUARTER, ONE, HALF]
# The scheduler learns what is usual after 32 Pods, and looks again after 48, 72, 108, 162 and 243: the Pods that come
# after these are too few for another look, so it knows what the simulator knows.
SEEN_BEFORE, COMING = 168, 45
LOAD, SEED = 0.9, 23  # with these some Pods of four cards wait


def _manifest(name: str, spec: PodSpec, scheduler: str | None = None) -> Object:
    """The same in gpushare's words: a part of a card is a part of its memory."""
    limits = {MEM: CARD_GIB * spec.demand_milli // 1000, "cpu": spec.cpu_milli // 1000}
    annotations = {COUNT: str(spec.num_gpu)} if spec.num_gpu > 1 else {}
    return pod(name, limits, annotations=annotations, scheduler=scheduler)


def _simulated() -> list[tuple[Step, PodSpec]]:
    """What happens until the last of the Pods has its place."""
    offers = frozenset({Offer.ANY})
    nodes = [a_node(f"n{at}", *[CARD_GIB] * CARDS, offers=offers, cpu_milli=1000 * CORES) for at in range(NODES)]
    coming = come_and_go(MIX, 1000 * NODES * CARDS, LOAD, SEED)[:COMING]
    steps: list[Step] = []
    clock = itertools.count().__next__
    churn(nodes, MIX, coming, "dense", load=LOAD, known=MIX * 4, clock=clock, watch=steps.append)
    last = max(at for at, step in enumerate(steps) if step.grant)
    return [(step, MIX[coming[step.uid].kind]) for step in steps[: last + 1]]


def _let_it_see(cluster: Wired) -> None:
    """Pods of another scheduler: ours learns from them and gives them nothing."""
    names = [f"seen-{at}" for at in range(SEEN_BEFORE)]
    cluster.create(*(_manifest(name, MIX[at % len(MIX)], "another-scheduler") for at, name in enumerate(names)))
    cluster.wait_heard()
    for name in names:
        objects.delete_pod(cluster.plane, name)


def test_a_real_kube_scheduler_places_and_delays_pods_as_simulated(cluster: Wired) -> None:
    steps = _simulated()
    cluster.create(*(gpushare_node(f"n{at}", *[CARD_GIB] * CARDS, cpu=CORES) for at in range(NODES)))
    # What a share of memory is of a card is only known with the nodes.
    wait_until(lambda: len(cluster.status()["nodes"]) == NODES, 60, "ours has heard of the nodes")
    _let_it_see(cluster)
    waiting: set[int] = set()
    waited: list[PodSpec] = []
    came: set[int] = set()
    for at, (step, spec) in enumerate(steps):
        name = f"p{step.uid}"
        what = f"step {at} of {len(steps)}: {name}, {spec}"
        if step.leaves:
            objects.delete_pod(cluster.plane, name)
            # Ours hears of it by its own watch, which may come after kube-scheduler's question about the next Pod.
            assert_board_is_true(cluster.plane, cluster.ours, 60)
            continue
        if step.uid not in came:
            came.add(step.uid)
            cluster.create(_manifest(name, spec))
        if step.grant is None:
            assert not waiting, "choose another seed"
            waiting.add(step.uid)
            waited.append(spec)
            cluster.await_event(name, "FailedScheduling", seconds=60)
            assert objects.bound_to(cluster.plane, name) is None, what
            continue
        waiting.discard(step.uid)
        node = cluster.bound(name, seconds=60)[name]
        cards = sorted(share.card for container in step.grant.containers for share in container.shares)
        assert (node, cluster.cards(name)) == (step.grant.node, cards), what
        for other in waiting:
            assert objects.bound_to(cluster.plane, f"p{other}") is None, f"{what}: p{other} should still wait"
    assert FOUR in waited, "choose another seed"
