"""The fifth part of the demo: three programs on a card that holds the memory of two."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from aliquot.cli.demo import promises
from aliquot.cli.demo.output import Output, command, heading, note
from aliquot.cli.demo.processes import DemoError, Sandbox, Tenant
from aliquot.model.residency import Where
from aliquot.model.status.machine import ResidencyStatus
from aliquot.wording.amounts import memory

FACTOR = 1.5
_PART = 0.4  # of a card: two programs fit on it, three do not
_LEAST_MIB = 3072  # smaller cards have no room for contexts beside two programs
_MOST_REAL_MIB = 8192  # real memory has to be copied, and the host to have it
_LEFT = 2.6  # programs that fit beside a tenant that holds the rest of a large card
_KERNEL_US = 1_000.0
_PATIENCE = 45.0  # seconds for a move
_LOOK = 0.02
_SLEEPER, _JOBS = "notebook", ("train-1", "train-2")


class Scenario(Protocol):
    """What this part needs of scenario.py."""

    sandbox: Sandbox
    output: Output
    pace: promises.Pace
    bounds: promises.Bounds
    outcome: list[promises.Promise]

    def watch(self, seconds: float) -> dict[str, float]:
        """Show the shares for that long."""


def size_mib(card_mib: int, pool_mib: int, *, real: bool) -> int:
    """Memory of each program; 0: the card or the pool is too small."""
    size = min(int(_PART * card_mib), pool_mib, _MOST_REAL_MIB if real else card_mib) // 1024 * 1024
    return size if size >= _LEAST_MIB else 0


def crowd(scenario: Scenario) -> None:
    """One program sleeps, and its memory leaves for others; it wakes, and has it back."""
    out, sandbox = scenario.output, scenario.sandbox
    heading(out, 5, "Three programs on a card that holds two; one sleeps and wakes")
    status = sandbox.status()
    card = max(status.cards, key=lambda card: card.free_mib)
    pool = status.pool.bytes >> 20 if status.pool else 0
    size = size_mib(card.memory_mib, pool, real=scenario.bounds is promises.REAL)
    if not size:
        note(out, "left out: the card, or the host's memory for what leaves it, is too small")
        return
    command(out, f"aliquot policy oversubscribe {FACTOR}")
    sandbox.ask({"op": "policy", "oversubscribe": FACTOR})
    rest = card.memory_mib - int(_LEFT * size)
    tenants = [_holder(scenario, rest)] if 3 * size < card.memory_mib else []
    try:
        _three(scenario, size, card.memory_mib, tenants)
    finally:
        for tenant in tenants:
            tenant.ask_to_end()
    sandbox.ask({"op": "policy", "oversubscribe": 1.0})


def _three(scenario: Scenario, size: int, card_mib: int, tenants: list[Tenant]) -> None:
    out, sandbox = scenario.output, scenario.sandbox
    amount, typed = ["--memory", f"{size + 512}MiB"], f"--memory {size // 1024}"  # a context counts too
    start = sandbox.home / "demo" / "wake"
    command(out, f"aliquot run -d --name {_SLEEPER} {typed} --park 1s -- aliquot burn serve")
    asleep = ["serve", "--memory", f"{size}MiB", "--period", "20ms", "--start-file", str(start), "--warmup", "0ms"]
    sleeper = sandbox.begin(_SLEEPER, [*amount, "--park", "1s"], [*asleep, "--check"], kernel_us=_KERNEL_US)
    tenants.insert(0, sleeper)
    _until(scenario, sleeper, lambda there: there.resident_bytes >= size << 20)
    jobs = []
    for name in _JOBS:
        command(out, f"aliquot run -d --name {name} --class offline {typed} -- aliquot burn load")
        work = ["load", "--memory", f"{size}MiB", "--check"]
        job = sandbox.begin(name, ["--class", "offline", *amount], work, kernel_us=_KERNEL_US)
        jobs.append(job)
        tenants.append(job)
        job.wait_until_working()
    there = _until(scenario, sleeper, lambda there: there.where is Where.PARKED)
    note(
        out, f"{_SLEEPER} sleeps: {memory(there.parked_bytes >> 20)} of it are in the host's memory, and both jobs run"
    )
    scenario.watch(scenario.pace.read)
    scenario.outcome.append(
        promises.crowded(
            size=memory(size),
            card=memory(card_mib),
            parked=memory(there.parked_bytes >> 20),
            held=not any(tenant.over for tenant in tenants),
        )
    )
    woken = _wake(sleeper, start)
    leaver = next((name for name in _JOBS if (found := _residency(scenario, name)) and found.parked_bytes), None)
    left = "" if leaver is None else f", and {leaver} left the card for it"
    note(out, "it does not wake" if woken is None else f"it wakes: its first kernel took {woken:.2f} s{left}")
    scenario.outcome.append(promises.woken(woken, size=memory(size), bounds=scenario.bounds))
    scenario.watch(scenario.pace.read)
    right = [tenant.finish().right is True for tenant in (sleeper, *jobs)]
    tenants[:] = [tenant for tenant in tenants if not tenant.over]
    kernels = sum(tenant.counter().done for tenant in (sleeper, *jobs))
    scenario.outcome.append(promises.memory_kept(right=all(right), kernels=kernels))


def _holder(scenario: Scenario, mib: int) -> Tenant:
    """A program that has the rest of a large card, and may not be parked."""
    note(scenario.output, f"(another program has {memory(mib)} of this large card)")
    words = ["serve", "--memory", f"{mib}MiB", "--period", "500ms"]
    return scenario.sandbox.begin("rest", ["--memory", f"{mib + 1024}MiB"], words, kernel_us=_KERNEL_US)


def _wake(sleeper: Tenant, start: Path) -> float | None:
    """Seconds from its first call to the end of its first kernel."""
    begin = time.monotonic()
    start.touch()
    while time.monotonic() < begin + _PATIENCE:
        if sleeper.over:
            return None
        first = sleeper.counter().first_after(begin) if sleeper.has_worked else None
        if first is not None:
            return first - begin
        time.sleep(_LOOK)
    return None


def _residency(scenario: Scenario, name: str) -> ResidencyStatus | None:
    tenants = scenario.sandbox.status().tenants
    found = (share.residency for tenant in tenants if tenant.name == name for share in tenant.cards)
    return next((there for there in found if there), None)


def _until(scenario: Scenario, tenant: Tenant, holds: Callable[[ResidencyStatus], bool]) -> ResidencyStatus:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and not tenant.over:
        there = _residency(scenario, tenant.name)
        if there is not None and holds(there):
            return there
        time.sleep(_LOOK)
    raise DemoError(f"the memory of {tenant.name} does not move")
