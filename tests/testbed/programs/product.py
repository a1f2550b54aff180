"""The product's scheduler as a program of its own, as it runs in a cluster."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.plane import HOST
from testbed.processes import Program, free_port


class AliquotScheduler(Program):
    """`aliquot scheduler` on a free port of loopback; ready when this returns, unless told not to wait."""

    def __init__(
        self,
        *args: str,
        kubeconfig: Path,
        log: Path,
        port: int | None = None,
        wait: bool = True,
        name: str = "aliquot-scheduler",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.metrics_port = free_port()
        where = [f"--bind-address={HOST}", f"--port={self.port}", f"--metrics-port={self.metrics_port}"]
        where += [f"--kubeconfig={kubeconfig}"]
        command = [sys.executable, "-m", "aliquot", "scheduler", *where, *args]
        super().__init__(command, log, name=name, environment=environment)
        if wait:
            self.wait_ready(lambda: self.ask("GET", "/readyz")[0] == 200, 30)

    def ask(self, method: str, path: str, data: bytes | None = None, *, timeout: float = 10.0) -> tuple[int, bytes]:
        """The status and the body of its answer, whatever they are; OSError where there is none."""
        port = self.metrics_port if path == "/metrics" else self.port
        connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
        try:
            connection.request(method, path, data, {} if data is None else {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()

    def get(self, path: str) -> str:
        """What it answers with 200."""
        status, answer = self.ask("GET", path)
        assert status == 200, f"GET {path}: {status} {answer!r}"
        return answer.decode()

    def post(self, path: str, body: object) -> Any:
        """Its decoded answer to a verb of kube-scheduler's."""
        status, answer = self.ask("POST", path, json.dumps(body).encode())
        assert status == 200, f"POST {path}: {status} {answer!r}"
        return json.loads(answer)

    def entries(self) -> list[dict[str, Any]]:
        """Its log as data. A line that is not JSON is an error: the log is for machines."""
        return [json.loads(line) for line in self.log.splitlines()]
