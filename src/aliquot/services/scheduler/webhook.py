"""The admission webhook: answers reviews over TLS and maintains its keys and its configuration.

    reviews         dialects.wire.admission computes the answer; this module serves it
    keys            in a Secret that the replicas share. The leader creates and renews them (certrotation.py), the
                    others read them. A new certificate is used from the next handshake on; no connection is dropped.
                    If somebody deletes the Secret, the leader saves the same keys again: nothing else changes
    configuration   written by the leader, with every authority whose certificate a replica may still present, before
                    it presents a certificate of a new one. It is created again too, but behind a Service only when it
                    has been missing for a while: an uninstallation deletes it shortly before the scheduler

If our role lacks a permission for this, we log it once and answer reviews all the same: with our own keys if we may
not read the Secret.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from aliquot.adapters.kubernetes.certificates import CertificateError, Pair, present, server_context
from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects import DIALECTS, Rules
from aliquot.dialects.wire.admission import AdmissionSettings, review
from aliquot.dialects.wire.webhooks import (
    CA_CERTIFICATES,
    CA_KEY,
    CONFIGURATION,
    CONFIGURATION_KIND,
    CONFIGURATIONS_PATH,
    FIELD_MANAGER,
    PATH,
    SECRET,
    TLS_CERTIFICATE,
    TLS_KEY,
    FailurePolicy,
    InstallerMarks,
    ServiceRef,
    configured,
    installer_marks,
    parse_secret,
    secret_patch,
    secrets_path,
    slot_services,
    webhook_configuration,
)
from aliquot.dialects.wire.webhookslots import REPLICAS, render_slot, slot_to_take
from aliquot.model.backoff import backoff
from aliquot.model.refusal import Invalid
from aliquot.services.daemon.http import BodyError, Limits, bind_port, listen, make_runner
from aliquot.services.scheduler.certrotation import Keys, Lifetimes, renewed

log = logging.getLogger(__name__)

LARGEST_BODY = 3 << 20  # bytes: the API server itself takes no larger object
_ALL_BODIES = 48 << 20  # bytes of reviews that arrive at the same time
_CONNECTIONS = 512
_LARGE = 128 << 10  # bytes from which on a review is answered beside the event loop, one at a time
_CHECK_INTERVAL = 5.0
_UNINSTALLED = 10.0  # seconds in which the scheduler ends after its configuration was deleted
_WAITS_LONG, _WAITS_ON = 10, 60  # steps without keys after which the log says why, and between two such lines
_LEADER_CHECK = 1.0  # seconds between two checks whether we lead
_FIRST_RETRY, _LAST_RETRY = 1.0, 60.0
_OLD_PATH = "/mutate"


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Settings of the webhook. `where` is how the API server reaches it."""

    port: int
    where: ServiceRef | str
    bind_address: str = "0.0.0.0"  # noqa: S104  # the API server connects from outside the Pod
    namespace: str = "kube-system"  # of the Secret
    secret: str = SECRET
    slots: bool = False  # two more Services select one replica each (webhookslots.py)
    replica: str = ""  # the name of our Pod
    served: frozenset[str] = frozenset(DIALECTS)
    failure_policy: FailurePolicy = FailurePolicy.IGNORE
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    lifetimes: Lifetimes = field(default_factory=Lifetimes)

    @property
    def names(self) -> tuple[str, ...]:
        """The host names under which the API server connects to us."""
        if isinstance(self.where, ServiceRef):
            services = [self.where, *(slot_services(self.where) if self.slots else ())]
            hosts = [f"{service.name}.{service.namespace}.svc" for service in services]
            return tuple(name for host in hosts for name in (host, f"{host}.cluster.local"))
        return (urlsplit(self.where).hostname or "localhost",)


