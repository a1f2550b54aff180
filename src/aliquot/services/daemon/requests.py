"""Requests of the control socket, typed: the JSON of a stranger becomes a struct here, and goes no further as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar, get_args

import msgspec

from aliquot.model.refusal import Invalid
from aliquot.model.status.answers import Send
from aliquot.services.daemon.control import Caller, invalid

_T = TypeVar("_T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Operation(Generic[_T]):
    """An operation of a control socket, and what its requests have."""

    reads: type[_T]
    act: Callable[[_T, Caller, Send], Awaitable[msgspec.Struct]]

    async def __call__(self, request: Mapping[str, object], caller: Caller, send: Send) -> msgspec.Struct:
        """The answer. Raises RefusedError."""
        return await self.act(parse_request(request, self.reads), caller, send)


def parse_request(request: Mapping[str, object], kind: type[_T]) -> _T:
    """The request as a struct. Raises RefusedError with the first field whose value is not allowed; other fields may be
    of another release, and are ignored."""
    found: dict[str, object] = {}
    for name, allowed_type, title, allowed in _fields(kind):
        if name in request:
            try:
                found[name] = msgspec.convert(request[name], allowed_type)
            except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter: half a character
                raise invalid(Invalid(title, request[name], allowed or str(error))) from None
    return kind(**found)


@lru_cache(maxsize=64)
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any, str, str], ...]:
    """Name, type, name in answers, and what is allowed."""
    found = []
    for field in msgspec.structs.fields(kind):
        metas = [meta for meta in get_args(field.type) if isinstance(meta, msgspec.Meta)]
        title = next((meta.title for meta in metas if meta.title), field.name)
        found.append(
            (field.name, field.type, title, next((meta.description for meta in metas if meta.description), ""))
        )
    return tuple(found)
