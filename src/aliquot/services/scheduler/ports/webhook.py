"""The admission webhook: answers reviews over TLS and maintains its keys and its configuration.

    reviews         dialects.wire.webhook computes the answer; this module serves it, if wanted only to API servers
                    that show a client certificate
    keys            in a Secret that the replicas share (sharedkeys.py). The leader creates and renews them, the others
                    read them
    configuration   written by the leader, with every authority whose certificate a replica may still present, before
                    it presents a certificate of a new one. It is created again too, but behind a Service only when it
                    has been missing for a while: an uninstallation deletes it shortly before the scheduler

If our role lacks a permission for this, we log it once and answer reviews all the same: with our own keys if we may
not read the Secret.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from aliquot.adapters.kubernetes.certificates import certificate_names, require_clients
from aliquot.adapters.kubernetes.kube import ApiError, Kube
from aliquot.dialects import DIALECTS, Rules
from aliquot.dialects.wire.webhook.admission import AdmissionSettings, review
from aliquot.dialects.wire.webhook.configuration import (
    CONFIGURATION,
    CONFIGURATION_KIND,
    CONFIGURATIONS_PATH,
    FIELD_MANAGER,
    PATH,
    SECRET,
    FailurePolicy,
    ServiceRef,
    configured,
    installer_marks,
    slot_services,
    webhook_configuration,
)
from aliquot.dialects.wire.webhook.slots import REPLICAS, render_slot, slot_to_take
from aliquot.model.decoding.shallowjson import decoded
from aliquot.model.refusal import Invalid
from aliquot.services.daemon.http import Accepting, BodyError, Limits, bind_port, listen, make_runner
from aliquot.services.scheduler.ports.certrotation import Keys, Lifetimes
from aliquot.services.scheduler.ports.sharedkeys import KeySettings, SharedKeys, sleep_unless_elected

log = logging.getLogger(__name__)

LARGEST_BODY = 3 << 20  # bytes: the API server itself takes no larger object
_ALL_BODIES = 48 << 20  # bytes of reviews that arrive at the same time
_CONNECTIONS = 512
_IDLE = 120.0  # seconds that a connection may be open without a review; the API server closes its own after 90
# Bytes from which on a review is answered beside the event loop; of each of the two sizes, one at a time: whoever waits
# behind others waits for none that is much larger.
_LARGE, _HUGE = 16 << 10, 128 << 10
_UNINSTALLED = 10.0  # seconds in which the scheduler ends after its configuration was deleted
_OLD_PATH = "/mutate"


@dataclass(frozen=True, slots=True)
class Clients:
    """Whose reviews are answered: who shows a certificate of these authorities with one of these names, as its common
    name or as a DNS name. An API server shows one if its AdmissionConfiguration says so."""

    authorities: bytes  # PEM
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Settings of the webhook. `where` is how the API server reaches it."""

    port: int
    where: ServiceRef | str
    bind_address: str = "0.0.0.0"  # noqa: S104  # the API server connects from outside the Pod
    namespace: str = "kube-system"  # of the Secret
    secret: str = SECRET
    slots: bool = False  # two more Services select one replica each (dialects/wire/webhook/slots.py)
    replica: str = ""  # the name of our Pod
    served: frozenset[str] = frozenset(DIALECTS)
    failure_policy: FailurePolicy = FailurePolicy.IGNORE
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    clients: Clients | None = None  # None: anybody who reaches the port may send a review
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
    on_waiting: Callable[[str | None], None] = lambda why: None,
    before_review: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Run the webhook until cancelled. Raises OSError if its port is taken. `clock` returns seconds since 1970.

    `on_waiting` gets the reason why it does not listen, if one is known; None once it does. Every review waits
    for `before_review`, which must not take long.
    """
    keys = WebhookKeys(kube, settings, is_leader=is_leader, clock=clock)
    limits = Limits(_CONNECTIONS, unfinished=_ALL_BODIES)
    app = review_app(rules, settings.admission, on_call, limits, before_review)
    if settings.clients is not None:
        require_clients(keys.context, settings.clients.authorities)
        app.middlewares.append(named_only(settings.clients.names))
    runner = make_runner(app, limits, keepalive=_IDLE)
    await runner.setup()
    accepting: Accepting | None = None
    try:
        listening = False
        while True:
            pause = await keys.step()
            if keys.keys is not None and not listening:
                listener = bind_port(settings.bind_address, settings.port)
                accepting = listen(runner, listener, limits, tls=keys.context)
                listening = True
                log.info("webhook_listening", extra={"data": {"port": settings.port, "names": settings.names}})
                pause = 0.0  # now the API server may be configured
            keys.listening = listening
            on_waiting(None if listening else keys.waiting)
            await sleep_unless_elected(pause, is_leader)
    finally:
        on_waiting("")
        if accepting is not None:
            accepting.close()
        await runner.cleanup()


# --- reviews -----------------------------------------------------------------------------------------------------


def named_only(names: frozenset[str]) -> Middleware:
    """Refuses callers whose certificate, which TLS has verified, has none of these names."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        shown = request.transport.get_extra_info("peercert") if request.transport is not None else None
        if certificate_names(shown or {}).isdisjoint(names):
            return _error(403, "only the API server may send reviews: the names of your certificate are not allowed")
        return await handler(request)

    return check