async def serve_webhook(
    kube: Kube,
    settings: WebhookSettings,
    rules: Callable[[], Rules],
    *,
    is_leader: Callable[[], bool],
    on_call: Callable[[str], None],
    clock: Callable[[], float],
    on_waiting: Callable[[str], None] = lambda why: None,
) -> None:
    """Run the webhook until cancelled. Raises OSError if its port is taken. `clock` returns seconds since 1970.

    `on_waiting` gets the reason why it does not listen yet; "" once it does.
    """
    keys = WebhookKeys(kube, settings, is_leader=is_leader, clock=clock)
    limits = Limits(_CONNECTIONS, unfinished=_ALL_BODIES)
    runner = make_runner(review_app(rules, settings.admission, on_call, limits), limits)
    await runner.setup()
    accepting: asyncio.Server | None = None
    try:
        listening = False
        while True:
            pause = await keys.step()
            if keys.keys is not None and not listening:
                listener = bind_port(settings.bind_address, settings.port)
                accepting = await listen(runner, listener, limits, tls=keys.context)
                listening = True
                log.info("webhook_listening", extra={"data": {"port": settings.port, "names": settings.names}})
                pause = 0.0  # now the API server may be configured
            keys.listening = listening
            on_waiting("" if listening else keys.waiting)
            await sleep_unless_elected(pause, is_leader)
    finally:
        if accepting is not None:
            accepting.close()
        await runner.cleanup()


async def sleep_unless_elected(seconds: float, is_leader: Callable[[], bool]) -> None:
    """Sleep until the next step, or until we become the leader: the previous one may have other settings."""
    was_leader = is_leader()
    while seconds > 0 and (was_leader or not is_leader()):
        await asyncio.sleep(min(seconds, _LEADER_CHECK))
        seconds -= _LEADER_CHECK


# --- reviews -----------------------------------------------------------------------------------------------------


def review_app(
    rules: Callable[[], Rules], admission: AdmissionSettings, on_call: Callable[[str], None], limits: Limits
) -> web.Application:
    """The HTTP application that answers reviews. Bad input gets a sentence, never a traceback."""

    async def answer(request: web.Request) -> web.Response:
        on_call("review")
        try:
            raw = await limits.read_body(request, LARGEST_BODY)
        except BodyError as error:
            return _error(error.status, str(error), close=True)
        if len(raw) < _LARGE:
            result = _reviewed(raw, rules(), admission)
        else:  # thousands of containers: filter and the probes must not wait for it
            async with large:
                result = await asyncio.to_thread(_reviewed, raw, rules(), admission)
        if isinstance(result, str):
            return _error(400, result)
        return web.Response(body=result, content_type="application/json")

    large = asyncio.Lock()
    app = web.Application(client_max_size=LARGEST_BODY)
    app.router.add_post(PATH, answer)
    app.router.add_post(_OLD_PATH, answer)
    return app


