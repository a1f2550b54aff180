"""What goes on beside a test, in threads of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

_JOIN = 60.0  # seconds


class Background:
    """Runs these functions until the block ends. They look at `stopping`, and return when it is set."""

    def __init__(self, *work: Callable[[], None]) -> None:
        self.stopping = threading.Event()
        self._threads = [threading.Thread(target=function) for function in work]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(_JOIN)
