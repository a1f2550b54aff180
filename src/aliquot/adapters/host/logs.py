"""Logs on stderr. The message is a stable key, the rest are fields: `log.info("bound", extra={"data": {...}})`.

The programs of a cluster write JSON lines. The daemon of one machine writes `key field=value` for people.
"""

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


class _Text(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides logging
        fields = "".join(f" {name}={value}" for name, value in getattr(record, "data", {}).items())
        return super().formatMessage(record) + fields


def start_text_logging(*, with_time: bool) -> None:
    """Text lines on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Text("%(asctime)s aliquot: %(message)s" if with_time else "aliquot: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def start_logging(level: str) -> None:
    """JSON lines on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("aiohttp.access", "grpc"):  # one line for every call says nothing
        logging.getLogger(name).setLevel(logging.WARNING)
