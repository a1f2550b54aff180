"""How the kubelet is called: gRPC over a unix socket, each failure as one sentence.

Three traps. A Go server does not take the authority that a unix socket gets by default. Channels to one address share
their connection and its back-off unless told not to: a kubelet that has just come back would not be asked for seconds.
And an answer may name twenty thousand devices with the name of their resource beside each: more than the usual 4 MiB.
"""

from __future__ import annotations

from pathlib import Path

import grpc
from grpc import aio

LARGEST_MESSAGE = 64 << 20

_OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.enable_http_proxy", 0),
)


class KubeletError(Exception):
    """The kubelet cannot be reached, or said no; the message says which and where."""


def dial(socket: Path) -> aio.Channel:
    """A channel to the socket. It connects with the first call, and again when the kubelet comes back."""
    return aio.insecure_channel(f"unix:{socket}", options=_OPTIONS)


def failed(what: str, socket: Path, error: grpc.RpcError) -> KubeletError:
    """That error as ours."""
    code = error.code().name if isinstance(error, aio.AioRpcError) else "UNKNOWN"
    details = error.details() if isinstance(error, aio.AioRpcError) else str(error)
    return KubeletError(f"{what} at {socket}: {code}: {details or 'no reason given'}")
