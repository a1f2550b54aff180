"""Imports aiohttp without the machine's certificate authorities. It reads them twice, 150 ms of a start of 1.5 s, for
connections that we never make: those to the API server bring their own (adapters/kubernetes/kubeconfig.py)."""

from __future__ import annotations

import os

_KEPT = {name: os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")}
os.environ.update(dict.fromkeys(_KEPT, os.devnull))
try:
    import aiohttp  # noqa: F401  # cached for later imports
finally:
    for _name, _value in _KEPT.items():
        os.environ.pop(_name) if _value is None else os.environ.update({_name: _value})
