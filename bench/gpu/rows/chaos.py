"""A hundred kill -9 of tenants and of the daemon, stopped processes, daemons that come back: does anybody stand still?

Every tenant's progress is on file while it lives. A gap in it counts unless we stopped that process ourselves.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from bench.gpu import health, words
from bench.gpu.children import Child, ChildError
from bench.gpu.grounds import Node
from bench.gpu.kernellog import xids
from bench.gpu.lab import Lab
from bench.gpu.report import Row
from bench.gpu.stage import Stage
from bench.gpu.words import Ask

KILLS, MOST_SECONDS = 100, 1.0
_LIMIT_SECONDS = 90.0  # of one half, however slow tenants start here
_PAUSE = (0.1, 0.3)  # seconds from one blow to the next
_STARTING = 12.0  # and until its first kernel, beside a storm
_WAKING = 0.1  # what a process may take to get going after SIGCONT

# Offline tenants wait for their turn and while online work has the card; seldom enough not to be taken for a pause that
# nobody ends.
ONLINE_PERIOD = "500ms"

EQUAL = tuple(Ask(name=f"equal-{at}") for at in range(5))
MIXED = (
    Ask(name="online", app_class="online"),
    *(Ask(name=f"offline-{at}", app_class="offline") for at in range(3)),
)


@dataclass(slots=True)
class Life:
    """One tenant from start to end. `stopped`: when we had it under SIGSTOP."""

    child: Child
    file: Any
    stopped: list[tuple[float, float]] = field(default_factory=list)
    ended: float | None = None
    began: float = field(default_factory=time.monotonic)

    def moves(self) -> bool:
        """Whether it came to its first kernel, and was not ended yet."""
        return self.ended is None and bool(self.file.exists()) and self.child.alive()

    def gaps(self) -> list[tuple[float, float]]:
        """Times without progress that it cannot be excused for: since when, how long."""
        moments = []
        with contextlib.suppress(OSError):  # no file: it never came to its first kernel
            moments = [float(line.split()[0]) for line in self.file.read_text().splitlines() if len(line.split()) == 3]
        end = self.ended or time.monotonic()
        if self.ended is not None or not moments:
            moments.append(max(end, *moments) if moments else end)
        moments.insert(0, min(self.began + _STARTING, *moments))
        return [(before, after - before - self._excused(before, after)) for before, after in pairwise(moments)]

    def _excused(self, begin: float, end: float) -> float:
        return sum(max(0.0, min(end, until + _WAKING) - max(begin, since)) for since, until in self.stopped)


def measure(lab: Lab) -> list[Row]:
    before = xids()
    chance = random.Random(20261115)
    halves = [_play(lab, asks, KILLS // 2, chance) for asks in (EQUAL, MIXED)]
    after = health.examine(lab)
    kills = sum(half["kills"] for half in halves)
    worst = max(half["longest_gap_seconds"] for half in halves)
    left = [name for half in halves for name in half["left"]]
    deaths = [death for half in halves for death in half["deaths"]]
    complaints = None if before is None or after.xids is None else after.xids - before
    return [
        Row(
            what=f"{kills} kill -9 at random, SIGSTOP, daemon restarts: longest stand-still, left on the books, Xid",
            must=f"{KILLS}: <= 1 s, none, none",
            measured=f"{worst:.2f} s, {len(left)}, {'log not readable' if complaints is None else complaints}"
            + (f"; {len(deaths)} died by themselves" if deaths else ""),
            ok=kills >= KILLS and worst <= MOST_SECONDS and not (left or deaths or complaints) and after.works,
            numbers={"halves": halves, "xids": complaints, "works": after.works, "said": after.said},
        )
    ]


def _play(lab: Lab, asks: tuple[Ask, ...], kills: int, chance: random.Random) -> dict[str, Any]:
    with lab.node() as node, lab.stage(node) as stage:
        storm = _Storm(node, stage, asks, chance)
        storm.settle()
        limit = time.monotonic() + _LIMIT_SECONDS
        while storm.kills < kills and time.monotonic() < limit:
            storm.strike()
            time.sleep(chance.uniform(*_PAUSE))
            storm.mend()
        storm.calm()
        gaps = [(gap, since, life.child.name) for life in storm.lives for since, gap in life.gaps()]
        left = storm.left()
    return {
        "kills": storm.kills,
        "blows": storm.blows,
        "deaths": storm.deaths,
        "lives": len(storm.lives),
        "longest_gap_seconds": round(max(gaps, default=(float("inf"), 0, ""))[0], 3),
        "gaps_over_half_a_second": [
            {"who": who, "seconds": round(gap, 3), "meanwhile": storm.events(since - 1, since + gap)}
            for gap, since, who in sorted(gaps, reverse=True)
            if gap > 0.5
        ],
        "left": left,
    }


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class _Storm:
    """Strikes, and mends what it struck."""

    def __init__(self, node: Node, stage: Stage, asks: tuple[Ask, ...], chance: random.Random) -> None:
        self.node, self.stage, self.asks, self.chance = node, stage, asks, chance
        self.lives: list[Life] = []
        self.kills = 0
        self.blows: dict[str, int] = {}
        self.deaths: list[str] = []  # of tenants that were not killed
        self._log: list[tuple[float, str]] = []
        self._playing: dict[str, Life] = {}
        self._stopped: list[tuple[int, float, float, Life | None]] = []  # pid, since, until
        self._daemon_due: float | None = None

    def events(self, begin: float, end: float) -> list[str]:
        """What was done to whom in that time, in seconds from `begin`."""
        return [f"{moment - begin:.2f} {text}" for moment, text in self._log if begin <= moment <= end]

    def _note(self, text: str) -> None:
        self._log.append((time.monotonic(), text))

    def settle(self) -> None:
        for ask in self.asks:
            self._start(ask)
        deadline = time.monotonic() + 60
        while not all(life.file.exists() for life in self._playing.values()) and time.monotonic() < deadline:
            time.sleep(0.05)

    def strike(self) -> None:
        """One blow, at somebody who is up and not under another blow."""
        kind = self.chance.choices(("kill", "kill daemon", "stop", "stop daemon"), (60, 15, 15, 10))[0]
        busy = {pid for pid, *_ in self._stopped}
        if kind in ("kill", "stop"):
            running = [life for life in self._playing.values() if life.moves() and life.child.pid not in busy]
            if not running:
                return
            life = self.chance.choice(running)
            if kind == "kill":
                life.ended = time.monotonic()
                life.child.signal(signal.SIGKILL)
                self.kills += 1
                self._note(f"killed {life.child.name}")
            else:
                self._stop(life.child.pid, self.chance.uniform(0.3, 1.0), life)
        else:
            pid = words.daemon_pid(self.node.folder)
            if self._daemon_due is not None or pid is None or pid in busy:
                return
            if kind == "kill daemon":
                _signal(pid, signal.SIGKILL)
                self._note("killed the daemon")
                self._daemon_due = time.monotonic() + self.chance.uniform(0.0, 1.2)
                self.kills += 1
            else:
                self._stop(pid, self.chance.uniform(0.3, 1.5), None)
        self.blows[kind] = self.blows.get(kind, 0) + 1

    def mend(self) -> None:
        """Wake those whose time is up, bring the daemon back, start tenants anew in place of the dead."""
        now = time.monotonic()
        for stopped in [process for process in self._stopped if process[2] <= now]:
            self._wake(stopped)
        if self._daemon_due is not None and now >= self._daemon_due:
            self.node.up()
            self._note("the daemon is back")
            self._daemon_due = None
        daemon_stopped = any(life is None for *_, life in self._stopped)
        if self._daemon_due is None and not daemon_stopped:  # a start would only wait for it
            for ask in self.asks:
                life = self._playing[ask.name]
                if not life.child.alive():
                    if life.ended is None and life.file.exists():  # a start that met no daemon is merely tried again
                        self.deaths.append(f"{life.child.name}: {life.child.said()[-200:]}")
                    self._start(ask)

    def calm(self) -> None:
        """Everybody awake, and a moment in which all must move; then the end of all."""
        for stopped in list(self._stopped):
            self._wake(stopped)
        if self._daemon_due is not None:
            self.node.up()
            self._daemon_due = None
        time.sleep(1.5)
        for life in self._playing.values():
            if life.child.alive():
                life.ended = time.monotonic()
                life.child.kill()

    def left(self) -> list[Any]:
        """Tenants on the books without a living process."""
        deadline = time.monotonic() + 10
        while True:
            try:
                found = self.node.tenants()
            except ChildError:
                found = ["the daemon does not answer"]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.2)

    def _start(self, ask: Ask) -> None:
        name = f"{ask.name}-{len(self.lives)}"
        tenant = Ask(name=name, app_class=ask.app_class)
        file = self.stage.folder / f"{name}.progress"
        flags = ("--warmup", "0us", "--seconds", "600", "--progress", str(file))
        online = ask.app_class == "online"
        command = words.burn_serve("1ms", ONLINE_PERIOD, *flags) if online else words.burn_load("1ms", *flags)
        life = Life(self.stage.child(tenant, command), file)
        self._note(f"starts {name}")
        self.lives.append(life)
        self._playing[ask.name] = life

    def _stop(self, pid: int, seconds: float, life: Life | None) -> None:
        _signal(pid, signal.SIGSTOP)
        self._note(f"stopped {life.child.name if life else 'the daemon'}")
        now = time.monotonic()
        self._stopped.append((pid, now, now + seconds, life))

    def _wake(self, stopped: tuple[int, float, float, Life | None]) -> None:
        pid, since, _, life = stopped
        _signal(pid, signal.SIGCONT)
        self._note(f"woke {life.child.name if life else 'the daemon'}")
        self._stopped.remove(stopped)
        if life is not None:
            life.stopped.append((since, time.monotonic()))
