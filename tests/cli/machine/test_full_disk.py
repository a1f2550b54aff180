"""A daemon on a full disk: it starts, adopts what runs, refuses new runs with a sentence, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kit.running.privileges import needs_mounts

# In a mount namespace of its own. ALIQUOT_HOME is on a disk of 2 MiB.
SCRIPT = """
import os, signal, sys
from pathlib import Path
from kit.machines.machine import paper, eventually

disk = Path(sys.argv[1])
machine = paper("1x24")
os.rmdir(machine.home)
machine.home = disk / "h"
machine.environment["ALIQUOT_HOME"] = str(machine.home)
machine.up()
name = machine.detach("--memory", "4", "--", "sleep", "600")
machine.kill(signal.SIGTERM)  # which removes what SQLite needs beside its file
with open(disk / "fill", "wb", buffering=0) as fill:
    try:
        while True:
            fill.write(b"x" * 4096)
    except OSError:
        pass
print(machine.up().strip())
assert machine.names() == [name]
refused = machine.aliquot("run", "--memory", "1", "--", "true")
print(refused.returncode, refused.stderr.strip())
policy = machine.aliquot("policy", "set", "fixed-share")
print(policy.returncode, policy.stderr.strip())
folders = [entry for entry in os.listdir(machine.home / "t") if len(entry) == 10]
assert len(folders) == 1, "the folder of the refused run is gone"
os.unlink(disk / "fill")
assert machine.aliquot("run", "--memory", "1", "--", "true").returncode == 0
assert machine.aliquot("stop", name).returncode == 0
print("works again")
machine.close()
"""


@needs_mounts
def test_daemon_starts_on_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = 'mount -t tmpfs -o size=2m none "$0" && exec "$@" "$0"'
    tests = Path(__file__).parents[2]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command, str(disk), sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=False,
        cwd=tests,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    ready, refused, policy, last = done.stdout.splitlines()
    assert "adopted 1 running tenant" in ready
    assert refused.startswith("1 aliquot: cannot prepare the run: ")
    assert "free some space there; nothing was written" in refused or "No space left on device" in refused
    assert policy.startswith("1 aliquot: ")
    assert "free some space there; nothing was written" in policy
    assert last == "works again"
