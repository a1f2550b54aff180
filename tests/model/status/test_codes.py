"""Codes in what programs of other releases report."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgspec
import pytest

from aliquot.model.decoding.opencode import OpenCode
from aliquot.model.node import Isolation
from aliquot.model.status import dashboard, machine

# A policy is also asked for in requests, where a new one must be refused by name.
CLOSED = {Isolation}


def enums(kind: Any, seen: set[int]) -> Iterator[type[Enum]]:
    """Those anywhere in the type."""
    if id(getattr(kind, "cls", kind)) in seen or isinstance(kind, str | int | float):
        return
    seen.add(id(getattr(kind, "cls", kind)))
    if isinstance(kind, msgspec.inspect.EnumType):
        yield kind.cls
    parts = getattr(kind, "fields", None) or getattr(kind, "types", None) or getattr(kind, "item_types", None) or ()
    for part in (*parts, *(getattr(kind, name, None) for name in ("type", "item_type", "key_type", "value_type"))):
        if part is not None:
            yield from enums(part, seen)


@pytest.mark.parametrize("struct", [machine.Status, dashboard.Node])
def test_status_of_a_newer_release_has_codes_that_are_kept(struct: type[msgspec.Struct]) -> None:
    found = set(enums(msgspec.inspect.type_info(struct), set()))
    assert len(found) > 3
    assert [kind for kind in found - CLOSED if not issubclass(kind, OpenCode)] == []
