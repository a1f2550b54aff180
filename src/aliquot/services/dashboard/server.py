"""A dashboard, from its socket to its end. The socket is there from the start, so that its address is known and taken;
what answers on it is loaded when somebody comes, or a moment later: loading aiohttp takes a third of a second, which
nobody should wait for who only wants to run something.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from types import ModuleType

from aliquot.services.dashboard.access import Access, Listen
from aliquot.services.dashboard.contract import Picture
from aliquot.services.dashboard.hub import Hub

_LOG = logging.getLogger("aliquot.dashboard")
_UNHURRIED = 3.0  # seconds after which it is loaded although nobody came: the first to come should not wait


def take_place(wished: Listen, option: str) -> tuple[socket.socket, Access] | None:
    """A socket there; None where none is wished for, or the usual place is taken. Raises OSError for any other."""
    if wished.port == 0:
        return None
    family = socket.AF_INET6 if ":" in wished.address else socket.AF_INET
    try:
        listener = socket.create_server((wished.address, wished.port), family=family, backlog=64)
    except OSError as error:
        if not wished.usual:
            raise
        _LOG.warning("no dashboard: port %d: %s; %s chooses another", wished.port, error.strerror, option)
        return None
    return listener, Access(wished.address, wished.port, wished.token)


async def show(picture: Picture, listener: socket.socket, access: Access) -> None:
    """Until cancelled. The history begins at once."""
    hub = Hub(picture, time.time)
    beating = asyncio.create_task(hub.run())
    try:
        await _somebody_or_later(listener)
        panel = await asyncio.to_thread(_load)
        async with panel.serving(hub, access, listener):
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise
    except Exception:
        _LOG.exception("there is no dashboard")  # everything else goes on
    finally:
        beating.cancel()


async def _somebody_or_later(listener: socket.socket) -> None:
    loop, come = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listener, come.set)
    try:
        async with asyncio.timeout(
            _UNHURRIED
        ):  # not wait_for: that forgets being cancelled when somebody comes with it
            await come.wait()
    except TimeoutError:
        return
    finally:
        loop.remove_reader(listener)


def _load() -> ModuleType:
    from aliquot.services.dashboard import http as panel

    return panel