def review_app(
    rules: Callable[[], Rules],
    admission: AdmissionSettings,
    on_call: Callable[[str], None],
    limits: Limits,
    before_review: Callable[[], Awaitable[None]] | None = None,
) -> web.Application:
    """The HTTP application that answers reviews. Bad input gets a sentence, never a traceback."""

    async def answer(request: web.Request) -> web.Response:
        on_call("review")
        try:
            raw = await limits.read_body(request, LARGEST_BODY)
        except BodyError as error:
            return _error(error.status, str(error), close=True)
        if before_review is not None:
            await before_review()
        if len(raw) < _LARGE:
            result = _reviewed(raw, rules(), admission)
        else:  # thousands of containers: filter and the probes must not wait for it
            async with huge if len(raw) >= _HUGE else large:
                result = await asyncio.to_thread(_reviewed, raw, rules(), admission)
        if isinstance(result, str):
            return _error(400, result)
        return web.Response(body=result, content_type="application/json")

    large, huge = asyncio.Lock(), asyncio.Lock()
    app = web.Application(client_max_size=LARGEST_BODY)
    app.router.add_post(PATH, answer)
    app.router.add_post(_OLD_PATH, answer)
    return app


def _reviewed(raw: bytes, rules: Rules, admission: AdmissionSettings) -> bytes | str:
    """The answer as JSON, or what is wrong with the request."""
    try:
        body = decoded(msgspec.json.decode, raw)
    except (msgspec.MsgspecError, ValueError) as error:
        return f"the body is not JSON: {error}"
    except RecursionError:  # and never closed
        return "the body is nested too deeply for an AdmissionReview"
    result = review(body, rules, admission)
    return result.sentence() if isinstance(result, Invalid) else msgspec.json.encode(result)


def _error(status: int, sentence: str, *, close: bool = False) -> web.Response:
    response = web.Response(status=status, text=sentence.encode(errors="replace").decode() + "\n")
    if close:
        response.force_close()
    return response


# --- keys and configuration --------------------------------------------------------------------------------------


class WebhookKeys(SharedKeys):
    """Maintains the Secret, the TLS context and the webhook configuration, one `step` at a time."""

    def __init__(
        self, kube: Kube, settings: WebhookSettings, *, is_leader: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        about = KeySettings("webhook", settings.namespace, settings.secret, settings.names, settings.lifetimes)
        super().__init__(kube, about, may_write=is_leader, clock=clock)
        self.listening = False  # until then the API server must not be configured
        self._settings = settings
        self._written: str | None = None  # resourceVersion of the configuration we wrote
        self._missing_since: float | None = None  # since when there is no configuration

    async def _use(self, keys: Keys) -> None:
        if self.listening and self._may_write():
            await self._register(keys)
        self._present(keys)
        await self._take_slot()

    def _marked_object(self) -> str:
        return f"{CONFIGURATIONS_PATH}/{CONFIGURATION}"

    def _without_secret(self, verb: str, effect: str) -> Keys:
        """Keys that are not shared: good enough for one replica."""
        self._lacks(verb, "secrets", self._settings.secret, effect)
        return self._renewed(self.keys)

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


def _same_authority(found: Any, wanted: Any) -> bool:
    """Whether the CA bundles are right. The rest is what we wrote plus what others added."""

    def bundles(configuration: Any) -> list[str]:
        return [entry["clientConfig"]["caBundle"] for entry in configuration["webhooks"]]

    try:
        return bundles(found) == bundles(wanted)
    except (KeyError, TypeError):
        return False
