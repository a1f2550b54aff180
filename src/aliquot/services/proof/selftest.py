"""`aliquot probe`: what control of one card is worth, measured with our own sample programs in about a minute.

The arbiter of this process controls them, not the daemon's. Nothing is left behind.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from aliquot.adapters.gpu.mps import PIPES_VARIABLE
from aliquot.adapters.gpu.nvml import Nvml
from aliquot.adapters.host.home import TENANT_VARIABLE
from aliquot.adapters.host.process import ourselves
from aliquot.arbiter.proof import Stage
from aliquot.model.cardstate.control import CardControl, ControlLevel
from aliquot.model.claim import AppClass
from aliquot.model.device import Card
from aliquot.model.node import Isolation
from aliquot.model.status.probe import (
    CapFigures,
    ControlFigures,
    MemoryFigures,
    PreemptionFigures,
    ProbeFigures,
    SharesFigures,
    SwitchingFigures,
)
from aliquot.model.tenant import Allotment, SharingRules, Tenant
from aliquot.services.proof.contest import Contest, Found, InterruptedContestError
from aliquot.services.runtime.arbiterd import Arbiterd

_GIB = 1 << 30
_SHARES = (50, 30, 20)
_CAP = 30
_TRIES = 3  # of the contest
_READY = 60.0  # seconds for a program to have its context
_WARM_UP = 1.0  # until the arbiter treats newcomers like all other contexts
STEPS = ("control", "speed", "latency alone", "added latency", "shares", "cap", "switching", "memory")


class SelfTestError(Exception):
    """A program did not run; the message is its own."""


@dataclass(frozen=True, slots=True)
class _Program:
    """A sample program: `aliquot burn` with these words, as a tenant."""

    words: tuple[str, ...]
    app_class: AppClass = AppClass.NORMAL
    quota: int | None = None  # percent
    memory: int = 2 * _GIB


class _Rate(msgspec.Struct):
    """What a sample program says."""

    iterations_per_us: float


class _Work(_Rate):
    """And one that used the card; only one that serves has latencies."""

    share: float
    latency_us: dict[str, float] = {}


_Result = TypeVar("_Result", bound=_Rate)


class SelfTest:
    """One card. `seconds` of each measurement."""

    def __init__(
        self, card: Card, nvml: Nvml, folder: Path, shim: str, *, simulated: bool, seconds: float = 5.0
    ) -> None:
        self._card, self._nvml, self._folder, self._shim = card, nvml, folder, shim
        self._simulated, self._seconds = simulated, seconds
        self._rate = ""
        self._tenants = 0

    def run(self, on_step: Callable[[str], None]) -> ProbeFigures:
        """The figures; `on_step` is called with the name of each step of STEPS when it ends. Raises SelfTestError."""
        found = self._control()
        on_step("control")
        with self._arbiter(found.control) as arbiter:
            self._rate = str(self._single(arbiter, _Program(("calibrate",)), _Rate).iterations_per_us)
            on_step("speed")
            requests = ("serve", "--kernel", "100us", "--period", "10ms")
            alone = self._single(arbiter, _Program(requests, AppClass.ONLINE), _Work).latency_us
            on_step("latency alone")
            busy = _Program(("load", "--kernel", "20ms"), AppClass.OFFLINE)
            beside, rest = self._together(arbiter, Isolation.BEST_EFFORT, _Program(requests, AppClass.ONLINE), busy)
            preemption = PreemptionFigures(
                alone_us=alone,
                beside_offline_us=beside.latency_us,
                added_p99_us=round(beside.latency_us["p99"] - alone["p99"], 1),
                offline_share=rest.share,
            )
            on_step("added latency")
            loads = [_Program(("load", "--kernel", "1ms"), quota=share) for share in _SHARES]
            had = [100 * one.share for one in self._together(arbiter, Isolation.BURST_SHARE, *loads)]
            errors = [abs(share - wanted) for share, wanted in zip(had, _SHARES, strict=True)]
            shares = SharesFigures(
                wanted=list(_SHARES), had=[round(share, 2) for share in had], error_points=round(max(errors), 2)
            )
            on_step("shares")
            (capped,) = self._together(
                arbiter, Isolation.FIXED_SHARE, _Program(("load", "--kernel", "1ms"), quota=_CAP)
            )
            percent = 100 * capped.share
            cap = CapFigures(wanted=_CAP, had=round(percent, 2), error_points=round(abs(percent - _CAP), 2))
            on_step("cap")
            load = _Program(("load", "--kernel", "1ms"))
            single = self._single(arbiter, load, _Work).share
            both = sum(one.share for one in self._together(arbiter, Isolation.BEST_EFFORT, load, load))
            switching = SwitchingFigures(alone=single, two_together=round(both, 5), cost=round(single - both, 5))
            on_step("switching")
            memory = self._memory(arbiter)
            on_step("memory")
        return ProbeFigures(_control_figures(found), preemption, shares, cap, switching, memory)

    def _control(self) -> Found:
        contest = Contest(self._card.uuid, self._folder, self._shim, simulated=self._simulated)
        found, why = None, ""
        for _ in range(_TRIES):
            try:
                found = contest.run()
            except InterruptedContestError as error:
                why = str(error)
                continue
            if found.control.level is not ControlLevel.UNPROVEN:
                break
        if found is None:
            raise SelfTestError(why)
        return found

    @contextlib.contextmanager
    def _arbiter(self, control: CardControl) -> Iterator[Arbiterd]:
        arbiter = Arbiterd(
            [self._card],
            rules=SharingRules(),
            nvml=self._nvml,
            simulated=self._simulated,
            controls={self._card.uuid: control},
        )
        arbiter.start()
        try:
            yield arbiter
        finally:
            arbiter.stop()

    def _memory(self, arbiter: Arbiterd) -> MemoryFigures:
        """A program may have what it was promised, and no more."""
        words = ("load", "--kernel", "1ms", "--memory")
        within = _Program((*words, "512MiB"), memory=_GIB)
        beyond = _Program((*words, "1500MiB"), memory=_GIB)
        self._single(arbiter, within, _Work)
        try:
            self._single(arbiter, beyond, _Work)
        except SelfTestError as error:
            if "quota" not in str(error):
                raise
            return MemoryFigures(within_limit_allowed=True, beyond_limit_refused=True)
        return MemoryFigures(within_limit_allowed=True, beyond_limit_refused=False)

    # --- programs ------------------------------------------------------------------------------------------------

    def _single(self, arbiter: Arbiterd, program: _Program, into: type[_Result]) -> _Result:
        (output,) = self._outputs(arbiter, Isolation.BEST_EFFORT, program)
        return _parse(output, into)

    def _together(self, arbiter: Arbiterd, policy: Isolation, *programs: _Program) -> list[_Work]:
        """What each of them says of the same stretch of time."""
        return [_parse(output, _Work) for output in self._outputs(arbiter, policy, *programs)]

    def _outputs(self, arbiter: Arbiterd, policy: Isolation, *programs: _Program) -> list[str]:
        arbiter.configure(SharingRules(policy, release_delay=0.0))
        start = self._folder / f"start{self._tenants}"
        with contextlib.ExitStack() as stack:
            running = [self._start(arbiter, program, start, stack) for program in programs]
            for one in running:
                one.wait_ready()
            moment = start.with_suffix(".new")
            moment.write_text(f"{time.monotonic() + _WARM_UP:.6f}")
            moment.rename(start)
            return [one.output(self._seconds + _READY) for one in running]

    def _start(self, arbiter: Arbiterd, program: _Program, start: Path, stack: contextlib.ExitStack) -> _Running:
        self._tenants += 1
        name = f"p{self._tenants}"
        directory = self._folder / name
        quota = None if program.quota is None else 10 * program.quota
        allotment = Allotment(self._card.uuid, program.memory, quota)
        arbiter.add(Tenant(name, name, program.app_class, (allotment,), os.geteuid()), directory)
        stack.callback(arbiter.remove, name)
        command = ourselves.aliquot("burn", "--parent", str(os.getpid()), *program.words, "-o", "json")
        calibrates = program.words[0] == "calibrate"
        if not calibrates:
            command += ["--seconds", str(self._seconds), "--start-file", str(start), "--iterations-per-us", self._rate]
        preload = os.environ.get("LD_PRELOAD")
        environment = os.environ | {
            "LD_PRELOAD": f"{self._shim} {preload}" if preload else self._shim,
            "CUDA_VISIBLE_DEVICES": self._card.uuid,
            TENANT_VARIABLE: str(directory),
            PIPES_VARIABLE: str(directory / "none"),  # in no MPS server
        }
        return _Running(command, environment, stack, waits=not calibrates)


class _Running:
    """A program that runs, until the end of `stack` at most."""

    def __init__(
        self, command: Sequence[str], environment: dict[str, str], stack: contextlib.ExitStack, *, waits: bool
    ) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.callback(self._end)
        self._waits, self._lines = waits, list[str]()
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Its pipe must not fill up."""
        for line in self._process.stderr or ():
            self._lines.append(line.strip())
            if line.strip() == "READY":
                self._ready.set()
        self._ready.set()

    def wait_ready(self) -> None:
        """Wait until it has its context, or has ended: `output` says why."""
        if self._waits and not self._ready.wait(_READY):
            raise SelfTestError("a sample program did not come up in time")

    def output(self, patience: float) -> str:
        """What it says. Raises SelfTestError."""
        assert self._process.stdout is not None
        timer = threading.Timer(patience, self._process.kill)
        timer.start()
        try:
            output = self._process.stdout.read()
            code = self._process.wait()
        finally:
            timer.cancel()
        self._reader.join(timeout=5)
        if code:
            raise SelfTestError((self._lines or ["a sample program was ended"])[-1].removeprefix("aliquot: "))
        return output

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()


def _parse(output: str, into: type[_Result]) -> _Result:
    try:
        return msgspec.json.decode(output, type=into)
    except msgspec.MsgspecError as error:
        raise SelfTestError(f"the answer of a sample program cannot be read: {error}") from None


def _control_figures(found: Found) -> ControlFigures:
    return ControlFigures(
        level=found.control.level,
        reason=found.control.reason,
        slices=found.verdict.slices.value,
        pause=found.verdict.pause.value,
        seconds=round(found.seconds, 3),
        first_of_two_has=[
            {stage.value: round(stages[stage].share, 3) for stage in Stage if stage in stages}
            for stages in found.passes
        ],
    )
