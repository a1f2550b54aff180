"""Programs a test starts: each with a log file, ended by its pid, and never left behind.

A test run can be killed with -9, and then nothing of it can clean up. So every program asks the kernel to kill it when
its parent dies (PR_SET_PDEATHSIG). The kernel means the parent *thread*: one that never ends starts them all.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

# Not preexec_fn: it forks a process with threads, of which Python 3.12 warns. The setting outlives exec.
_LAUNCHER = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit('the parent is gone')\n"
    "os.execvp(sys.argv[2], sys.argv[2:])\n"
)
_STARTER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="starts-programs")


class Program:
    """One running program."""

    def __init__(
        self, command: Sequence[str | Path], log: Path, *, name: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        self.command = [str(word) for word in command]
        self.name = name or Path(self.command[0]).name
        self.log_file = log
        self._log_before = log.stat().st_size if log.exists() else 0
        self._popen = _STARTER.submit(self._start, {**os.environ, **(environment or {})}).result()

    def _start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                [*launcher, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # a Ctrl-C is for the test run; it ends its programs in the right order
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._popen.poll()

    @property
    def log(self) -> str:
        """All it has written so far, over every start with this log file."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @property
    def said(self) -> str:
        """What it has written since it was started, this time."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_before)
            return log.read().decode(errors="replace")

    def tail(self, lines: int = 25) -> str:
        return "\n".join(self.log.splitlines()[-lines:])

    def signal(self, number: int) -> None:
        if self.running:
            self._popen.send_signal(number)

    def stop(self, patience: float = 15.0) -> int:
        """SIGTERM, and SIGKILL to one who does not listen; the exit code (-9 tells it had to be killed)."""
        self.signal(signal.SIGTERM)
        try:
            return self._popen.wait(patience)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """SIGKILL: no time to say goodbye."""
        self.signal(signal.SIGKILL)
        return self._popen.wait()

    def wait_ready(self, ready: Callable[[], object], seconds: float) -> None:
        """Until `ready` says so; an error with the end of the log when the program ends first or takes too long."""

        def alive_and_ready() -> object:
            if not self.running:
                raise RuntimeError(f"{self.name} ended with exit code {self.exit_code}:\n{self.tail()}")
            return ready()

        try:
            wait_until(alive_and_ready, seconds, f"{self.name} is ready", every=0.05)
        except TimeoutError as error:
            self.kill()
            raise TimeoutError(f"{error}; its log ({self.log_file}) ends with:\n{self.tail()}") from None


class HelperScript:
    """A script that makes something and keeps it (a node's namespaces, a network) until it is closed.

    Or until the test run ends however that ends: then the script's input ends too. `result` is the line that it wrote
    once all was made, as JSON.
    """

    def __init__(self, script: Path, word: str, log: Path, *, makes: str) -> None:
        with log.open("ab") as errors:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", str(script), word],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        assert self._popen.stdout is not None
        with self._popen.stdout as stdout:
            line = stdout.readline()
        if not line:
            self.close()
            raise RuntimeError(f"no {makes}: {log.read_text().strip()}")
        self.result: dict[str, Any] = json.loads(line)

    def close(self) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        self._popen.wait(30)


class Startable:
    """Something that `with` starts and stops; where its start fails half-way, what has begun is stopped too."""

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def wait_until(
    predicate: Callable[[], T],
    seconds: float,
    what: str,
    *,
    saw: Callable[[], object] | None = None,
    every: float = 0.1,
) -> T:
    """The predicate's first true answer. A TimeoutError says what was waited for and what was seen last.

    `saw` tells more than the predicate's last answer does, and is only asked when time has run out. A refused
    connection counts as not yet: programs come and go in these tests.
    """
    end = time.monotonic() + seconds
    while True:
        last: object
        try:
            answer = predicate()
            if answer:
                return answer
            last = answer
        except OSError as error:
            last = error
        if time.monotonic() >= end:
            break
        time.sleep(every)
    if saw is not None:
        last = saw()
    raise TimeoutError(f"not within {seconds:g} s: {what}; last seen: {last!r}")


def free_port() -> int:
    """A port of loopback nobody uses.

    Below the range from which the kernel gives clients their ports: otherwise, while a server is down for a restart, a
    client may be given the server's port, or even connect to itself.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(200):
        port = random.randrange(max(1024, low - 12000), low)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port of loopback below {low}")
