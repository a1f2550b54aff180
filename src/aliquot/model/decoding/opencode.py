"""Codes on the wire that a later release may add to. `aliquot run` imports them: nothing heavy."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self


class OpenCode(StrEnum):
    """A reader keeps a code that it does not know, and shows it as it is.

    With a plain enum msgspec refuses the whole message: then one new code of an agent hides all that it reports from an
    older scheduler while a cluster is upgraded.
    """

    __hash__ = str.__hash__  # Enum's is written in Python, and slow where codes are counted

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str):
            return None
        code = str.__new__(cls, value)
        code._name_ = code._value_ = value
        return code

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return type(self), (self._value_,)  # by value: an unknown code is no attribute of the class

    @classmethod
    def of_this_release(cls, value: Any) -> Self:
        """For what must be understood, as a request or a file of ours. ValueError: this release does not have it."""
        code = cls(value)
        if not code.known:
            raise ValueError(f"{value!r} is not a {cls.__name__} of this release")
        return code

    @property
    def known(self) -> bool:
        """Whether this release has it."""
        return self._value_ in type(self)._value2member_map_
