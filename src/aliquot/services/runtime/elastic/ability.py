"""Whether the driver's checkpoint can take a tenant: by what the driver says, by what it refused, and by the room in
the host's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aliquot.adapters.host.hostmemory import Room
from aliquot.services.mover.checkpoint import Answer
from aliquot.services.runtime.elastic.backoff import Backoff
from aliquot.wording.parking import checkpoint_refusal_words, checkpoint_room_words

_ROOM_EVERY = 2.0  # seconds between two looks at the host's memory
_ROOM_VALID = 10.0  # seconds after which a look says nothing any more

Rooms = Callable[[int], Room | None]  # by the pid


@dataclass(slots=True)
class Ability:
    """Whether one tenant can leave one card this way. `looks`: how often the driver is asked."""

    can: bool = False  # the driver said so, or did it
    looks: Backoff = field(default_factory=lambda: Backoff(2.0, 600.0))
    _refusals: Backoff = field(default_factory=lambda: Backoff(30.0, 600.0))
    _refusal: str | None = None
    _lasting: bool = False  # it is refused for ever
    _looked: float = float("-inf")  # at the host's memory
    _found: dict[int, Room | None] = field(default_factory=dict)  # by pid, when we looked
    _look: tuple[float, tuple[int, ...]] | None = None  # due now: when it was asked for, and for whom
    _lack: str | None = None  # why there is not enough

    @property
    def why_not(self) -> str | None:
        """Why it cannot be moved, in words; None: nothing is known against it."""
        return self._refusal or self._lack

    def note(self, answer: Answer, now: float) -> None:
        """What the driver said when it was asked."""
        self.can = answer.refusal is None
        if not self.can:
            self.refuse(refusal_words(answer), now, lasting=answer.lasting)

    def refuse(self, words: str, now: float, *, lasting: bool = False) -> None:
        """It could not be taken: it is tried again later, each time later."""
        self._refusal, self._lasting = words, lasting
        self._refusals.note(now)

    def is_refused(self, now: float) -> bool:
        """Whether it is too soon to try again."""
        return self._refusal is not None and (self._lasting or not self._refusals.is_due(now))

    def succeed(self) -> None:
        """It was taken."""
        self.can = True
        self._refusals.reset()

    def forgive(self) -> bool:
        """Try again at once what was refused. False: there is nothing to try."""
        if self._refusal is None or self._lasting:
            return False
        self._refusal, self.can = None, True
        self._refusals.reset()
        return True

    def ask_for_room(self, pids: Sequence[int], now: float) -> None:
        """Have `look_at_room` look, unless it did so a moment ago. Also after a refusal: its user may have it tried
        again at once."""
        if not self._lasting and (now - self._looked >= _ROOM_EVERY or self._found.keys() != set(pids)):
            self._look = now, tuple(pids)

    def look_at_room(self, room: Rooms) -> None:
        """Read what was asked for. These are many files: no lock is held meanwhile."""
        if self._look is not None:
            (self._looked, pids), self._look = self._look, None
            self._found = {pid: room(pid) for pid in pids}

    def has_room(self, size: int, pids: Sequence[int], now: float) -> bool | None:
        """Whether the host has so many bytes for these processes, by the last look; None: that look is too old."""
        if now - self._looked > _ROOM_VALID or self._found.keys() != set(pids):
            return None
        self._refusal, self._lack = None, _lack(size, [self._found[pid] for pid in pids])
        return self._lack is None


def refusal_words(answer: Answer) -> str:
    """Why the driver did not do it."""
    return checkpoint_refusal_words(answer.refusal or "no process was there")


def _lack(size: int, rooms: Sequence[Room | None]) -> str | None:
    known = [room for room in rooms if room is not None]
    if len(known) < len(rooms) or not known:
        return checkpoint_room_words(size, None)
    least = min(known, key=lambda room: room.free)
    return None if least.free >= size else checkpoint_room_words(size, least.free, in_cgroup=least.in_cgroup)
