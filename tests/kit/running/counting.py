"""What code does, in numbers that are the same on every machine: for tests that would measure seconds otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(act: Callable[[], Any]) -> int:
    """How many lines of Python it runs and functions it calls, also those in C. One call into C counts as one, however
    long it takes: only what loops in Python shows."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    tracing, profiling = sys.gettrace(), sys.getprofile()
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        act()
    finally:
        sys.settrace(tracing)
        sys.setprofile(profiling)
    return count
