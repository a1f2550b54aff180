"""The keys of a port, in a Secret that the replicas share: read, created, renewed, and saved again if it is lost.

A new certificate is used from the next handshake on; no connection is dropped. Keys are saved before they are used.
If the Secret is deleted, the same keys are saved again: nothing changes for those who trust them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aliquot.adapters.kubernetes.certificates import CertificateError, Pair, present, server_context
from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects.wire.webhook.configuration import (
    CA_CERTIFICATES,
    CA_KEY,
    CLIENT_CERTIFICATE,
    CLIENT_KEY,
    TLS_CERTIFICATE,
    TLS_KEY,
    InstallerMarks,
    installer_marks,
    parse_secret,
    secret_patch,
    secrets_path,
)
from aliquot.model.numbers.backoff import backoff
from aliquot.services.scheduler.ports.certrotation import Keys, Lifetimes, renewed

log = logging.getLogger(__name__)

_CHECK_INTERVAL = 5.0
_WAITS_LONG, _WAITS_ON = 10, 60  # steps without keys after which the log says why, and between two such lines
_LEADER_CHECK = 1.0  # seconds between two checks whether we lead
_FIRST_RETRY, _LAST_RETRY = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class KeySettings:
    """Which Secret, for which names. `port` begins the keys of log lines."""

    port: str
    namespace: str
    secret: str
    names: tuple[str, ...]
    lifetimes: Lifetimes
    for_clients: bool = False  # with a certificate for clients


async def sleep_unless_elected(seconds: float, is_leader: Callable[[], bool]) -> None:
    """Sleep until the next step, or until we become the leader: the previous one may have other settings."""
    was_leader = is_leader()
    while seconds > 0 and (was_leader or not is_leader()):
        await asyncio.sleep(min(seconds, _LEADER_CHECK))
        seconds -= _LEADER_CHECK


class SharedKeys:
    """Maintains the Secret and the TLS context of a port, one `step` at a time. `may_write`: whether we may create and
    renew the keys now; replicas that may not use what is there."""

    def __init__(
        self, kube: Kube, settings: KeySettings, *, may_write: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        self.context = server_context()
        self.keys: Keys | None = None  # in use
        self.waiting = ""  # why there are no keys yet
        self._kube, self._key_settings = kube, settings
        self._may_write, self._clock = may_write, clock
        self._presented: Pair | None = None
        self._marks = InstallerMarks()  # of one of our objects, for another that is lost
        self._failures = self._waits = 0
        self._warned: set[str] = set()

    async def step(self) -> float:
        """Check everything once. Returns the seconds until the next step."""
        try:
            keys = await self._shared()
            if keys is not None:
                await self._use(keys)
        except (ApiError, Unreachable, CertificateError) as error:
            self._failures += 1
            self.waiting = str(error)
            if self._failures in (1, 4) or self._failures % 16 == 0:
                log.warning(f"{self._key_settings.port}_keys_failed", extra={"data": {"why": str(error)}})
            return backoff(self._failures, first=_FIRST_RETRY, longest=_LAST_RETRY)
        self._failures = 0
        if self.keys is None:
            self._waits += 1
            if self._waits % _WAITS_ON == _WAITS_LONG:
                log.warning(f"{self._key_settings.port}_waits", extra={"data": {"why": self.waiting}})
            return _FIRST_RETRY
        return min(_CHECK_INTERVAL, self._key_settings.lifetimes.certificate / 20)

    async def _use(self, keys: Keys) -> None:
        """Use these keys, which are saved."""
        self._present(keys)

    def _present(self, keys: Keys) -> None:
        if keys.serving != self._presented:
            present(self.context, keys.serving)
            if self._presented is not None:
                log.info(f"{self._key_settings.port}_certificate_renewed")
            self._presented = keys.serving
        self.keys = keys

    async def _shared(self) -> Keys | None:
        """The keys to use now; None while another instance has to create them."""
        settings = self._key_settings
        path = f"{secrets_path(settings.namespace)}/{settings.secret}"
        try:
            secret: Any = await self._kube.get(path)
        except ApiError as error:
            if error.status == 403:
                return self._without_secret("get", "the replicas cannot share their keys")
            if error.status != 404:
                raise
            secret = None
        self._marks = installer_marks(secret) or self._marks
        data = parse_secret(secret)
        kept = _keys(data)
        if kept is None and data:  # the chart creates it empty, which is fine
            self._warn(
                "damaged",
                f"Secret {settings.namespace}/{settings.secret} holds no valid keys; the leader replaces them",
            )
        if not self._may_write():
            self.waiting = (
                f"Secret {settings.namespace}/{settings.secret} {'does not exist' if secret is None else 'has no keys'}"
                " yet; the leader writes them, and its log says what it lacks"
            )
            return kept
        lost = self.keys if not data else None  # deleted or emptied: the other replicas still use them
        if lost is not None and lost.authority is None:
            return lost  # another program issues them, and will again
        wanted = self._renewed(kept or lost)
        if wanted is kept:
            return kept
        return await self._save(path, secret, wanted)

    async def _save(self, path: str, secret: Any, keys: Keys) -> Keys | None:
        """Save the keys before they are used. None if another instance was faster: the next step reads its keys."""
        settings = self._key_settings
        try:
            if secret is None:
                await self._read_marks()
                found = await self._create(path, "Secret", settings.secret, settings.namespace)
                if parse_secret(found):
                    return None
            else:
                found = secret
            await self._kube.patch(path, secret_patch(_data(keys), found["metadata"]["resourceVersion"]))
        except ApiError as error:
            if error.status == 409:
                return None
            if error.status != 403:
                raise
            return self._without_secret("create and patch" if secret is None else "patch", "the keys cannot be saved")
        log.info(f"{settings.port}_keys_saved", extra={"data": {"created": secret is None}})
        return keys

    async def _create(self, path: str, kind: str, name: str, namespace: str = "") -> Any:
        """Create the object as the installer did. Not by POST: with the name in the path, a role can allow it alone."""
        body = self._marks.render_empty(kind, name, namespace)
        return await self._kube.patch(path, body, form="apply", params={"fieldManager": self._marks.manager})

    async def _read_marks(self) -> None:
        """Read how the installer marks its objects, from another one."""
        path = self._marked_object()
        try:
            found: Any = await self._kube.get(path)
        except ApiError:  # missing, or not ours to read
            return
        self._marks = installer_marks(found) or self._marks

    def _marked_object(self) -> str:
        raise NotImplementedError

    def _without_secret(self, verb: str, effect: str) -> Keys | None:
        """What to use if our role does not let us read or save the keys."""
        raise NotImplementedError

    def _renewed(self, keys: Keys | None) -> Keys:
        settings = self._key_settings
        return renewed(keys, settings.names, self._clock(), settings.lifetimes, for_clients=settings.for_clients)

    def _lacks(self, verb: str, resource: str, name: str, effect: str) -> None:
        self._warn(f"{verb} {resource}", f"{effect}: the role lacks {verb} on {resource} ({name})")

    def _warn(self, kind: str, why: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning(f"{self._key_settings.port}_degraded", extra={"data": {"why": why}})


def _keys(data: dict[str, bytes]) -> Keys | None:
    """The keys in a Secret. Without the authority's key, another program issues them, for example cert-manager."""
    try:
        serving = Pair(data[TLS_CERTIFICATE], data[TLS_KEY])
        trusted = data[CA_CERTIFICATES]
    except KeyError:
        return None
    client = (
        Pair(data[CLIENT_CERTIFICATE], data[CLIENT_KEY]) if {CLIENT_CERTIFICATE, CLIENT_KEY} <= data.keys() else None
    )
    if CA_KEY not in data:
        return Keys(None, trusted, serving, client)
    first = trusted.partition(b"-----END CERTIFICATE-----")
    return Keys(Pair(first[0] + first[1] + b"\n", data[CA_KEY]), trusted, serving, client)


def _data(keys: Keys) -> dict[str, bytes]:
    data = {TLS_CERTIFICATE: keys.serving.certificate, TLS_KEY: keys.serving.key, CA_CERTIFICATES: keys.trusted}
    if keys.client is not None:
        data |= {CLIENT_CERTIFICATE: keys.client.certificate, CLIENT_KEY: keys.client.key}
    return data if keys.authority is None else {**data, CA_KEY: keys.authority.key}
