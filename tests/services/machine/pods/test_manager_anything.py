"""Whatever is applied, deleted and killed, in whatever order: no card is booked twice, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aliquot.adapters.host.control import AnswerError
from kit.machines.machine import eventually, paper
from kit.machines.machinepods import Json, Pods, container, pod, workload

NAMES = st.sampled_from(["a", "b", "c"])
KINDS = st.sampled_from(["Deployment", "StatefulSet", "Job"])


class Anything(RuleBasedStateMachine):
    """One machine of two cards, and users and accidents."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = paper("2x24")
        self.machine.up()
        self.pods = Pods(self.machine)

    @rule(name=NAMES, gib=st.sampled_from([2, 10, 24]), ends=st.booleans())
    def apply_a_pod(self, name: str, gib: int, ends: bool) -> None:
        command = ("true",) if ends else ("sh", "-c", "sleep 600 & sleep 600")
        self.pods.apply(pod(f"pod-{name}", container("main", *command, gib=gib), terminationGracePeriodSeconds=0))

    @rule(kind=KINDS, name=NAMES, replicas=st.integers(0, 3), gib=st.sampled_from([2, 10]))
    def apply_a_workload(self, kind: str, name: str, replicas: int, gib: int) -> None:
        with contextlib.suppress(AnswerError):  # a Job stays as it is
            self.pods.apply(workload(kind, f"{kind.lower()}-{name}", replicas, container(gib=gib)))

    @precondition(lambda self: self.pods.all())
    @rule(at=st.integers(0, 10))
    def delete_a_pod(self, at: int) -> None:
        there = self.pods.all()
        with contextlib.suppress(AnswerError):  # its workload may have ended it meanwhile
            self.pods.delete("Pod", there[at % len(there)]["name"])

    @rule(kind=KINDS, name=NAMES)
    def delete_a_workload(self, kind: str, name: str) -> None:
        with contextlib.suppress(AnswerError):  # there is none
            self.pods.delete(kind, f"{kind.lower()}-{name}")

    @rule(at=st.integers(0, 10), number=st.sampled_from([signal.SIGKILL, signal.SIGTERM]))
    def kill_a_keeper(self, at: int, number: int) -> None:
        there: list[Json] = self.machine.status()["tenants"]
        if there:
            with contextlib.suppress(ProcessLookupError):
                os.kill(there[at % len(there)]["pid"], number)

    @rule(at=st.integers(0, 10))
    def kill_a_container(self, at: int) -> None:
        there = [container["pid"] for found in self.pods.all() for container in found["containers"] if container["pid"]]
        if there:
            with contextlib.suppress(ProcessLookupError):
                os.kill(there[at % len(there)], signal.SIGKILL)

    @rule(number=st.sampled_from([signal.SIGKILL, signal.SIGTERM]))
    def restart_the_daemon(self, number: int) -> None:
        self.machine.kill(number)
        self.machine.up()

    @invariant()
    def no_card_is_booked_twice(self) -> None:
        for card in self.machine.status()["cards"]:
            assert card["memory_booked_bytes"] <= card["memory_bytes"]

    def teardown(self) -> None:
        try:
            self.pods.clear()
            eventually(lambda: self.machine.status()["tenants"] == [])
        finally:
            self.machine.close()


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=5, stateful_step_count=8, deadline=None)
