"""gRPC to the kubelet over its unix sockets. Every failure becomes one sentence.

Three traps. A Go server refuses the authority that a unix socket gets by default. Channels to one address share their
connection and its back-off by default: calls to a kubelet that has just come back would then fail for seconds. And a
response may list twenty thousand devices, each with the name of its resource: more than the default limit of 4 MiB.
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
    """The kubelet cannot be reached or refused the call. The message names the call and the socket."""


def dial(socket: Path) -> aio.Channel:
    """A channel that connects with the first call, and again when the kubelet comes back."""
    return aio.insecure_channel(f"unix:{socket}", options=_OPTIONS)


def kubelet_error(call: str, socket: Path, error: grpc.RpcError) -> KubeletError:
    """The gRPC error as a KubeletError."""
    code = error.code().name if isinstance(error, aio.AioRpcError) else "UNKNOWN"
    details = error.details() if isinstance(error, aio.AioRpcError) else str(error)
    return KubeletError(f"{call} at {socket}: {code}: {details or 'no reason given'}")
