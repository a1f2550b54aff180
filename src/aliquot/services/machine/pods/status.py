"""The Pods of one machine, for its status. As Kubernetes would show them: dialects/local/status.py."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import islice

from msgspec import UNSET, UnsetType

from aliquot.dialects.kube.conditions import scheduling_gates
from aliquot.dialects.local.objects import CRON_JOB, amounts_of
from aliquot.dialects.local.pods import restart_policy_of
from aliquot.dialects.local.status import render_cron_job, render_pod, render_workload
from aliquot.model.claim import AppClass, Claim
from aliquot.model.containers.localpod import ContainerState, LocalPod, Phase, Workload
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.status.machine import (
    ContainerStatus,
    OwnerStatus,
    PodEventStatus,
    PodStatus,
    RefusalStatus,
    WorkloadStatus,
    requests_of,
)
from aliquot.model.tenant import Standing
from aliquot.services.machine.pods import launchspec
from aliquot.services.machine.pods.controllers import outcome, ready
from aliquot.services.machine.pods.cron import CronJobs, next_run
from aliquot.services.machine.pods.manager import PodManager
from aliquot.services.machine.queue import request_shape
from aliquot.services.machine.tenants.machine import LocalMachine
from aliquot.services.runtime.standings import share_statuses
from aliquot.wording import shortage
from aliquot.wording.refusals import one_sentence
from aliquot.wording.requests import wants

_LONGEST_COMMAND = 500  # characters of it that are reported
_LONGEST_KEY, _LONGEST_LABEL, _MOST_LABELS = 317, 63, 32


def workload_statuses(pods: PodManager) -> list[WorkloadStatus]:
    """Every workload."""
    return [_workload(pods, workload) for workload in pods.workloads.values()]


def pod_statuses(pods: PodManager, standings: Mapping[str, Mapping[str, Standing]]) -> list[PodStatus]:
    """Every Pod. `standings` by tenant and card."""
    reasons = _Reasons(pods.machine)
    return [_pod(pods, pod, standings, reasons) for pod in pods.pods.values()]


class _Reasons:
    """Why Pods wait or failed, each in a sentence. Pods that ask for the same share one sentence."""

    def __init__(self, node: LocalMachine) -> None:
        self._node = node
        self._entries = {entry.id: entry for entry in node.queue}
        self._known: dict[object, str] = {}
        self._never: dict[object, list[RefusalStatus]] = {}

    def of(self, pod: LocalPod) -> str | None:
        """None: there is no reason to report."""
        entry = self._entries.get(pod.tenant)
        if entry is None:
            return pod.state.reason
        standing = self._node.queue.last_position(entry)
        place = f"number {standing.position} of {standing.of} in the queue"
        if standing.kept_for is not None:
            return f"{place}: {shortage.reason(standing)}"
        shape = request_shape(entry.claim)
        if shape not in self._known:
            refusals = self._node.chooser.refusals(entry.claim)
            self._known[shape] = one_sentence(refusals, entry.claim, len(self._node.nodes))
        return f"{place}: {self._known[shape]}"

    def never(self, pod: LocalPod, claim: Claim | None) -> list[RefusalStatus] | UnsetType:
        """What the cards lack for a Pod that waits outside the queue, because none could ever take it."""
        waits = pod.state.phase is Phase.PENDING and pod.state.node is None and pod.state.reason is not None
        if claim is None or not waits or pod.tenant in self._entries or scheduling_gates(pod.manifest["spec"]):
            return UNSET
        shape = request_shape(claim)
        if shape not in self._never:
            self._never[shape] = [
                RefusalStatus(refusal.card, refusal.reason, refusal.wanted, refusal.had, refusal.node, refusal.never)
                for refusal in self._node.chooser.refusals(claim)
                if refusal.card is not None
            ]
        return self._never[shape]


def _workload(pods: PodManager, workload: Workload) -> WorkloadStatus:
    owned, amounts = pods.owned(workload), amounts_of(workload.manifest)
    if workload.kind == CRON_JOB:
        return _cron_job(pods, workload)
    done = sum(pod.state.phase is Phase.SUCCEEDED for pod in owned)
    return WorkloadStatus(
        kind=workload.kind,
        namespace=workload.namespace,
        name=workload.name,
        replicas=amounts.replicas if amounts.completions is None else amounts.completions,
        ready=ready(owned) if amounts.completions is None else done,
        created=workload.created,
        user=workload.applier.user,
        labels=_labels(workload.manifest),
        suspended=amounts.suspended,
        phase=None if amounts.completions is None else outcome(amounts, owned).value,
    )


def _cron_job(pods: PodManager, workload: Workload) -> WorkloadStatus:
    """Its Jobs, and those of them that are not over."""
    cron_jobs, suspended = CronJobs(pods), amounts_of(workload.manifest).suspended
    return WorkloadStatus(
        kind=workload.kind,
        namespace=workload.namespace,
        name=workload.name,
        replicas=len(cron_jobs.jobs(workload)),
        ready=len(cron_jobs.active(workload)),
        created=workload.created,
        user=workload.applier.user,
        labels=_labels(workload.manifest),
        suspended=suspended,
        schedule=workload.manifest["spec"]["schedule"],
        last_run=cron_jobs.last_run(workload),
        next_run=None if suspended else next_run(workload, time.time()),
    )


def _pod(
    pods: PodManager, pod: LocalPod, standings: Mapping[str, Mapping[str, Standing]], reasons: _Reasons
) -> PodStatus:
    claim, state, tenancy = pods.claims[pod.uid], pod.state, pods.machine.tenancies.get(pod.tenant)
    return PodStatus(
        namespace=pod.namespace,
        name=pod.name,
        key=pod.key,
        uid=pod.uid,
        user=pod.applier.user,
        owner=None if pod.owner is None else OwnerStatus(*pod.owner),
        dialect=None if claim is None else claim.dialect,
        app_class=AppClass.NORMAL if claim is None else claim.app_class,
        phase=state.phase.value,
        reason=reasons.of(pod),
        terminating=pod.ending is not None,
        node=state.node,
        cards=[] if tenancy is None else share_statuses(tenancy.shares, standings.get(pod.tenant, {})),
        containers=[container_status(container) for container in state.containers],
        created=pod.created,
        started=state.started,
        finished=state.finished,
        restart_policy=restart_policy_of(pod.manifest),
        labels=_labels(pod.manifest),
        wants="" if claim is None else wants(claim),
        requests=[] if claim is None else requests_of(claim),
        refusals=reasons.never(pod, claim),
        why=list(state.why),
        events=[PodEventStatus(event.time, event.text, event.type) for event in state.events],
    )


def _labels(manifest: JsonView) -> dict[str, str]:
    """Those that Kubernetes would take: others can be of any length, and everybody may see them."""
    there = manifest["metadata"].get("labels")
    fit = (
        (key, value)
        for key, value in (there.items() if isinstance(there, Mapping) else ())
        if isinstance(value, str) and len(key) <= _LONGEST_KEY and len(value) <= _LONGEST_LABEL
    )
    return dict(islice(fit, _MOST_LABELS))


def container_status(container: ContainerState) -> ContainerStatus:
    """The container as every user may see it."""
    return ContainerStatus(
        name=container.name,
        image=container.image,
        command=_shortened(container.command),
        log=container.log,
        init=container.init,
        state=container.state,
        exit_code=container.exit_code,
        restarts=container.restarts,
        started=container.started,
        ended=container.ended,
        pid=container.pid,
        reason=container.reason,
    )


def _shortened(command: Sequence[str]) -> list[str]:
    """Everybody may see every command: a very long one must not make the answer too long for all."""
    found, left = [], _LONGEST_COMMAND
    for word in command:
        found.append(word if len(word) <= left else word[:left] + "...")
        left -= len(word) + 1
        if left <= 0:
            break
    return found


def pod_object(pods: PodManager, pod: LocalPod) -> JsonView:
    """The Pod as it was applied, with its status."""
    return render_pod(pod, launchspec.manifest_of(pod), _Reasons(pods.machine).of(pod), _stamp)


def workload_object(pods: PodManager, workload: Workload) -> JsonView:
    """The workload as it was applied, with its status."""
    status = _workload(pods, workload)
    if workload.kind == CRON_JOB:
        active = [job.name for job in CronJobs(pods).active(workload)]
        return render_cron_job(workload, active, status.last_run, _stamp)
    return render_workload(workload, pods.owned(workload), status.ready, _stamp, phase=status.phase)


def _stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
