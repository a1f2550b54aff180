"""The product's scheduler as a program of its own, as it runs in a cluster."""

from __future__ import annotations

import json
import sys
import urllib.request
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
        where = [f"--bind-address={HOST}", f"--port={self.port}", f"--kubeconfig={kubeconfig}"]
        command = [sys.executable, "-m", "aliquot", "scheduler", *where, *args]
        super().__init__(command, log, name=name, environment=environment)
        if wait:
            self.wait_ready(lambda: self.get("/readyz") is not None, 30)

    def get(self, path: str, *, timeout: float = 10.0) -> str:
        """The body of its answer; OSError (urllib's HTTPError among them) where it does not say 200."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=timeout) as response:
            answer: bytes = response.read()
        return answer.decode()

    def post(self, path: str, body: object, *, timeout: float = 10.0) -> Any:
        """Its decoded answer to a verb of kube-scheduler's."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.load(response)

    def entries(self) -> list[dict[str, Any]]:
        """Its log as data. A line that is not JSON is an error: the log is for machines."""
        return [json.loads(line) for line in self.log.splitlines()]
