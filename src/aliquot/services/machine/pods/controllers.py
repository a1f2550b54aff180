"""Which Pods there should be, as Kubernetes's controllers have it: a function of what is wanted and what is there.

Deployment, ReplicaSet and ReplicationController keep so many of the present template; a StatefulSet keeps NAME-0 to
NAME-n, each made again when the one of that name is gone; a Job makes Pods until enough have succeeded, or too many
have failed, and waits longer after each that does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aliquot.dialects.local.objects import Amounts
from aliquot.model.localpod import LocalPod, Phase, Workload
from aliquot.services.machine.pods.lifecycle import FIRST_PAUSE, LONGEST_PAUSE


@dataclass(frozen=True, slots=True)
class Decision:
    """`make` has the names of new Pods; None: any name. `end` are those that are to go."""

    make: tuple[str | None, ...] = ()
    end: tuple[LocalPod, ...] = ()


def decide(workload: Workload, amounts: Amounts, there: Sequence[LocalPod], now: float) -> Decision:
    """`there` are all Pods that the workload owns; `now` is seconds since 1970."""
    if workload.kind == "StatefulSet":
        return _stateful(workload, amounts.replicas, there)
    if workload.kind == "Job":
        return _job(amounts, there, now)
    return _replicas(workload, amounts.replicas, there)


def ready(there: Sequence[LocalPod]) -> int:
    """How many of them run as they should."""
    return sum(
        each.state.phase is Phase.RUNNING
        and each.ending is None
        and all(container.state == "running" for container in each.state.containers if not container.init)
        for each in there
    )


def _replicas(workload: Workload, wanted: int, there: Sequence[LocalPod]) -> Decision:
    here = [each for each in there if each.ending is None]
    good = [each for each in here if not each.state.phase.over and each.template == workload.template]
    # Those that do not run yet go first, then the youngest.
    good.sort(key=lambda each: (each.state.phase is not Phase.RUNNING, each.created))
    kept = {each.uid for each in good[:wanted]}
    return Decision((None,) * (wanted - len(kept)), tuple(each for each in here if each.uid not in kept))


def _stateful(workload: Workload, wanted: int, there: Sequence[LocalPod]) -> Decision:
    names = {f"{workload.name}-{index}" for index in range(wanted)}
    taken = {each.name for each in there}  # one that is ending keeps its name until it is gone
    wrong = [
        each
        for each in there
        if each.ending is None
        and (each.name not in names or each.state.phase.over or each.template != workload.template)
    ]
    make = [f"{workload.name}-{index}" for index in range(wanted) if f"{workload.name}-{index}" not in taken]
    return Decision(tuple(make), tuple(wrong))


def _job(amounts: Amounts, there: Sequence[LocalPod], now: float) -> Decision:
    here = [each for each in there if each.ending is None]
    active = [each for each in here if not each.state.phase.over]
    succeeded = sum(each.state.phase is Phase.SUCCEEDED for each in here)
    failed = [each for each in here if each.state.phase is Phase.FAILED]
    tries = sum(1 + sum(container.restarts for container in each.state.containers) for each in failed)
    if tries > amounts.backoff_limit:
        return Decision(end=tuple(active))
    wanted = min(amounts.replicas, max(0, (amounts.completions or 0) - succeeded))
    if amounts.workers:
        wanted = len(active) if succeeded else amounts.replicas
    make = 0 if now < _not_before(here) else max(0, wanted - len(active))
    return Decision((None,) * make, tuple(active[wanted:]))


def _not_before(there: Sequence[LocalPod]) -> float:
    """When the next one may be made: later with each that failed since the last one that did not."""
    over = sorted((each for each in there if each.state.phase.over), key=lambda each: each.state.finished or 0.0)
    failures = 0
    for each in over:
        failures = failures + 1 if each.state.phase is Phase.FAILED else 0
    if not failures:
        return 0.0
    return (over[-1].state.finished or 0.0) + min(FIRST_PAUSE * 2.0 ** min(failures - 1, 20), LONGEST_PAUSE)
