"""Who is measured: ours, peers given as commands, or one that runs already; and what the kernel says of it."""

from __future__ import annotations

import compileall
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.scheduler.calls import OURS, Verbs
from bench.scheduler.chart import scheduler_flags
from bench.scheduler.line import Line, get

import aliquot
from testbed.plane import HOST
from testbed.processes import Program, free_port

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """An extender that can be started as often as it takes; or, with `url`, one that somebody else runs."""

    name: str
    verbs: Verbs
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    url: str = ""
    pid: int | None = None
    ours: bool = False

    def start(self, kubeconfig: Path, folder: Path) -> Running:
        """It may not be ready yet."""
        if self.url:
            return Running(self, self.url, self.pid, None)
        port = free_port()
        words = [word.format(port=port, kubeconfig=kubeconfig) for word in self.command]
        environment = {**self.environment, "PORT": str(port), "KUBECONFIG": str(kubeconfig)}
        # A peer in debug mode writes gigabytes: its log goes nowhere.
        log = folder / f"{self.name}.log" if self.ours else Path(os.devnull)
        program = Program(words, log, name=self.name, environment=environment)
        return Running(self, f"http://{HOST}:{port}", program.pid, program)


def ours(flags: Sequence[str] = ()) -> Contestant:
    """Our scheduler, compiled as pip and the image build compile what they install: a checkout in whose environment
    PYTHONDONTWRITEBYTECODE is set would be compiled at every start."""
    compileall.compile_dir(Path(aliquot.__file__).parent, quiet=2)
    where = (f"--bind-address={HOST}", "--port={port}", "--metrics-port=0", "--kubeconfig={kubeconfig}")
    command = (sys.executable, "-P", "-m", "aliquot", "scheduler", *where, *scheduler_flags(), *flags)
    return Contestant(name="ours", verbs=OURS, command=command, ours=True)


def peer(text: str, verbs: Verbs) -> Contestant:
    """NAME=[VARIABLE=VALUE ...] COMMAND [WORD ...]; {port} and {kubeconfig} in it are filled in. Raises ValueError."""
    name, equals, rest = text.partition("=")
    words = shlex.split(rest)
    environment: dict[str, str] = {}
    while words and words[0].partition("=")[0].isidentifier() and "=" in words[0]:
        key, _, value = words.pop(0).partition("=")
        environment[key] = value
    if not name or not equals or not words:
        raise ValueError(
            f'--peer "{text}" is not allowed: NAME=[VARIABLE=VALUE ...] COMMAND, as "old=QPS=9 ./extender"'
        )
    return Contestant(name=name, verbs=verbs, command=tuple(words), environment=environment)


@dataclass(slots=True)
class Running:
    """A contestant with an address."""

    contestant: Contestant
    url: str
    pid: int | None
    program: Program | None

    @property
    def verbs(self) -> Verbs:
        return self.contestant.verbs

    def line(self) -> Line:
        return Line(self.url)

    def alive(self) -> bool:
        return self.program is None or self.program.running

    def wait_ready(self, seconds: float = 180.0) -> float:
        """Until it says ready, or where it has no word for it, until it listens; the seconds that took."""
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            if not self.alive():
                raise RuntimeError(f"{self.contestant.name} ended by itself")
            try:
                with self.line() as line:
                    status, _ = line.call(get("/readyz"))
                if status in (200, 404):
                    return time.monotonic() - began
            except OSError:
                pass
            time.sleep(0.01)
        raise TimeoutError(f"{self.contestant.name} was not ready within {seconds:g} s")

    def cpu_seconds(self) -> float:
        """What it and the processes of its own that have ended have used of the processors so far."""
        if self.pid is None:
            return float("nan")
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS

    def memory_mb(self) -> dict[str, float]:
        """Resident now, and at most so far."""
        if self.pid is None:
            return {}
        said = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        lines: dict[str, Any] = {line.split(":")[0]: line for line in said if line.startswith(("VmRSS:", "VmHWM:"))}
        return {key: int(line.split()[1]) * 1024 / 1e6 for key, line in lines.items()}

    def stop(self) -> None:
        if self.program is not None:
            self.program.stop(patience=5)
