"""A thread of the soak: one step after another until it is ended; it can be held between two of them."""

from __future__ import annotations

import threading


class Holdable(threading.Thread):
    """What it does is its subclass's to say."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._ended = threading.Event()
        self._may = threading.Event()
        self._may.set()
        self._lock = threading.Lock()  # of the step that is being made
        self.failure: BaseException | None = None

    def pause(self) -> float:
        """Seconds until the next step."""
        raise NotImplementedError

    def step(self) -> None:
        raise NotImplementedError

    def hold(self) -> None:
        """The step that was being made is made when this returns, and no other is begun."""
        self._may.clear()
        with self._lock:
            pass

    def go_on(self) -> None:
        self._may.set()

    def end(self) -> None:
        self._ended.set()
        self._may.set()
        self.join(120)

    def run(self) -> None:
        try:
            while not self._ended.wait(self.pause()):
                if not self._may.wait(1.0):
                    continue
                with self._lock:
                    if self._may.is_set() and not self._ended.is_set():
                        self.step()
        except BaseException as error:  # the soak reports it
            self.failure = error
