"""Complaints of the driver (Xid) in the kernel's log."""

from __future__ import annotations

import subprocess


def xids() -> int | None:
    """How many so far; None: the log cannot be read here."""
    try:
        log = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return log.stdout.count("NVRM: Xid") if log.returncode == 0 else None
