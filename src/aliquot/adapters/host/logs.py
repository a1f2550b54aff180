"""Logs on stderr. The message is a stable key, the rest are fields: `log.info("pod_bound", extra={"data": {...}})`.

The programs of a cluster write JSON lines. The daemon of one machine writes `key field=value` for people.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from aliquot.adapters.host.encoding import encode_json
from aliquot.adapters.host.home import open_private
from aliquot.adapters.host.logfiles import OLDER
from aliquot.model.text import printable, printable_json, printable_lines


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
        return printable_json(encode_json(line, str).decode())


class _Text(logging.Formatter):
    """Each entry is one line, and a traceback below it: no text of others begins a line, or steers a terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides logging
        fields = "".join(f" {name}={value}" for name, value in getattr(record, "data", {}).items())
        return printable(super().formatMessage(record) + fields)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - overrides logging
        return "\n".join(f"  {line}" for line in printable_lines(super().formatException(ei)).split("\n"))


class _Bounded(logging.StreamHandler[TextIO]):
    """Stderr; where it is the file `path`, that file gets a new name when it has more than half of the limit."""

    def __init__(self, path: str, limit: int) -> None:
        super().__init__(sys.stderr)
        self._path, self._limit = path, limit

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)  # handles a full disk
        with contextlib.suppress(OSError, ValueError):  # ValueError: stderr is closed
            self._bound()

    def _bound(self) -> None:
        file = sys.stderr.fileno()
        found = os.fstat(file)
        if found.st_size <= self._limit // 2 or not os.path.samestat(os.lstat(self._path), found):
            return
        os.replace(self._path, self._path + OLDER)
        with open_private(self._path, os.O_APPEND) as fresh:
            for number in (1, file):
                if os.path.samestat(os.fstat(number), found):
                    os.dup2(fresh.fileno(), number)


def start_text_logging(*, with_time: bool, path: str, limit: int | None) -> None:
    """Text lines on stderr. `path`: where that may be a file, which has no more than the limit."""
    handler = logging.StreamHandler(sys.stderr) if limit is None else _Bounded(path, limit)
    handler.setFormatter(_Text("%(asctime)s aliquot: %(message)s" if with_time else "aliquot: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def start_logging(level: str) -> None:
    """JSON lines on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("aiohttp.access", "grpc"):  # one line for every call says nothing
        logging.getLogger(name).setLevel(logging.WARNING)
