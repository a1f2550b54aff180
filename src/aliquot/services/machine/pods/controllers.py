"""The workload controllers, as in Kubernetes: pure functions from desired and existing Pods to a decision.

Deployment, ReplicaSet and ReplicationController keep N Pods of the current template. A StatefulSet keeps NAME-0 to
NAME-(N-1) and recreates each once the Pod of that name is gone. A Job creates Pods until enough have succeeded or too
many have failed, with exponential back-off after failures; a suspended Job ends those that run. A DaemonSet has one
Pod: there is one machine. The Jobs of a CronJob: cron.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aliquot.dialects.local.objects import CRON_JOB, Amounts
from aliquot.model.containers.localpod import LocalPod, Phase, Workload
from aliquot.model.numbers.backoff import backoff
from aliquot.services.machine.pods.lifecycle import FIRST_PAUSE, LONGEST_PAUSE


@dataclass(frozen=True, slots=True)
class Decision:
    """`make`: names of the Pods to create; None: a generated name. `end`: the Pods to delete."""

    make: tuple[str | None, ...] = ()
    end: tuple[LocalPod, ...] = ()


def decide(workload: Workload, amounts: Amounts, pods: Sequence[LocalPod], now: float) -> Decision:
    """`pods` are all Pods that the workload owns; `now` is seconds since 1970."""
    if workload.kind == "StatefulSet":
        return _stateful(workload, amounts.replicas, pods)
    if workload.kind == CRON_JOB:
        return Decision()
    if workload.kind == "Job":
        return _job(amounts, pods, now)
    return _replicas(workload, amounts.replicas, pods)


def ready(pods: Sequence[LocalPod]) -> int:
    """The number of Pods whose main containers all run."""
    return sum(
        pod.state.phase is Phase.RUNNING
        and pod.ending is None
        and all(container.state == "running" for container in pod.state.containers if not container.init)
        for pod in pods
    )


def _replicas(workload: Workload, wanted: int, pods: Sequence[LocalPod]) -> Decision:
    here = [pod for pod in pods if pod.ending is None]
    good = [pod for pod in here if not pod.state.phase.over and pod.template == workload.template]
    # Delete Pods that do not run yet first, then the youngest.
    good.sort(key=lambda pod: (pod.state.phase is not Phase.RUNNING, pod.created))
    kept = {pod.uid for pod in good[:wanted]}
    return Decision((None,) * (wanted - len(kept)), tuple(pod for pod in here if pod.uid not in kept))


def _stateful(workload: Workload, wanted: int, pods: Sequence[LocalPod]) -> Decision:
    names = {f"{workload.name}-{index}" for index in range(wanted)}
    taken = {pod.name for pod in pods}  # an ending Pod keeps its name until it is gone
    wrong = [
        pod
        for pod in pods
        if pod.ending is None and (pod.name not in names or pod.state.phase.over or pod.template != workload.template)
    ]
    make = [f"{workload.name}-{index}" for index in range(wanted) if f"{workload.name}-{index}" not in taken]
    return Decision(tuple(make), tuple(wrong))


def outcome(amounts: Amounts, pods: Sequence[LocalPod]) -> Phase:
    """The phase of a Job; `pods` are all that it owns."""
    here = [pod for pod in pods if pod.ending is None]
    succeeded = sum(pod.state.phase is Phase.SUCCEEDED for pod in here)
    if _tries(here) > amounts.backoff_limit:
        return Phase.FAILED
    active = any(not pod.state.phase.over for pod in here)
    enough = not active and succeeded if amounts.workers else succeeded >= (amounts.completions or 0)
    return Phase.SUCCEEDED if enough else Phase.RUNNING if active else Phase.PENDING


def _tries(pods: Sequence[LocalPod]) -> int:
    """How often Pods of a Job, and their containers, have failed."""
    failed = [pod for pod in pods if pod.state.phase is Phase.FAILED]
    return sum(1 + sum(container.restarts for container in pod.state.containers) for pod in failed)


def _job(amounts: Amounts, pods: Sequence[LocalPod], now: float) -> Decision:
    here = [pod for pod in pods if pod.ending is None]
    active = [pod for pod in here if not pod.state.phase.over]
    succeeded = sum(pod.state.phase is Phase.SUCCEEDED for pod in here)
    tries = _tries(here)
    if tries > amounts.backoff_limit or amounts.suspended:
        return Decision(end=tuple(active))
    wanted = min(amounts.replicas, max(0, (amounts.completions or 0) - succeeded))
    if amounts.workers:
        wanted = len(active) if succeeded else amounts.replicas
    make = 0 if now < _not_before(here) else max(0, wanted - len(active))
    return Decision((None,) * make, tuple(active[wanted:]))


def _not_before(pods: Sequence[LocalPod]) -> float:
    """When the next Pod may be created: later with pod failure since the last success."""
    over = sorted((pod for pod in pods if pod.state.phase.over), key=lambda pod: pod.state.finished or 0.0)
    failures = 0
    for pod in over:
        failures = failures + 1 if pod.state.phase is Phase.FAILED else 0
    if not failures:
        return 0.0
    return (over[-1].state.finished or 0.0) + backoff(failures, first=FIRST_PAUSE, longest=LONGEST_PAUSE)
