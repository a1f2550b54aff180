"""The keeper of a Pod: there is one per Pod, so it must be light."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("asyncio", "numpy", "click", "aiohttp", "msgspec", "rich", "yaml", "subprocess", "logging", "sqlite3")


def test_a_keeper_loads_nothing_heavy() -> None:
    script = f"import aliquot.services.keeper, sys; print([name for name in {HEAVY} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
