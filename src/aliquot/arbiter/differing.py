"""What was ordered of each context, and which orders lead from there to what shall be."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from aliquot.arbiter import slices
from aliquot.arbiter.orders import Arm, Hold, Open, Order, Pause, Resume, SetSlice
from aliquot.arbiter.roster import Context


@dataclass(slots=True)
class Ordered:
    """What was last ordered of a context; None: nothing yet, or forgotten."""

    microseconds: int | None = None
    enabled: bool | None = None
    held: bool = False  # where it is not enabled: at the gate, not by a pause
    armed: bool = False

    @property
    def paused(self) -> bool:
        """Whether its pause was ordered."""
        return self.enabled is False and not self.held


def difference(
    ordered: dict[str, Ordered],
    contexts: Sequence[Context],
    lengths: Mapping[str, int],
    enabled: Collection[str],
    *,
    online: Collection[str],
    held: bool,
    first: str | None = None,
    at_gate: bool = False,
) -> list[Order]:
    """Orders from what was to what shall be, which `ordered` says afterwards. `held`: offline work is, for `online`.

    Where no slice is tiny the next one is resumed before the former is paused, so that the card is never without
    work; otherwise the pause comes first, since two enabled tiny slices would stall each other. Of several that are
    resumed `first` is the only one that the card finds when the former stops. `at_gate`: those that may not run are
    held there, and the next one is let go when they are done.
    """
    pauses: list[Order] = []
    sliced: list[Order] = []
    resumes: list[Order] = []
    arms: list[Order] = []
    for context in contexts:
        was = ordered.setdefault(context.name, Ordered())
        if was.microseconds != lengths[context.name]:
            was.microseconds = lengths[context.name]
            sliced.append(SetSlice(context.name, was.microseconds))
        may = context.name in enabled
        holds = not may and not was.paused and (context.settling or at_gate)
        if was.enabled is not may or (was.held and not holds):
            # Resumed even when nothing is known of it: a daemon before us may have died with it paused.
            stop = Hold(context.name) if holds else Pause(context.name)
            go_on = Open(context.name) if at_gate and was.held else Resume(context.name)
            (resumes if may else pauses).append(go_on if may else stop)
            was.enabled, was.held = may, holds
        # Online work that was let go is to be heard of at once: its next launch takes the card. While offline work
        # is held it is read often, and a launch that also sends a message would take longer.
        if not (context.resting and not held if context.name in online else context.quiet):
            was.armed = False
        elif not was.armed:
            was.armed = True
            arms.append(Arm(context.name))
    resumes.sort(key=lambda order: order.context != first)
    if at_gate or sliced or slices.TINY in lengths.values():
        return [*pauses, *sliced, *resumes, *arms]
    early = 1 if resumes and resumes[0].context == first else len(resumes)
    return [*resumes[:early], *pauses, *resumes[early:], *arms]
