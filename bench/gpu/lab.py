"""What all rows share: the grounds, the environment of children, and how a kernel size does alone on this card."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from bench.gpu import grounds, words
from bench.gpu.children import ChildError, answer
from bench.gpu.grounds import Ground, Mps, Node, Stock
from bench.gpu.kernellog import xids
from bench.gpu.stage import Load, Stage, window
from bench.gpu.words import Ask

ROOT = Path(__file__).resolve().parents[2]
Answer = TypeVar("Answer")
KERNELS = ("50us", "1ms", "20ms")


class Lab:
    """One run of the bench. `seconds` is the length of a measured window."""

    def __init__(self, out: Path, seconds: float, simulate: str | None) -> None:
        self.out, self.seconds, self.simulate = out, seconds, simulate
        # Where engines that are not ours are, and on what else than a node of ours they are measured: stock, mps.
        self.engines, self.grounds = Path("out/engines"), tuple[str, ...]()
        # Short: unix sockets are made below it, whose names may have 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="alq"))
        paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
        self.env.pop("ALIQUOT_BURN_RATE", None)
        self._made = 0
        self._alone: dict[str, float] = {}
        self._latency: dict[str, dict[str, Any]] = {}
        self._simulated: Node | None = None
        self.stock = Stock(self.env)
        self.rate = 0.0
        self.xids_of_mps = 0

    def open(self) -> None:
        """Find the card, and measure it while no other program is there."""
        self.stock = Stock(self._stock_env())
        self.rate = self._calibrate()

    def say(self, text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    def new_folder(self) -> Path:
        self._made += 1
        folder = self.folder / str(self._made)
        folder.mkdir()
        return folder

    # ---- grounds

    @contextlib.contextmanager
    def node(
        self,
        policy: str = "best-effort",
        release_delay: str = "100ms",
        *,
        gate: bool = False,
        more: tuple[str, ...] = (),
        variables: Mapping[str, str] | None = None,
    ) -> Iterator[Node]:
        """A fresh daemon, gone at the end. `gate`: it finds a driver that refuses to control channel groups."""
        folder = self.new_folder()
        env = {**self.env, "ALIQUOT_HOME": str(folder), **(variables or {})}
        node = Node(env, folder, policy, release_delay, self.simulate, control="gate" if gate else "auto", more=more)
        try:
            node.up()
            yield node
        finally:
            node.down()

    def mps(self) -> contextlib.AbstractContextManager[Mps | None]:
        """MPS; None where there is none."""
        return contextlib.nullcontext() if self.simulate else self._mps()

    @contextlib.contextmanager
    def _mps(self) -> Iterator[Mps | None]:
        """Its clients fault when they are ended with work pending: complaints that are not ours are counted apart."""
        before = xids()
        with grounds.mps(self.env, self.new_folder()) as mps:
            yield mps
        self.xids_of_mps += (xids() or 0) - (before or 0)

    def under_mps(self, measure: Callable[[Ground], Answer]) -> Answer | None:
        """The same under MPS; None where there is none, or where it does not work: it is not what is on trial."""
        try:
            with self.mps() as mps:
                return measure(mps) if mps else None
        except ChildError as error:
            self.say(f"MPS: {error}")
            return None

    @contextlib.contextmanager
    def stage(self, ground: Ground) -> Iterator[Stage]:
        stage = Stage(ground, self.new_folder())
        try:
            yield stage
        finally:
            stage.close()

    # ---- how things are alone, measured once

    def alone(self, kernel: str) -> float:
        """The share that a load of such kernels reaches with the stock driver and no other program beside it."""
        if kernel not in self._alone:
            with self.stage(self.stock) as stage:
                loads = [
                    stage.load(Ask(name=f"alone-{length}"), length) for length in dict.fromkeys((*KERNELS, kernel))
                ]
                stage.ready(*loads)
                for load in loads:
                    self._alone[load.kernel] = self.solo(load)
            self.say("alone: " + ", ".join(f"{name} {share:.4f}" for name, share in self._alone.items()))
        return self._alone[kernel]

    def solo(self, load: Load, seconds: float | None = None, settle: float = 0.4) -> float:
        """Let one load in, and out again: its share."""
        load.start()
        time.sleep(settle)
        measured = window(seconds or min(2.0, self.seconds))
        load.stop()
        load.child.exit_code(30)
        return load.share(measured)

    def alone_latency(self, kernel: str, period: str) -> dict[str, Any]:
        """A server's latencies with the stock driver and no other program beside it."""
        if kernel not in self._latency:
            with self.stage(self.stock) as stage:
                server = stage.server(Ask(name="alone"), kernel, period, self.seconds)
                stage.ready(server)
                self._latency[kernel] = server.run()
            self.say(f"alone: {kernel} requests {self._latency[kernel]}")
        return self._latency[kernel]

    def baselines(self) -> dict[str, Any]:
        return {"iterations_per_us": self.rate, "shares": self._alone, "latencies_us": self._latency}

    # ---- beginning and end

    def _stock_env(self) -> dict[str, str]:
        """The card's own driver; in a simulation, a card that no daemon of a row ever touches, and no shim."""
        if self.simulate is None:
            return dict(self.env)
        folder = self.new_folder()
        self._simulated = Node({**self.env, "ALIQUOT_HOME": str(folder)}, folder, "best-effort", "100ms", self.simulate)
        self._simulated.up()
        stand_ins = ROOT / "src" / "aliquot" / "lib" / "simgpu"
        return {**self.env, "LD_LIBRARY_PATH": str(stand_ins), "ALIQUOT_SIMGPU": str(folder / "player" / "sock")}

    def _calibrate(self) -> float:
        """Once, while no other program is there; every burn gets the figure."""
        rate = float(json.loads(answer(words.burn_calibrate(), self.stock.env, 60))["iterations_per_us"])
        for env in (self.env, self.stock.env):
            env["ALIQUOT_BURN_RATE"] = f"{rate:.4f}"  # type: ignore[index]
        self.say(f"{rate:.2f} iterations per us")
        return rate

    def close(self) -> None:
        if self._simulated is not None:
            self._simulated.down()
        shutil.rmtree(self.folder, ignore_errors=True)
