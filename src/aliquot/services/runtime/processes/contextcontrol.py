"""Time slice, pause and resume of a context: by the driver where it lets us, else by the gate in the shim."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from aliquot.adapters.gpu import page as pages
from aliquot.adapters.gpu import rm
from aliquot.model.tenant import Level
from aliquot.services.runtime.processes.contexts import Context


def set_slice(context: Context, microseconds: int) -> None:
    """Its time slice on the card; no gate can do that. Raises RmError."""
    if context.level is Level.HARDWARE:
        _on_all(context.groups, lambda group: rm.set_slice(group, microseconds))


def other_slices(context: Context, wanted: int) -> set[int]:
    """The slices of its groups that are not the wanted one. Raises RmError."""
    return {found for group in context.groups if (found := rm.get_slice(group)) != wanted}


def pause(context: Context) -> None:
    """Hold it off the card. Raises RmError."""
    if context.level is Level.HARDWARE:
        context.page.beat(context.card, time.monotonic_ns())
        context.page.set_word(context.slot, context.card, pages.PAUSED, 1)
        for part in context.parts:  # too: it may have channels of its own, which the server cannot name
            set_gate(part, closed=True)
        _on_all(context.groups, lambda group: _disable(context, group))
    else:
        context.drained = time.monotonic()
        set_gate(context, closed=True)


def set_gate(context: Context, *, closed: bool) -> None:
    """Whether its launches wait; of an MPS server those of the processes that work through it."""
    for one in (context, *context.parts):
        one.page.set_gate(one.slot, one.card, closed=closed)


def hold(context: Context) -> None:
    """Let it launch nothing more, at any level."""
    for one in (context, *context.parts):
        one.page.beat(one.card, time.monotonic_ns())
    context.drained = time.monotonic()
    set_gate(context, closed=True)


def is_drained(context: Context) -> bool:
    """Whether it has no work on the card any more, its gate being closed."""
    return all(one.page.use(one.slot, one.card).busy_since_ns == 0 for one in (context, *context.parts))


def resume(context: Context) -> None:
    """Let it run again. Raises RmError."""
    set_gate(context, closed=False)
    try:
        if context.level is Level.HARDWARE:
            _on_all(context.groups, lambda group: rm.set_paused(group, False))
    finally:
        context.stopped.clear()  # also where it failed on one group: the others must be disabled anew the next time
        context.page.set_word(context.slot, context.card, pages.PAUSED, 0)


def arm(context: Context) -> bool:
    """Ask it to wake us at its next launch. False: it launched since it was last read, and will not."""
    return all(_arm(one) for one in context.parts) if context.parts else _arm(context)


def _arm(context: Context) -> bool:
    context.page.set_word(context.slot, context.card, pages.WAKE, 1)
    use = context.page.use(context.slot, context.card)
    return context.last is None or use.launches == context.last.launches


def _disable(context: Context, group: rm.Group) -> None:
    """Disable those of its channels that are not yet: once is enough, and what twice does is not documented."""
    fresh = tuple(channel for channel in group.channels if (group.client, channel) not in context.stopped)
    rm.set_paused(replace(group, channels=fresh), True)
    context.stopped |= {(group.client, channel) for channel in fresh}


def _on_all(groups: Iterable[rm.Group], control: Callable[[rm.Group], None]) -> None:
    """Control each group even if some fail: a group that is gone must not leave the others as they were.

    Raises the worst RmError."""
    failed: list[rm.RmError] = []
    for group in groups:
        try:
            control(group)
        except rm.RmError as error:
            failed.append(error)
    if failed:
        raise min(failed, key=lambda error: error.gone)
