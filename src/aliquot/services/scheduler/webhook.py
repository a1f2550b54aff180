"""The admission webhook: answers reviews over TLS, and keeps its own keys and its configuration in order.

    reviews         dialects.admission says what to answer; here is the door
    keys            in a Secret that the replicas share. The leader makes and renews them (rotation.py), the others
                    read; a new certificate is shown from the next handshake on, and no connection is dropped
    configuration   the leader writes it, with every authority that a replica may still show

A role that lets us do none of this is told of once, by the rule it lacks, and reviews are answered all the same: with
keys of our own where the Secret is closed to us.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
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
    CONFIGURATIONS_PATH,
    PATH,
    SECRET,
    TLS_CERTIFICATE,
    TLS_KEY,
    FailurePolicy,
    ServiceRef,
    configured,
    parse_secret,
    render_secret,
    secret_patch,
    secrets_path,
    webhook_configuration,
)
from aliquot.model.refusal import Invalid
from aliquot.services.daemon.http import quiet_runner
from aliquot.services.daemon.pace import back_off
from aliquot.services.scheduler.certrotation import Keys, Lifetimes, renewed

log = logging.getLogger(__name__)

LARGEST_BODY = 3 << 20  # bytes: the API server itself takes no larger object
_LOOK_EVERY = 30.0
_NOTICE = 1.0  # seconds in which we notice that we lead
_FIRST_RETRY, _LAST_RETRY = 1.0, 60.0
_OLD_PATH = "/mutate"


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Where the webhook is, and what it does. `where` is how the API server reaches it."""

    port: int
    where: ServiceRef | str
    bind_address: str = "0.0.0.0"  # noqa: S104  # the API server comes from outside of the Pod
    namespace: str = "kube-system"  # of the Secret
    secret: str = SECRET
    served: frozenset[str] = frozenset(DIALECTS)
    failure_policy: FailurePolicy = FailurePolicy.IGNORE
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    lifetimes: Lifetimes = field(default_factory=Lifetimes)

    @property
    def names(self) -> tuple[str, ...]:
        """Under which the API server asks for us."""
        if isinstance(self.where, ServiceRef):
            host = f"{self.where.name}.{self.where.namespace}.svc"
            return (host, f"{host}.cluster.local")
        return (urlsplit(self.where).hostname or "localhost",)


async def serve_webhook(
    kube: Kube,
    settings: WebhookSettings,
    rules: Callable[[], Rules],
    *,
    is_leader: Callable[[], bool],
    on_call: Callable[[str], None],
    clock: Callable[[], float],
    on_listening: Callable[[], None] = lambda: None,
) -> None:
    """The webhook, until cancelled. Raises OSError where its port is taken. `clock` tells seconds since 1970."""
    keeper = KeyKeeper(kube, settings, is_leader=is_leader, clock=clock)
    runner = quiet_runner(review_app(rules, settings.admission, on_call))
    await runner.setup()
    try:
        listening = False
        while True:
            pause = await keeper.step()
            if keeper.keys is not None and not listening:
                await web.TCPSite(
                    runner, settings.bind_address, settings.port, ssl_context=keeper.context, reuse_address=True
                ).start()
                listening = True
                on_listening()
                log.info("the webhook listens", extra={"data": {"port": settings.port, "names": settings.names}})
                pause = 0.0  # once somebody answers, the API server may be told
            keeper.listening = listening
            await rest(pause, is_leader)
    finally:
        await runner.cleanup()


async def rest(seconds: float, is_leader: Callable[[], bool]) -> None:
    """Until the next look. At once where we come to lead: the one before us may have been told other things."""
    led = is_leader()
    while seconds > 0 and (led or not is_leader()):
        await asyncio.sleep(min(seconds, _NOTICE))
        seconds -= _NOTICE


# --- reviews -----------------------------------------------------------------------------------------------------


def review_app(
    rules: Callable[[], Rules], admission: AdmissionSettings, on_call: Callable[[str], None]
) -> web.Application:
    """What answers reviews. Whatever comes is answered, in words and without a traceback."""

    async def answer(request: web.Request) -> web.Response:
        on_call("review")
        try:
            raw = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return _said_no(413, f"the body is larger than {LARGEST_BODY} bytes: no Pod is", close=True)
        except (aiohttp.ClientPayloadError, aiohttp.ClientError, ConnectionError) as error:
            return _said_no(400, f"the body broke off: {error}", close=True)
        try:
            body = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, ValueError) as error:
            return _said_no(400, f"the body is not JSON: {error}")
        except RecursionError:
            return _said_no(400, "the body is nested too deeply for an AdmissionReview")
        said = review(body, rules(), admission)
        if isinstance(said, Invalid):
            return _said_no(400, said.sentence())
        return web.Response(body=msgspec.json.encode(said), content_type="application/json")

    app = web.Application(client_max_size=LARGEST_BODY)
    app.router.add_post(PATH, answer)
    app.router.add_post(_OLD_PATH, answer)
    return app


def _said_no(status: int, sentence: str, *, close: bool = False) -> web.Response:
    response = web.Response(status=status, text=sentence.encode(errors="replace").decode() + "\n")
    if close:
        response.force_close()
    return response


