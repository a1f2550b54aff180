"""A registry that takes pushes, as a platform engineer has one: images and charts are in it once they were pushed.

The nodes' own (images.py) takes none, and answers with the probe whatever is asked for.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from testbed.build import binaries
from testbed.processes import Program, Startable

_SERVING = re.compile(r"serving on port (\d+)")


class Depot(Startable):
    """crane's registry, on a port of loopback, without TLS; it keeps what it is given in the folder."""

    def __init__(self, folder: Path) -> None:
        self._crane = binaries(("crane",))["crane"]
        self._folder = folder
        self._program: Program | None = None

    def start(self) -> None:
        blobs = self._folder / "blobs"
        blobs.mkdir(parents=True)
        words = ["registry", "serve", "--address=127.0.0.1:0", f"--disk={blobs}"]
        self._program = program = Program([self._crane, *words], self._folder / "registry.log", name="registry")
        program.wait_ready(lambda: _SERVING.search(program.said), 20)

    def stop(self) -> None:
        if self._program is not None:
            self._program.stop(patience=3)

    @property
    def host(self) -> str:
        """The beginning of the names of images that are in it."""
        assert self._program is not None, "the registry was not started"
        (port,) = _SERVING.findall(self._program.said)
        return f"127.0.0.1:{port}"

    def crane(self, *words: str | Path) -> str:
        """What crane printed: `push LAYOUT NAME`, `manifest NAME`, `validate --remote NAME`."""
        done = subprocess.run([self._crane, *words], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(f"crane {' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout
