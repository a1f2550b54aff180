"""Hostile and broken requests to the control socket."""

from __future__ import annotations

import json
import socket

import pytest

from kit.machines.machine import PATIENCE, Machine


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        (b"garbage\n", "malformed"),
        (b"\xff\xfe\0\n", "malformed"),
        (b"[]\n", "malformed"),
        (b"{}\n", "malformed"),
        (b"[" * 60_000 + b"\n", "malformed"),
        (b"x" * 200_000 + b"\n", "malformed"),
        (b'{"op": ["run"]}\n', "malformed"),
        (b'{"op": "run"}\n', "invalid"),
        (b'{"op": "run", "command": "ls"}\n', "invalid"),
        (b'{"op": "run", "command": []}\n', "invalid"),
        (b'{"op": "run", "command": [1]}\n', "invalid"),
        (b'{"op": "run", "command": ["x"], "core": true}\n', "invalid"),
        (b'{"op": "run", "command": ["x"], "core": 1e99}\n', "invalid"),
        (b'{"op": "run", "command": ["x"], "memory_mib": -1}\n', "invalid"),
        (b'{"op": "run", "command": ["x"], "memory_mib": 1' + b"0" * 4000 + b"}\n", "invalid"),
        (b'{"op": "run", "command": ["x"], "gpus": "2"}\n', "invalid"),
        (b'{"op": "run", "command": ["x"], "name": "../../etc"}\n', "invalid"),
        (b'{"op": "run", "command": ["x"], "class": {}}\n', "invalid"),
        (b'{"op": "run", "command": ["x"], "wait": 0}\n', "invalid"),
        (b'{"op": "stop"}\n', "unknown-name"),
        (b'{"op": "stop", "name": {"a": 1}}\n', "invalid"),
        (b'{"op": "stop", "name": "x", "timeout": "long"}\n', "invalid"),
        (b'{"op": "logs", "name": "../state.db"}\n', "unknown-name"),
        (b'{"op": "logs", "name": "a\\u0000b"}\n', "unknown-name"),
        (b'{"op": "policy", "policy": "anarchy"}\n', "invalid"),
        (b'{"op": "policy", "release_delay": NaN}\n', "invalid"),
        (b'{"op": "policy", "release_delay": -1}\n', "invalid"),
    ],
)
def test_control_socket_survives_nonsense(machine: Machine, sent: bytes, kind: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(machine.home / "control.sock"))
        connection.sendall(sent)
        answer = b""
        while piece := connection.recv(1 << 16):
            answer += piece
    assert json.loads(answer)["error"]["kind"] == kind
    assert machine.status()["queue"] == []


def test_silent_connections_do_not_block_others(machine: Machine) -> None:
    mute = []
    for _ in range(100):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(machine.home / "control.sock"))
        mute.append(connection)
    assert machine.aliquot("run", "--memory", "1", "--", "echo", "x").stdout == "x\n"
    for connection in mute:
        connection.close()
