"""Requests for the pages of a list."""

from __future__ import annotations

from collections.abc import Mapping

from aliquot.adapters.kubernetes.kube import Kube
from aliquot.adapters.kubernetes.paging import PagesAhead

_PATIENCE, _CONNECT = 60.0, 10.0  # seconds: for a page, for a connection


def request_pages(
    kube: Kube, path: str, params: Mapping[str, str] | None = None, *, limit: int, most: int = 1
) -> PagesAhead:
    """Begin to list a collection: for the first list of a Reflector that may be made later."""

    async def ask(token: str) -> bytes:
        asked = {**(params or {}), "limit": str(limit), **({"continue": token} if token else {})}
        raw: bytes = await kube.get(path, params=asked, into=bytes, timeout=_PATIENCE, connect=_CONNECT)
        return raw

    return PagesAhead(ask, path, most=most)
