"""Opens the scheduler's ports: the verbs, metrics and probes, and the dashboard's. Those with keys open once they have
them."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from aliquot.dialects import kai
from aliquot.services.daemon.http import Accepting, bind_port, listen, make_runner
from aliquot.services.dashboard.access import Access
from aliquot.services.dashboard.server import bind
from aliquot.services.scheduler.ports.http import LARGEST_BODY, Extender
from aliquot.services.scheduler.ports.readport import read_app, serve_read_port
from aliquot.services.scheduler.ports.verbserver import VerbServer
from aliquot.services.scheduler.ports.verbstls import VerbsKeys, serve_verbs
from aliquot.services.scheduler.settings import Settings

WEBHOOK, TLS = "the webhook", "the port with TLS"

log = logging.getLogger(__name__)


class Ports:
    """`keys`: of the port with TLS; None: there is no such port."""

    def __init__(self, settings: Settings, extender: Extender, keys: VerbsKeys | None) -> None:
        self._settings, self._extender, self._keys = settings, extender, keys
        self._start_verbs: Callable[..., Accepting] | None = None  # on a socket, `tls` or without
        self._waits: dict[str, str] = {}  # ports that do not listen yet, and why
        self.dashboard: tuple[socket.socket, Access] | None = None

    async def open(self, stack: AsyncExitStack, metrics: Callable[[], bytes], identity: str) -> None:
        """Listen until the stack is left. Raises OSError if a port is taken."""
        settings, extender = self._settings, self._extender
        # Take the port before the identity: two processes with one identity cannot both get here.
        listener = bind_port(settings.bind_address, settings.port)
        stack.callback(listener.close)
        for name, with_keys in ((WEBHOOK, settings.webhook), (TLS, settings.tls)):
            if with_keys is not None:  # only a check; they listen once they have keys
                self.set_state(name, "")  # until then a Service must not send anything here
                bind_port(with_keys.bind_address, with_keys.port).close()
        if kai.DIALECT in settings.served and settings.webhook is None:
            fix = "give --webhook-port (the chart: webhook.enabled), or leave kai out of --dialects"
            data = {"why": "without the webhook no Pod of KAI's gets a card: it names no resource", "fix": fix}
            log.warning("kai_without_webhook", extra={"data": data})
        app = read_app(metrics=metrics, status=extender.status, unready=extender.unready)
        await stack.enter_async_context(serve_read_port(settings.metrics, app))
        self.dashboard = bind(settings.dashboard, "--dashboard")
        if self.dashboard is not None:
            stack.callback(self.dashboard[0].close)
            log.info("dashboard_listening", extra={"data": {"url": self.dashboard[1].url}})
        runner = make_runner(extender.app(), extender.limits)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        assert runner.server is not None, "it is set up"
        verbs = VerbServer(extender.answers(), runner.server, extender.limits, largest=LARGEST_BODY)
        stack.push_async_callback(verbs.close)
        self._start_verbs = partial(listen, runner, limits=extender.limits, server=verbs)
        stack.callback(self._start_verbs(listener).close)
        address = f"{settings.bind_address}:{settings.port}"
        log.info("scheduler_listening", extra={"data": {"address": address, "identity": identity}})

    def set_state(self, name: str, why: str | None) -> None:
        """Why it does not listen yet; None: it does."""
        if why is None:
            self._waits.pop(name, None)
        else:
            self._waits[name] = f"{name} does not listen yet: {why}" if why else f"{name} does not listen yet"
        self._extender.awaited = "; ".join(self._waits.values())

    async def serve_with_tls(self) -> None:
        """The verbs with TLS, until cancelled."""
        assert self._settings.tls is not None
        assert self._keys is not None
        await serve_verbs(
            self._keys,
            self._start_tls,
            on_waiting=lambda why: self.set_state(TLS, why),
        )

    def _start_tls(self, keys: VerbsKeys) -> Accepting:
        assert self._settings.tls is not None
        assert self._start_verbs is not None
        return self._start_verbs(bind_port(self._settings.tls.bind_address, self._settings.tls.port), tls=keys.context)
