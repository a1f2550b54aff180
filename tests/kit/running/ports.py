"""Ports of this machine."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port that no process listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port
