"""A containerd alone, without a node: what a runtime makes of an image.

It has a mount namespace of its own: nothing that it mounts is seen elsewhere, or left when it ends.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from testbed.build import binaries
from testbed.processes import Program, Startable

_CONFIG = """version = 3
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]

[grpc]
address = "{folder}/sock"

[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
"""


class LoneContainerd(Startable):
    """Needs root."""

    def __init__(self, folder: Path) -> None:
        self._programs, self._folder = binaries(("containerd", "ctr")), folder
        self._running: Program | None = None

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "config.toml"
        config.write_text(_CONFIG.format(folder=self._folder))
        command: list[str | Path] = ["unshare", "--mount", self._programs["containerd"], f"--config={config}"]
        self._running = program = Program(command, self._folder / "containerd.log", name="containerd")
        program.wait_ready(lambda: "containerd successfully booted" in program.said, 20)

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop(patience=5)

    def ctr(self, *words: str | Path) -> str:
        return self.run(self._programs["ctr"], f"--address={self._folder}/sock", *words)

    def run(self, *command: str | Path) -> str:
        """A command that sees what is mounted here."""
        assert self._running is not None, "containerd was not started"
        enter = ["nsenter", f"--mount=/proc/{self._running.pid}/ns/mnt"]
        done = subprocess.run([*enter, *command], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
        return done.stdout

    def unpacked(self, name: str) -> Path:
        """The files of an image that is here, for `run`: what a container of it would begin with."""
        folder = self._folder / "unpacked"
        folder.mkdir()
        self.ctr("images", "mount", name, folder)
        return folder

    def names(self) -> list[str]:
        return self.ctr("images", "ls", "--quiet").split()

    def blobs(self) -> set[str]:
        """The blobs by their digests."""
        return set(self.ctr("content", "ls", "--quiet").split())
