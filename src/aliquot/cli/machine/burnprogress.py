"""Progress of a sample workload on stderr: one rewritten line on a terminal, a line every few seconds in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

EVERY = 5.0  # seconds between two lines of a log
_REWRITE = 0.25

OnProgress = Callable[[float, float], None]  # seconds of the window so far, share so far


@contextlib.contextmanager
def shown_progress() -> Iterator[OnProgress]:
    """A function to call for every finished kernel."""
    with _rewritten_line() if sys.stderr.isatty() else _lines() as on_progress:
        yield on_progress


@contextlib.contextmanager
def _rewritten_line() -> Iterator[OnProgress]:
    shown = 0.0

    def show(seconds: float, share: float) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= _REWRITE:
            shown = now
            sys.stderr.write(f"\r  {seconds:6.1f} s   {100 * share:5.1f}% of the card")
            sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r" + 40 * " " + "\r")


@contextlib.contextmanager
def _lines() -> Iterator[OnProgress]:
    """From a thread: a paused workload finishes no kernel, and says so."""
    busy, over = 0.0, threading.Event()

    def note(seconds: float, share: float) -> None:
        nonlocal busy
        busy = seconds * share
        if not writer.ident:
            writer.start()

    def write() -> None:
        began, before = time.monotonic(), 0.0
        at = began
        while not over.wait(EVERY):
            now, done = time.monotonic(), busy
            share = (done - before) / (now - at)
            words = f"{share:.1%} of the card in the last {now - at:.0f} s" if done > before else "no kernel finished"
            with contextlib.suppress(OSError, ValueError):  # the reader of the log is gone: that ends no workload
                sys.stderr.write(f"{now - began:.0f} s: {words}\n")
                sys.stderr.flush()
            at, before = now, done

    writer = threading.Thread(target=write, daemon=True)
    try:
        yield note
    finally:
        over.set()
        if writer.ident:
            writer.join()
