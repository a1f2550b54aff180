"""The product's agent on a real node, as its DaemonSet would run it."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from testbed.plane import HOST
from testbed.processes import free_port, wait_until
from testbed.realnodes.nodeprogram import NodeProgram
from testbed.realnodes.nodes import RealNode

CARDS = "4x16GiB"


class AliquotAgent:
    """`aliquot agent` on the node; ready when this returns, unless told not to wait. Logs are one file per node."""

    def __init__(self, node: RealNode, *args: str, cards: str | None = CARDS, wait: bool = True) -> None:
        self.node, self.args = node, args
        self.port = free_port()
        where = [f"--nodename={node.name}", f"--kubeconfig={node.plane.kubeconfig}", f"--bind-address={HOST}"]
        simulate = [] if cards is None else [f"--simulate={cards}"]
        self.command = [sys.executable, "-m", "aliquot", "agent", *where, f"--port={self.port}", *simulate, *args]
        self._program: NodeProgram | None = None
        self.start(wait=wait)

    @property
    def program(self) -> NodeProgram:
        assert self._program is not None
        return self._program

    def start(self, *, wait: bool = True) -> None:
        self._program = self.node.run(self.command, name="agent")
        if wait:
            self.wait_ready()

    def wait_ready(self, seconds: float = 30.0) -> None:
        self.program.wait_ready(lambda: self.ask("/readyz")[0] == 200, seconds)

    def restart(self, *, kill: bool = True, wait: bool = True) -> None:
        self.program.kill() if kill else self.program.stop()
        self.start(wait=wait)

    def stop(self) -> int:
        return self.program.stop()

    @contextmanager
    def instead(self, command: Sequence[str]) -> Iterator[None]:
        """Another command in its place for a while, ready. The usual one is not started again here (Fleet.heal)."""
        self.stop()
        usual, self.command = self.command, list(command)
        try:
            self.start()
            yield
        finally:
            self.stop()
            self.command = usual

    def ask(self, path: str) -> tuple[int, str]:
        """The status and the body of its answer; OSError where there is none."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()

    def status(self) -> dict[str, Any]:
        code, body = self.ask("/status")
        assert code == 200, body
        found: dict[str, Any] = json.loads(body)
        return found

    def stumbles(self) -> list[str]:
        """What its log has of errors of its own, over all its starts."""
        return [line for line in self.program.log.splitlines() if '"level":"error"' in line or "Traceback" in line]

    def until_empty(self, seconds: float = 20.0) -> None:
        """No Pod is left in what it tells, in the CDI folder, the tenants' folder and the links."""
        wait_until(lambda: not self.left(), seconds, f"nothing is left on {self.node.name}", saw=self.left)

    def left(self) -> list[str]:
        """What is on the node of Pods on its cards."""
        folders = ("/var/run/cdi", "/run/aliquot/t", "/run/aliquot/a")
        files = [str(path) for folder in folders for path in self.node.path(folder).iterdir()]
        return files + [tenant["name"] for tenant in self.status()["tenants"]]
