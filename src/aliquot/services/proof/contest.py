"""Two contexts of our own compete for a card, are treated differently, and what they get done is measured.

Each is a process of its own with the shim (`load.py`), registered as a tenant's process is, but with us: no card's loop
controls it. Nothing of it outlives `run`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from aliquot.adapters.gpu.mps import PIPES_VARIABLE
from aliquot.adapters.gpu.page import PageError
from aliquot.adapters.gpu.rm import NO_STATUS, RmError
from aliquot.adapters.host.home import TENANT_VARIABLE
from aliquot.adapters.host.process import ourselves
from aliquot.adapters.storage import tenantfolder
from aliquot.adapters.storage.folders import remove_folder
from aliquot.arbiter.proof import PASS, Measured, Stage, Verdict, judge, needs_second_pass, slices_in
from aliquot.model.cardstate.control import CardControl, ControlLevel, ControlReason
from aliquot.model.claim import AppClass
from aliquot.model.tenant import Allotment, Level, Tenant
from aliquot.services.proof import load
from aliquot.services.runtime.processes import contextcontrol
from aliquot.services.runtime.processes.contexts import Context
from aliquot.services.runtime.processes.registration import Registrar, Tenancy

PREFIX = "proof-"  # of our folders' names
REFUSED = CardControl(ControlLevel.GATE, ControlReason.REFUSED)
_NO_CUDA = CardControl(ControlLevel.UNPROVEN, ControlReason.NO_CUDA)

_READY = 20.0  # seconds for both to have their contexts: the driver takes a second or two
_SETTLING = 0.35  # after something was registered: a context that is being made must not be paused
_SETTLE = {Stage.FAVOURED: 0.02}  # seconds of a stage that do not count, and those that do
_USUAL_SETTLE = 0.015
_COUNT = {Stage.FAVOURED: 0.06}
_USUAL_COUNT = 0.04
_PAUSE = 0.08
_FRESH = 2.0  # seconds to wait for a sample: the process may have to wait for a processor
_CHECK = 0.004  # seconds between two looks whether the card is still ours
_MEMORY = 1 << 30  # bytes that each may have


class InterruptedContestError(Exception):
    """There is no result, because of something that is ours: the two did not come up, for example."""


class DisturbedContestError(InterruptedContestError):
    """There is no result, because another tenant came to the card, or has work on it."""


@dataclass(slots=True)
class Found:
    """What came out."""

    control: CardControl
    verdict: Verdict = field(default_factory=Verdict)
    passes: list[dict[Stage, Measured]] = field(default_factory=list)
    seconds: float = 0.0  # that the two computed


class _Card:
    """Stands where a card's loop would: keeps the contexts that register. Their files stay open until `close`: no
    control may go to a file number that was reused."""

    def __init__(self) -> None:
        self.contexts: dict[int, Context] = {}  # by process
        self._all: list[Context] = []
        self.changed = time.monotonic()

    def join(self, context: Context) -> None:
        self._all.append(context)
        self.contexts[context.pid], self.changed = context, time.monotonic()

    def leave(self, name: str) -> None:
        """Its process ended, or we end it."""

    def close(self) -> None:
        for context in self._all:
            context.close()

    def wake(self, name: str) -> None:
        """Nothing waits for it."""


class Contest:
    """See the head of the file. `pids` may be read by any thread."""

    def __init__(
        self,
        uuid: str,
        folder: Path,
        shim: str,
        *,
        simulated: bool,
        is_free: Callable[[], bool] = lambda: True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._uuid, self._folder, self._shim, self._simulated = uuid, folder, shim, simulated
        self._is_free = is_free  # whether no other tenant has work on the card
        self._environment = dict(os.environ if environment is None else environment)
        self.pids: frozenset[int] = frozenset()

    def run(self) -> Found:
        """Raises InterruptedContestError."""
        with contextlib.ExitStack() as stack:
            try:
                where = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._folder))
                stack.callback(remove_folder, where)
                card = _Card()
                stack.callback(card.close)
                lock = threading.RLock()
                registrar = Registrar(lock, {self._uuid: card}, simulated=self._simulated, refusal=self._refusal)
                stack.callback(registrar.close)
                tenancies = [self._tenancy(where / name, stack) for name in ("a", "b")]
            except (OSError, PageError) as error:
                raise InterruptedContestError(str(error)) from error
            stopping = threading.Event()
            thread = threading.Thread(target=registrar.run, args=(stopping,), name="contest", daemon=True)
            for tenancy in tenancies:
                registrar.add(tenancy)
            thread.start()
            stack.callback(self._stop, registrar, tenancies, stopping, thread)
            loads = [_Load(tenancy.directory, self._environment_of(tenancy), stack) for tenancy in tenancies]
            self.pids = frozenset(one.pid for one in loads)
            stack.callback(setattr, self, "pids", frozenset())
            if not self._wait_ready(loads):
                return Found(_NO_CUDA)
            contexts = self._contexts(card, loads)
            if any(context.level is not Level.HARDWARE for context in contexts):
                return Found(REFUSED)
            try:
                found = self._compete(loads, contexts)
            except RmError as error:
                if error.gone or error.status == NO_STATUS:
                    raise InterruptedContestError(str(error)) from error
                return Found(REFUSED)
            if [card.contexts[one.pid] for one in loads] != contexts:
                raise InterruptedContestError("our own contexts registered again meanwhile")
            return found

    def _tenancy(self, directory: Path, stack: contextlib.ExitStack) -> Tenancy:
        allotment = Allotment(self._uuid, _MEMORY, None)
        page, listener = tenantfolder.prepare_folder(directory, [allotment], os.geteuid())
        stack.callback(page.close)
        tenant = Tenant(directory.name, directory.name, AppClass.NORMAL, (allotment,), os.geteuid())
        return Tenancy(tenant, directory, page, listener)

    def _refusal(self, tenancy: Tenancy, pid: int, uid: int) -> str | None:
        return None if uid in (0, os.geteuid()) else f"it is user {uid}'s"

    def _environment_of(self, tenancy: Tenancy) -> dict[str, str]:
        preload = self._environment.get("LD_PRELOAD")
        return self._environment | {
            "LD_PRELOAD": f"{self._shim} {preload}" if preload else self._shim,
            "CUDA_VISIBLE_DEVICES": self._uuid,
            TENANT_VARIABLE: str(tenancy.directory),
            PIPES_VARIABLE: str(tenancy.directory / "none"),  # in no MPS server
        }

    def _stop(
        self, registrar: Registrar, tenancies: Sequence[Tenancy], stopping: threading.Event, thread: threading.Thread
    ) -> None:
        stopping.set()
        registrar.wake()
        thread.join(timeout=5)
        for tenancy in tenancies:
            registrar.remove(tenancy)

    # --- before the contest --------------------------------------------------------------------------------------

    def _wait_ready(self, loads: Sequence[_Load]) -> bool:
        """Wait until both loads are ready. False: they find no libcuda."""
        until = time.monotonic() + _READY
        for one in loads:
            while not one.heard:
                if time.monotonic() > until:
                    raise InterruptedContestError("our own contexts did not come up in time")
                self._check_free()
                one.listen(_CHECK * 4)
            if one.heard == load.NO_LIBRARY:
                return False
            if one.heard != "ready":
                raise InterruptedContestError(f"our own context did not come up: {one.heard}")
        return True

    def _contexts(self, card: _Card, loads: Sequence[_Load]) -> list[Context]:
        """The contexts of both loads, once nothing about them has changed for a while."""
        until = time.monotonic() + _READY
        while time.monotonic() < until:
            self._check_free()
            if time.monotonic() - card.changed >= _SETTLING and all(one.pid in card.contexts for one in loads):
                return [card.contexts[one.pid] for one in loads]
            time.sleep(_CHECK)
        raise InterruptedContestError("our own contexts did not register in time")

    def _check_free(self) -> None:
        if not self._is_free():
            raise DisturbedContestError("another tenant has work on the card")

    # --- the contest ---------------------------------------------------------------------------------------------

    def _compete(self, loads: Sequence[_Load], contexts: Sequence[Context]) -> Found:
        began = time.monotonic()
        for one in loads:
            one.begin()
        passes = [{Stage.EVEN: self._stage(Stage.EVEN, loads, contexts)}]
        passes[0] |= self._pass(loads, contexts)
        if needs_second_pass(passes[0]):
            passes.append({Stage.EVEN: passes[0][Stage.EVEN_AGAIN]} | self._pass(loads, contexts))
        verdict = judge(passes)
        return Found(verdict.control(), verdict, passes, time.monotonic() - began)

    def _pass(self, loads: Sequence[_Load], contexts: Sequence[Context]) -> dict[Stage, Measured]:
        return {stage: self._stage(stage, loads, contexts) for stage in PASS}

    def _stage(self, stage: Stage, loads: Sequence[_Load], contexts: Sequence[Context]) -> Measured:
        for context, microseconds in zip(contexts, slices_in(stage), strict=True):
            contextcontrol.set_slice(context, microseconds)
        if stage is Stage.PAUSED:
            return self._stage_paused(loads, contexts[1])
        self._sleep(_SETTLE.get(stage, _USUAL_SETTLE))
        before = [self._sample(one) for one in loads]
        self._sleep(_COUNT.get(stage, _USUAL_COUNT))
        return _measured(before, [self._sample(one) for one in loads])

    def _stage_paused(self, loads: Sequence[_Load], context: Context) -> Measured:
        """Counted from before the pause until after it: a paused process may wait in any call to the driver, and then
        it says nothing."""
        before = [self._sample(one) for one in loads]
        try:
            contextcontrol.pause(context)
            self._sleep(_PAUSE, context)
            held = context.page.use(context.slot, context.card).paused == 1
        finally:
            contextcontrol.resume(context)
        found = _measured(before, [self._sample(one) for one in loads])
        # The process ends a pause by itself if we are away for too long: then nothing was measured.
        return found if held else replace(found, dry=True)

    def _sample(self, one: _Load) -> load.Sample:
        """The first that was taken from now on."""
        now = time.monotonic_ns()
        until = time.monotonic() + _FRESH
        while time.monotonic() < until:
            sample = load.read_sample(one.progress)
            if sample is not None and sample.looked >= now:
                return sample
            self._check_free()
            time.sleep(0.0003)
        raise InterruptedContestError("our own program stopped counting")

    def _sleep(self, seconds: float, paused: Context | None = None) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._check_free()
            if paused is not None:
                paused.page.beat(paused.card, time.monotonic_ns())
            time.sleep(min(_CHECK, left))


def _measured(before: Sequence[load.Sample], after: Sequence[load.Sample]) -> Measured:
    nanoseconds = after[0].looked - before[0].looked
    first, second = (
        round((new.done - old.done) * nanoseconds / max(1, new.looked - old.looked))
        for new, old in zip(after, before, strict=True)
    )
    dry = any(new.dry > old.dry for new, old in zip(after, before, strict=True))
    return Measured(first, second, nanoseconds / 1e9, dry)


class _Load:
    """One of the two processes."""

    def __init__(self, folder: Path, environment: Mapping[str, str], stack: contextlib.ExitStack) -> None:
        path = folder / "progress"
        path.write_bytes(bytes(load.SIZE))
        with path.open("r+b") as file:
            self.progress = mmap.mmap(file.fileno(), load.SIZE)
        stack.callback(self.progress.close)
        command = ourselves.module("aliquot.services.proof.load", str(path))
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            raise InterruptedContestError(str(error)) from error
        stack.callback(self._end)
        self.pid = self._process.pid
        self.heard = ""

    def listen(self, seconds: float) -> None:
        """Hear what it says first, or that it ended."""
        assert self._process.stdout is not None
        if select.select([self._process.stdout], [], [], seconds)[0]:
            self.heard = self._process.stdout.readline().decode(errors="replace").strip() or "it ended at once"

    def begin(self) -> None:
        """Let it compute."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"x")
            self._process.stdin.flush()
        except OSError as error:
            raise InterruptedContestError(f"our own program ended: {error}") from error

    def _end(self) -> None:
        self._process.kill()
        with contextlib.suppress(OSError):
            self._process.communicate(timeout=10)
