"""kube-scheduler's side of the extender, call by call: faster than a kube-scheduler, and at the moment a test wants."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Sequence
from typing import Any

from testbed.plane import HOST

Object = dict[str, Any]


class _Connection(http.client.HTTPConnection):
    """Closes with its thread: nobody else knows of it."""

    def __del__(self) -> None:
        self.close()


class Extender:
    """One extender on loopback, from any number of threads, with a kept connection for each.

    OSError where it does not answer, whatever the reason.
    """

    def __init__(self, port: int, *, prefix: str = "/aliquot", timeout: float = 10.0) -> None:
        self._port, self._prefix, self._timeout = port, prefix, timeout
        self._local = threading.local()

    def ask(self, verb: str, body: object) -> Any:
        """The decoded answer to one verb."""
        connection: _Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = _Connection(HOST, self._port, timeout=self._timeout)
        try:
            data = json.dumps(body).encode()
            connection.request("POST", f"{self._prefix}/{verb}", data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
            assert response.status == 200, f"{verb}: {response.status} {answer!r}"
            return json.loads(answer)
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            self._local.connection = None
            raise ConnectionError(f"{verb}: {error!r}") from error

    def bind(self, pod: Object, node: str) -> str:
        """What the answer complains of; nothing when the Pod is bound."""
        who = pod["metadata"]
        asked = {"PodName": who["name"], "PodNamespace": who["namespace"], "PodUID": who["uid"], "Node": node}
        return str(self.ask("bind", asked)["Error"])

    def schedule(self, pod: Object, names: Sequence[str]) -> str:
        """filter, prioritize, bind, as kube-scheduler does it. What went wrong; nothing when the Pod is bound."""
        args = {"Pod": pod, "Nodes": None, "NodeNames": list(names)}
        found = self.ask("filter", args)
        if found["Error"] or not found["NodeNames"]:
            return str(found["Error"] or f"no node: {next(iter(found['FailedNodes'].values()), '')}")
        scores = self.ask("prioritize", args | {"NodeNames": found["NodeNames"]})
        if not scores:
            return "prioritize said nothing"
        return self.bind(pod, max(scores, key=lambda score: score["Score"])["Host"])
