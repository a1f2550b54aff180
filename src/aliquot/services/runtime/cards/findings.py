"""What is found wrong with the contexts of a card: a changed time slice, a missing MPS server, a refusal."""

from __future__ import annotations

import time

from aliquot.adapters.gpu import rm
from aliquot.adapters.host.process import processes
from aliquot.arbiter.card import CardArbiter
from aliquot.model.tenant import Finding, FindingKind, Level
from aliquot.services.runtime.cards.occupants import Occupants
from aliquot.services.runtime.cards.trace import STEPS
from aliquot.services.runtime.processes import contextcontrol
from aliquot.services.runtime.processes.contexts import Context
from aliquot.services.runtime.together import members

_CHECK_EVERY = 1.0  # seconds between two checks of a slice, after a context's first ones
_SERVER_COMES = 5.0  # seconds from a member's registration to that of its group's MPS server
_SETTLED = 1.0  # seconds; a slice that changes later was changed on purpose, not by start-up


class CardFindings:
    """Part of a card's loop, and used by its thread alone, but for `found`, which any thread may copy."""

    def __init__(self, uuid: str, occupants: Occupants, arbiter: CardArbiter) -> None:
        self._uuid, self._occupants, self._arbiter = uuid, occupants, arbiter
        self._last_check = 0.0
        self.found: dict[tuple[int, FindingKind], Finding] = {}  # by process and kind

    def report(self, context: Context, kind: FindingKind, text: str) -> None:
        """One finding of a kind per process: its owner can provoke as many as it likes."""
        self.found[context.pid, kind] = Finding(self._uuid, context.pid, kind, text, context.tenant)

    def clear(self, pid: int) -> None:
        """Forget those of the process."""
        for key in [key for key in self.found if key[0] == pid]:
            del self.found[key]

    def check_slices(self, now: float) -> None:
        """Check that slices are what was ordered: soon after a context came, then one context each second."""
        contexts = self._occupants.contexts
        due = [context for context in contexts.values() if context.checks and context.checks[0] <= now]
        for context in due:
            context.checks.pop(0)
        if now - self._last_check >= _CHECK_EVERY:
            self._last_check = now
            due += [context for context in contexts.values() if not context.checks][:1]
            for context in due[-1:]:  # to the end of the line
                contexts[context.name] = contexts.pop(context.name)
        for context in due:
            self._check_slice(context, now)

    def _check_slice(self, context: Context, now: float) -> None:
        wanted = self._arbiter.slice_of(context.name)
        if context.level is not Level.HARDWARE or wanted is None:
            return
        began = time.monotonic()
        try:
            changed = contextcontrol.other_slices(context, wanted)
        except rm.RmError:
            return
        STEPS.add("check", began, time.monotonic(), context.name)
        if changed:
            self._arbiter.forget(context.name)
            self._arbiter.deadline = 0.0
            if now - context.joined > _SETTLED:
                text = f"another program set its time slice to {changed.pop()} us: set back"
                self.report(context, FindingKind.SLICE, text)

    def check_servers(self, now: float) -> None:
        """Report members whose launches wait because the MPS server of their group is not registered.

        Those whose server is dead have no context any more, and shall run into errors. It may have left before it was
        dead: the kernel closes the files of a process that ends before others see its end.
        """
        orphans, parts = self._occupants.orphans, self._occupants.parts
        for name, server in list(orphans.items()):
            if self._occupants.servers(parts[name].tenant):
                del orphans[name]
            elif not processes.lives(*server):
                del orphans[name]
                contextcontrol.set_gate(parts[name], closed=False)
        for part in parts.values():
            if self._occupants.servers(part.tenant):
                self.found.pop((part.pid, FindingKind.UNREGISTERED), None)
            elif now - part.joined > _SERVER_COMES:
                self.report(part, FindingKind.UNREGISTERED, members.NO_SERVER)
