"""The start: the first lists are requested before most of the program is loaded."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("numpy", "aiohttp", "aliquot.placement.board", "aliquot.services.scheduler.cluster")


def test_what_requests_the_first_lists_loads_little() -> None:
    program = f"""
import sys
import aliquot.services.scheduler.starting
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
