"""What the scripts on_card*.py share: a line for each check, and a tenant on the first real card."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aliquot.adapters.gpu.page import Page
from aliquot.model.tenant import Allotment

ROOT = Path(__file__).resolve().parents[2]
_failed = 0


def check(what: str, good: bool, detail: object = "") -> None:
    """Print one line."""
    global _failed
    _failed += not good
    print(f"{'ok  ' if good else 'FAIL'}  {what}  {detail}", flush=True)


def failures() -> int:
    """How many checks of this process failed."""
    return _failed


def run_inside(script: str, quota: int, *, parkable: bool = False) -> int:
    """Run `script inside` with the shim, as a tenant with this much memory of the first card. Returns its exit code."""
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    uuid = re.findall(r"UUID: (GPU-[0-9a-f-]+)", listed)[0]
    with tempfile.TemporaryDirectory() as folder:
        page = Page(Path(folder) / "page", [Allotment(uuid, quota)])
        page.set_parkable(0, parkable)
        page.beat(0, time.monotonic_ns())
        shim = ROOT / "src" / "aliquot" / "lib" / "libaliquot.so"
        environment = os.environ | {"ALIQUOT_TENANT": folder, "LD_PRELOAD": str(shim), "CUDA_VISIBLE_DEVICES": "0"}
        done = subprocess.run([sys.executable, script, "inside"], env=environment, check=False).returncode
        print("page at the end:", page.use(0, 0))
        page.close()
    return done
