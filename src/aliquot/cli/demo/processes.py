"""The demo's own daemon in a temporary folder, and the tenants on its cards."""

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
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from aliquot.adapters.host.control import AnswerError, ControlError, NoDaemonError, ask
from aliquot.adapters.host.home import OF_A_TENANT, Home, HomeError
from aliquot.adapters.host.process import ourselves
from aliquot.cli.demo.cleanup import HOME_VARIABLE, cleaned_up
from aliquot.cli.demo.promises import Counter
from aliquot.cli.errors import InputError
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.status.burn import BurnResult
from aliquot.model.status.machine import Status
from aliquot.services.daemon.home import replaceable

USUAL_PORT = 9478
_MOST_PORTS = 4  # that others may take before us
_PATIENCE = 30.0  # seconds for any step
_STEP = 0.02
_NOTED = 0.02  # seconds until a tenant has written its progress
# Not sh and sleep: our image has no sleep.
_IDLE = ourselves.code("import time; time.sleep(86400)")
_STAYING = ourselves.code("import subprocess, sys, time; subprocess.call(sys.argv[1:]); time.sleep(86400)")
# Variables that the demo's processes must not inherit.
_FOREIGN = ("LD_PRELOAD", *OF_A_TENANT, "ALIQUOT_BURN_RATE", "CUDA_VISIBLE_DEVICES")


class DemoError(InputError):
    """The demo cannot continue; the message says what failed."""

    def __init__(self, text: str) -> None:
        super().__init__(text, code=1)


class Tenant:
    """A sample workload on a slice, and its progress file."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], files: Path, kernel_us: float) -> None:
        self.name, self.kernel_us = name, kernel_us
        self._process, self._files = process, files

    @property
    def pid(self) -> int:
        """`aliquot run` has executed the command: this is the tenant's pid."""
        return self._process.pid

    def wait_until_working(self) -> None:
        """Wait until its first kernels have finished."""
        progress = self._files.with_suffix(".progress")
        deadline = time.monotonic() + _PATIENCE
        while not (progress.exists() and progress.stat().st_size):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise DemoError(f"{self.name} makes no progress: {self._last_line()}")
            time.sleep(_STEP)

    @property
    def has_worked(self) -> bool:
        """Whether it has finished a kernel."""
        return self._files.with_suffix(".progress").exists()

    def counter(self) -> Counter:
        """Its finished kernels up to now."""
        time.sleep(_NOTED)
        return Counter(self._files.with_suffix(".progress").read_text())

    def wait_for_work(self) -> None:
        """Wait until it has finished something; a server pauses after that."""
        progress = self._files.with_suffix(".progress")
        size, deadline = progress.stat().st_size, time.monotonic() + 1.0
        while progress.stat().st_size == size and time.monotonic() < deadline:
            time.sleep(_STEP / 20)

    def rest(self) -> None:
        """End its work; a tenant that stays keeps its slice."""
        self.ask_to_end()
        out, deadline = self._files.with_suffix(".out"), time.monotonic() + _PATIENCE
        while not out.stat().st_size:
            if self.over or time.monotonic() > deadline:
                raise DemoError(f"{self.name} does not become idle: {self._last_line()}")
            time.sleep(_STEP)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stopped by a signal."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def ask_to_end(self) -> None:
        """Create the file that ends it."""
        self._files.with_suffix(".end").touch()

    def finish(self) -> BurnResult:
        """Ask it to end. Returns its result."""
        self.ask_to_end()
        return self.result()

    def result(self, patience: float = _PATIENCE) -> BurnResult:
        """Its result, once it has ended."""
        try:
            code = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            raise DemoError(f"{self.name} does not end") from None
        if code != 0:
            raise DemoError(f"{self.name}: {self._last_line()}")
        return msgspec.json.decode(self._files.with_suffix(".out").read_bytes(), type=BurnResult)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def _last_line(self) -> str:
        words = _last_line(self._files.with_suffix(".err").read_text(errors="replace"))
        return words or ("no output" if self._process.poll() is None else f"exit code {self._process.returncode}")


