"""What sharing a card costs and what it holds to, measured on the GPU of this machine: the table of the README.

    python bench/gpu/run.py                              everything: about ten minutes on one H200
    python bench/gpu/run.py --only preemption,shares     some of it; --list tells the names
    python bench/gpu/run.py --simulate                   on a card that is not there: does the bench itself work?

Exit code 0 when every row that was measured holds. Needs nothing but what `aliquot` needs; PyTorch, JAX, CuPy and MPS
are measured where they are installed.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from bench.gpu.main import main  # noqa: E402  # after the path is set: this is a script, run from anywhere

if __name__ == "__main__":
    sys.exit(main(__doc__))
