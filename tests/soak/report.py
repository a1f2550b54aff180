"""What a soak tells: while it runs, as JSON, and as a page with a plot."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from aliquot.cli.plot import line_chart
from soak.faults import Fault
from soak.memory import Life
from testbed.build import CONTAINERS, VERSION

if TYPE_CHECKING:
    from soak.main import Soak

_SAY_EVERY = 20.0  # seconds between two lines where no terminal shows the bar
_LONG = 300.0  # seconds over which memory can be judged
_FLAT = 0.02  # of its memory: what a process may have grown by


@dataclass(frozen=True, slots=True)
class Results:
    """One soak."""

    minutes: float
    seed: int
    settings: dict[str, float]
    did: dict[str, int]
    faults: dict[str, int]
    pods: int
    looked_into: int
    looks: int
    most_at_once: int
    refused: dict[str, int]
    calms: list[float]
    slow: list[str]
    lost: list[str]
    over_allocated: list[str]
    stuck: list[str]
    leaked: list[str]
    stumbles: list[str]
    spared: tuple[float, float]  # seconds
    revived: int  # times that the cluster's own kube-scheduler ended by itself
    happened: list[Fault]
    lives: list[Life]

    @property
    def good(self) -> bool:
        flat = all(growth[-1] for growth in self.growths())
        return flat and not self.wrong

    @property
    def wrong(self) -> list[str]:
        stumbles = [f"in a log: {stumble}" for stumble in self.stumbles]
        return [*self.lost, *self.stuck, *self.over_allocated, *self.leaked, *stumbles]

    def growths(self) -> list[tuple[Life, float, bool]]:
        """Of the processes that lived through the stretch: MiB in its second half, and whether that is flat."""
        begin, end = (self.spared[0] + self.spared[1]) / 2, self.spared[1]
        if end - begin < _LONG:
            return []
        found = [(life, life.growth(begin, end)) for life in self.lives]
        return [(life, grown, grown <= _FLAT * life.most_mib) for life, grown in found if grown is not None]

    def as_json(self) -> dict[str, Any]:
        return {"good": self.good, **dataclasses.asdict(self)}

    def summary(self) -> str:
        """For a terminal: a line per thing that must hold, then what was wrong."""
        rows = [
            (len(self.lost) + len(self.stuck), "lost", f"{self.pods:,} Pods ran"),
            (len(self.over_allocated), "over-allocated", f"{self.looks:,} looks, {self.looked_into:,} from inside"),
            (len(self.leaked), "leaked", "after everything was removed, and after uninstall"),
            (len(self.stumbles), "errors", "of its own, in the product's logs"),
        ]
        lines = [f"{number} {what} ({of})" for number, what, of in rows]
        for life, grown, flat in self.growths():
            word = "flat" if flat else "NOT FLAT"
            lines.append(f"memory of the {life.role} on {life.node}: {life.most_mib:.0f} MiB, {grown:+.2f} MiB: {word}")
        killed = ", ".join(f"{count} x {kind}" for kind, count in self.faults.items())
        return "\n".join([*lines, f"faults: {killed}", *self.wrong[:40]])


def results(soak: Soak) -> Results:
    plan, checks = soak.plan, soak.checks
    stuck = [problem for problem in checks.wrong if problem.startswith("stuck")]
    return Results(
        minutes=plan.minutes,
        seed=plan.seed,
        settings={"fault_every": plan.fault_every, "calm_every": plan.calm_every},
        did=dict(sorted(soak.churn.did.items())),
        faults=dict(sorted(soak.faults.counted.items())),
        pods=len(checks.pods),
        looked_into=checks.looked_into,
        looks=checks.looks,
        most_at_once=checks.most_at_once,
        refused=dict(checks.failed),
        calms=soak.calms,
        slow=soak.slow,
        lost=soak.lost,
        over_allocated=[problem for problem in checks.wrong if problem not in stuck],
        stuck=stuck,
        leaked=soak.leaked,
        stumbles=sorted(soak.stumbles),
        spared=soak.spared,
        revived=soak.revived,
        happened=soak.faults.happened,
        lives=[life for life in soak.memory.lives if life.samples],
    )


class Progress:
    """Where it is: a bar on a terminal, else a line now and then."""

    def __init__(self, minutes: float) -> None:
        self._seconds = minutes * 60
        self._said = 0.0
        self._bar: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("soak"), BarColumn(24), TimeElapsedColumn(), TextColumn("{task.description}"))
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task("", total=self._seconds)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, what: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=what)
        else:
            print(f"soak: {what}", file=sys.stderr, flush=True)

    def show(self, soak: Soak) -> None:
        checks, at = soak.checks, soak.clock()
        wrong = len(checks.wrong) + len(soak.lost)
        words = f"{len(checks.pods):,} Pods, {len(soak.faults.happened)} faults, {wrong} wrong"
        if self._bar is not None:
            self._bar.update(self._task, completed=min(at, self._seconds), description=words)
        elif at - self._said >= _SAY_EVERY:
            self._said = at
            print(f"soak: {at:.0f} of {self._seconds:.0f} s: {words}", file=sys.stderr, flush=True)


# The page


def write(found: Results, page: Path) -> None:
    plot = page.parent / "img" / "soak.svg"
    plot.parent.mkdir(parents=True, exist_ok=True)
    plot.write_text(_plot(found))
    page.write_text(_page(found))


def _plot(found: Results) -> str:
    """A line per program and node: what the processes there had, one after the other."""
    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for life in sorted(found.lives, key=lambda life: life.samples[0].at):
        lines[f"{life.role} {life.node}"] += [(sample.at / 60, sample.rss_mib) for sample in life.samples]
    ordered = {name: sorted(points) for name, points in sorted(lines.items())}
    note = f"each dip is a process that was killed; {sum(found.faults.values())} faults, {found.pods:,} Pods"
    return line_chart("Memory of scheduler and agent", note, "minutes", "MiB resident", ordered)


def _page(found: Results) -> str:
    calm = max(found.calms, default=0.0)
    lost = len(found.lost) + len(found.stuck)
    rows = [
        ("Pods that ran", f"{found.pods:,}, at most {found.most_at_once} at once"),
        ("containers checked from inside", f"{found.looked_into:,}"),
        ("faults", f"{sum(found.faults.values()):,}"),
        ("**lost**: should run, and does not within two minutes without faults", f"**{lost}**"),
        ("**over-allocated**, or a container on a card that is not its own", f"**{len(found.over_allocated)}**"),
        ("**leaked**: anything left of a Pod, or of the product after uninstalling", f"**{len(found.leaked)}**"),
        ("errors of its own in the product's logs", f"{len(found.stumbles)}"),
        ("time without faults until everything ran, at worst", f"{calm:.0f} s"),
    ]
    head = _HEAD.format(
        minutes=f"{found.minutes:g}",
        seed=found.seed,
        machine=_machine(),
        every=found.settings["fault_every"],
        calm=found.settings["calm_every"],
    )
    out = [head, *_table("", "", rows)]
    if found.wrong:
        out += ["", "Failures:", "", *(f"- {problem}" for problem in found.wrong)]
    out += ["", "## Memory", "", "![memory over the run](img/soak.svg)", "", *_memory(found)]
    out += ["", "## What was killed", "", *_table("fault", "times", list(found.faults.items()))]
    out += ["", "## Workload", "", *_table("", "", list(found.did.items()))]
    if found.refused:
        refused = ", ".join(f"{count} with `{reason}`" for reason, count in found.refused.items())
        out += ["", _REFUSED.format(refused=refused)]
    if found.revived:
        out += ["", _REVIVED.format(revived=found.revived)]
    return "\n".join(out) + "\n"


def _memory(found: Results) -> list[str]:
    begin, end = (f"{at / 60:.0f}" for at in found.spared)
    lives: dict[str, list[Life]] = defaultdict(list)
    for life in found.lives:
        lives[life.role].append(life)
    rows = [
        f"| {role} | {len(of_role)} | {max(life.most_mib for life in of_role):.0f} |"
        for role, of_role in sorted(lives.items())
    ]
    out = ["| program | processes | peak MiB of any |", "|---|---|---|", *rows]
    grown = found.growths()
    if grown:
        out += [
            "",
            _SPARED.format(begin=begin, end=end),
            "",
            "| process | lived, min | peak MiB | growth, MiB | |",
        ]
        out.append("|---|---|---|---|---|")
        out += [
            f"| {life.role} on {life.node} | {life.seconds / 60:.0f} | {life.most_mib:.1f} | {by:+.2f} "
            f"| {'flat' if flat else '**not flat**'} |"
            for life, by, flat in grown
        ]
    return out


def _table(left: str, right: str, rows: list[tuple[str, Any]]) -> list[str]:
    return [f"| {left} | {right} |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows)]


def _machine() -> str:
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    containerd = CONTAINERS.version("github.com/containerd/containerd/v2")
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, {gib:.0f} GiB, Python {platform.python_version()}, "
        f"Kubernetes {VERSION}, containerd {containerd}"
    )


_HEAD = """# Soak