class Sandbox:
    """The daemon, its cards and its tenants."""

    def __init__(self, home: Path) -> None:
        self.home = home
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        self.environment = {**kept, HOME_VARIABLE: str(home), "PATH": path}
        self._files = home / "demo"
        self._files.mkdir()

    def up(self, simulate: str | None) -> None:
        """Start the daemon, with its dashboard on the default port or, if that is in use, on another."""
        cards = () if simulate is None else ("--simulate", simulate)
        for port in (USUAL_PORT, *(_free_port() for _ in range(_MOST_PORTS))):
            done = self.tried("up", "-d", *cards, "--listen", str(port))
            if done.returncode == 0:
                return
            if "--listen" not in done.stderr:
                break
        raise DemoError(_last_line(done.stderr) or "the daemon did not start")

    def calibrate(self) -> None:
        """Measure the speed of an idle card, as the reference for all tenants."""
        output = self.command("run", "--", "aliquot", "burn", "calibrate", "-o", "json")
        self.environment["ALIQUOT_BURN_RATE"] = str(json.loads(output)["iterations_per_us"])

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

    def ask(self, request: JsonView, timeout: float = _PATIENCE) -> JsonObject:
        """The daemon's answer. Raises DemoError."""
        try:
            return ask([Home(str(self.home), str(self.home))], request, timeout)
        except NoDaemonError:
            raise DemoError("the daemon of this demo has ended") from None
        except AnswerError as error:
            details = error.details
            text = f"{details.get('field')}: {details.get('value')} is not allowed: {details.get('allowed')}"
            raise DemoError(text if error.kind == "invalid" else str(error)) from error
        except ControlError as error:
            raise DemoError(str(error)) from error

    def status(self) -> Status:
        """Cards, tenants, Pods."""
        return msgspec.convert(self.ask({"op": "status"}), Status)

    def end(self, name: str) -> None:
        """Stop a run."""
        self.ask({"op": "stop", "name": name, "timeout": 1.0})

    def end_if_running(self, name: str) -> None:
        """Stop a run that may not have been started."""
        if any(tenant.name == name for tenant in self.status().tenants):
            self.end(name)

    def occupy(self, name: str, mib: int) -> None:
        """Book memory of one card for an idle tenant."""
        self.command("run", "-d", "--name", name, "--memory", f"{mib}MiB", "--", *_IDLE)

    def policy(self, name: str | None = None, release_delay: float | None = None) -> None:
        """Change the policy."""
        request: JsonObject = {"op": "policy"}
        if name is not None:
            request["policy"] = name
        if release_delay is not None:
            request["release_delay"] = release_delay
        self.ask(request)

    def block_cards(self, *, all_but: int) -> int:
        """Book all cards but that many for idle tenants. Returns how many."""
        per_node: dict[str, int] = {}
        for card in self.status().cards:
            node = card.node or ""
            per_node[node] = per_node.get(node, 0) + 1
        sizes = sorted(per_node.values(), reverse=True)
        for _ in range(min(all_but, sum(sizes))):  # the largest first: each then fits only one node
            sizes[-1] -= 1
            sizes = [size for size in sizes if size]
        for at, size in enumerate(sizes):
            self.command("run", "-d", "--gpus", str(size), "--name", f"elsewhere-{at}", "--", *_IDLE)
        return sum(sizes)

    def begin(
        self, name: str, slice_: Sequence[str], burn: Sequence[str], *, kernel_us: float, stays: bool = False
    ) -> Tenant:
        """Start `aliquot burn BURN` on a slice. With `stays`, it keeps the slice when it is done."""
        files = self._files / f"{name}-{len(list(self._files.glob('*.out')))}.out"
        words = [
            *ourselves.aliquot("run", "--name", name), *slice_, "--", *(_STAYING if stays else ()),
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
def sandboxed() -> Iterator[Sandbox]:
    """An empty sandbox, removed afterwards."""
    home = _short_home()
    with cleaned_up(home):
        yield Sandbox(home)


def _short_home() -> Path:
    """A temporary folder with a path short enough for sockets."""
    for folder in (None, "/tmp"):  # noqa: S108 - only where TMPDIR is too deep; mkdtemp is private wherever it is
        home = tempfile.mkdtemp(prefix="aliquot-", dir=folder)
        try:
            Home(home, home).check()
            if os.geteuid() or replaceable(home) is None:
                return Path(home)
        except HomeError:
            pass
        os.rmdir(home)
    raise InputError("the path of the temporary folder is too long for sockets: set TMPDIR to a shorter one")


def _free_port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


def _last_line(output: str) -> str:
    """The last line of the output: the reason of a failure."""
    lines = output.strip().splitlines()
    return lines[-1].removeprefix("aliquot: ") if lines else ""
