"""`aliquot up`: builds the daemon of one machine, runs it and shuts it down.

There is one daemon per home: it holds a file lock, which the kernel releases with the process. However a daemon ends,
its tenants keep running, and the next daemon adopts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import aliquot
from aliquot.adapters.gpu.mps import Mps
from aliquot.adapters.host.handedfiles import limit_files
from aliquot.adapters.host.home import NAME_VARIABLE, TENANT_VARIABLE, Home
from aliquot.adapters.host.hostmemory import host_memory_mib, pool_room_mib
from aliquot.adapters.host.logfiles import USUAL_LIMIT
from aliquot.adapters.host.users import read_lent
from aliquot.adapters.storage.store import Store, StoreError
from aliquot.arbiter.timeline import Record
from aliquot.model.containers.visible import visible_cards, visible_in_group
from aliquot.model.device import Card
from aliquot.model.node import Isolation
from aliquot.model.status.machine import DaemonStatus
from aliquot.model.tenancy import Tenancy, TenantEnvironment
from aliquot.model.tenant import AUTO, SharingRules
from aliquot.placement.policies.waste import Waste
from aliquot.services.daemon.control import listen, unlink
from aliquot.services.daemon.home import StartError, make_home, take_lock
from aliquot.services.daemon.loopdelay import LoopDelay
from aliquot.services.daemon.qgpumetrics import qgpu_families
from aliquot.services.daemon.tasks import run_forever
from aliquot.services.dashboard.access import Access, Listen
from aliquot.services.dashboard.server import bind, show
from aliquot.services.machine.control import ControlServer, watch_root
from aliquot.services.machine.dashboard import MachineView
from aliquot.services.machine.logs import RunLogs
from aliquot.services.machine.settings import KeptOptions, keep_options
from aliquot.services.machine.sweeper import Sweeper
from aliquot.services.machine.tenants.machine import LocalMachine
from aliquot.services.machine.tenants.registry import Arbiter
from aliquot.services.runtime.cards.meter import CardMeter
from aliquot.services.runtime.together.groups import Groups
from aliquot.services.runtime.usage.billing import KEEP_DAYS, Measuring, open_billing
from aliquot.services.runtime.usage.report import usage_families
from aliquot.wording.amounts import duration, memory, release_delay

USUAL = Listen("127.0.0.1", 9478, usual=True)
_POOL_PART = 4  # of the host's memory: a quarter, and only what is parked takes it
_LOG = logging.getLogger("aliquot")


class Arbiterd(Arbiter, Measuring, Protocol):
    """The arbiter and its threads."""

    def keep_trace(self, wanted: bool) -> None: ...
    def records(self) -> Mapping[str, Iterable[Record]]: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


MakeArbiter = Callable[[Sequence[Card], SharingRules], Arbiterd]


@dataclass(frozen=True, slots=True)
class Setup:
    """The parts and options of the daemon. None: as set last."""

    home: Home
    nvml: Any
    make_arbiter: MakeArbiter
    on_ready: Callable[[str], None]  # gets the line for the user
    environment: dict[str, str]  # of every tenant
    front: dict[str, list[str]]  # prepended to path lists of every tenant, for example LD_PRELOAD
    policy: Isolation | None = None
    release_delay: float | str | None = None  # "auto": learned
    enforce: str | None = None  # report or kill
    kill_after: float | None = None  # seconds over its memory limit; only with `enforce`
    simulated: str | None = None  # the cards, as in --simulate
    stand_ins: str | None = None  # the folder of the programs that stand in for NVIDIA's
    nodes: int = 1  # the cards are distributed over them
    listen: Listen = USUAL  # of the dashboard
    host_pool: int | None = None  # MiB of host memory for what is parked
    usage_days: int = KEEP_DAYS  # how long hours of the bill are kept
    qgpu_names: bool = False  # whether /metrics has those of qGPU's exporter too
    options: Mapping[str, str] = field(default_factory=dict)  # given now or before, by flag: for `aliquot up -d`
    kept_options: KeptOptions = field(default_factory=KeptOptions)  # for the next daemon
    log_limit: int | None = USUAL_LIMIT  # bytes of the log of one run or container; None: without a limit


def run_daemon(setup: Setup) -> None:
    """Run until SIGTERM or `aliquot down`. Raises StartError, AlreadyRunningError, StoreError and NvmlError."""
    home = setup.home
    limit_files()  # every process on a card and every queued run needs some
    read_lent()
    make_home(home)
    lock = take_lock(home)
    try:
        cards = setup.nvml.cards()
        if not cards:
            raise StartError("NVML reports no GPU on this machine")
        store = Store(home.database, home.tenants)
        for note in store.notes:
            _LOG.warning("store_note", extra={"data": {"note": note}})
        try:
            asyncio.run(_serve(setup, cards, store))
        finally:
            store.close()
    finally:
        os.close(lock)


async def _serve(setup: Setup, cards: Sequence[Card], store: Store) -> None:
    home, simulated = setup.home, setup.simulated
    arbiter = setup.make_arbiter(cards, SharingRules())
    groups = Groups(Path(home.groups), Mps(setup.environment, setup.front, setup.stand_ins), arbiter)
    machine = LocalMachine(
        cards,
        home=home,
        store=store,
        arbiter=arbiter,
        watch=lambda tenancy: watch_root(machine, tenancy),
        environment=lambda tenancy, folder: _environment(setup, tenancy, folder, groups, cards),
        names=_names(setup.nodes),
        pool_mib=_host_pool(store, setup, cards),
        groups=groups,
    )
    sweeper = Sweeper(machine, (TENANT_VARIABLE,))
    machine.configure(_rules(machine.rules, setup))
    listening = _listening(setup.listen)
    url = listening[1].url if listening else None
    meter = CardMeter(cards, setup.nvml)
    info = DaemonStatus(
        pid=os.getpid(),
        uid=os.geteuid(),
        version=aliquot.__version__,
        since=time.time(),
        home=home.run,
        simulated=simulated,
        dashboard=url,
        options=dict(setup.options),
    )
    keep_options(store, setup.kept_options)  # only now: with a port that is in use no daemon starts
    if listening:
        _add_access(info, setup.listen, listening[1])
    billing = open_billing(home.usage, arbiter, keep_days=setup.usage_days)
    control = ControlServer(machine, meter, info, sweeper, billing)
    meter.start()
    if listening:
        arbiter.keep_trace(True)
    arbiter.start()
    delay, dashboard = LoopDelay(), None
    logs = RunLogs(home.logs, setup.log_limit, machine.logs_in_use)
    tasks = [asyncio.create_task(run_forever(delay.run))]
    try:
        groups.workers.start()  # first: to end a group can take seconds
        machine.restore(await sweeper.scan(machine.stored_users()))
        tasks.append(asyncio.create_task(run_forever(logs.run)))  # only now it is known which logs are in use
        store.writer.start()
        if billing is not None:
            billing.start()
            tasks.append(asyncio.create_task(run_forever(billing.run)))
        listener = listen(home.control)
        if listening:
            families = [delay.families]
            if billing is not None:
                families.append(lambda: usage_families(billing.counters(), machine.cards))
            if setup.qgpu_names:
                families.append(lambda: qgpu_families(control.status(), socket.gethostname()))
            view = MachineView(control.status, Waste(machine.ledger.board), arbiter.records, families)
            dashboard = asyncio.create_task(show(view, *listening))
        await control.serve(listener, lambda: setup.on_ready(_ready(machine, simulated, url)))
    finally:
        await _cancel(dashboard)
        for task in tasks:
            await _cancel(task)
        await asyncio.to_thread(groups.workers.stop)
        await asyncio.to_thread(store.writer.stop)
        arbiter.stop()
        if billing is not None:
            await billing.stop()
        meter.stop()
        unlink(home.control)


def _names(count: int) -> tuple[str, ...]:
    """A single node is the machine itself; several nodes are always simulated."""
    return (socket.gethostname(),) if count == 1 else tuple(f"node-{at}" for at in range(count))


def _environment(
    setup: Setup, tenancy: Tenancy, folder: str, groups: Groups, cards: Sequence[Card]
) -> TenantEnvironment:
    uuids = [share.uuid for share in tenancy.shares]
    own = {
        TENANT_VARIABLE: folder,
        NAME_VARIABLE: tenancy.tenant.name,
        **(visible_in_group(len(uuids)) if tenancy.group else visible_cards(uuids, cards)),
        "NVIDIA_VISIBLE_DEVICES": ",".join(uuids),
    }
    return TenantEnvironment({**setup.environment, **own, **groups.environment(tenancy)}, setup.front)


def _rules(rules: SharingRules, setup: Setup) -> SharingRules:
    """The stored rules with the options of the command line."""
    if setup.policy is not None:
        rules = replace(rules, isolation=setup.policy)
    if setup.enforce is not None:
        rules = replace(rules, kill_after=setup.kill_after)
    if setup.release_delay is None:
        return rules
    return replace(rules, release_delay=None if setup.release_delay == AUTO else float(setup.release_delay))


def _host_pool(store: Store, setup: Setup, cards: Sequence[Card]) -> int:
    """MiB of the host's pool, now and after every restart. Simulated cards need no memory for theirs."""
    simulated = setup.simulated is not None
    there = sum(card.memory_mib for card in cards) if simulated else min(host_memory_mib(), pool_room_mib())
    stored = store.setting("host_pool")
    pool = setup.host_pool if setup.host_pool is not None or stored is None else int(stored)
    if pool is None or (pool > there and not simulated):
        pool = there if simulated else min(there, host_memory_mib() // _POOL_PART)
    if setup.host_pool is not None:
        try:
            store.set("host_pool", str(pool))
        except StoreError as error:
            _LOG.error("settings_not_stored", extra={"data": {"error": str(error)}})
    return pool


def _listening(listen: Listen) -> tuple[socket.socket, Access] | None:
    try:
        return bind(listen, "--listen")
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)  # the message of socket repeats the address
        raise StartError(
            f"--listen: {listen.address}:{listen.port}: {why}; choose another port, or 0 for none"
        ) from error


