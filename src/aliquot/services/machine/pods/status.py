"""The Pods of one machine as JSON, for `status`. As Kubernetes would show them: dialects/local/status.py."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any

from aliquot.dialects.local.objects import amounts_of
from aliquot.dialects.local.pods import restart_policy_of
from aliquot.dialects.local.status import render_pod, render_workload
from aliquot.model.claim import AppClass
from aliquot.model.localpod import ContainerState, LocalPod, Phase, PodEvent, Workload
from aliquot.model.tenant import Standing
from aliquot.services.machine.pods import launchspec
from aliquot.services.machine.pods.controllers import ready
from aliquot.services.machine.pods.manager import PodManager
from aliquot.services.machine.queue import request_shape
from aliquot.services.machine.tenants import LocalMachine
from aliquot.services.runtime.standings import shares_told
from aliquot.wording.refusals import one_sentence
from aliquot.wording.requests import wants

# All of it: `dataclasses.asdict` copies every value, and takes most of the time that a thousand Pods take.
_OF_CONTAINERS = tuple(field.name for field in fields(ContainerState))
_OF_EVENTS = tuple(field.name for field in fields(PodEvent))
_LONGEST_COMMAND = 500  # characters of it that are told
_LONGEST_KEY, _LONGEST_LABEL, _MOST_LABELS = 317, 63, 32


def pods_told(pods: PodManager, standings: Mapping[str, Mapping[str, Standing]]) -> dict[str, Any]:
    """Workloads and Pods, as `status` shows them. `standings` by tenant and card."""
    reasons = _Reasons(pods.machine)
    return {
        "workloads": [_workload(pods, workload) for workload in pods.workloads.values()],
        "pods": [_pod(pods, pod, standings, reasons.of(pod)) for pod in pods.pods.values()],
    }


class _Reasons:
    """Why Pods wait or failed, each in a sentence. Those who ask for the same are told the same."""

    def __init__(self, node: LocalMachine) -> None:
        self._node = node
        self._entries = {each.id: each for each in node.queue}
        self._known: dict[object, str] = {}

    def of(self, pod: LocalPod) -> str | None:
        """None: nothing to tell."""
        entry = self._entries.get(pod.tenant)
        if entry is None:
            return pod.state.reason
        standing = entry.last_position or self._node.queue.position_of(entry)
        place = f"number {standing['position']} of {standing['of']} in the queue"
        if standing["kept_for"] is not None:
            return f"{place}: the room there is is kept for {standing['kept_for']}"
        shape = request_shape(entry.claim)
        if shape not in self._known:
            refusals = self._node.chooser.refusals(entry.claim)
            self._known[shape] = one_sentence(refusals, entry.claim, len(self._node.nodes))
        return f"{place}: {self._known[shape]}"


def _workload(pods: PodManager, workload: Workload) -> dict[str, Any]:
    there, amounts = pods.owned(workload), amounts_of(workload.manifest)
    done = sum(each.state.phase is Phase.SUCCEEDED for each in there)
    return {
        "kind": workload.kind,
        "namespace": workload.namespace,
        "name": workload.name,
        "replicas": amounts.replicas if amounts.completions is None else amounts.completions,
        "ready": ready(there) if amounts.completions is None else done,
        "created": workload.created,
        "user": workload.applier.user,
        "labels": _labels(workload.manifest),
    }


def _pod(
    pods: PodManager, pod: LocalPod, standings: Mapping[str, Mapping[str, Standing]], reason: str | None
) -> dict[str, Any]:
    claim, state, tenancy = pods.claims[pod.uid], pod.state, pods.machine.tenancies.get(pod.tenant)
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "key": pod.key,
        "uid": pod.uid,
        "user": pod.applier.user,
        "owner": None if pod.owner is None else {"kind": pod.owner[0], "name": pod.owner[1]},
        "dialect": None if claim is None else claim.dialect,
        "class": (AppClass.NORMAL if claim is None else claim.app_class).value,
        "phase": state.phase.value,
        "reason": reason,
        "terminating": pod.ending is not None,
        "node": state.node,
        "cards": [] if tenancy is None else shares_told(tenancy.shares, standings.get(pod.tenant, {})),
        "containers": [container_told(container) for container in state.containers],
        "created": pod.created,
        "started": state.started,
        "finished": state.finished,
        "restart_policy": restart_policy_of(pod.manifest),
        "labels": _labels(pod.manifest),
        "wants": "" if claim is None else wants(claim),
        "why": list(state.why),
        "events": [{name: getattr(event, name) for name in _OF_EVENTS} for event in state.events],
    }


def _labels(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Those that Kubernetes would take: others can be as long as they like, and everybody is told them."""
    there = manifest["metadata"].get("labels")
    fit = (
        (key, value)
        for key, value in (there.items() if isinstance(there, Mapping) else ())
        if isinstance(value, str) and len(key) <= _LONGEST_KEY and len(value) <= _LONGEST_LABEL
    )
    return dict(islice(fit, _MOST_LABELS))


def container_told(container: ContainerState) -> dict[str, Any]:
    """As everybody may see it."""
    return {
        **{name: getattr(container, name) for name in _OF_CONTAINERS},
        "command": _shortened(container.command),
    }


def _shortened(command: Sequence[str]) -> list[str]:
    """Everybody is told everybody's: one with very long words must not make the answer too long for all."""
    found, left = [], _LONGEST_COMMAND
    for word in command:
        found.append(word if len(word) <= left else word[:left] + "...")
        left -= len(word) + 1
        if left <= 0:
            break
    return found


def pod_object(pods: PodManager, pod: LocalPod) -> Mapping[str, Any]:
    """The Pod as it was applied, with its status."""
    return render_pod(pod, launchspec.manifest_of(pod), _Reasons(pods.machine).of(pod), _stamp)


def workload_object(pods: PodManager, workload: Workload) -> Mapping[str, Any]:
    """The workload as it was applied, with its status."""
    there = pods.owned(workload)
    return render_workload(workload, there, _workload(pods, workload)["ready"], _stamp)


def _stamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
