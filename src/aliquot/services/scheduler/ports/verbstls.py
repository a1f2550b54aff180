"""kube-scheduler's verbs with mutual TLS: for a kube-scheduler outside this Pod, and between the replicas.

The keys are in a Secret: an authority of our own, the port's certificate, and the certificate of its clients. Every
replica may create and renew them: one of an earlier release, which may lead during an upgrade, knows nothing of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from aliquot.adapters.kubernetes.certificates import Pair, client_context, present, require_clients, trust
from aliquot.adapters.kubernetes.kube import Kube
from aliquot.dialects.wire.leases import leases_path
from aliquot.dialects.wire.schedulerconfig import SERVER_NAME
from aliquot.dialects.wire.webhook.configuration import VERBS_SECRET
from aliquot.services.daemon.http import Accepting
from aliquot.services.scheduler.ports.certrotation import Keys, Lifetimes
from aliquot.services.scheduler.ports.sharedkeys import KeySettings, SharedKeys

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VerbsTls:
    """Settings of the port. `lease` is the Lease of the replicas, which has the installer's marks."""

    port: int
    bind_address: str = "0.0.0.0"  # noqa: S104  # its callers are elsewhere
    namespace: str = "kube-system"  # of the Secret
    secret: str = VERBS_SECRET
    lease: str = "aliquot-scheduler"
    lifetimes: Lifetimes = field(default_factory=Lifetimes)

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the certificate. Callers ask for the first one, at every address."""
        host = f"{SERVER_NAME}.{self.namespace}.svc"
        return (SERVER_NAME, host, f"{host}.cluster.local")


class VerbsKeys(SharedKeys):
    """The keys of the port, and `peers`: the context with which a replica calls another one."""

    def __init__(self, kube: Kube, settings: VerbsTls, *, clock: Callable[[], float]) -> None:
        about = KeySettings(
            "verbs", settings.namespace, settings.secret, settings.names, settings.lifetimes, for_clients=True
        )
        super().__init__(kube, about, may_write=lambda: True, clock=clock)
        self.peers = client_context()
        self._settings = settings
        self._trusted = b""
        self._client: Pair | None = None

    async def _use(self, keys: Keys) -> None:
        if keys.trusted != self._trusted:
            require_clients(self.context, keys.trusted)
            trust(self.peers, keys.trusted)
            self._trusted = keys.trusted
        client = keys.client or keys.serving  # another program may issue one certificate for both
        if client != self._client:
            present(self.peers, client)
            self._client = client
        self._present(keys)

    def _marked_object(self) -> str:
        return f"{leases_path(self._settings.namespace)}/{self._settings.lease}"

    def _without_secret(self, verb: str, effect: str) -> Keys | None:
        """Keys that are not shared are of no use: no client could have its certificate."""
        self._lacks(verb, "secrets", self._settings.secret, effect)
        self.waiting = f"the role lacks {verb} on secrets ({self._settings.secret})"
        return self.keys


async def serve_verbs(
    keys: VerbsKeys, start: Callable[[VerbsKeys], Accepting], *, on_waiting: Callable[[str | None], None]
) -> None:
    """Maintain the keys until cancelled, and `start` the server once they are there. `on_waiting` gets the reason why
    it does not listen, if one is known; None once it does."""
    accepting: Accepting | None = None
    try:
        while True:
            pause = await keys.step()
            if keys.keys is not None and accepting is None:
                accepting = start(keys)
                log.info("verbs_listening_with_tls")
            on_waiting(None if accepting else keys.waiting)
            await asyncio.sleep(pause)
    finally:
        on_waiting("")
        if accepting is not None:
            accepting.close()
