"""The daemon of one machine from first to last: its home, what it joins, and a quiet end.

There is one per home, held by a lock on a file that the kernel drops with the process. A daemon that ends, however it
ends, leaves its tenants running: the next one takes them up again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from aliquot.adapters.home import TENANT_VARIABLE, Home
from aliquot.adapters.store import Store
from aliquot.model.device import Card
from aliquot.model.node import Isolation
from aliquot.model.tenancy import Tenancy
from aliquot.model.tenant import SharingRules

from .conversing import about, listen, unlink
from .door import Door, watch
from .lookout import Lookout
from .node import Arbiter, LocalNode
from .premises import UpError, make_home, take_lock

METRICS_PORT = 9478
_LOG = logging.getLogger("aliquot")


class Arbiterd(Arbiter, Protocol):
    """With its threads."""

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
    metrics_port: int | None = None


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
    )
    node.configure(_wished(node.rules, setup.policy, setup.release_delay))
    metrics = _metrics_socket(setup.metrics_port)
    port = metrics.getsockname()[1] if metrics else None
    lookout = Lookout(cards, setup.nvml)
    told = about(os.getpid(), time.time(), home=home.run, simulated=simulated, metrics_port=port)
    door = Door(node, lookout, told)
    lookout.start()
    arbiter.start()
    try:
        node.restore()
        listener = listen(home.control)
        await door.serve(listener, metrics, lambda: setup.say(_ready(node, simulated, port)))
    finally:
        arbiter.stop()
        lookout.stop()
        unlink(home.control)


def _environment(setup: Setup, tenancy: Tenancy, folder: str) -> dict[str, Any]:
    """What a tenant's processes need in their environment: `set` as it is, `front` before what is there."""
    cards = ",".join(share.uuid for share in tenancy.shares)
    of_its_own = {
        TENANT_VARIABLE: folder,
        "ALIQUOT_NAME": tenancy.tenant.name,
        "CUDA_VISIBLE_DEVICES": cards,
        "NVIDIA_VISIBLE_DEVICES": cards,
    }
    return {"set": {**setup.environment, **of_its_own}, "front": setup.front}


def _wished(rules: SharingRules, policy: Isolation | None, delay: float | None) -> SharingRules:
    """What was kept, unless the command line says otherwise."""
    if policy is not None:
        rules = replace(rules, isolation=policy)
    return rules if delay is None else replace(rules, release_delay=delay)


def _metrics_socket(port: int | None) -> socket.socket | None:
    """None: the usual port, and none at all where that is taken. 0: off."""
    if port == 0:
        return None
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", METRICS_PORT if port is None else port))
    except OSError as error:
        listener.close()
        if port is not None:
            raise UpError(f"--metrics-port: {port}: {error.strerror}") from error
        _LOG.warning("no metrics: port %d: %s; --metrics-port chooses another", METRICS_PORT, error.strerror)
        return None
    listener.listen(16)
    return listener


def _ready(node: LocalNode, simulated: str | None, port: int | None) -> str:
    cards = ", ".join(f"{card.index}: {card.model} {card.memory_mib / 1024:.0f} GiB" for card in node.cards)
    count = len(node.cards)
    words = [
        f"ready: {count} {'simulated ' if simulated else ''}card{'s' * (count > 1)} ({cards})",
        f"policy {node.rules.isolation.value}, release delay {node.rules.release_delay * 1000:g}ms",
    ]
    if node.tenancies:
        words.append(f"{len(node.tenancies)} running tenant{'s' * (len(node.tenancies) > 1)} taken up again")
    if port:
        words.append(f"metrics on http://127.0.0.1:{port}/metrics")
    return "; ".join(words)
