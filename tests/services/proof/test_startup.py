"""When cards are tried, and what a trial's end means: for that card, for its model, and for the next trial."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from aliquot.adapters.gpu.nvml import Nvml
from aliquot.adapters.storage.verdicts import Verdicts
from aliquot.model.cardstate.control import PROVEN, CardControl, ControlLevel, ControlReason
from aliquot.model.device import Card
from aliquot.services.proof import startup
from aliquot.services.proof.contest import REFUSED, DisturbedContestError, Found, InterruptedContestError
from aliquot.services.proof.startup import Mode, StartupProof, plan_control
from aliquot.services.runtime.cards.work import CardWork

INCONCLUSIVE = CardControl(ControlLevel.UNPROVEN, ControlReason.INCONCLUSIVE)
EXCLUSIVE = CardControl(ControlLevel.UNPROVEN, ControlReason.EXCLUSIVE)
A, B = "GPU-a", "GPU-b"
TOTAL = 80 << 30
Outcome = CardControl | Exception


class Machine:
    """Plays the arbiter, NVML, the clock and the trials; two cards of one model. Waiting takes no time.

    `outcomes` are of the trials to come, by card; the last one holds for all that follow. `at_trial` happens in each.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.known = {A: CardControl(), B: CardControl()}
        self.done = {A: CardWork(), B: CardWork()}
        self.exclusive: set[str] = set()
        self.total = TOTAL
        self.strangers: dict[str, dict[int, int]] = {}  # by card: process and its bytes
        self.utilised = 0.0
        self.outcomes: dict[str, list[Outcome]] = {}
        self.at_trial: Callable[[str], None] = lambda uuid: None
        self.trials: list[tuple[str, float]] = []
        patch.setattr(startup, "Contest", self._contest)
        cards = [Card(at, 1024, uuid=uuid, model="H200") for at, uuid in enumerate((A, B))]
        self.verdicts = Verdicts(folder / "control.json", "580", "boot")
        self.proof = StartupProof(
            cards, cast("Nvml", self), self.verdicts, folder, "shim", simulated=True, clock=lambda: self.now
        )

    def run(self, seconds: float = 10_000.0) -> None:
        self._until = self.now + seconds
        self.proof.run(self, cast("threading.Event", self))

    # --- the event that stops it
    def is_set(self) -> bool:
        return self.now >= self._until

    def wait(self, seconds: float) -> None:
        self.now += seconds

    # --- the arbiter
    def work(self, uuid: str) -> CardWork:
        return self.done[uuid]

    def set_control(self, uuid: str, control: CardControl) -> None:
        self.known[uuid] = control

    def controls(self) -> dict[str, CardControl]:
        return dict(self.known)

    # --- NVML
    def processes(self, uuid: str) -> dict[int, int]:
        return self.strangers.get(uuid, {})

    def memory(self, uuid: str) -> tuple[int, int]:
        return sum(self.processes(uuid).values()), self.total

    def utilisation(self, uuid: str) -> float:
        return self.utilised

    def is_exclusive(self, uuid: str) -> bool:
        return uuid in self.exclusive

    # --- a trial
    def _contest(self, uuid: str, *_: object, is_free: Callable[[], bool], **__: object) -> Any:
        machine = self

        class Played:
            pids = frozenset[int]()

            def run(self) -> Found:
                machine.trials.append((uuid, machine.now))
                machine.now += 0.3
                machine.at_trial(uuid)
                if not is_free():
                    raise DisturbedContestError("another tenant has work on the card")
                left = machine.outcomes.get(uuid, [PROVEN])
                outcome = left.pop(0) if len(left) > 1 else left[0]
                if isinstance(outcome, Exception):
                    raise outcome
                return Found(outcome)

        return Played()

    def trials_of(self, uuid: str) -> int:
        return [tried for tried, _ in self.trials].count(uuid)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_verdict_holds_for_all_cards_of_the_model(machine: Machine) -> None:
    machine.run()
    assert machine.known == {A: PROVEN, B: PROVEN}
    assert len(machine.trials) == 1
    assert machine.verdicts.of("H200") == PROVEN


@pytest.mark.parametrize(
    ("used", "utilised", "tried"), [(10 << 30, 0.0, True), (10 << 30, 0.5, False), (TOTAL - (3 << 30), 0.0, False)]
)
def test_card_with_processes_of_others_is_tried_only_if_they_miss_nothing(
    machine: Machine, used: int, utilised: float, tried: bool
) -> None:
    """Such as those of another device plugin's Pod, which rests, and will ask for the memory that is left."""
    machine.strangers, machine.utilised = {A: {7: used}, B: {8: used}}, utilised
    machine.run(30)
    assert bool(machine.trials) is tried


@pytest.mark.parametrize(("used", "tried"), [(600 << 20, True), (3 << 30, False)])
def test_small_card_with_a_desktop_is_tried_while_half_of_it_is_free(machine: Machine, used: int, tried: bool) -> None:
    machine.total, machine.strangers = 4 << 30, {A: {7: used}, B: {8: used}}
    machine.run(30)
    assert bool(machine.trials) is tried


