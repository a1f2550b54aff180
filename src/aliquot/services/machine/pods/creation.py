"""Pods as they are made, and made anew: what is known of one before anything of it runs. Nothing is kept here."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any
from uuid import uuid4

from aliquot.adapters.host.home import Home
from aliquot.dialects.local.objects import pod_of, template_of
from aliquot.model.localpod import MOST_EVENTS, Applier, LocalPod, Phase, PodEvent, PodState, Workload
from aliquot.services.machine.pods import launchspec

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # as Kubernetes makes names: no word comes of them


def new_pod(
    manifest: dict[str, Any], owner: tuple[str, str] | None, applier: Applier, home: Home, now: float
) -> LocalPod:
    """Not there yet: it is to be written down."""
    metadata = manifest["metadata"]
    pod = LocalPod(
        str(uuid4()), metadata["namespace"], metadata["name"], owner, manifest, template_of(manifest), applier, now
    )
    claim = launchspec.claim_of(pod)
    why = () if claim is None else (launchspec.asked(claim),)
    state = PodState(why=why, containers=launchspec.states(pod, "", None, logs_of(home, pod.uid)))
    by = "" if owner is None else f" by {owner[0]} {owner[1]}"
    return replace(pod, state=with_event(state, now, f"made{by}"))


def replica(workload: Workload, name: str | None, home: Home, now: float) -> LocalPod:
    """One more Pod of the workload, by that name or any."""
    if name is None:
        name = f"{workload.name[:57]}-{''.join(secrets.choice(_LETTERS) for _ in range(5))}"
    owner = (workload.kind, workload.name)
    pod = new_pod(pod_of(workload.manifest, name), owner, workload.applier, home, now)
    return replace(pod, template=workload.template)


def logs_of(home: Home, uid: str) -> str:
    """The folder of its containers' output."""
    return f"{home.pod_logs}/{uid}"


def anew(pod: LocalPod, logs: str) -> PodState:
    """As on a node that was booted again: it is the same Pod, and begins once more."""
    fresh = launchspec.states(pod, "", None, logs)
    return replace(pod.state, phase=Phase.PENDING, reason=None, node=None, containers=fresh, started=None)


def failed(state: PodState, why: str, now: float) -> PodState:
    """Whatever ran of it runs no longer."""
    ended = tuple(
        container if container.state == "ended" else replace(container, state="ended", ended=now, pid=None)
        for container in state.containers
    )
    state = replace(state, phase=Phase.FAILED, reason=why, finished=now, containers=ended)
    return with_event(state, now, why, "Warning")


def with_event(state: PodState, now: float, text: str, kind: str = "Normal") -> PodState:
    """And one more thing that happened."""
    return replace(state, events=(*state.events, PodEvent(now, text, kind))[-MOST_EVENTS:])
