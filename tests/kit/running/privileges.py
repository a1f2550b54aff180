"""What the tests may do on this machine: marks that skip a test, and say why."""

from __future__ import annotations

import os
import subprocess

import pytest


def _why_no_mounts() -> str:
    """Empty where a process can have mounts and process ids of its own."""
    if os.geteuid() != 0:
        return "only root can mount and unshare"
    command = ["unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "none", "/tmp"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return f"cannot unshare mounts: {error}"
    if tried.returncode == 0:
        return ""
    return f"cannot unshare mounts here, as in a chroot or a container with fewer rights: {tried.stderr.strip()}"


_WHY_NO_MOUNTS = _why_no_mounts()
needs_mounts = pytest.mark.skipif(bool(_WHY_NO_MOUNTS), reason=_WHY_NO_MOUNTS)
