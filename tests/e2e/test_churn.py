"""Thousands of Pods come and go while the scheduler is killed over and over.

ALIQUOT_CHURN_PODS=20000 makes a longer soak of it.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from testbed import objects
from testbed.cards import (
    Object,
    Start,
    assert_board_is_true,
    assert_no_trace,
    attempt,
    auditor,
    bind_until_bound,
    board_of,
    cluster,
    name_of,
    some_pod,
    wait_leads,
)
from testbed.client import Refused
from testbed.plane import ControlPlane
from testbed.processes import free_port
from testbed.programs.asking import Extender
from testbed.programs.product import AliquotScheduler

PODS = int(os.environ.get("ALIQUOT_CHURN_PODS", "2000"))
STREAMS = 8
KEPT = 8  # Pods that each stream has at a time: about half of what the cards hold
EVERY = 2.0  # seconds between kills


@contextmanager
def killed_every(seconds: float, start: Callable[[], AliquotScheduler]) -> Iterator[list[AliquotScheduler]]:
    """A scheduler that is killed with -9 so often, and started again at once. All that there were."""
    end = threading.Event()
    lives = [start()]

    def keep_killing() -> None:
        while not end.wait(seconds):
            lives[-1].kill()
            lives.append(start())

    killer = threading.Thread(target=keep_killing)
    killer.start()
    try:
        yield lives
    finally:
        end.set()
        killer.join()


class Stream:
    """Makes Pods, has them bound, and deletes them: some long after, some before, some while they are bound."""

    def __init__(self, plane: ControlPlane, port: int, number: int, names: list[str]) -> None:
        self._plane, self._names, self._number = plane, names, number
        self._extender = Extender(port, timeout=5)
        self._rng = random.Random(number)
        self.kept: list[Object] = []
        self.bound = 0

    def run(self, pods: int) -> None:
        for index in range(pods):
            (pod,) = objects.create(self._plane, some_pod(f"s{self._number}-{index}", self._rng))
            self.kept.append(pod)
            chance = self._rng.random()
            if chance < 0.05:
                self._delete(pod)
            elif chance < 0.15:
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(self._delete, pod)
                    attempt(lambda pod=pod: self._extender.schedule(pod, self._names))  # type: ignore[misc]
            else:
                self._bind(pod)
            while len(self.kept) > KEPT:
                self._delete(self._rng.choice(self.kept))

    def _bind(self, pod: Object) -> None:
        """A few tries; what is not bound by then stays for later."""
        for _ in range(30):
            said = attempt(lambda: self._extender.schedule(pod, self._names))
            if not said or "bound to" in said:
                self.bound += 1
                return
            time.sleep(0.1)

    def _delete(self, pod: Object) -> None:
        try:
            objects.delete_pod(self._plane, name_of(pod))
        except Refused as error:
            if error.status != 404:
                raise
        self.kept.remove(pod)


def test_churn_with_scheduler_kills_never_overbooks(clean: ControlPlane, aliquot_scheduler: Start) -> None:
    names, port = cluster(clean, 8), free_port()
    streams = [Stream(clean, port, number, names) for number in range(STREAMS)]
    began = time.monotonic()
    with auditor(clean) as found:
        with (
            killed_every(EVERY, lambda: aliquot_scheduler(port=port)) as lives,
            ThreadPoolExecutor(STREAMS) as pool,
        ):
            for running in [pool.submit(stream.run, PODS // STREAMS) for stream in streams]:
                running.result()
        last = lives[-1]
        wait_leads(last)
        binds = sum(stream.bound for stream in streams)
        print(f"{PODS} Pods, {binds} binds, {len(lives) - 1} kills, {time.monotonic() - began:.0f} s")
        kept = [pod for stream in streams for pod in stream.kept]
        assert_board_is_true(clean, last, 20)
        assert sorted(map(name_of, objects.list_pods(clean))) == sorted(map(name_of, kept))
        bind_until_bound(clean, port, kept, names)  # each is on its cards, or gets there now
        assert_board_is_true(clean, last)
    assert found.wrong == []
    assert found.looks > PODS
    for pod in kept:
        objects.delete_pod(clean, name_of(pod))
    assert_board_is_true(clean, last)
    assert board_of(last) == {}
    for life in lives:
        assert_no_trace(life)
