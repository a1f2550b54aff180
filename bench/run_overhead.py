"""What `aliquot run` costs before the command starts: the time of `aliquot run -- true` less that of `true` alone.

    python bench/run_overhead.py [--times 50] [--simulate 2x24GiB]

A daemon that runs already is asked; otherwise one with simulated cards is started in a home of its own, and ended.
The package is compiled first, as pip does when it installs it: a checkout in whose environment PYTHONDONTWRITEBYTECODE
is set would be compiled at every start, 7 ms of CPU.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import aliquot
from aliquot.adapters.host.control import ControlError, NoDaemonError, connect
from aliquot.adapters.host.home import homes

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.pace import milliseconds, python_start_ms, sentence  # after the path is set: this is a script

LIMIT_MS = 150.0  # what is promised


def measure(times: int) -> dict[str, float]:
    """Milliseconds before the exec: middle, 95th percentile, worst."""
    program = shutil.which("aliquot")
    command = [program] if program else [sys.executable, "-P", "-m", "aliquot"]
    run = [*command, "run", "--memory", "256MiB", "--", "true"]
    milliseconds(run, 3)  # caches
    alone = statistics.median(milliseconds(["true"], times))
    taken = sorted(millisecond - alone for millisecond in milliseconds(run, times))
    return {
        "p50": statistics.median(taken),
        "p95": taken[min(len(taken) - 1, int(len(taken) * 0.95))],
        "max": taken[-1],
        "python_alone": python_start_ms(times),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--simulate", default="2x24GiB", metavar="SPEC")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    arguments = parser.parse_args()
    made = None
    compileall.compile_dir(Path(aliquot.__file__).parent, quiet=2)
    try:
        connect(homes())[0].close()
    except (NoDaemonError, ControlError):
        made = os.environ["ALIQUOT_HOME"] = tempfile.mkdtemp(prefix="alq")
        up = [sys.executable, "-P", "-m", "aliquot", "up", "-d", "--listen", "0", "--simulate", arguments.simulate]
        subprocess.run(up, check=True, stderr=subprocess.DEVNULL)
    try:
        found = measure(arguments.times)
    finally:
        if made:
            subprocess.run([sys.executable, "-P", "-m", "aliquot", "down"], check=False, stdout=subprocess.DEVNULL)
            shutil.rmtree(made, ignore_errors=True)
    if arguments.output == "json":
        print(json.dumps({name: round(value, 1) for name, value in found.items()}))
        return
    print(
        f"before the exec, {arguments.times} runs: p50 {found['p50']:.0f} ms, p95 {found['p95']:.0f} ms,"
        f" worst {found['max']:.0f} ms (promised: {LIMIT_MS:.0f});"
        f" {sentence(found['python_alone'])}"
    )


if __name__ == "__main__":
    main()