def _reviewed(raw: bytes, rules: Rules, admission: AdmissionSettings) -> bytes | str:
    """The answer as JSON, or what is wrong with the request."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError) as error:
        return f"the body is not JSON: {error}"
    except RecursionError:
        return "the body is nested too deeply for an AdmissionReview"
    result = review(body, rules, admission)
    return result.sentence() if isinstance(result, Invalid) else msgspec.json.encode(result)


def _error(status: int, sentence: str, *, close: bool = False) -> web.Response:
    response = web.Response(status=status, text=sentence.encode(errors="replace").decode() + "\n")
    if close:
        response.force_close()
    return response


# --- keys and configuration --------------------------------------------------------------------------------------


class WebhookKeys:
    """Maintains the Secret, the TLS context and the webhook configuration, one `step` at a time."""

    def __init__(
        self, kube: Kube, settings: WebhookSettings, *, is_leader: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        self.context = server_context()
        self.keys: Keys | None = None  # in use
        self.listening = False  # until then the API server must not be configured
        self.waiting = ""  # why there are no keys yet
        self._kube, self._settings = kube, settings
        self._is_leader, self._clock = is_leader, clock
        self._presented: Pair | None = None
        self._written: str | None = None  # resourceVersion of the configuration we wrote
        self._missing_since: float | None = None  # since when there is no configuration
        self._marks = InstallerMarks()  # of the one object, for the other if it is lost
        self._failures = self._waits = 0
        self._warned: set[str] = set()

    async def step(self) -> float:
        """Check everything once. Returns the seconds until the next step."""
        try:
            keys = await self._shared()
            if keys is not None:
                if self.listening and self._is_leader():
                    await self._register(keys)
                self._present(keys)
                await self._take_slot()
        except (ApiError, Unreachable, CertificateError) as error:
            self._failures += 1
            self.waiting = str(error)
            if self._failures in (1, 4) or self._failures % 16 == 0:
                log.warning("webhook_keys_failed", extra={"data": {"why": str(error)}})
            return backoff(self._failures, first=_FIRST_RETRY, longest=_LAST_RETRY)
        self._failures = 0
        if self.keys is None:
            self._waits += 1
            if self._waits % _WAITS_ON == _WAITS_LONG:
                log.warning("webhook_waits", extra={"data": {"why": self.waiting}})
            return _FIRST_RETRY
        return min(_CHECK_INTERVAL, self._settings.lifetimes.certificate / 20)

    def _present(self, keys: Keys) -> None:
        if keys.serving != self._presented:
            present(self.context, keys.serving)
            if self._presented is not None:
                log.info("webhook_certificate_renewed")
            self._presented = keys.serving
        self.keys = keys

    async def _shared(self) -> Keys | None:
        """The keys to use now; None while another instance has to create them."""
        settings = self._settings
        path = f"{secrets_path(settings.namespace)}/{settings.secret}"
        try:
            secret: Any = await self._kube.get(path)
        except ApiError as error:
            if error.status == 403:
                self._lacks("get", "secrets", settings.secret, "the replicas cannot share their keys")
                return self._own()
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
        if not self._is_leader():
            self.waiting = (
                f"Secret {settings.namespace}/{settings.secret} {'does not exist' if secret is None else 'has no keys'}"
                " yet; the leader writes them, and its log says what it lacks"
            )
            return kept
        lost = self.keys if not data else None  # deleted or emptied: the other replicas still use them
        if lost is not None and lost.authority is None:
            return lost  # another program issues them, and will again
        wanted = renewed(kept or lost, settings.names, self._clock(), settings.lifetimes)
        if wanted is kept:
            return kept
        return await self._save(path, secret, wanted)

    async def _save(self, path: str, secret: Any, keys: Keys) -> Keys | None:
        """Save the keys before they are used. None if another instance was faster: the next step reads its keys."""
        settings = self._settings
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
            verb = "create and patch" if secret is None else "patch"
            self._lacks(verb, "secrets", settings.secret, "the keys cannot be saved")
            return self._own()
        log.info("webhook_keys_saved", extra={"data": {"created": secret is None}})
        return keys

    async def _create(self, path: str, kind: str, name: str, namespace: str = "") -> Any:
        """Create the object as the installer did. Not by POST: with the name in the path, a role can allow it alone."""
        body = self._marks.render_empty(kind, name, namespace)
        return await self._kube.patch(path, body, form="apply", params={"fieldManager": self._marks.manager})

    async def _read_marks(self) -> None:
        try:
            found: Any = await self._kube.get(f"{CONFIGURATIONS_PATH}/{CONFIGURATION}")
        except ApiError:  # missing, or not ours to read
            return
        self._marks = installer_marks(found) or self._marks

    def _own(self) -> Keys:
        """Keys that are not shared: good enough for one replica."""
        settings = self._settings
        return renewed(self.keys, settings.names, self._clock(), settings.lifetimes)

    async def _register(self, keys: Keys) -> None:
        settings = self._settings
        wanted = webhook_configuration(
            keys.trusted,
            settings.where,
            failure_policy=settings.failure_policy,
            served=settings.served,
            spared=(settings.namespace,),
            slots=settings.slots,
        )
        path = f"{CONFIGURATIONS_PATH}/{CONFIGURATION}"
        verb = "get"
        try:
            try:
                found: Any = await self._kube.get(path)
                self._missing_since, self._marks = None, installer_marks(found) or self._marks
                unchanged = self._written is not None and found["metadata"]["resourceVersion"] == self._written
                if configured(found, wanted) or (unchanged and _same_authority(found, wanted)):
                    return
            except ApiError as error:
                if error.status != 404:
                    raise
                if self._may_be_uninstalled():
                    return
                verb = "patch"
                await self._create(path, CONFIGURATION_KIND, CONFIGURATION)
            verb = "patch"
            params = {"fieldManager": FIELD_MANAGER, "force": "true"}
            written: Any = await self._kube.patch(path, wanted, form="apply", params=params)
            self._written, self._missing_since = written["metadata"]["resourceVersion"], None
            log.info("webhook_configuration_written")
        except ApiError as error:
            if error.status != 403:
                raise
            resource = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
            verbs = verb if verb == "get" else "create and patch"
            self._lacks(verbs, resource, CONFIGURATION, "the webhook cannot be configured")

    async def _take_slot(self) -> None:
        """Have one of the two Services select us, if it selects no replica."""
        settings = self._settings
        if not settings.slots:
            return
        path = f"/api/v1/namespaces/{settings.namespace}/pods"
        try:
            slot = slot_to_take(await self._kube.get(path, params={"labelSelector": REPLICAS}), settings.replica)
            if slot is not None:
                await self._kube.patch(f"{path}/{settings.replica}", render_slot(slot))
                log.info("webhook_slot_taken", extra={"data": {"slot": slot}})
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            self._lacks("patch", "pods", self._settings.namespace, "one Service leads to all replicas")

    def _may_be_uninstalled(self) -> bool:
        """Whether to wait with a new configuration. It would outlive us, and refuse GPU Pods in the whole cluster."""
        if self._missing_since is None:
            self._missing_since = self._clock()
        installed = isinstance(self._settings.where, ServiceRef)
        return installed and self._clock() - self._missing_since < _UNINSTALLED

    def _lacks(self, verb: str, resource: str, name: str, effect: str) -> None:
        self._warn(f"{verb} {resource}", f"{effect}: the role lacks {verb} on {resource} ({name})")

    def _warn(self, kind: str, why: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("webhook_degraded", extra={"data": {"why": why}})


def _keys(data: dict[str, bytes]) -> Keys | None:
    """The keys in a Secret. Without the authority's key, another program issues them, for example cert-manager."""
    try:
        serving = Pair(data[TLS_CERTIFICATE], data[TLS_KEY])
        trusted = data[CA_CERTIFICATES]
    except KeyError:
        return None
    if CA_KEY not in data:
        return Keys(None, trusted, serving)
    first = trusted.partition(b"-----END CERTIFICATE-----")
    return Keys(Pair(first[0] + first[1] + b"\n", data[CA_KEY]), trusted, serving)


def _data(keys: Keys) -> dict[str, bytes]:
    data = {TLS_CERTIFICATE: keys.serving.certificate, TLS_KEY: keys.serving.key, CA_CERTIFICATES: keys.trusted}
    return data if keys.authority is None else {**data, CA_KEY: keys.authority.key}


def _same_authority(found: Any, wanted: Any) -> bool:
    """Whether the CA bundles are right. The rest is what we wrote plus what others added."""

    def bundles(configuration: Any) -> list[str]:
        return [entry["clientConfig"]["caBundle"] for entry in configuration["webhooks"]]

    try:
        return bundles(found) == bundles(wanted)
    except (KeyError, TypeError):
        return False
