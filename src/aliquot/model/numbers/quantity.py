"""Kubernetes quantities, exactly.

The API server rewrites quantities to a canonical form ("16000" comes back as "16k"), so a count of an extended
resource must be read with its decimal suffix even though manifests are written without one.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

_FORM = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:([eE])([+-]?\d{1,3})|(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]))?\Z", re.ASCII)

_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}

# Longer than any quantity in use; keeps a hostile manifest from making us compute a number of a million digits.
_LONGEST = 64


class QuantityError(ValueError):
    """The value is not what a quantity may be; the message says what is allowed."""


def parse_quantity(value: object) -> Fraction:
    """Any Kubernetes quantity: 3, "3", "500m", "1.5", "8Gi", "1e3". Raises QuantityError."""
    return _parse(value)[0]


def parse_count(value: object) -> int:
    """A whole number as extended resources are counted in; "5Gi" and "1.5" are errors. Raises QuantityError."""
    number, suffix = _parse(value)
    if suffix in _BINARY:
        raise QuantityError(f'a plain whole number, without the suffix "{suffix}"')
    if number.denominator != 1:
        raise QuantityError("a whole number")
    return int(number)


def _parse(value: object) -> tuple[Fraction, str]:
    if isinstance(value, bool) or value is None:
        raise QuantityError("a number")
    if isinstance(value, int):
        if abs(value) >= 10**_LONGEST:
            raise QuantityError("a number of sensible size")
        return Fraction(value), ""
    if isinstance(value, float):
        return _parse_text(repr(value))
    if isinstance(value, str):
        return _parse_text(value)
    raise QuantityError("a number")


@lru_cache(maxsize=4096)  # a cluster's Pods write the same few quantities again and again
def _parse_text(text: str) -> tuple[Fraction, str]:
    text = text.strip()
    match = _FORM.match(text) if len(text) <= _LONGEST else None
    if match is None:
        raise QuantityError("a number")
    sign, digits, _, exponent, suffix = match.groups()
    number = Fraction(digits if not digits.endswith(".") else digits + "0")
    if sign == "-":
        number = -number
    if exponent is not None:
        return number * Fraction(10) ** int(exponent), "e"
    if suffix in _BINARY:
        return number * 1024 ** _BINARY[suffix], suffix
    if suffix:
        return number * Fraction(10) ** _DECIMAL[suffix], suffix
    return number, ""
