"""A fake daemon: answers on a control socket what a test prepared, and records the requests."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from aliquot.model.status.machine import Status

Json = dict[str, Any]
Answer = Json | list[Json] | Callable[[Json], Json | list[Json]]

GIB = 1 << 30


class FakeDaemon:
    """`answers` by operation: what "ok" is, or whole lines (events, then "ok" or "error"), or a function to either."""

    def __init__(self, home: Path, **answers: Answer) -> None:
        self.home = home
        self.answers: dict[str, Answer] = dict(answers)
        self.asked: list[Json] = []
        self.listen()

    def listen(self) -> None:
        """Listen from now on; also again, after it was closed."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.home / "control.sock"))
        self._listener.listen(16)
        threading.Thread(target=self._serve, daemon=True).start()

    def requests(self, operation: str) -> list[Json]:
        """The requests for that operation."""
        return [request for request in self.asked if request["op"] == operation]

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        (self.home / "control.sock").unlink()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as stream:
            line = stream.readline()
            if not line:
                return
            request = json.loads(line)
            self.asked.append(request)
            answer = self.answers.get(request["op"], [{"error": {"kind": "malformed", "text": "no such operation"}}])
            reply = answer(request) if callable(answer) else answer
            for line_sent in reply if isinstance(reply, list) else [{"ok": reply}]:
                stream.write(json.dumps(line_sent).encode() + b"\n")


def a_share(index: int = 0, gib: int = 3, **more: Any) -> Json:
    """What a tenant has of a card."""
    return {
        "index": index,
        "uuid": f"GPU-{index}",
        "exclusive": False,
        "core": None,
        "memory_limit_bytes": gib * GIB,
        "state": "running",
        "level": "hardware",
        "share": 0.5,
        "memory_used_bytes": 64 << 20,
        "pids": [],
        "preemptions": 0,
        "paused_seconds": 0.0,
        "refused_allocations": 0,
        **more,
    }


def a_tenant(name: str, **more: Any) -> Json:
    """A run on the first card."""
    return {
        "id": f"id-{name}",
        "name": name,
        "class": "normal",
        "uid": 0,
        "pid": None,
        "command": [],
        "created": 0.0,
        "age_seconds": 5.0,
        "log": None,
        "cards": [a_share()],
        **more,
    }


def a_queue_entry(name: str, **more: Any) -> Json:
    """A run that waits alone for 3 GiB of one card."""
    return {
        "name": name,
        "position": 1,
        "of": 1,
        "kept_for": None,
        "refusals": [],
        "class": "normal",
        "uid": 0,
        "pid": 99,
        "gpus": 1,
        "core": None,
        "memory_bytes": 3 * GIB,
        "waited_seconds": 5.0,
        "command": [],
        "log": None,
        **more,
    }


def a_status(**more: Any) -> Json:
    """A machine of one node with two cards of 24 GiB."""
    return {
        "daemon": {"pid": 1, "simulated": None},
        "rules": {"policy": "best-effort", "release_delay_seconds": 0.1},
        "nodes": [
            {"name": "box", "cards": ["GPU-0", "GPU-1"], "offers": ["qgpu", "gpushare"], "policy": "best-effort"}
        ],
        "cards": [a_card("box", index) for index in range(2)],
        "tenants": [],
        "queue": [],
        "findings": [],
        **more,
    }


def a_card(node: str, index: int, booked_gib: int = 0, **more: Any) -> Json:
    """A card of 24 GiB."""
    return {
        "node": node,
        "index": index,
        "uuid": f"GPU-{index}",
        "model": "Paper 1000",
        "memory_bytes": 24 * GIB,
        "memory_used_bytes": 0,
        "memory_booked_bytes": booked_gib * GIB,
        "core_booked": 0.0,
        "tenants": int(booked_gib > 0),
        "utilisation": None,
        **more,
    }


def machine_status(status: Json) -> Status:
    """The status as a command reads it."""
    return msgspec.convert(status, Status)
