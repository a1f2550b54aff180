"""The daemon of one machine from first to last: its home, what it joins, and a quiet end.

There is one per home, held by a lock on a file that the kernel drops with the process. A daemon that ends, however it
ends, leaves its tenants running: the next one takes them up again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from aliquot.adapters.host.home import NAME_VARIABLE, TENANT_VARIABLE, Home
from aliquot.adapters.host.supervisors import Keepers
from aliquot.adapters.storage.store import Store
from aliquot.arbiter.timeline import Record
from aliquot.model.device import Card
from aliquot.model.node import Isolation
from aliquot.model.tenancy import Tenancy
from aliquot.model.tenant import SharingRules
from aliquot.placement.waste import Waste
from aliquot.services.daemon.control import about, listen, unlink
from aliquot.services.daemon.home import UpError, make_home, take_lock
from aliquot.services.dashboard.access import Access, Listen
from aliquot.services.dashboard.server import show, take_place
from aliquot.services.machine.control import Door, watch
from aliquot.services.machine.picture import MachinePicture
from aliquot.services.machine.pods.manager import LocalPods
from aliquot.services.machine.tenants import Arbiter, LocalNode
from aliquot.services.runtime.meter import Lookout

USUAL = Listen("127.0.0.1", 9478, usual=True)
_LOG = logging.getLogger("aliquot")


class Arbiterd(Arbiter, Protocol):
    """With its threads."""

    def keep_trace(self, wanted: bool) -> None: ...
    def records(self) -> Mapping[str, Iterable[Record]]: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


MakeArbiter = Callable[[Sequence[Card], SharingRules], Arbiterd]


@dataclass(frozen=True, slots=True)
class Setup:
    """What the daemon is made of. None: as it was last set."""

    home: Home
    nvml: Any
    make_arbiter: MakeArbiter
    say: Callable[[str], None]  # the line that tells that it is ready
    environment: dict[str, str]  # what every tenant gets
    front: dict[str, list[str]]  # what every tenant gets in front of the lists it has, LD_PRELOAD say
    policy: Isolation | None = None
    release_delay: float | None = None
    simulated: str | None = None  # the cards, as the command line writes them
    nodes: int = 1  # over which the cards are dealt out
    listen: Listen = USUAL  # for the dashboard


def run_daemon(setup: Setup) -> None:
    """Until it is told to end. Raises UpError, RunsAlreadyError, and what store and NVML raise."""
    home = setup.home
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # each process on a card and each who waits takes a few files
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    make_home(home)
    lock = take_lock(home)
    try:
        cards = setup.nvml.cards()
        if not cards:
            raise UpError("NVML tells of no card on this machine")
        store = Store(home.database, home.tenants)
        for note in store.notes:
            _LOG.warning("%s", note)
        try:
            asyncio.run(_serve(setup, cards, store))
        finally:
            store.close()
    finally:
        os.close(lock)


async def _serve(setup: Setup, cards: Sequence[Card], store: Store) -> None:
    home, simulated = setup.home, setup.simulated
    arbiter = setup.make_arbiter(cards, SharingRules())
    node = LocalNode(
        cards,
        home=home,
        store=store,
        arbiter=arbiter,
        watch=lambda tenancy: watch(node, tenancy),
        environment=lambda tenancy, folder: _environment(setup, tenancy, folder),
        names=_names(setup.nodes),
    )
    pods = LocalPods(
        node, store.objects, Keepers(home.control), lambda tenancy, folder: _environment(setup, tenancy, folder)
    )
    node.configure(_wished(node.rules, setup.policy, setup.release_delay))
    listening = _listening(setup.listen)
    url = listening[1].url if listening else None
    access = _access_told(setup.listen, listening[1]) if listening else {}
    lookout = Lookout(cards, setup.nvml)
    told = about(os.getpid(), time.time(), home=home.run, simulated=simulated, dashboard=url, **access)
    door = Door(node, lookout, told, pods)
    lookout.start()
    if listening:
        arbiter.keep_trace(True)
    arbiter.start()
    showing: asyncio.Task[None] | None = None
    try:
        node.restore()
        pods.restore(rebooted=node.rebooted)
        listener = listen(home.control)
        if listening:
            picture = MachinePicture(door.status, Waste(node.ledger.board), arbiter.records)
            showing = asyncio.create_task(show(picture, *listening))
        await door.serve(listener, lambda: setup.say(_ready(node, simulated, url)))
    finally:
        await _ended(showing)
        arbiter.stop()
        lookout.stop()
        unlink(home.control)


def _names(count: int) -> tuple[str, ...]:
    """One node is the machine; several can only be simulated."""
    return (socket.gethostname(),) if count == 1 else tuple(f"node-{at}" for at in range(count))


def _environment(setup: Setup, tenancy: Tenancy, folder: str) -> dict[str, Any]:
    """What a tenant's processes need in their environment: `set` as it is, `front` before what is there."""
    cards = ",".join(share.uuid for share in tenancy.shares)
    of_its_own = {
        TENANT_VARIABLE: folder,
        NAME_VARIABLE: tenancy.tenant.name,
        "CUDA_VISIBLE_DEVICES": cards,
        "NVIDIA_VISIBLE_DEVICES": cards,
    }
    return {"set": {**setup.environment, **of_its_own}, "front": setup.front}


def _wished(rules: SharingRules, policy: Isolation | None, delay: float | None) -> SharingRules:
    """What was kept, unless the command line says otherwise."""
    if policy is not None:
        rules = replace(rules, isolation=policy)
    return rules if delay is None else replace(rules, release_delay=delay)


def _listening(wished: Listen) -> tuple[socket.socket, Access] | None:
    try:
        return take_place(wished, "--listen")
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)  # socket's own words repeat the address
        raise UpError(f"--listen: {wished.address}:{wished.port}: {why}: another port, or 0 for none") from error


def _access_told(wished: Listen, access: Access) -> dict[str, Any]:
    """How others get there; the token itself is told to nobody."""
    elsewhere = f"http://{socket.gethostname()}:{access.port}/" if access.everywhere else None
    return {"dashboard_elsewhere": elsewhere, "token": access.token is not None, "token_file": wished.token_file}


async def _ended(showing: asyncio.Task[None] | None) -> None:
    if showing is not None:
        showing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await showing


def _ready(node: LocalNode, simulated: str | None, url: str | None) -> str:
    kinds = Counter(f"{card.model} {card.memory_mib / 1024:.0f} GiB" for card in node.cards)
    cards = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    cards += f" on {len(node.nodes)} nodes" if len(node.nodes) > 1 else ""
    count = len(node.cards)
    words = [
        f"ready: {count} {'simulated ' if simulated else ''}card{'s' * (count > 1)} ({cards})",
        f"policy {node.rules.isolation.value}, release delay {node.rules.release_delay * 1000:g}ms",
    ]
    if node.tenancies:
        words.append(f"{len(node.tenancies)} running tenant{'s' * (len(node.tenancies) > 1)} taken up again")
    if url:
        words.append(f"dashboard on {url}")
    return "; ".join(words)