`make soak MINUTES={minutes}` wrote this page (seed {seed}; {machine}).
The chart installs the product on two real nodes with four simulated cards each; everything else is real.
Deployments, StatefulSets and Jobs of all dialects come, grow, shrink, roll and go; their containers use the cards,
end, and restart. About every {every:g} seconds a program of the cluster or of the product is killed with -9, or its
Pod is deleted with at most 5 seconds of grace. Every second, code that is not the product's adds up all grants, and
every container reports which cards it sees. Every {calm:g} seconds the faults pause, and everything that should run
must run. The webhook's `failurePolicy` is `fail`: with `ignore`, a Pod created in a second in which nobody answers
would go to the cluster's own kube-scheduler and bypass us, and the agent would refuse it.
"""
_REFUSED = """Pods that failed while the agent of their node was away, or with their kubelet: {refused}.
Their controllers recreated them; a Pod counts as running only when its replacement does."""
_REVIVED = """The cluster's own kube-scheduler exited {revived} times and was restarted as a kubelet does: after a
time in which it could not watch, it found a Pod of the same name on another node and gave up
("Scheduler cache is corrupted", a fault of Kubernetes)."""
_SPARED = """From minute {begin} to minute {end} the leading scheduler and the agent of n1 were not killed.
Their growth in the second half of that time, from a straight line through a sample every five seconds; flat means at
most 2%:"""
