"""Groups that hold cards and do not gather pause before they hold cards again, for longer each time. No IO; the time is
an argument.

kube-scheduler may keep one member away for ever: by a selector, by CPU. Each time it tries the others, their group
finds cards for all, holds them, and waits in vain. Without pauses these cards would be idle most of the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aliquot.model.numbers.backoff import backoff

_LONGEST = 60.0  # seconds of a pause; or _SHARE times as long as cards were held
_SHARE = 4.0
_LEAST = 1.0  # seconds that count as held: a pause has to be worth it


def pause_after(failures: int, held: float) -> float:
    """Seconds without a hold after so many failures in a row, the last of which held cards that long."""
    held = max(held, _LEAST)
    return backoff(failures, first=2 * held, longest=max(_LONGEST, _SHARE * held))


@dataclass(slots=True)
class Pause:
    """Why a group holds no cards for a while."""

    until: float
    seconds: float  # how long it is in all
    came: int  # members that were in their places when the last attempt failed


@dataclass(slots=True)
class Attempts:
    """See the head of the file. All by the key of a group."""

    _began: dict[str, float] = field(default_factory=dict)  # since when a group holds cards
    _failures: dict[str, int] = field(default_factory=dict)
    _pauses: dict[str, Pause] = field(default_factory=dict)

    def begin(self, key: str, now: float, *, anew: bool) -> float:
        """The group holds cards; `anew`: it held none before. Returns since when."""
        if anew:
            self._began.pop(key, None)
        return self._began.setdefault(key, now)

    def end(self, key: str) -> None:
        """The group holds no cards: there was no room."""
        self._began.pop(key, None)

    def fail(self, key: str, now: float, came: int) -> None:
        """The cards were held in vain. Many members may report it: it counts once."""
        began = self._began.pop(key, None)
        if began is None:
            return
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        seconds = pause_after(failures, now - began)
        self._pauses[key] = Pause(now + seconds, seconds, came)

    def pause(self, key: str, now: float) -> Pause | None:
        """The pause that the group is in; None: it may hold cards."""
        found = self._pauses.get(key)
        return found if found is not None and now < found.until else None

    def excuse(self, key: str) -> None:
        """The next attempt may turn out differently: it need not wait."""
        self._failures.pop(key, None)
        self._pauses.pop(key, None)

    def forget(self, key: str) -> None:
        """The group has enough members in their places, or is gone."""
        self.end(key)
        self.excuse(key)
