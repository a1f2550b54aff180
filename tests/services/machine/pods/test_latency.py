"""What online Pods and runs accept in latency, and qGPU's own release delay, are kept with the tenant."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

import pytest

from aliquot.adapters.host.control import AnswerError
from kit.machines.machine import FOREVER
from kit.machines.machinepods import Pods, container, pod
from kit.values.manifests import APP_CLASS, QGPU_MEMORY


def online(name: str, **annotations: str) -> dict[str, Any]:
    made = pod(name, container(gib=None, resources={"limits": {QGPU_MEMORY: 4}}))
    made["metadata"]["annotations"] = {APP_CLASS: "online", **annotations}
    return made


def kept(pods: Pods) -> dict[str, tuple[float | None, float | None]]:
    with contextlib.closing(sqlite3.connect(pods.machine.home / "state.db")) as database:
        rows = database.execute("SELECT name, latency, release_delay FROM tenants")
        return {name: (latency, delay) for name, latency, delay in rows}


def test_tenants_keep_the_latency_they_accept_and_qgpus_pods_their_delay(pods: Pods) -> None:
    pods.apply(online("serve"), online("fast", **{"aliquot.dev/latency": "2ms"}), pod("plain"))
    for name in ("serve", "fast", "plain"):
        pods.until(name)
    run = pods.machine.detach("--class", "online", "--latency", "5ms", "--memory", "1", "--", *FOREVER)
    try:
        assert kept(pods) == {
            "default/serve": (None, 0.1),
            "default/fast": (0.002, 0.1),
            "default/plain": (None, None),
            run: (0.005, None),
        }
        shown = {tenant["name"]: tenant["latency_seconds"] for tenant in pods.machine.status()["tenants"]}
        assert shown == {name: latency for name, (latency, _) in kept(pods).items()}
        for command in (("ps",), ("top", "--once")):
            lines = pods.machine.aliquot(*command).stdout.splitlines()
            assert any(line.startswith("NAME") and "LATENCY" in line for line in lines)
            rows = {row[0]: row for row in map(str.split, lines) if row}
            assert "2ms" in rows["default/fast"]
            assert "5ms" in rows[run]
    finally:
        pods.machine.aliquot("stop", run, "--timeout", "0")


def test_bad_latency_of_a_pod_is_refused_by_name(pods: Pods) -> None:
    with pytest.raises(AnswerError) as refused:
        pods.apply(online("serve", **{"aliquot.dev/latency": "2"}))
    assert refused.value.details["field"] == 'Pod default/serve: metadata.annotations["aliquot.dev/latency"]'
