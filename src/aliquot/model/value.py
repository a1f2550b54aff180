"""`@value`: an immutable dataclass, for values that are made a hundred thousand times.

To a type checker it is frozen. At run time it is not: a frozen dataclass sets every field by a call of its own, and the
scheduler makes ten such objects for every Pod it reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True)
def value(kind: type[_T]) -> type[_T]:
    """The class as a dataclass with slots, which can be hashed."""
    return dataclass(slots=True, unsafe_hash=True)(kind)
