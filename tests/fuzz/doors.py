"""What local users and visitors send: lines on the control socket, Pods to run, HTTP to the dashboard."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from aliquot.adapters.host.control import LONGEST
from aliquot.adapters.host.home import Home
from aliquot.cli.run.pod import options_of
from aliquot.dialects.podruns import PodRuns, makes_pods, runs_of
from aliquot.model.refusal import Invalid
from aliquot.services.dashboard.access import Access
from aliquot.services.dashboard.http import serving
from aliquot.services.dashboard.hub import Hub
from aliquot.services.machine.requests import parse_run_request, readable_name
from fuzz.kubernetes import PODS
from kit.machines.fakeview import FakeView
from kit.machines.machine import PATIENCE, Machine, paper

from .inputs import any_json, as_bytes, changed, damaged, loose_atoms, texts
from .target import Check, Target, plain

# --- `run` ------------------------------------------------------------------------------------------------------------

_ASKS = [
    {"op": "run", "command": ["python", "-m", "train"], "name": "a", "class": "online", "memory_mib": 1024, "core": 30},
    {"op": "run", "command": ["./x.sh"], "gpus": 2, "wait": False, "detach": True},
]
_PODS = [
    *PODS[:3],
    {
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {
            "initContainers": [{"name": "i", "command": ["true"]}],
            "containers": [
                {
                    "name": "a",
                    "command": ["sh", "-c"],
                    "args": ["$(A)"],
                    "env": [{"name": "A", "value": "$(B)"}, {"name": "B", "value": "x"}],
                    "resources": {"limits": {"aliyun.com/gpu-mem": 3}},
                }
            ],
        },
    },
]


def _ask(said: Any) -> None:
    ask = parse_run_request(said if isinstance(said, dict) else {})
    if isinstance(ask, Invalid):
        assert ask.field
        json.dumps(ask.value)
        return
    ask.claim("id", "name")
    home = Home("/run/aliquot", "/var/lib/aliquot")
    for name in (ask.name, readable_name(ask.command)):
        if name is not None:  # it names a file
            path = home.log_of(name)
            assert os.path.dirname(os.path.normpath(path)) == home.logs


def _pod(said: Any) -> None:
    """Every Pod is refused with sentences, or has runs whose requests the daemon can read."""
    if not isinstance(said, dict):
        return
    makes_pods(said)
    found = runs_of(said, None, "box")
    if not isinstance(found, PodRuns):
        assert all(broken.sentence() for broken in found)
        return
    for run in found.runs:
        assert run.command
        assert options_of(run)["--name"] == run.name


# --- the control socket -----------------------------------------------------------------------------------------------

_REQUESTS: list[Any] = [
    *({**ask, "wait": False} for ask in _ASKS),
    {"op": "status"},
    {"op": "hello"},
    {"op": "policy", "policy": "best-effort", "release_delay": 0.1},
    {"op": "stop", "name": "x", "timeout": 1},
    {"op": "logs", "name": "x"},
    {"op": "ended"},
]
_LAST = ("down", "stop")  # what cannot be undone, at worst for the user who runs us


def _mild(request: Any) -> Any:
    """To nobody."""
    if not isinstance(request, dict) or request.get("op") not in _LAST:
        return request
    name = request.get("name")
    return {
        **request,
        "op": "stop",
        "name": f"nobody/{name}" if isinstance(name, str) else name,
    }


_LONG = [b"[" * (LONGEST - 1), b"x" * (LONGEST + 10), b'{"op":' * 40_000, b'{"op":"status","x":' + b"9" * 9000 + b"}"]


def _long_line(at: int) -> bytes:
    """By number: the repr of a strategy has its elements."""
    return _LONG[at]


lines = (
    as_bytes(changed(_REQUESTS, loose_atoms).map(_mild))
    | damaged([json.dumps(request).encode() for request in _REQUESTS if request["op"] not in _LAST])
    | st.binary(max_size=300)
    | st.integers(0, len(_LONG) - 1).map(_long_line)
)


def _answered(machine: Machine, line: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(machine.home / "control.sock"))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is hung up on while it speaks
            connection.sendall(line.replace(b"\n", b" ") + b"\n")
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(1 << 16):
                answer += piece
        return answer


@contextlib.contextmanager
def _daemon() -> Iterator[Check]:
    machine = paper("2x24")
    machine.up()

    def check(line: bytes) -> None:
        answer = _answered(machine, line)
        assert b"stumbled" not in answer, answer
        assert b"internal error" not in answer, answer
        for answered in answer.splitlines():
            json.loads(answered)
        assert b'"ok"' in _answered(machine, b'{"op": "hello"}')

    try:
        yield check
    finally:
        machine.close()


# --- the dashboard ----------------------------------------------------------------------------------------------------

_PATHS = [
    b"/", b"/api/v1/state", b"/api/v1/search?q=a&limit=5", b"/api/v1/history?range=24h", b"/api/v1/nodes/n1",
    b"/api/v1/pods/ns%2Fp", b"/metrics", b"/assets/../../etc/passwd", b"/%2e%2e/%2e%2e/etc/shadow", b"/?token=x",
]  # fmt: skip
_HEADS = [
    b"Host: 127.0.0.1",
    b"Host: evil.example",
    b"Cookie: aliquot-token-1=x; $Version=1",
    b"Authorization: Bearer x",
]
_ASKED = [
    b"GET " + path + b" HTTP/1.1\r\n" + head + b"\r\nConnection: close\r\n\r\n" for path in _PATHS for head in _HEADS
]
TOKEN = "0123456789abcdef-fuzz"


@contextlib.contextmanager
def _panel() -> Iterator[Check]:
    """One that asks for a token nobody here has: no request gets anything of the dashboard."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    loop = asyncio.new_event_loop()
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    done = asyncio.Event()

    async def serve() -> None:
        async with serving(Hub(FakeView(), lambda: 0.0), Access("0.0.0.0", port, TOKEN), listener):
            await done.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()

    def check(asked: bytes) -> None:
        answer = _http(port, asked)
        assert answer == b"" or answer.startswith(b"HTTP/"), answer[:200]
        assert b"HTTP/1.1 500" not in answer, answer[:400]
        assert b'"paper"' not in answer
        assert not errors, errors
        good = b"GET /api/v1/state HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + TOKEN.encode()
        assert _http(port, good + b"\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200")

    try:
        yield check
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(PATIENCE)
        loop.close()


def _http(port: int, asked: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as line:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, OSError):
            line.sendall(asked)
            select.select([line], [], [], 1.0 if asked.endswith(b"\r\n\r\n") else 0.01)
            line.shutdown(socket.SHUT_WR)  # else it waits for more, or for the next question
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while len(answer) < 1 << 20 and (piece := line.recv(1 << 16)):
                answer += piece
        return answer


_queries = st.builds(
    lambda path, key, value: f"GET {path}?{key}={value} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode(
        errors="replace"
    ),
    st.sampled_from(["/", "/api/v1/search", "/api/v1/history", "/api/v1/events"]),
    st.sampled_from(["token", "limit", "q", "range"]),
    texts,
)

TARGETS: tuple[Target, ...] = (
    plain("run", changed(_ASKS, loose_atoms), _ask, 100),
    plain("run-pod", changed(_PODS, loose_atoms) | any_json(loose_atoms), _pod),
    Target("control-socket", lines, _daemon, 40),
    Target("dashboard", damaged(_ASKED) | _queries | st.binary(max_size=300), _panel, 40),
)
