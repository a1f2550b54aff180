"""`-l`: an equality-based label selector as in kubectl: `app=web,tier!=front`, `app`, `!app`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from aliquot.cli.errors import InputError

Selector = Callable[[Mapping[str, Any]], bool]  # whether the labels match

_TERM = re.compile(r"\s*(!?)([^\s=!,()]+)\s*(?:(==|=|!=)\s*([^\s=!,()]*))?\s*")
_ALLOWED = "KEY=VALUE, KEY!=VALUE, KEY or !KEY, separated by commas"


def label_selector(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Selector | None:
    """A callback for click. Raises InputError."""
    return None if text is None else parse_selector(text)


def parse_selector(text: str) -> Selector:
    """Raises InputError."""
    tests = [_test(term, text) for term in text.split(",")]
    return lambda labels: all(test(labels) for test in tests)


def _test(term: str, text: str) -> Selector:
    match = _TERM.fullmatch(term)
    if match is None or (match[1] and match[3]):
        raise InputError(f"-l: {text} is not allowed: {_ALLOWED}")
    absent, key, sign, value = match.groups()
    if sign is None:
        return lambda labels: (key in labels) is not bool(absent)
    if sign == "!=":  # as in kubectl, also matches objects without the key
        return lambda labels: labels.get(key) != value
    return lambda labels: labels.get(key) == value
