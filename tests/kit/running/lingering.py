"""Files whose last close takes as long as their maker likes: what a hostile process hands to a daemon."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

SECONDS = 40  # that its close takes


@contextlib.contextmanager
def lingering() -> Iterator[socket.socket]:
    """A TCP socket with data that its peer does not read. The peer lives as long as the context."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        sender.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sender.send(bytes(1 << 16))
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, SECONDS))
        with sender, peer:  # the peer closes first: else a sender that was not handed over waits for SECONDS
            yield sender


def hand_over(connection: socket.socket, message: bytes, file: socket.socket, *before: int) -> None:
    """Send it after these files, and close our own: the message has the last one."""
    socket.send_fds(connection, [message], [*before, file.fileno()])
    file.close()


def nested(file: socket.socket) -> socket.socket:
    """A socket that is never read, with that file in its queue."""
    sender, kept = socket.socketpair()
    hand_over(sender, b"x", file)
    sender.close()
    return kept
