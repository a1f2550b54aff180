"""Whole cards on one machine: `nvidia.com/gpu`, and qGPU's rules of 2026; against a daemon that runs the Pods."""

from __future__ import annotations

from typing import Any

import yaml

from kit.machines.machine import ALIQUOT, FOREVER, Machine
from kit.values.manifests import QGPU_CORE, QGPU_MEMORY

Json = dict[str, Any]
CARDS = "3x24"  # of 24 GiB: conftest.py


def a_pod(name: str, limits: Json) -> Json:
    container = {"name": "main", "command": list(FOREVER), "resources": {"limits": limits}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


def apply(machine: Machine, *words: str, pods: tuple[Json, ...]) -> tuple[int, str]:
    done = machine.aliquot("apply", "-f", "-", *words, input=yaml.safe_dump_all(pods))
    return done.returncode, done.stderr


def cards(machine: Machine) -> dict[str, tuple[str, int]]:
    """State and number of whole cards of every Pod."""
    found = {}
    for pod in machine.status()["pods"]:
        granted = [share for tenant in machine.status()["tenants"] if tenant["name"].endswith(f"/{pod['name']}")
                   for share in tenant["cards"]]  # fmt: skip
        found[pod["name"]] = (pod["phase"], len(granted))
    return found


def test_nvidia_gpus_are_whole_cards_and_the_next_pod_waits(machine: Machine) -> None:
    code, err = apply(
        machine, "--wait", pods=(a_pod("two", {"nvidia.com/gpu": 2}), a_pod("one", {"nvidia.com/gpu": 1}))
    )
    assert code == 0, err
    assert "no card requested" not in err
    assert cards(machine) == {"two": ("Running", 2), "one": ("Running", 1)}
    booked = [card["memory_booked_bytes"] == card["memory_bytes"] for card in machine.status()["cards"]]
    assert booked == [True, True, True]
    code, err = apply(machine, pods=(a_pod("late", {"nvidia.com/gpu": "1"}),))
    assert code == 0, err
    assert cards(machine)["late"] == ("Pending", 0)


def test_pod_of_the_rules_of_2026_needs_the_flag_that_the_error_names(machine: Machine) -> None:
    pods = (a_pod("two", {QGPU_CORE: 200}), a_pod("part", {QGPU_CORE: 30, QGPU_MEMORY: 5}))
    code, err = apply(machine, pods=pods)
    assert code == 2
    assert "--rules 2026" in err
    code, err = apply(machine, "--wait", "--rules", "2026", pods=pods)
    assert code == 0, err
    assert cards(machine) == {"two": ("Running", 2), "part": ("Running", 1)}
    code, err = apply(machine, "--rules", "2026", pods=(a_pod("odd", {QGPU_CORE: 33, QGPU_MEMORY: 5}),))
    assert code == 2
    assert "steps of 5" in err


def test_run_by_the_rules_of_2026_has_whole_cards(machine: Machine) -> None:
    refused = machine.aliquot("run", "--core", "200", "--", "true")
    assert refused.returncode == 2
    assert "--rules 2026" in refused.stderr
    printed = machine.aliquot("run", "--rules", "2026", "--core", "200", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert printed.stdout == "GPU-0,GPU-1\n", printed.stderr


def test_rules_of_up_hold_for_apply_and_after_a_restart() -> None:
    up = (*ALIQUOT, "up", "--simulate", "2x24GiB", "--listen", "0")
    pod = a_pod("two", {QGPU_CORE: 200})
    machine = Machine([*up, "--rules", "2026"])
    try:
        assert "qGPU's rules of 2026" in machine.up()
        assert apply(machine, "--wait", pods=(pod,))[0] == 0
        machine.kill()
        started = machine.aliquot("up", "-d", "--listen", "0")
        assert started.returncode == 0, started.stderr
        assert apply(machine, "--dry-run", pods=(a_pod("other", {QGPU_CORE: 100}),))[0] == 0
        assert cards(machine)["two"] == ("Running", 2)
        code, err = apply(machine, "--dry-run", "--rules", "seed", pods=(a_pod("other", {QGPU_CORE: 100}),))
        assert (code, "--rules 2026" in err) == (2, True)
    finally:
        machine.aliquot("delete", "all", "--all", "--grace", "0")
        machine.aliquot("down")
        machine.daemon = None  # killed
        machine.close()
