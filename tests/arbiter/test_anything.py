"""Any events in any order: no context stays paused, nothing spins, nothing is ordered twice."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from aliquot.arbiter import slices
from aliquot.arbiter.card import CardArbiter
from aliquot.arbiter.orders import Arm, Hold, Pause, Resume, SetSlice
from aliquot.arbiter.roster import Member, Reading
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.tenant import SharingRules, State

LONGEST_PAUSE = 120.0  # a tenant of a hundredth pays the longest debt
_rules = st.builds(SharingRules, st.sampled_from(Isolation), st.sampled_from([0.0, 0.03, 0.1]))
_members = st.tuples(st.sampled_from(AppClass), st.none() | st.integers(10, 1000))


@dataclass
class Process:
    """What the hardware and the page would say."""

    tenant: str
    preemptible: bool
    launches: int = 0
    waiting: bool = False
    outstanding: bool = False
    microseconds: int = 2048
    paused: bool = False
    held: bool = False
    armed: bool = False


class Anything(RuleBasedStateMachine):
    tenants = Bundle("tenants")
    names = Bundle("names")

    @initialize(rules=_rules)
    def begin(self, rules: SharingRules) -> None:
        self.arbiter = CardArbiter(rules)
        self.processes: dict[str, Process] = {}
        self.now = self.read_at = 0.0
        self.ticked = False

    # --- events ------------------------------------------------------------------------------------------------

    @rule(target=tenants, tenant=st.sampled_from("abcde"), member=_members)
    def admit(self, tenant: str, member: tuple[AppClass, int | None]) -> str:
        self.arbiter.admit(Member(tenant, *member))
        return tenant

    @rule(target=names, tenant=tenants, process=st.integers(1, 3), preemptible=st.booleans(), made=st.booleans())
    def join(self, tenant: str, process: int, preemptible: bool, made: bool) -> str:
        """For the first time, or again with other channels, which are not paused."""
        name = f"{tenant}/{process}"
        before = self.processes.get(name, Process(tenant, preemptible))
        self.processes[name] = replace(before, tenant=tenant, preemptible=preemptible, armed=False)
        self.arbiter.join(name, tenant, now=-math.inf if made else self.now, preemptible=preemptible)
        return name

    @rule(name=names)
    def register_the_same_again(self, name: str) -> None:
        self.arbiter.settle(name, self.now)

    @rule(name=names)
    def leave(self, name: str) -> None:
        self.processes.pop(name, None)
        self.arbiter.leave(name)

    @rule(tenant=tenants)
    def dismiss(self, tenant: str) -> None:
        self.processes = {name: process for name, process in self.processes.items() if process.tenant != tenant}
        self.arbiter.dismiss(tenant)

    @rule(rules=_rules)
    def configure(self, rules: SharingRules) -> None:
        self.arbiter.rules = rules

    @rule(name=names)
    def forget(self, name: str) -> None:
        self.arbiter.forget(name)

    @rule(name=names, waits=st.booleans())
    def launch(self, name: str, waits: bool) -> None:
        process = self.processes.get(name)
        if process is not None:
            process.launches += 1
            process.waiting, process.outstanding = waits, True
            if process.armed:
                process.armed = False
                self.arbiter.wake(name, self.now)

    @rule(name=names)
    def see_it_done(self, name: str) -> None:
        process = self.processes.get(name)
        if process is not None:
            process.waiting = process.outstanding = False

    @rule(name=st.text(max_size=3))
    def wake_nobody(self, name: str) -> None:
        self.arbiter.wake(name, self.now)

    # --- time --------------------------------------------------------------------------------------------------

    @rule(seconds=st.floats(0.0, 0.3))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.round()

    @rule()
    def pass_to_the_deadline(self) -> None:
        if self.ticked:
            self.now = max(self.now, self.arbiter.deadline)
            self.round()

    def round(self) -> None:
        """As the daemon does it."""
        elapsed, self.read_at = self.now - self.read_at, self.now
        readings = {
            n: Reading(p.launches, p.waiting, p.outstanding, elapsed if p.outstanding and not p.held else 0.0)
            for n, p in self.processes.items()
        }
        self.arbiter.read(readings, self.now)
        effects = []
        for order in self.arbiter.tick(self.now):
            process = self.processes[order.context]
            match order:
                case SetSlice(_, microseconds):
                    process.microseconds = microseconds
                case Pause():
                    process.paused = True
                case Hold():
                    process.held = True
                case Resume():
                    process.paused = process.held = False
                case Arm():
                    process.armed = True
            effects.append((order, self.now))
        self.arbiter.performed(effects)
        self.ticked = True
        self.check()

    def check(self) -> None:
        known = {name: p for name, p in self.processes.items() if p.tenant in self.arbiter.roster.members}
        assert self.arbiter.tick(self.now) == []
        assert self.now < self.arbiter.deadline < math.inf
        for context in self.arbiter.roster.contexts.values():
            assert context.settles <= self.now or self.arbiter.deadline <= context.settles, (
                "one that is made is seen to"
            )
        for name, process in known.items():
            assert process.paused == self.arbiter.paused(name)
            assert process.microseconds == self.arbiter.slice_of(name)
            if process.paused:
                assert self.arbiter.roster.contexts[name].active, "an idle context is never left paused"
            if process.held:
                assert self.arbiter.state(name) is State.WAITING
            if self.arbiter.roster.contexts[name].quiet:
                assert process.armed, "a quiet process rings"
        tiny = [name for name, p in known.items() if p.microseconds < slices.SWITCH and not p.paused]
        assert sum(self.arbiter.roster.contexts[name].active for name in tiny) <= 1, "trap 1"
        front, behind = self.arbiter.weights()
        assert front.keys() | behind.keys() == {name for name, p in known.items() if not p.paused and not p.held}

    @invariant()
    def preemptions_only_grow(self) -> None:
        if self.ticked:
            assert all(count > 0 for count in self.arbiter.preemptions.values())

    def teardown(self) -> None:
        """A tenant with work runs again before long, unless work in front of it goes on."""
        if not getattr(self, "ticked", False):
            return
        end = self.now + LONGEST_PAUSE
        waiting = {name for name, p in self.processes.items() if p.paused or p.held}
        while waiting and self.now < end:
            self.now = self.arbiter.deadline
            self.round()
            waiting = {name for name in waiting if self.processes[name].paused or self.processes[name].held}
        held = self.arbiter.held
        assert not waiting or (held and all(self.arbiter.state(n) is State.PAUSED for n in waiting))


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
