"""Leader election by a Lease. The decision depends on the Lease and on how long we have seen it unchanged.

The Lease is free after 15 s without a renewal; its holder gives up by itself after 10 s. No replica binds in between,
so the old leader's writes are settled before the new leader starts. We never compare clocks of different machines: what
counts is how long *we* have seen the Lease unchanged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects.native import ADDRESS, CALLS
from aliquot.dialects.wire.leases import LeaseObject, leases_path, render_lease
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.status.machine import CallStatus

log = logging.getLogger(__name__)

LEASE, GIVE_UP, RETRY = 15.0, 10.0, 2.0  # seconds
_FORBIDDEN_AFTER = 3  # rounds; a starting API server also answers 403 until it has read its roles


@dataclass(slots=True)
class Observation:
    """The Lease as last seen, and since when it is unchanged."""

    lease: LeaseObject | None
    since: float


def may_take(seen: Observation, identity: str, now: float) -> bool:
    """Whether the Lease may be taken: it has no holder, is ours, or has expired."""
    if seen.lease is None or not seen.lease.spec.holder_identity:
        return True
    spec = seen.lease.spec
    return spec.holder_identity == identity or now - seen.since >= float(spec.lease_duration_seconds or LEASE)


class Election:
    """A candidate while `run` runs. Check `leading` before every write."""

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        name: str,
        identity: str,
        address: str,
        calls: Callable[[], dict[str, CallStatus]],
        refresh: Callable[[bool], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        self.identity = identity
        self.leader: str | None = None  # the holder of the Lease, as last seen
        self.leader_address: str | None = None
        self._kube, self._clock, self._refresh = kube, clock, refresh
        self._collection = leases_path(namespace)
        self._path, self._name, self._namespace = f"{self._collection}/{name}", name, namespace
        self.address, self._calls = address, calls
        self._seen = Observation(None, 0.0)
        self._until = 0.0  # we lead until then
        self._ready = False  # we have read everything that the previous leader wrote
        self._readable = False  # we could read the Lease once: our role allows it
        self._refusals = 0  # consecutive rounds that ended with a 403
        self._forbidden = False
        self._problem = ""  # the error of the last round
        self._lock, self._ended = asyncio.Lock(), False

    @property
    def leading(self) -> bool:
        """Whether we may write now."""
        return self._forbidden or (self._ready and self._clock() < self._until)

    async def run(self) -> None:
        """Run until cancelled."""
        while not self._ended:
            try:
                async with self._lock:
                    await self._round()
                self._refusals, self._forbidden, self._problem = 0, False, ""
            except ApiError as error:
                if error.status == 403 and not self._readable:
                    await self._refused(error)
                elif error.status != 409:
                    self._warn(error)
            except Unreachable as error:
                self._warn(error)
            await asyncio.sleep(RETRY if self._ready or self._forbidden else RETRY / 2)

    def _warn(self, error: Exception) -> None:
        """Log an error once, even if many rounds end with it."""
        if self._problem != str(error):
            self._problem = str(error)
            log.warning("lease_failed", extra={"data": {"why": self._problem}})

    async def _refused(self, error: ApiError) -> None:
        """The vendor's own ClusterRole (seed 000) grants no Leases; its Deployment has one replica."""
        self._refusals += 1
        if self._refusals == _FORBIDDEN_AFTER:
            hint = "run one replica only, or allow get, create and update on leases"
            log.warning("election_disabled", extra={"data": {"why": error.message, "hint": hint}})
            await self._refresh(False)
            self._forbidden = True

    async def resign(self) -> None:
        """Release the Lease, so that the next leader need not wait until it expires."""
        self._ended = True
        try:
            async with asyncio.timeout(2 * RETRY), self._lock:  # not while a renewal is in progress
                was, self._until = self._ready, 0.0
                if was and self._seen.lease is not None:
                    await self._kube.replace(self._path, self._lease("", self._seen.lease), timeout=RETRY)
        except TimeoutError:
            log.info("lease_not_released", extra={"data": {"why": "timeout"}})
        except (ApiError, Unreachable) as error:
            log.info("lease_not_released", extra={"data": {"why": str(error)}})

    async def _round(self) -> None:
        now = self._clock()
        lease = await self._get_lease()
        if lease is None or self._seen.lease is None or lease.spec != self._seen.lease.spec:
            # Seen now, not when we sent the request: it may have been renewed in between.
            self._seen = Observation(lease, self._clock())
        else:
            self._seen.lease = lease  # with its newest resourceVersion
        self._note_leader(lease)
        if now >= self._until or lease is None or lease.spec.holder_identity != self.identity:
            self._ready = False  # another instance may have led meanwhile
        if not may_take(self._seen, self.identity, now):
            return
        others = lease is not None and lease.spec.holder_identity != self.identity
        await self._take(lease, now)
        self._until = now + GIVE_UP
        if not self._ready:
            # The previous leader's binds must be on our board before we decide anything.
            await self._refresh(others)
            # That may have taken long. This write fails if another instance has taken the Lease meanwhile.
            now = self._clock()
            await self._take(self._seen.lease, now)
            self._until = now + GIVE_UP
            self._ready = True
            log.info("lease_acquired", extra={"data": {"identity": self.identity}})

    def _note_leader(self, lease: LeaseObject | None) -> None:
        self.leader = lease.spec.holder_identity or None if lease else None
        self.leader_address = (lease.metadata.annotations or {}).get(ADDRESS) if lease and self.leader else None

    async def _get_lease(self) -> LeaseObject | None:
        try:
            lease: LeaseObject = await self._kube.get(self._path, into=LeaseObject, timeout=RETRY)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        self._readable = True
        return lease

    async def _take(self, lease: LeaseObject | None, now: float) -> None:
        """One write with the version that was read: of two concurrent writers, one fails."""
        body = self._lease(self.identity, lease)
        taken: LeaseObject
        if lease is None:
            taken = await self._kube.create(self._collection, body, into=LeaseObject, timeout=RETRY)
        else:
            taken = await self._kube.replace(self._path, body, into=LeaseObject, timeout=RETRY)
        self._seen = Observation(taken, now)
        self._note_leader(taken)

    def _lease(self, holder: str, lease: LeaseObject | None) -> JsonObject:
        return render_lease(
            self._namespace,
            self._name,
            lease,
            holder=holder,
            anew=lease is None or lease.spec.holder_identity != self.identity,
            seconds=int(LEASE),
            at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            annotations={ADDRESS: self.address, CALLS: msgspec.json.encode(self._calls()).decode()},
        )