# --- keys and configuration --------------------------------------------------------------------------------------


class KeyKeeper:
    """Keeps Secret, TLS context and configuration in order, one `step` at a time."""

    def __init__(
        self, kube: Kube, settings: WebhookSettings, *, is_leader: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        self.context = server_context()
        self.keys: Keys | None = None  # those that are shown
        self.listening = False  # before that there is nothing to tell the API server of
        self._kube, self._settings = kube, settings
        self._is_leader, self._clock = is_leader, clock
        self._shown: Pair | None = None
        self._written: str | None = None  # version of the configuration as we wrote it
        self._failures = 0
        self._warned: set[str] = set()

    async def step(self) -> float:
        """Look once at all of it; the seconds until the next look."""
        try:
            keys = await self._shared()
            if keys is not None:
                self._show(keys)
            if self.listening and self.keys is not None and self._is_leader():
                await self._register(self.keys)
        except (ApiError, Unreachable, CertificateError) as error:
            self._failures += 1
            if self._failures in (1, 4) or self._failures % 16 == 0:
                log.warning("the webhook's keys are not in order", extra={"data": {"why": str(error)}})
            return back_off(self._failures, first=_FIRST_RETRY, longest=_LAST_RETRY)
        self._failures = 0
        if self.keys is None:
            return _FIRST_RETRY
        return min(_LOOK_EVERY, self._settings.lifetimes.certificate / 20)

    def _show(self, keys: Keys) -> None:
        if keys.serving != self._shown:
            present(self.context, keys.serving)
            if self._shown is not None:
                log.info("the webhook shows a new certificate")
            self._shown = keys.serving
        self.keys = keys

    async def _shared(self) -> Keys | None:
        """The keys to use now; None while another is to make them."""
        settings = self._settings
        path = f"{secrets_path(settings.namespace)}/{settings.secret}"
        try:
            secret: Any = await self._kube.get(path)
        except ApiError as error:
            if error.status == 403:
                self._lacks("get", "secrets", settings.secret, "the webhook's replicas cannot share their keys")
                return self._own()
            if error.status != 404:
                raise
            secret = None
        kept = _keys(parse_secret(secret))
        if kept is None and parse_secret(secret):  # the chart makes it without any: that is no damage
            self._warn("damaged", f"Secret {settings.namespace}/{settings.secret} holds no keys: the leader makes some")
        if not self._is_leader():
            return kept
        wanted = renewed(kept, settings.names, self._clock(), settings.lifetimes)
        if wanted is kept:
            return kept
        return await self._keep(path, secret, wanted)

    async def _keep(self, path: str, secret: Any, keys: Keys) -> Keys | None:
        """Write them down before they are shown. None where another was faster: the next look sees the other's."""
        settings = self._settings
        try:
            if secret is None:
                made = render_secret(settings.secret, settings.namespace, _data(keys))
                await self._kube.create(secrets_path(settings.namespace), made)
            else:  # of one that is there only the data is ours: a chart has labels on it, and chose its type
                await self._kube.patch(path, secret_patch(_data(keys), secret["metadata"]["resourceVersion"]))
        except ApiError as error:
            if error.status == 409:
                return None
            if error.status != 403:
                raise
            verb = "create" if secret is None else "patch"
            self._lacks(verb, "secrets", settings.secret, "the webhook's keys are not kept")
            return self._own()
        log.info("the webhook's keys were %s", "made" if secret is None else "renewed")
        return keys

    def _own(self) -> Keys:
        """Keys that nobody shares: good enough for one replica."""
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
        )
        path = f"{CONFIGURATIONS_PATH}/{CONFIGURATION}"
        verb = "get"
        try:
            try:
                found: Any = await self._kube.get(path)
                unchanged = self._written is not None and found["metadata"]["resourceVersion"] == self._written
                if configured(found, wanted) or (unchanged and _same_authority(found, wanted)):
                    return
            except ApiError as error:
                if error.status != 404:
                    raise
            verb = "patch"
            params = {"fieldManager": "aliquot", "force": "true"}
            written: Any = await self._kube.patch(path, wanted, form="apply", params=params)
            self._written = written["metadata"]["resourceVersion"]
            log.info("the webhook's configuration was written")
        except ApiError as error:
            if error.status != 403:
                raise
            resource = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
            verbs = verb if verb == "get" else "create and patch"
            self._lacks(verbs, resource, CONFIGURATION, "the API server is not told of the webhook")

    def _lacks(self, verb: str, resource: str, name: str, so: str) -> None:
        self._warn(f"{verb} {resource}", f"{so}: the role lacks {verb} on {resource} ({name})")

    def _warn(self, about: str, sentence: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            log.warning(sentence)


def _keys(data: dict[str, bytes]) -> Keys | None:
    """The keys that a Secret holds. Without the authority's key they are somebody else's, as cert-manager's are."""
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
    """Whether the bundle is right, where the rest is as we wrote it but for what others add to it."""
    try:
        return bool(
            found["webhooks"][0]["clientConfig"]["caBundle"] == wanted["webhooks"][0]["clientConfig"]["caBundle"]
        )
    except (KeyError, IndexError, TypeError):
        return False
