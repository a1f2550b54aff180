"""The demo's own daemon and tenants in a temporary folder. All of it is gone however the demo ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from aliquot.adapters.host.control import AnswerError, ControlError, NoDaemonError, ask
from aliquot.adapters.host.home import OF_A_TENANT, POOLS, Home, HomeError, pool_name
from aliquot.adapters.host.process import ourselves, processes
from aliquot.adapters.host.process.procscan import with_environment
from aliquot.cli.demo.promises import Counter
from aliquot.cli.errors import InputError
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.status.burn import BurnResult
from aliquot.model.status.machine import Status
from aliquot.services.daemon.home import replaceable

_HOME = "ALIQUOT_HOME"
_PATIENCE = 30.0  # seconds for any step
_STEP = 0.02
_CLEANING = 10.0  # seconds
_PORTS = (9478, 0, 0, 0)  # the usual one of the dashboard; 0: any that is free
IDLE = ourselves.code("import time; time.sleep(86400)")  # our image has no sleep
# Variables that the demo's processes must not inherit.
_FOREIGN = ("LD_PRELOAD", *OF_A_TENANT, "ALIQUOT_BURN_RATE", "CUDA_VISIBLE_DEVICES")


class DemoError(InputError):
    """The demo cannot continue; the message says what failed."""

    def __init__(self, text: str) -> None:
        super().__init__(text, code=1)


class Tenant:
    """`aliquot run NAME ... -- aliquot burn`, and its files."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], files: Path, kernel_us: float) -> None:
        self.name, self.kernel_us, self.pid = name, kernel_us, process.pid  # `run` executes the command itself
        self._process, self._files = process, files
        self._progress = files.with_suffix(".progress")

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    @property
    def has_worked(self) -> bool:
        """Whether it has finished a kernel."""
        return self._progress.exists() and self._progress.stat().st_size > 0

    def wait_until_working(self) -> None:
        """Wait until its first kernels have finished."""
        self._wait(lambda: self.has_worked, "makes no progress")

    def wait_for_work(self) -> None:
        """Wait until it has finished something more; a server pauses after that."""
        size = self._progress.stat().st_size
        self._wait(lambda: self._progress.stat().st_size > size, "makes no progress")

    def counter(self) -> Counter:
        """Its finished kernels up to now."""
        time.sleep(_STEP)  # until it has written them
        return Counter(self._progress.read_text())

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Idle: stopped by a signal, with its slice."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def finish(self) -> BurnResult:
        """Ask it to end, by the file that it looks for. Returns its result."""
        self._files.with_suffix(".end").touch()
        return self.result()

    def result(self) -> BurnResult:
        """Its result, once it has ended by itself."""
        try:
            code = self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            raise DemoError(f"{self.name} does not end") from None
        if code != 0:
            raise DemoError(f"{self.name}: {self._error()}")
        return msgspec.json.decode(self._files.read_bytes(), type=BurnResult)

    def _wait(self, holds: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not holds():
            if self.over or time.monotonic() > deadline:
                raise DemoError(f"{self.name} {otherwise}: {self._error()}")
            time.sleep(_STEP / 10)

    def _error(self) -> str:
        return _last_line(self._files.with_suffix(".err").read_text(errors="replace")) or "it said nothing"


class Sandbox:
    """The daemon, its cards and its tenants."""

    def __init__(self, home: Path) -> None:
        self.home, self._files = home, home / "demo"
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        self.environment = {**kept, _HOME: str(home), "PATH": path}
        self._files.mkdir()

    def up(self, simulate: str | None) -> None:
        """Start the daemon, with its dashboard on the default port or, if that is in use, on another."""
        cards = () if simulate is None else ("--simulate", simulate)
        for port in _PORTS:
            done = self.tried("up", "-d", *cards, "--listen", str(port))
            if done.returncode == 0:
                return
        raise DemoError(_last_line(done.stderr) or "the daemon did not start")

    def command(self, *words: str) -> str:
        """Run an aliquot command. Returns its output. Raises DemoError."""
        done = self.tried(*words)
        if done.returncode != 0:
            raise DemoError(_last_line(done.stderr) or f"aliquot {words[0]} failed")
        return done.stdout

    def tried(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run an aliquot command that may fail."""
        try:
            return subprocess.run(  # noqa: S603 - ourselves
                ourselves.aliquot(*words), env=self.environment, capture_output=True, text=True, timeout=2 * _PATIENCE,
                stdin=subprocess.DEVNULL, check=False, start_new_session=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise DemoError(f"aliquot {words[0]} does not end") from None

    def ask(self, request: JsonView) -> JsonObject:
        """The daemon's answer. Raises DemoError."""
        try:
            return ask([Home(str(self.home), str(self.home))], request, _PATIENCE)
        except NoDaemonError:
            raise DemoError("the daemon of this demo has ended") from None
        except (ControlError, AnswerError) as error:
            raise DemoError(str(error)) from error

    def status(self) -> Status:
        """Cards, tenants, Pods."""
        return msgspec.convert(self.ask({"op": "status"}), Status)

    def begin(self, name: str, options: Sequence[str], burn: Sequence[str], kernel_us: float) -> Tenant:
        """Start `aliquot burn BURN` on a slice."""
        files = self._files / f"{name}-{len(list(self._files.glob('*.out')))}.out"
        words = [
            *ourselves.aliquot("run", "--name", name), *options, "--", "aliquot", "burn", *burn,
            "--kernel", f"{kernel_us:g}us", "-o", "json",
            "--progress", str(files.with_suffix(".progress")), "--until-file", str(files.with_suffix(".end")),
        ]  # fmt: skip
        with files.open("wb") as out, files.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(  # noqa: S603 - ourselves
                words, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        return Tenant(name, process, files, kernel_us)


@contextlib.contextmanager
def sandboxed() -> Iterator[Sandbox]:
    """An empty sandbox, removed afterwards. It forks: there must be no threads yet.

    A process of its own waits at a pipe, which the kernel closes even if the demo is killed, and then cleans up.
    """
    home = _short_home()
    reader, writer = os.pipe()
    cleaner = os.fork()
    if cleaner == 0:
        os.close(writer)
        _wait_and_clean_up(reader, home)
    os.close(reader)
    try:
        yield Sandbox(home)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C waits for the seconds that this takes
            signal.signal(number, signal.SIG_IGN)
        os.close(writer)
        os.waitpid(cleaner, 0)


def clean_up(home: Path) -> None:
    """End the daemon, which leaves no tenant paused; then all other processes of that home. Remove its folders."""
    with contextlib.suppress(NoDaemonError, ControlError, AnswerError):
        ask([Home(str(home), str(home))], {"op": "down"}, _CLEANING / 4)
    until = time.monotonic() + _CLEANING
    while (left := with_environment(_HOME, str(home))) and time.monotonic() < until:
        for pid, started in left.items():
            with contextlib.suppress(PermissionError):
                processes.send_signal(pid, signal.SIGKILL, started)
        time.sleep(_STEP)
    shutil.rmtree(pool_of(home), ignore_errors=True)
    shutil.rmtree(home, ignore_errors=True)


def pool_of(home: Path) -> Path:
    """The memory that left the cards."""
    return Path(POOLS, pool_name(str(home), os.geteuid()))


def _wait_and_clean_up(pipe: int, home: Path) -> None:
    """In the child: away from the terminal and its signals, and never back into the parent's code."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # a reader of our output must not wait for this process
            os.dup2(nothing, stream)
        os.read(pipe, 1)
        clean_up(home)
    finally:
        os._exit(0)


def _short_home() -> Path:
    """A temporary folder with a path short enough for sockets, which no other user can replace."""
    for folder in (None, "/tmp"):  # noqa: S108 - only where TMPDIR does not do; mkdtemp is private wherever it is
        home = tempfile.mkdtemp(prefix="aliquot-", dir=folder)
        with contextlib.suppress(HomeError):
            Home(home, home).check()
            if os.geteuid() or replaceable(home) is None:
                return Path(home)
        os.rmdir(home)
    raise InputError("the path of the temporary folder is too long for sockets: set TMPDIR to a shorter one")


def _last_line(output: str) -> str:
    """The last line of the output: the reason of a failure."""
    return (output.strip().splitlines() or [""])[-1].removeprefix("aliquot: ")
