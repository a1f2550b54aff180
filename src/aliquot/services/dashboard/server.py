"""Serves a dashboard. Its socket is bound at the start, so that its address is known and taken; the HTTP server is
loaded with the first connection, or a moment later: loading aiohttp takes a third of a second, for which `aliquot run`
should not wait.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from types import ModuleType

from aliquot.services.dashboard.access import Access, Listen
from aliquot.services.dashboard.contract import View
from aliquot.services.dashboard.hub import Hub

_LOG = logging.getLogger("aliquot.dashboard")
_UNHURRIED = 3.0  # seconds until it is loaded without a connection: the first visitor should not wait


def bind(listen: Listen, option: str) -> tuple[socket.socket, Access] | None:
    """A socket; None where there should be none, or where another program has a port that nobody asks for now. Raises
    OSError for any other port."""
    if listen.port == 0:
        return None
    family = socket.AF_INET6 if ":" in listen.address else socket.AF_INET
    try:
        listener = socket.create_server((listen.address, listen.port), family=family, backlog=64)
    except OSError as error:
        if not listen.usual:
            raise
        data = {"port": listen.port, "error": error.strerror, "hint": f"{option} chooses another port"}
        _LOG.warning("dashboard_port_taken", extra={"data": data})
        return None
    return listener, Access(listen.address, listen.port, listen.token)


async def show(
    view: View, listener: socket.socket, access: Access, *, before: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Until cancelled. The history begins after `before`, or at once."""
    hub = Hub(view, time.time)
    beating = asyncio.create_task(_beat(hub, before))
    try:
        await _connection_or_later(listener)
        http = await asyncio.to_thread(_load)
        async with http.serving(hub, access, listener):
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise
    except Exception:
        _LOG.exception("dashboard_ended")  # everything else goes on
    finally:
        beating.cancel()


async def _beat(hub: Hub, before: Callable[[], Awaitable[None]] | None) -> None:
    if before is not None:
        await before()
    await hub.run()


async def _connection_or_later(listener: socket.socket) -> None:
    loop, connected = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listener, connected.set)
    try:
        # Not wait_for: it forgets being cancelled when a connection comes at the same moment.
        async with asyncio.timeout(_UNHURRIED):
            await connected.wait()
    except TimeoutError:
        return
    finally:
        loop.remove_reader(listener)


def _load() -> ModuleType:
    from aliquot.services.dashboard import http

    return http
