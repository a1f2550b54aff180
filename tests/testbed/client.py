"""A small JSON client for the API server, for tests and benchmarks: synchronous, one kept connection per thread."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from aliquot.model.decoding.shallowjson import decoded

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_IDLE_SECONDS = 60.0  # the API server closes connections that were idle for 90 s


class Refused(Exception):  # reads as what happened
    """The API server's answer was not a success."""

    def __init__(self, status: int, body: Any, what: str) -> None:
        self.status = status
        self.body = body
        self.reason = body.get("reason", "") if isinstance(body, dict) else ""
        self.message = body.get("message", "") if isinstance(body, dict) else str(body)
        super().__init__(f"{what}: {status} {self.reason}: {self.message}")


class _Connection(http.client.HTTPSConnection):
    """Closes with its thread, or with its client: nobody else knows of it."""

    def __del__(self) -> None:
        self.close()


class Client:
    """Talks to one API server as one user, from any number of threads."""

    def __init__(self, host: str, port: int, ca_file: Path, token: str, *, timeout: float = 60.0) -> None:
        self._host, self._port, self._ca_file, self._timeout = host, port, ca_file, timeout
        self._headers = {"Authorization": f"Bearer {token}", "Accept": JSON, "User-Agent": "testbed"}
        self._local = threading.local()
        self._age = 0
        self._tls: ssl.SSLContext | None = None

    def forget_connections(self) -> None:
        """Every thread connects anew for its next call: the server was, or will be, restarted."""
        self._age += 1
        self._tls = None

    def __call__(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = JSON,
        params: Mapping[str, str] | None = None,
    ) -> Any:
        """The decoded answer. `Refused` when the server says no, OSError when it says nothing.

        Text that is not JSON (metrics, /readyz) is answered as a string.
        """
        target = f"{path}?{urlencode(params)}" if params else path
        data = None if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = self._headers if data is None else {**self._headers, "Content-Type": content_type}
        connection = self._connection()
        try:
            connection.request(method, target, data, headers)
            response = connection.getresponse()
            answer = response.read()
        except http.client.HTTPException as error:
            self._drop()
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        except OSError:
            self._drop()
            raise
        is_json = response.headers.get_content_type() == JSON
        answered = decoded(msgspec.json.decode, answer) if is_json and answer else answer.decode(errors="replace")
        if response.status >= 400:
            raise Refused(response.status, answered, f"{method} {path}")
        return answered

    @contextmanager
    def watch(self, path: str, *, timeout: float = 30.0, **params: str) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of a watch as they come; TimeoutError when none comes for `timeout` seconds."""
        connection = self._connect(timeout)
        try:
            connection.request("GET", f"{path}?{urlencode({'watch': 'true', **params})}", headers=self._headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise Refused(response.status, msgspec.json.decode(response.read()), f"WATCH {path}")
            yield (msgspec.json.decode(line) for line in response)
        finally:
            connection.close()

    def _connect(self, timeout: float) -> _Connection:
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=str(self._ca_file))
        connection = _Connection(self._host, self._port, timeout=timeout, context=self._tls)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _connection(self) -> _Connection:
        local, now = self._local, time.monotonic()
        if getattr(local, "age", None) != self._age or now - local.used > _IDLE_SECONDS:
            self._drop()
            local.connection, local.age = self._connect(self._timeout), self._age
        local.used = now
        connection: _Connection = local.connection
        return connection

    def _drop(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
        self._local.connection = self._local.age = None
