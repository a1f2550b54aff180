"""The scheduler's HTTP endpoints: kube-scheduler's verbs under our prefix and the peers' prefixes, status, probes.

Every verb answers 200, because kube-scheduler drops the body of any other answer. No input causes a traceback. Metrics
are on a port of their own (readport.py).
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import aiohttp
import msgspec
from aiohttp import web

import aliquot
from aliquot.adapters.kubernetes.kube import Unreachable
from aliquot.dialects.podgroups import membership
from aliquot.dialects.wire import extender as wire
from aliquot.dialects.wire.extender import WireError
from aliquot.dialects.wire.schedulerconfig import SERVER_NAME
from aliquot.model.status.scheduler import SchedulerStatus
from aliquot.services.daemon.calls import Calls
from aliquot.services.daemon.http import BodyError, Limits
from aliquot.services.scheduler import reports, verbs
from aliquot.services.scheduler.binder import Binder, Refused
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.dashboard.claims import Claims
from aliquot.services.scheduler.ports.verbserver import Answer
from aliquot.services.scheduler.preemption.evictor import Evictor

log = logging.getLogger(__name__)

# 15,000 node names or 2,000 whole nodes; kube-scheduler sends no more.
LARGEST_BODY = 64 << 20
_ALL_BODIES = 128 << 20  # bytes of bodies that arrive at the same time
_CONNECTIONS = 512
_HOLD = 2.0  # seconds for which the chosen cards are held between prioritize and bind
_FORWARDED = "X-Aliquot-Forwarded"
_JSON = "application/json"


class _Origin(NamedTuple):
    """Where a request came in."""

    path: str
    forwarded: bool = False  # by another instance


class _Verb(NamedTuple):
    """One of kube-scheduler's verbs: what answers it, and the form of its errors."""

    name: str
    answer: Callable[[bytes, _Origin], bytes | Awaitable[bytes]]
    failure: Callable[[str], bytes]


