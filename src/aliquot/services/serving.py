"""How we serve HTTP: quietly. What strangers send is answered, and is no error of ours to log with a traceback."""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_log = logging.getLogger(__name__)


def _is_ours(record: logging.LogRecord) -> bool:
    """Not what was no HTTP: that has been answered 400, and anybody could fill the log with it."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind is None or not issubclass(kind, HttpProcessingError)


_log.addFilter(_is_ours)


def quiet_runner(app: web.Application, *, goodbye: float = 2.0) -> web.AppRunner:
    """What runs the application. `goodbye` is how many seconds requests under way have when it ends."""
    return web.AppRunner(app, access_log=None, logger=_log, shutdown_timeout=goodbye)
