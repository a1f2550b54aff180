"""Kubeconfig files, and the TLS of a server that they lead to."""

from __future__ import annotations

import base64
import ssl
import time
from pathlib import Path
from typing import Any

import yaml

from aliquot.adapters.kubernetes.certificates import Pair, issue, present, server_context

EXEC = "client.authentication.k8s.io/v1"


NOW = 1_800_000_000.0


Json = dict[str, Any]


def config(cluster: Json | None = None, user: Json | None = None, **more: Any) -> Json:
    return {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", **more}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }


def written(folder: Path, value: object, name: str = "config") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    return path


def serving(authority: Pair, *names: str) -> ssl.SSLContext:
    """What a server of those names needs for TLS, with a certificate of that authority."""
    context = server_context()
    present(context, issue(authority, names, time.time(), 1e5))
    return context


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


HTTPS = {"server": "https://127.0.0.1:1"}
