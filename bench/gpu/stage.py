"""One scene: tenants on one ground, started together, let in when the row says so, ended together."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench.gpu import words
from bench.gpu.children import Child
from bench.gpu.grounds import Ground
from bench.gpu.words import Ask

READY_SECONDS = 60.0
_END_SECONDS = 30.0
_MICROS = {"us": 1.0, "ms": 1e3, "s": 1e6}


def micros(duration: str) -> float:
    """ "1.5ms" as 1500."""
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", duration).groups()  # type: ignore[union-attr]
    return float(number) * _MICROS[unit]


@dataclass(frozen=True, slots=True)
class Window:
    """From when to when it counts, in seconds of CLOCK_MONOTONIC."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def window(seconds: float) -> Window:
    """The next so many seconds, slept through."""
    begin = time.monotonic()
    time.sleep(seconds)
    return Window(begin, time.monotonic())


class Actor:
    """A tenant that waits for a file to begin and for another to end."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.start_file, self.stop_file = folder / f"{name}.start", folder / f"{name}.stop"
        self.child: Child

    def flags(self) -> list[str]:
        return ["--start-file", str(self.start_file), "--until-file", str(self.stop_file)]

    def start(self, begin: float | None = None) -> None:
        """Let it in; what it measures itself begins at that moment."""
        unseen = self.start_file.with_suffix(".tmp")
        unseen.write_text("" if begin is None else f"{begin:.6f}")
        unseen.rename(self.start_file)

    def stop(self) -> None:
        self.stop_file.touch()

    def result(self, seconds: float = _END_SECONDS) -> dict[str, Any]:
        return self.child.result(seconds)


class Load(Actor):
    """A steady load whose progress can be read for any window."""

    def __init__(self, name: str, folder: Path, kernel: str) -> None:
        super().__init__(name, folder)
        self.kernel = kernel
        self.progress_file = folder / f"{name}.progress"

    def flags(self) -> list[str]:
        return [*super().flags(), "--progress", str(self.progress_file)]

    def progress(self) -> dict[int, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """By process: moments, and kernels done by then."""
        text = self.progress_file.read_text()
        lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]  # the last may be half written
        whole = [(float(moment), int(process), float(done)) for moment, process, done in lines]
        return {
            process: (
                np.array([line[0] for line in whole if line[1] == process]),
                np.array([line[2] for line in whole if line[1] == process]),
            )
            for process in {line[1] for line in whole}
        }

    def kernels(self, over: Window) -> float:
        """Kernels done in the window, in proportion at its edges."""
        done = 0.0
        for times, counts in self.progress().values():
            done += float(np.interp(over.end, times, counts) - np.interp(over.begin, times, counts))
        return done

    def share(self, over: Window) -> float:
        """Of the card, by what a kernel takes alone according to its name."""
        return self.kernels(over) * micros(self.kernel) * 1e-6 / over.seconds


class Server(Actor):
    """Requests at a steady pace; it measures itself."""

    def __init__(self, name: str, folder: Path, seconds: float) -> None:
        super().__init__(name, folder)
        self.seconds = seconds

    def flags(self) -> list[str]:
        return ["--start-file", str(self.start_file), "--seconds", f"{self.seconds:g}"]

    def run(self, settle: float = 0.3) -> dict[str, Any]:
        """Let it in, wait until it is done, and answer its latencies in microseconds."""
        self.start(time.monotonic() + settle)
        return latency(self.result(self.seconds + _END_SECONDS))


def latency(result: dict[str, Any]) -> dict[str, Any]:
    """p50, p90, p99 and max of a server's own result, with the number of requests."""
    return {**result["latency_us"], "requests": result["requests"]}


class Stage:
    """Who plays, and that all are gone at the end."""

    def __init__(self, ground: Ground, folder: Path) -> None:
        self.ground, self.folder = ground, folder
        self._children: list[Child] = []

    def load(self, ask: Ask, kernel: str, *more: str) -> Load:
        actor = Load(ask.name, self.folder, kernel)
        actor.child = self.child(ask, words.burn_load(kernel, *actor.flags(), *more))
        return actor

    def server(self, ask: Ask, kernel: str, period: str, seconds: float, *more: str) -> Server:
        actor = Server(ask.name, self.folder, seconds)
        actor.child = self.child(ask, words.burn_serve(kernel, period, *actor.flags(), *more))
        return actor

    def child(self, ask: Ask, command: list[str], ground: Ground | None = None) -> Child:
        """Any command as a tenant."""
        ground = ground or self.ground
        child = Child(ask.name, ground.command(ask, command), ground.env, self.folder)
        self._children.append(child)
        return child

    def ready(self, *actors: Actor) -> None:
        """Until each has said that it waits to be let in."""
        for actor in actors:
            actor.child.wait_for("READY", READY_SECONDS)

    def close(self) -> None:
        for child in self._children:
            child.kill()
