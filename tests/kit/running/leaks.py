"""Finds memory that is kept without need: in a container that only grows, or until the garbage collector runs."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterable

_NOT_ENTERED = (types.ModuleType, type, types.CodeType, types.BuiltinFunctionType)


def keepers(thing: object, word: str, *, beside: Iterable[object] = ()) -> list[str]:
    """What holds text with that word in it, of all that can be reached from the thing; `beside` is not entered."""
    seen, found = {id(thing) for thing in beside}, []
    todo = [thing]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, _NOT_ENTERED):
            continue
        seen.add(id(thing))
        inner = _inside(thing)
        found += [f"{type(thing).__name__}: {text}" for text in inner if isinstance(text, str) and word in text]
        todo += inner
    return found


def _inside(thing: object) -> list[object]:
    """What it refers to. A function's globals are the program; what it holds beside those is its own. And the collector
    does not tell of keys that are text."""
    if isinstance(thing, types.FunctionType):
        return list(thing.__closure__ or ())
    return [*gc.get_referents(thing), *(thing if isinstance(thing, dict) else ())]


def left_behind(work: Callable[[], object]) -> int:
    """How many objects the work leaves that only the collector finds."""
    gc.collect()
    gc.disable()
    try:
        work()
        return gc.collect()
    finally:
        gc.enable()
