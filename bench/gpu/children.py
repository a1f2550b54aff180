"""Processes that the bench starts: each with its output in files, a limit on every wait, and an end by its own pid."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_STEP = 0.005


class ChildError(Exception):
    """A child did not do its part: what it said last is in the message."""


class Child:
    """One process in a session of its own, so that it can be ended together with what it started."""

    def __init__(self, name: str, command: list[str], env: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(env), start_new_session=True
            )
        self.pid = self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        """All of its stderr so far."""
        return self._err.read_text(errors="replace")

    def printed(self) -> str:
        """All of its stdout so far."""
        return self._out.read_text(errors="replace")

    def wait_for(self, word: str, seconds: float) -> None:
        """Until a line of its output is the word, or begins with it."""
        deadline = time.monotonic() + seconds
        while not any(line.startswith(word) for line in (self.said() + "\n" + self.printed()).splitlines()):
            if not self.alive():
                raise ChildError(f"{self.name} ended with {self._process.returncode} before {word}: {self._last()}")
            if time.monotonic() > deadline:
                raise ChildError(f"{self.name} did not come to {word} in {seconds:.0f} s: {self._last()}")
            time.sleep(_STEP)

    def exit_code(self, seconds: float) -> int:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise ChildError(f"{self.name} did not end in {seconds:.0f} s: {self._last()}") from error

    def result(self, seconds: float) -> dict[str, Any]:
        """The JSON object on the last line it printed, once it ended well."""
        code = self.exit_code(seconds)
        lines = self.printed().strip().splitlines()
        try:
            answer = json.loads(lines[-1]) if lines else None
        except ValueError:
            answer = None
        if code or not isinstance(answer, dict):
            raise ChildError(f"{self.name} ended with {code}: {self._last()}")
        return answer

    def signal(self, number: int) -> None:
        """To the process itself; nothing where it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """The process and all of its session that is left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)

    def _last(self) -> str:
        text = (self.said() + self.printed()).strip()
        return text[-2000:] or "it said nothing"


def answer(command: list[str], env: Mapping[str, str], seconds: float = 30.0) -> str:
    """What a short command printed. Raises ChildError when it failed or took too long."""
    try:
        done = subprocess.run(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ChildError(f"{' '.join(command)} took more than {seconds:.0f} s") from error
    if done.returncode:
        raise ChildError(
            f"{' '.join(command)} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}"
        )
    return done.stdout
