"""Runs one step of `make` and shows that it moves: python deploy/step.py "LABEL" COMMAND...

On a terminal one line is rewritten: the seconds, and the last line that the command printed. Elsewhere a dot appears
every two seconds. The command's output is printed only if it fails. A step of less than half a second prints nothing.
Needs nothing but Python: it runs before the virtual environment exists.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time

BRIEF = 0.5  # seconds
REWRITE, DOT = 0.25, 2.0  # seconds between two signs of life


def main(label: str, command: list[str]) -> int:
    began = time.monotonic()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(  # noqa: S603 - the command is make's
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
        text=True, errors="replace",
    ) as process:  # fmt: skip
        output: list[str] = []
        reader = threading.Thread(target=_read, args=(process, output), daemon=True)
        reader.start()
        rewrites = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        try:
            shown = _show_progress(label, process, output, began, rewrites)
        except KeyboardInterrupt:  # the command got it too
            print(flush=True)
            return 130
        reader.join()
    if shown:
        print(f"\r\x1b[K{label}: {_seconds(began)}" if rewrites else f" {_seconds(began)}", flush=True)
    if process.returncode != 0:
        sys.stderr.write("\n".join(output) + f"\n{label}: failed\n")
    return process.returncode


def _read(process: subprocess.Popen[str], output: list[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip():
            output.append(line.rstrip())  # noqa: PERF401 - others read it meanwhile


def _show_progress(label: str, process: subprocess.Popen[str], output: list[str], began: float, rewrites: bool) -> bool:
    """Until the command ends; whether anything was shown."""
    try:
        process.wait(BRIEF)
        return False
    except subprocess.TimeoutExpired:
        pass
    if not rewrites:
        print(f"{label} ", end="", flush=True)
    while True:
        if rewrites:
            line = "  ".join([f"{label}: {_seconds(began)}", *(text.strip() for text in output[-1:])])
            print("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1], end="", flush=True)
        else:
            print(".", end="", flush=True)
        try:
            process.wait(REWRITE if rewrites else DOT)
            return True
        except subprocess.TimeoutExpired:
            continue


def _seconds(began: float) -> str:
    return f"{time.monotonic() - began:.0f} s"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2:]))
