"""Logs as JSON lines on stderr, with what was decided as data: `log.info("bound", extra={"data": {...}})`."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
            **getattr(record, "data", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def start_logging(level: str) -> None:
    """To stderr, from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("aiohttp.access", "grpc"):  # one line for every call says nothing
        logging.getLogger(name).setLevel(logging.WARNING)
