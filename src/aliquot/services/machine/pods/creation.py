"""Creates Pod records: new Pods, replicas, and Pods that start over after a reboot. Stores nothing."""

from __future__ import annotations

import secrets
from dataclasses import replace
from uuid import uuid4

from aliquot.adapters.host.home import Home
from aliquot.dialects.kube.conditions import scheduling_gates
from aliquot.dialects.local.objects import pod_of, template_of
from aliquot.model.containers.localpod import MOST_EVENTS, Applier, LocalPod, Phase, PodEvent, PodState, Workload
from aliquot.model.decoding.openjson import JsonObject
from aliquot.services.machine.pods import launchspec
from aliquot.wording.refusals import held_back
from aliquot.wording.requests import requests, wants

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # as in Kubernetes: no vowels, so that no words appear


def new_pod(manifest: JsonObject, owner: tuple[str, str] | None, applier: Applier, home: Home, now: float) -> LocalPod:
    """A new record; the caller stores it."""
    metadata = manifest["metadata"]
    pod = LocalPod(
        str(uuid4()), metadata["namespace"], metadata["name"], owner, manifest, template_of(manifest), applier, now
    )
    claim = launchspec.claim_of(pod)
    gates = scheduling_gates(manifest["spec"])
    why = () if claim is None else (requests(wants(claim), claim.dialect),)
    reason = held_back(gates) if gates else None
    state = PodState(why=why, reason=reason, containers=launchspec.states(pod, "", None, logs_of(home, pod.uid)))
    by = "" if owner is None else f" by {owner[0]} {owner[1]}"
    return replace(pod, state=with_event(state, now, f"created{by}"))


def replica(workload: Workload, name: str | None, home: Home, now: float) -> LocalPod:
    """One more Pod of the workload; None: with a generated name."""
    if name is None:
        name = f"{workload.name[:57]}-{''.join(secrets.choice(_LETTERS) for _ in range(5))}"
    owner = (workload.kind, workload.name)
    pod = new_pod(pod_of(workload.manifest, name), owner, workload.applier, home, now)
    return replace(pod, template=workload.template)


def logs_of(home: Home, uid: str) -> str:
    """The folder of the logs of its containers."""
    return f"{home.pod_logs}/{uid}"


def started_over(pod: LocalPod, logs: str) -> PodState:
    """The state of the same Pod on a rebooted node: it starts from the beginning."""
    fresh = launchspec.states(pod, "", None, logs)
    return replace(pod.state, phase=Phase.PENDING, reason=None, node=None, containers=fresh, started=None)


def failed(state: PodState, why: str, now: float) -> PodState:
    """The state of a Pod that failed: none of its containers runs."""
    ended = tuple(
        container if container.state == "ended" else replace(container, state="ended", ended=now, pid=None)
        for container in state.containers
    )
    state = replace(state, phase=Phase.FAILED, reason=why, finished=now, containers=ended)
    return with_event(state, now, why, "Warning")


def with_event(state: PodState, now: float, text: str, kind: str = "Normal") -> PodState:
    """The state with one more event."""
    return replace(state, events=(*state.events, PodEvent(now, text, kind))[-MOST_EVENTS:])
