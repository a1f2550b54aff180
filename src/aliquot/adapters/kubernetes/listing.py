"""Requests for the pages of a list."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from aliquot.adapters.kubernetes.kube import ApiError, Kube
from aliquot.adapters.kubernetes.paging import PagesAhead
from aliquot.adapters.kubernetes.protobuf import ACCEPT, ProtobufError, as_json, can_read, is_protobuf
from aliquot.adapters.kubernetes.receiving import Receiver
from aliquot.adapters.kubernetes.wholelists import is_made_here

log = logging.getLogger(__name__)
_PATIENCE, _CONNECT = 60.0, 10.0  # seconds: for a page, for a connection
_LACKS_FORM = 406


def request_pages(
    kube: Kube,
    path: str,
    params: Mapping[str, str] | None = None,
    *,
    limit: int,
    most: int = 1,
    protobuf: bool = False,
    received: Receiver | None = None,
) -> PagesAhead:
    """Begin to list a collection: for the first list of a Reflector that may be made later.

    `protobuf`: of Nodes and Pods, pages may come in that form too. If one cannot be read, or the API server lacks the
    form, that page and those after it are requested as JSON. Whoever takes them gets JSON in any case.
    `received`: the pages of this list that come in another way, from the first one on; the others are requested.
    """
    as_protobuf = protobuf and can_read()

    async def ask(token: str) -> bytes:
        nonlocal as_protobuf
        began = time.monotonic()
        if received is not None and (taken := await received.take()) is not None:
            return taken
        if is_made_here(token):
            raise ApiError(410, "Expired", "the process that received the list has ended")
        # What a silent API server took of the time for this page there is not waited for again.
        timeout = max(_CONNECT, _PATIENCE - (time.monotonic() - began))
        asked = {**(params or {}), "limit": str(limit), **({"continue": token} if token else {})}
        if as_protobuf:
            try:
                return await ask_for_either(asked, timeout)
            except (ProtobufError, ApiError) as error:
                if isinstance(error, ApiError) and error.status != _LACKS_FORM:
                    raise
                log.warning("list_not_protobuf", extra={"data": {"path": path, "why": str(error)}})
            as_protobuf = False
        raw: bytes = await kube.get(path, params=asked, into=bytes, timeout=timeout, connect=_CONNECT)
        return raw

    async def ask_for_either(asked: Mapping[str, str], timeout: float) -> bytes:
        raw: bytes = await kube.get(path, params=asked, into=bytes, timeout=timeout, connect=_CONNECT, accept=ACCEPT)
        # In a thread: C that needs no Python runs beside what applies the page before.
        return await asyncio.to_thread(as_json, raw) if is_protobuf(raw) else raw

    return PagesAhead(ask, path, most=most, closed=received.close if received is not None else None)
