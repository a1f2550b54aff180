"""Where the story plays: a daemon of its own in a folder of its own, and the tenants on its cards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aliquot.adapters.host.control import AnswerError, ControlError, NoDaemonError, ask
from aliquot.adapters.host.home import OF_A_TENANT, Home, HomeError
from aliquot.cli.demo.cleanup import HOME_VARIABLE, swept
from aliquot.cli.demo.promises import Counter
from aliquot.cli.errors import InputError

USUAL_PORT = 9478
_MOST_PORTS = 4  # that somebody else may take before we do
_PATIENCE = 30.0  # for anything that must happen at all
_STEP = 0.02
_NOTED = 0.02  # seconds until a tenant has written down what it did
_ALIQUOT = (sys.executable, "-m", "aliquot")
# Not sh and sleep: our own image has no sleep.
_IDLE = (sys.executable, "-c", "import time; time.sleep(86400)")
_STAYING = (sys.executable, "-c", "import subprocess, sys, time; subprocess.call(sys.argv[1:]); time.sleep(86400)")
# What belongs to the one who started us, and not to those who play here.
_FOREIGN = ("LD_PRELOAD", *OF_A_TENANT, "ALIQUOT_BURN_RATE", "CUDA_VISIBLE_DEVICES")


class StageError(InputError):
    """The story cannot go on; the message is that of whoever failed."""

    def __init__(self, text: str) -> None:
        super().__init__(text, code=1)


class Tenant:
    """A sample workload on its slice, and what it writes of its own work."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], files: Path, kernel_us: float) -> None:
        self.name, self.kernel_us = name, kernel_us
        self._process, self._files = process, files

    @property
    def pid(self) -> int:
        """`aliquot run` became the command: it is the tenant's own."""
        return self._process.pid

    def wait_until_working(self) -> None:
        """Until its first kernels are done."""
        progress = self._files.with_suffix(".progress")
        deadline = time.monotonic() + _PATIENCE
        while not (progress.exists() and progress.stat().st_size):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise StageError(f"{self.name} does nothing: {self._last_words()}")
            time.sleep(_STEP)

    def counter(self) -> Counter:
        """Its own count, up to now."""
        time.sleep(_NOTED)
        return Counter(self._files.with_suffix(".progress").read_text())

    def wait_for_work(self) -> None:
        """Until it has done something more; a server has a gap after that."""
        progress = self._files.with_suffix(".progress")
        size, deadline = progress.stat().st_size, time.monotonic() + 1.0
        while progress.stat().st_size == size and time.monotonic() < deadline:
            time.sleep(_STEP / 20)

    def rest(self) -> None:
        """One that stays has nothing more to do."""
        self.ask_to_end()
        out, deadline = self._files.with_suffix(".out"), time.monotonic() + _PATIENCE
        while not out.stat().st_size:
            if self.over or time.monotonic() > deadline:
                raise StageError(f"{self.name} does not come to rest: {self._last_words()}")
            time.sleep(_STEP)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """In the middle of whatever it does; it does nothing meanwhile."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def ask_to_end(self) -> None:
        """It looks for that all the time."""
        self._files.with_suffix(".end").touch()

    def finish(self) -> dict[str, Any]:
        """Ask it to end; what it says of itself."""
        self.ask_to_end()
        return self.result()

    def result(self, patience: float = _PATIENCE) -> dict[str, Any]:
        """What it says at its end."""
        try:
            code = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            raise StageError(f"{self.name} does not end") from None
        if code != 0:
            raise StageError(f"{self.name}: {self._last_words()}")
        said: dict[str, Any] = json.loads(self._files.with_suffix(".out").read_text())
        return said

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def _last_words(self) -> str:
        words = _last_line(self._files.with_suffix(".err").read_text(errors="replace"))
        return words or ("it says nothing" if self._process.poll() is None else f"exit code {self._process.returncode}")


class Stage:
    """The daemon, its cards, and who is on them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        self.environment = {**kept, HOME_VARIABLE: str(home), "PATH": path}
        self._plays = home / "demo"
        self._plays.mkdir()

    def up(self, simulate: str | None) -> None:
        """Start the daemon, with its dashboard on the usual port or, where somebody has that, on another."""
        cards = () if simulate is None else ("--simulate", simulate)
        for port in (USUAL_PORT, *(_free_port() for _ in range(_MOST_PORTS))):
            done = self.tried("up", "-d", *cards, "--listen", str(port))
            if done.returncode == 0:
                return
            if "--listen" not in done.stderr:
                break
        raise StageError(_last_line(done.stderr) or "the daemon did not come up")

    def calibrate(self) -> None:
        """What a card does alone, so that all who come measure with the same yard."""
        said = self.command("run", "--", "aliquot", "burn", "calibrate", "-o", "json")
        self.environment["ALIQUOT_BURN_RATE"] = str(json.loads(said)["iterations_per_us"])

    def command(self, *words: str) -> str:
        """One of our commands, to its end; what it printed. Raises StageError."""
        done = self.tried(*words)
        if done.returncode != 0:
            raise StageError(_last_line(done.stderr) or f"aliquot {words[0]} failed")
        return done.stdout

    def tried(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The same, where it may fail."""
        try:
            return subprocess.run(  # noqa: S603 - ourselves
                [*_ALIQUOT, *words], env=self.environment, capture_output=True, text=True, timeout=2 * _PATIENCE,
                stdin=subprocess.DEVNULL, check=False, start_new_session=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise StageError(f"aliquot {words[0]} does not end") from None

    def ask(self, request: Mapping[str, Any], timeout: float = _PATIENCE) -> dict[str, Any]:
        """The daemon's answer. Raises StageError."""
        try:
            return ask([Home(str(self.home), str(self.home))], dict(request), timeout)
        except NoDaemonError:
            raise StageError("the daemon of this demo has ended") from None
        except AnswerError as error:
            said = error.details
            words = f"{said.get('field')}: {said.get('value')} is not allowed: {said.get('allowed')}"
            raise StageError(words if error.kind == "invalid" else str(error)) from error
        except ControlError as error:
            raise StageError(str(error)) from error

    def status(self) -> dict[str, Any]:
        """Cards, tenants, Pods."""
        return self.ask({"op": "status"})

    def end(self, name: str) -> None:
        """A run, with all its processes."""
        self.ask({"op": "stop", "name": name, "timeout": 1.0})

    def policy(self, name: str | None = None, release_delay: float | None = None) -> None:
        """How tenants share from now on."""
        request: dict[str, Any] = {"op": "policy"}
        if name is not None:
            request["policy"] = name
        if release_delay is not None:
            request["release_delay"] = release_delay
        self.ask(request)

    def keep_out(self, *, all_but: int) -> int:
        """Book all cards but so many, whole, for somebody who does nothing; how many."""
        per_node: dict[str, int] = {}
        for card in self.status()["cards"]:
            node = card.get("node", "")
            per_node[node] = per_node.get(node, 0) + 1
        sizes = sorted(per_node.values(), reverse=True)
        for _ in range(min(all_but, sum(sizes))):  # the largest go first: each finds but one node with that much left
            sizes[-1] -= 1
            sizes = [size for size in sizes if size]
        for at, size in enumerate(sizes):
            self.command("run", "-d", "--gpus", str(size), "--name", f"elsewhere-{at}", "--", *_IDLE)
        return sum(sizes)

    def begin(
        self, name: str, slice_: Sequence[str], burn: Sequence[str], *, kernel_us: float, stays: bool = False
    ) -> Tenant:
        """A sample workload on a slice: `burn` is what follows `aliquot burn`. Who stays keeps the slice when done."""
        files = self._plays / f"{name}-{len(list(self._plays.glob('*.out')))}.out"
        words = [
            *_ALIQUOT, "run", "--name", name, *slice_, "--", *(_STAYING if stays else ()),
            "aliquot", "burn", *burn, "--kernel", f"{kernel_us:g}us",
            "--progress", str(files.with_suffix(".progress")), "--until-file", str(files.with_suffix(".end")),
            "-o", "json",
        ]  # fmt: skip
        with files.open("wb") as out, files.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(  # noqa: S603 - ourselves
                words, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        return Tenant(name, process, files, kernel_us)


@contextlib.contextmanager
def staged() -> Iterator[Stage]:
    """A stage with nothing on it yet; nothing of it is left afterwards."""
    home = _short_home()
    with swept(home):
        yield Stage(home)


def _short_home() -> Path:
    """A temporary folder whose sockets have names that fit."""
    for folder in (None, "/tmp"):  # noqa: S108 - only where TMPDIR is too deep; mkdtemp is private wherever it is
        home = tempfile.mkdtemp(prefix="aliquot-", dir=folder)
        try:
            Home(home, home).check()
        except HomeError:
            os.rmdir(home)
            continue
        return Path(home)
    raise InputError("no temporary folder has a path that is short enough for sockets: set TMPDIR to a shorter one")


def _free_port() -> int:
    """One that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


def _last_line(said: str) -> str:
    """The reason comes last."""
    lines = said.strip().splitlines()
    return lines[-1].removeprefix("aliquot: ") if lines else ""
