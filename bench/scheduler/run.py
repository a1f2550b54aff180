"""How fast an extender is behind a real API server and a real kube-scheduler: ours, and any other beside it.

    python bench/scheduler/run.py                                    ours alone, every row
    python bench/scheduler/run.py --peer 'gpushare=LOG_LEVEL=debug /path/to/it' --peer 'lifted=QPS=1000 /path/to/it'
    python bench/scheduler/run.py --only latency,throughput          some of it; --list tells the names
    python bench/scheduler/run.py --kubeconfig F --url http://127.0.0.1:12345    one that runs already

Everything runs on one control plane (tests/testbed), with the same nodes, Pods and calls for each extender in turn. A
peer is a command with its environment before it; PORT and KUBECONFIG are added. Exit code 1 when a limit is missed.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "tests")]

from bench.scheduler.main import main  # noqa: E402  # after the path is set: this is a script, run from anywhere

if __name__ == "__main__":
    sys.exit(main(__doc__))