def _add_access(daemon: DaemonStatus, listen: Listen, access: Access) -> None:
    """How to reach the dashboard. Never the token itself."""
    daemon.dashboard_elsewhere = f"http://{socket.gethostname()}:{access.port}/" if access.everywhere else None
    daemon.token, daemon.token_file = access.token is not None, listen.token_file


async def _cancel(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _ready(machine: LocalMachine, simulated: str | None, url: str | None) -> str:
    kinds = Counter(f"{card.model} {memory(card.memory_mib)}" for card in machine.cards)
    cards = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    cards += f" on {len(machine.nodes)} nodes" if len(machine.nodes) > 1 else ""
    count = len(machine.cards)
    words = [
        f"ready: {count} {'simulated ' if simulated else ''}card{'s' * (count > 1)} ({cards})",
        f"policy {machine.rules.isolation.value}, release delay {release_delay(machine.rules.release_delay)}",
    ]
    if machine.rules.kill_after is not None:
        words.append(f"ends processes over their memory limit after {duration(machine.rules.kill_after)}")
    if machine.rules.oversubscribe > 1:
        pool = memory(machine.pool_mib)
        words.append(f"up to {machine.rules.oversubscribe:g} times a card's memory is booked, host pool {pool}")
    if machine.tenancies:
        count = len(machine.tenancies)
        words.append(f"adopted {count} running tenant{'s' * (count > 1)}")
    if url:
        words.append(f"dashboard on {url}")
    return "; ".join(words)