class Extender:
    """Answers the requests about one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        binder: Binder,
        calls: Calls,
        *,
        synced: Callable[[], bool],
        leading: Callable[[], bool],
        leader_address: Callable[[], str | None],
        peers: Callable[[], ssl.SSLContext | None] = lambda: None,
        clock: Callable[[], float],
        evictor: Evictor | None = None,
        claims: Claims | None = None,
    ) -> None:
        self._cluster, self._binder, self._calls = cluster, binder, calls
        self._evictor, self._claims = evictor, claims
        self._synced, self._leading, self._leader_address = synced, leading, leader_address
        self._peers, self._clock = peers, clock
        self.limits = Limits(_CONNECTIONS, unfinished=_ALL_BODIES)
        self._session: aiohttp.ClientSession | None = None
        self.stopping = False
        self.awaited = ""  # why we are not ready yet, beside the cluster not being read

    def app(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=LARGEST_BODY)
        for path, verb in self._verbs().items():
            app.router.add_post(path, self._handler(verb))
        app.router.add_get("/gpushare-scheduler/inspect", self._inspect)
        app.router.add_get("/gpushare-scheduler/inspect/{node}", self._inspect)
        for path in ("/scheduler/status", "/aliquot/status"):
            app.router.add_get(path, self._status)
        app.router.add_get("/version", self._version)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.cleanup_ctx.append(self._client_session)
        return app

    # --- kube-scheduler's verbs -----------------------------------------------------------------------------------

    def _verbs(self) -> dict[str, _Verb]:
        """The verbs by path."""
        scores = _Verb("prioritize", self._prioritize, lambda error: b"[]")
        found = {
            "filter": _Verb("filter", self._filter, wire.render_error),
            "prioritize": scores,
            "priorities": scores,
            "rank": _Verb("prioritize", partial(self._prioritize, top=verbs.FINE), lambda error: b"[]"),
            "bind": _Verb("bind", self._bind, wire.render_bound),
            "preempt": _Verb("preempt", self._preempt, lambda error: b"{}"),
        }
        prefixes = ("/aliquot", "/gpushare-scheduler", "/scheduler")
        return {f"{prefix}/{path}": verb for prefix in prefixes for path, verb in found.items()}

    def answers(self) -> dict[bytes, Answer]:
        """The functions that answer the body of a request, by path (verbserver.py)."""
        return {path.encode(): partial(self._answer, verb, _Origin(path)) for path, verb in self._verbs().items()}

    def _handler(self, verb: _Verb) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            body: bytes | BodyError
            try:
                body = await self.limits.read_body(request, LARGEST_BODY)
            except BodyError as error:
                body = error
            answer = self._answer(verb, _Origin(request.path, _FORWARDED in request.headers), body)
            response = web.Response(body=answer if isinstance(answer, bytes) else await answer, content_type=_JSON)
            if isinstance(body, BodyError):  # the rest of the body is not read
                response.force_close()
            return response

        return handle

    def _answer(self, verb: _Verb, origin: _Origin, body: bytes | BodyError) -> bytes | Awaitable[bytes]:
        """The answer to a body: at once, if nothing has to be awaited. Never raises."""
        began = self._clock()
        try:
            if not self._synced():
                raise WireError("aliquot has not read the cluster yet; retry in a moment")
            if isinstance(body, BodyError):
                raise body
            answer = verb.answer(body, origin)
        except Exception as error:
            return self._fail(verb, error, began)
        if not isinstance(answer, bytes):
            return self._answer_later(verb, answer, began)
        self._calls.count(verb.name, "ok", self._clock() - began)
        return answer

    async def _answer_later(self, verb: _Verb, answering: Awaitable[bytes], began: float) -> bytes:
        try:
            answer = await answering
        except Exception as error:
            return self._fail(verb, error, began)
        self._calls.count(verb.name, "ok", self._clock() - began)
        return answer

    def _fail(self, verb: _Verb, error: Exception, began: float) -> bytes:
        """Log and count the error; returns the answer that reports it. Called while the error is handled."""
        refused = isinstance(error, Refused)
        self._calls.count(verb.name, "refused" if refused else "error", self._clock() - began)
        if not isinstance(error, (WireError, Refused, Unreachable, BodyError)):
            log.exception(f"{verb.name}_failed")
            return verb.failure("aliquot: internal error; see the log of aliquot scheduler")
        level = logging.INFO if refused else logging.WARNING
        log.log(level, f"{verb.name}_refused", extra={"data": {"why": str(error)}})
        return verb.failure(f"aliquot: {error}")

    def _filter(self, body: bytes, origin: _Origin) -> bytes | Awaitable[bytes]:
        args = wire.parse_args(body)
        # Only the leader can hold the places of a group.
        elsewhere = not self._leading() and not origin.forwarded and self._leader_address() is not None
        if elsewhere and self._cluster.groups.find(membership(args.Pod)) is not None:
            return self._forward(body, origin)
        answer, outcome = verbs.filter_answer(self._cluster, args, now=self._clock(), keep=self._leading())
        # kube-scheduler skips prioritize if there is only one candidate.
        if outcome.claim is not None and outcome.likely is not None and self._leading():
            self._cluster.hold(outcome.claim, outcome.likely, self._clock() + _HOLD)
        if not outcome.fit and outcome.claim is not None and self._evictor is not None:
            self._evictor.note_refused(outcome.claim, outcome.names)
        if log.isEnabledFor(logging.DEBUG) or not outcome.fit:
            pod = f"{args.Pod.metadata.namespace}/{args.Pod.metadata.name}"
            log.info("pod_filtered", extra={"data": {"pod": pod, "asked": outcome.asked, "fit": outcome.fit}})
        return answer

    def _prioritize(self, body: bytes, origin: _Origin, top: int = verbs.COARSE) -> bytes:
        answer, claim, best = verbs.scores_answer(self._cluster, wire.parse_args(body), top)
        if claim is not None and best is not None and self._leading():
            self._cluster.hold(claim, best, self._clock() + _HOLD)
        return answer

    async def _bind(self, body: bytes, origin: _Origin) -> bytes:
        binding = wire.parse_binding(body)
        if self.stopping:
            raise Refused("this instance is shutting down; the next attempt reaches another one")
        if not self._leading():
            return await self._forward(body, origin)
        began = self._clock()
        await self._binder.bind(binding)
        placed = self._cluster.placement(binding.PodUID)
        cards = sorted(placed.grant.usage()) if placed else []
        log.info(
            "pod_bound",
            extra={
                "data": {
                    "pod": f"{binding.PodNamespace}/{binding.PodName}",
                    "uid": binding.PodUID,
                    "node": binding.Node,
                    "cards": cards,
                    "ms": round((self._clock() - began) * 1000, 2),
                }
            },
        )
        return wire.render_bound()

    async def _forward(self, body: bytes, origin: _Origin) -> bytes:
        """Only the leader binds, and holds cards; a follower forwards the request, once."""
        address = self._leader_address()
        if origin.forwarded or address is None or self._session is None:
            raise Refused("this instance is not the leader and does not know the leader; retry in a moment")
        url, secure = address if "://" in address else f"http://{address}", address.startswith("https://")
        context = self._peers() if secure else None
        if secure and context is None:
            raise Refused(f"the leader at {address} wants a client certificate: give this instance --tls-port too")
        try:
            async with self._session.post(
                f"{url}{origin.path}",
                data=body,
                headers={_FORWARDED: "1", "Content-Type": _JSON},
                ssl=True if context is None else context,
                server_hostname=SERVER_NAME if secure else None,
            ) as answer:
                if answer.status != 200:  # another program listens there: a leader always answers 200
                    raise Refused(f"the leader's address {address} answered HTTP {answer.status}")
                return await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Refused(f"the leader at {address} does not answer: {error}") from error

    def _preempt(self, body: bytes, origin: _Origin) -> bytes:
        asked = wire.parse_preemption(body)
        answer = verbs.preemption_answer(self._cluster, asked)
        if answer and self._evictor is not None:
            self._evictor.note_offered(asked.Pod.metadata.uid)
        return wire.render_preemption(answer)

    async def _client_session(self, app: web.Application) -> Any:
        # No limit on connections: the binds of a group wait for each other at the leader, each on its own.
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=4.5))
        yield
        await self._session.close()

    # --- for people and tools -------------------------------------------------------------------------------------

    async def _inspect(self, request: web.Request) -> web.Response:
        name = request.match_info.get("node")
        found = reports.inspect_answer(self._cluster, name)
        if name is not None and not found["nodes"]:
            return _json({"error": f"no node with GPUs is named {name}"}, status=404)
        return _json(found)

    def status(self) -> SchedulerStatus:
        """Every node, card, Pod and ResourceClaim with cards as known here."""
        return reports.status_answer(self._cluster, leading=self._leading(), calls=self._calls, claims=self._claims)

    def unready(self) -> str:
        """Why this instance is not ready; "" once it is."""
        if self.stopping:
            return "stopping"
        return self.awaited or ("" if self._synced() else "the cluster is not read yet")

    async def _status(self, request: web.Request) -> web.Response:
        return _json(self.status())

    async def _version(self, request: web.Request) -> web.Response:
        return _json({"version": aliquot.__version__})

    async def _livez(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        why = self.unready()
        return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")


def _json(value: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type=_JSON, status=status)
