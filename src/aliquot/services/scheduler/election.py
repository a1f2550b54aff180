"""Who binds: one of several, by a Lease. The decision is a function of what the Lease says and how long it has said so.

15 s without a sign and the Lease is free; the holder gives up by itself after 10 s without a renewal, so that between
the two nobody binds: what the old one had on its way is settled before the new one begins. Clocks of other machines are
never compared with ours: what counts is how long *we* have seen the Lease unchanged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects.native import ADDRESS, CALLS
from aliquot.dialects.wire.leases import LeaseObject, leases_path, render_lease

log = logging.getLogger(__name__)

LEASE, GIVE_UP, RETRY = 15.0, 10.0, 2.0  # seconds
_FORBIDDEN_AFTER = 3  # rounds; an API server that starts says 403 too until it has read its roles


@dataclass(slots=True)
class Sight:
    """The Lease as last seen, and since when it has looked like that."""

    lease: LeaseObject | None
    since: float


def may_take(sight: Sight, identity: str, now: float) -> bool:
    """Whether the Lease may be taken: nobody's, our own, or silent for as long as it was taken for."""
    if sight.lease is None or not sight.lease.spec.holder_identity:
        return True
    spec = sight.lease.spec
    return spec.holder_identity == identity or now - sight.since >= float(spec.lease_duration_seconds or LEASE)


class Election:
    """Stands for election as long as `run` runs. `leading` is to be asked before every write."""

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        name: str,
        identity: str,
        address: str,
        calls: Callable[[], dict[str, Any]],
        refresh: Callable[[bool], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        self.identity = identity
        self.leader: str | None = None  # who holds the Lease, as last seen
        self.leader_address: str | None = None
        self._kube, self._clock, self._refresh = kube, clock, refresh
        self._collection = leases_path(namespace)
        self._path, self._name, self._namespace = f"{self._collection}/{name}", name, namespace
        self._address, self._calls = address, calls
        self._sight = Sight(None, 0.0)
        self._until = 0.0  # we lead until then
        self._ready = False  # we have seen everything that the one before us wrote
        self._readable = False  # the Lease was shown to us once: we have the right to it
        self._refusals = 0  # rounds that ended with a 403, one after the other
        self._forbidden = False
        self._said = ""  # what went wrong in the last round
        self._turn, self._ended = asyncio.Lock(), False

    @property
    def leading(self) -> bool:
        """Whether we may write now."""
        return self._forbidden or (self._ready and self._clock() < self._until)

    async def run(self) -> None:
        """Until cancelled."""
        while not self._ended:
            try:
                async with self._turn:
                    await self._round()
                self._refusals, self._forbidden, self._said = 0, False, ""
            except ApiError as error:
                if error.status == 403 and not self._readable:
                    await self._refused(error)
                elif error.status != 409:
                    self._warn(error)
            except Unreachable as error:
                self._warn(error)
            await asyncio.sleep(RETRY if self._ready or self._forbidden else RETRY / 2)

    def _warn(self, error: Exception) -> None:
        """Once, however many rounds end so."""
        if self._said != str(error):
            self._said = str(error)
            log.warning("cannot read or write the Lease", extra={"data": {"why": self._said}})

    async def _refused(self, error: ApiError) -> None:
        """The vendor's own ClusterRole (seed 000) knows no Leases; its Deployment has one replica."""
        self._refusals += 1
        if self._refusals == _FORBIDDEN_AFTER:
            log.warning(
                "no election: leading alone. Run no second replica, or allow get, create and update of leases",
                extra={"data": {"why": error.message}},
            )
            await self._refresh(False)
            self._forbidden = True

    async def resign(self) -> None:
        """Give the Lease back, so that another need not wait for it to run out."""
        self._ended = True
        try:
            async with asyncio.timeout(2 * RETRY), self._turn:  # a renewal on its way would be in the way of it
                was, self._until = self._ready, 0.0
                if was and self._sight.lease is not None:
                    await self._kube.replace(self._path, self._lease("", self._sight.lease), timeout=RETRY)
        except TimeoutError:
            log.info("the Lease will run out by itself")
        except (ApiError, Unreachable) as error:
            log.info("the Lease will run out by itself", extra={"data": {"why": str(error)}})

    async def _round(self) -> None:
        now = self._clock()
        lease = await self._look()
        if lease is None or self._sight.lease is None or lease.spec != self._sight.lease.spec:
            # Seen now, not when we asked: it may have been renewed between the two.
            self._sight = Sight(lease, self._clock())
        else:
            self._sight.lease = lease  # with its newest resourceVersion
        self._tell(lease)
        if now >= self._until or lease is None or lease.spec.holder_identity != self.identity:
            self._ready = False  # somebody else may have led meanwhile
        if not may_take(self._sight, self.identity, now):
            return
        others = lease is not None and lease.spec.holder_identity != self.identity
        await self._take(lease, now)
        self._until = now + GIVE_UP
        if not self._ready:
            # Whatever the one before us has bound must be on our board before we decide anything.
            await self._refresh(others)
            # That may have taken long. This write is refused where somebody has taken the Lease meanwhile.
            now = self._clock()
            await self._take(self._sight.lease, now)
            self._until = now + GIVE_UP
            self._ready = True
            log.info("leading", extra={"data": {"identity": self.identity}})

    def _tell(self, lease: LeaseObject | None) -> None:
        self.leader = lease.spec.holder_identity or None if lease else None
        self.leader_address = (lease.metadata.annotations or {}).get(ADDRESS) if lease and self.leader else None

    async def _look(self) -> LeaseObject | None:
        try:
            lease: LeaseObject = await self._kube.get(self._path, into=LeaseObject, timeout=RETRY)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        self._readable = True
        return lease

    async def _take(self, lease: LeaseObject | None, now: float) -> None:
        """One write with the version that was read: of two who try, one is refused."""
        body = self._lease(self.identity, lease)
        taken: LeaseObject
        if lease is None:
            taken = await self._kube.create(self._collection, body, into=LeaseObject, timeout=RETRY)
        else:
            taken = await self._kube.replace(self._path, body, into=LeaseObject, timeout=RETRY)
        self._sight = Sight(taken, now)
        self._tell(taken)

    def _lease(self, holder: str, lease: LeaseObject | None) -> dict[str, Any]:
        return render_lease(
            self._namespace,
            self._name,
            lease,
            holder=holder,
            anew=lease is None or lease.spec.holder_identity != self.identity,
            seconds=int(LEASE),
            at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            annotations={ADDRESS: self._address, CALLS: msgspec.json.encode(self._calls()).decode()},
        )