def test_a_refusal_counts_when_it_shows_twice_in_a_row_and_for_that_card_only(machine: Machine) -> None:
    machine.outcomes[A] = [REFUSED]
    machine.done[B] = CardWork(frozenset({7}), busy=True)
    machine.run(30)
    assert machine.known == {A: REFUSED, B: CardControl()}
    assert machine.trials_of(A) == 2
    machine.done[B] = CardWork()
    machine.run(30)
    assert machine.known == {A: REFUSED, B: PROVEN}


def test_a_refusal_of_a_tenants_context_does_not_keep_a_card_from_its_trial(machine: Machine) -> None:
    machine.known[A] = REFUSED  # as the arbiter shows it
    machine.done[B] = CardWork(frozenset({7}), busy=True)
    machine.run(30)
    assert machine.known[A] == PROVEN


def test_a_single_refusal_is_forgotten(machine: Machine) -> None:
    machine.done[B] = CardWork(frozenset({7}), busy=True)
    machine.outcomes[A] = [REFUSED, INCONCLUSIVE, REFUSED, PROVEN]
    machine.run()
    assert machine.known[A] == PROVEN
    assert machine.trials_of(A) == 4


@pytest.mark.parametrize("outcome", [RuntimeError("a bug"), INCONCLUSIVE])
def test_trials_that_fail_by_themselves_are_bounded_and_come_later_each_time(
    machine: Machine, outcome: Outcome
) -> None:
    machine.outcomes = {A: [outcome], B: [outcome]}
    machine.run()
    assert (machine.trials_of(A), machine.trials_of(B)) == (5, 5)
    assert machine.now < 1000, "it ended by itself"
    moments = [at for uuid, at in machine.trials if uuid == A]
    pauses = [later - sooner for sooner, later in pairwise(moments)]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 4 * pauses[0]


def test_trials_that_a_busy_machine_interrupts_go_on_every_ten_minutes(machine: Machine) -> None:
    machine.done[B] = CardWork(frozenset({7}), busy=True)
    interrupted: list[Outcome] = [InterruptedContestError("did not come up in time")] * 8
    machine.outcomes[A] = [*interrupted, PROVEN]
    machine.run()
    moments = [at for _, at in machine.trials]
    pauses = [later - sooner for sooner, later in pairwise(moments)]
    assert max(pauses[:4]) < 60
    assert all(600 <= pause < 602 for pause in pauses[4:])
    assert len(moments) == 9
    assert machine.known[A] == PROVEN


def test_an_interrupted_trial_between_two_refusals_breaks_the_row(machine: Machine) -> None:
    machine.done[B] = CardWork(frozenset({7}), busy=True)
    machine.outcomes[A] = [REFUSED, InterruptedContestError("stopped counting"), REFUSED, PROVEN]
    machine.run()
    assert machine.known[A] == PROVEN


def test_trials_that_tenants_disturb_go_on_but_seldom(machine: Machine) -> None:
    machine.done[B] = CardWork(frozenset({7}), busy=True)

    def launch(uuid: str) -> None:
        machine.done[uuid] = CardWork(frozenset({7}), launches=machine.done[uuid].launches + 1)

    machine.at_trial = launch
    machine.run(3600)
    assert 50 < len(machine.trials) < 70
    assert machine.known[A] == CardControl(), "nothing is known of it"
    machine.at_trial = lambda uuid: None
    machine.run(100)
    assert machine.known[A] == PROVEN


@pytest.mark.parametrize(
    "change",
    [
        CardWork(frozenset({7})),
        CardWork(memory=1 << 20),
        CardWork(seen=1),
        CardWork(launches=1),
        CardWork(busy=True),
    ],
)
def test_whatever_a_tenant_does_disturbs_a_trial(machine: Machine, change: CardWork) -> None:
    machine.done[B] = CardWork(frozenset({8}), busy=True)
    machine.at_trial = lambda uuid: machine.done.update({uuid: change})
    machine.run(0.4)
    assert len(machine.trials) == 1
    assert machine.known[A] == CardControl()


def test_an_exclusive_card_is_named_as_such_and_tried_when_that_ends(machine: Machine) -> None:
    machine.exclusive = {A, B}
    machine.run(300)
    assert machine.known == {A: EXCLUSIVE, B: EXCLUSIVE}
    assert not machine.trials
    machine.exclusive = set()
    machine.run(300)
    assert machine.known == {A: PROVEN, B: PROVEN}


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.GATE])
def test_what_a_killed_daemon_left_of_a_trial_is_removed(tmp_path: Path, mode: Mode) -> None:
    left, other = tmp_path / "proof-x1", tmp_path / "tenants"
    (left / "a").mkdir(parents=True)
    (left / "a" / "progress").touch()
    other.mkdir()

    class Driver:
        def driver(self) -> str:
            return "580"

    plan_control(mode, [], cast("Nvml", Driver()), state=tmp_path, run=tmp_path, shim="", simulated=True)
    assert not left.exists()
    assert other.exists()
