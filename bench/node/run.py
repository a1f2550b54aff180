"""What the agent costs on a real kubelet and containerd, against the same Pod without cards and against its limits.

    python bench/node/run.py [--pods 30] [--cards 8x32GiB] [--tenants 64] [--idle 20]

    start     from the Pod's creation to the first instruction of its container, one Pod after the other, those with a
              card and those without in turn, so that a machine that grows slow slows both
    weight    the agent's memory (PSS and RSS) and CPU with that many Pods on its cards, each with a context, at rest

Everything runs on this machine (tests/testbed): needs root. Exit code 1 when a limit is missed.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "tests")]

from bench.node.main import main  # noqa: E402  # after the path is set: this is a script, run from anywhere

if __name__ == "__main__":
    sys.exit(main(__doc__))
