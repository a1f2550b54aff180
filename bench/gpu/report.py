"""What a row of the table says, and the table itself."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aliquot.cli.tables import table


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One promise. `ok` None: it could not be measured here, and `measured` says why."""

    what: str
    must: str
    measured: str
    ok: bool | None
    stock: str = ""
    mps: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)  # everything raw that led to it


def render(rows: Sequence[Row]) -> str:
    verdicts = {True: "ok", False: "MISSED", None: "-"}
    body = [(row.what, row.must, _short(row.measured), verdicts[row.ok], row.stock, row.mps) for row in rows]
    return table(("WHAT", "MUST", "MEASURED", "", "STOCK", "MPS"), body)


def _short(text: str, most: int = 70) -> str:
    """On one line; the whole is in the JSON."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."


def machine(simulate: str | None) -> dict[str, Any]:
    """On what it was measured."""
    about: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "simulated": simulate,
    }
    if simulate is None and (program := shutil.which("nvidia-smi")):
        query = [program, "--query-gpu=name,driver_version,memory.total,compute_mode", "--format=csv,noheader"]
        asked = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
        about["gpus"] = asked.stdout.strip().splitlines()
    return about


def write(path: Path, about: dict[str, Any], rows: Sequence[Row], seconds: dict[str, float]) -> None:
    """After every row: what was measured is kept even when the rest is cut short."""
    whole = {"machine": about, "rows": [asdict(row) for row in rows], "seconds": seconds}
    path.write_text(json.dumps(whole, indent=1))
