"""An API server for `aliquot uninstall`, with fixed answers."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click

from kit.clusters.kubectl import invoked

SPACE = "/api/v1/namespaces/aliquot-system"
AGENTS = "/apis/apps/v1/namespaces/aliquot-system/daemonsets/aliquot-agent"
IMAGE = "here/aliquot:0.0.1"  # of the agents


class FakeApi:
    """An API server with fixed answers that records writes."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.writes: list[str] = []
        self.created: list[Any] = []
        self.patched: dict[str, Any] = {}
        self.no_namespace = False  # whether the namespace is missing, until somebody makes it
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                chosen = parse_qs(parts.query).get("fieldSelector", [""])[0]
                found = api.answers.get(f"{parts.path}?{chosen}" if chosen else parts.path)
                if found is None and parts.path.rpartition("/")[2].endswith("s"):
                    found = {"items": []}
                self._answer(404 if found is None else 200, found or {"message": "not found"})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if api.no_namespace:
                    self._answer(404, {"message": 'namespaces "aliquot-system" not found'})
                    return
                api.writes.append(f"POST {self.path}")
                api.created.append(body)
                self._answer(201, {})

            def do_PATCH(self) -> None:
                api.writes.append(f"PATCH {self.path}")
                api.patched[urlsplit(self.path).path] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if urlsplit(self.path).path == SPACE:
                    api.answers[SPACE], api.no_namespace = api.patched[SPACE], False
                self._answer(200, {})

            def do_DELETE(self) -> None:
                api.writes.append(f"DELETE {self.path}")
                if urlsplit(self.path).path == SPACE:
                    api.answers.pop(SPACE, None)
                self._answer(200, {})

            def _answer(self, status: int, body: Any) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that is refused does not wait for the other answers."""

        self.server = Server(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()

    def agents(self, template: Any = None) -> None:
        """The agents run, with this template of their Pods."""
        template = template or {"spec": {"containers": [{"image": IMAGE}]}}
        self.answers[AGENTS] = {"metadata": {"name": "aliquot-agent"}, "spec": {"template": template}}

    def hold(self) -> None:
        """A Pod is on a card of ours."""
        metadata = {"name": "p", "namespace": "ml", "uid": "u", "annotations": {"aliquot.dev/grant": "{}"}}
        self.answers["/api/v1/pods"] = {"items": [{"metadata": metadata, "spec": {"nodeName": "n1"}}]}

    @property
    def deleted(self) -> list[str]:
        return [write.split("?")[0].rpartition("/")[2] for write in self.writes if write.startswith("DELETE")]


def kubeconfig(url: str) -> dict[str, Any]:
    """The kubeconfig of the server at that URL."""
    return {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
    }


def refusal(command: click.Command, *words: str, code: int = 2) -> str:
    """The last line that the refused command says."""
    result = invoked(command, *words)
    assert result.exit_code == code, result.output
    return result.stderr.splitlines()[-1]
