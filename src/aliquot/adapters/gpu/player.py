"""The process that simulates the cards. Like real cards it outlives the daemon; `aliquot down` ends it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import aliquot
from aliquot.adapters.host import processes
from aliquot.adapters.host.home import Home, own_home

_SEPARATORS = re.compile(r"[\s:]")
_PATIENCE = 10.0  # seconds until it must report that it is ready


class PlayerError(Exception):
    """The simulated cards cannot be started."""


class Playing(NamedTuple):
    """A player that is running."""

    pid: int
    started: int
    cards: int
    memory_mib: int
    socket: str
    nodes: int = 1  # that the cards are divided among

    @property
    def spec(self) -> str:
        """As it is written on the command line."""
        whole = self.memory_mib % 1024 == 0
        size = f"{self.memory_mib // 1024}GiB" if whole else f"{self.memory_mib}MiB"
        return f"{f'{self.nodes}x' if self.nodes > 1 else ''}{self.cards // self.nodes}x{size}"


def library() -> Path:
    """The folder of the built libraries."""
    return Path(aliquot.__file__).parent / "lib"


def preloadable(home: Home) -> Path:
    """The same folder by a path that LD_PRELOAD can hold: blanks and colons separate paths there."""
    if not _SEPARATORS.search(str(library())):
        return library()
    link = Path(home.run, "lib")
    if _SEPARATORS.search(str(link)):
        raise PlayerError(f"neither {library()} nor {link} can be named in LD_PRELOAD: both have blanks or colons")
    link.unlink(missing_ok=True)
    link.symlink_to(library())
    return link


def shim() -> str:
    """What tenants load."""
    return str(library() / "libaliquot.so")


def simulation() -> str:
    """The folder of the stand-ins: libcuda.so.1, libnvidia-ml.so.1, libsimrm.so and the player."""
    return str(library() / "simgpu")


def playing(home: Home) -> Playing | None:
    """The player of this home, if it lives."""
    try:
        found = Playing(**json.loads(Path(home.player).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return found if processes.lives(found.pid, found.started) else None


def play(home: Home, cards: int, memory_mib: int, *, nodes: int = 1) -> Playing:
    """Start a player of such cards, or return the one that runs. Raises PlayerError."""
    found = playing(home)
    if found is not None:
        if (found.cards, found.memory_mib, found.nodes) != (cards, memory_mib, nodes):
            where = "" if home.run == own_home().run else f"ALIQUOT_HOME={home.run} "
            raise PlayerError(f"{found.spec} are simulated here already: `{where}aliquot down` ends them")
        return found
    program = Path(simulation()) / "player"
    if not os.access(program, os.X_OK):
        raise PlayerError(f"{program} is not there: build it with `make native`")
    arguments = [str(program), "--socket", home.player_socket, "--cards", str(cards), "--memory", str(memory_mib)]
    with open(f"{home.state}/player.log", "ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own program
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True, cwd="/"
        )
    with process.stdout or contextlib.nullcontext():
        _wait_until_ready(process)
    pid = processes.known_as(process.pid)
    started = processes.start_time(pid)
    if started is None:
        raise PlayerError(f"{program} ended at once: {home.state}/player.log may say why")
    found = Playing(pid, started, cards, memory_mib, home.player_socket, nodes)
    try:
        Path(home.player).write_text(json.dumps(found._asdict()))
    except OSError as error:  # nobody would find it again
        process.kill()
        process.wait()
        raise PlayerError(f"{home.player}: {error.strerror}") from error
    process.returncode = 0  # it outlives us: do not wait for it
    return found


def end(home: Home) -> bool:
    """End the simulation. False if there was none."""
    found = playing(home)
    if found is not None:
        processes.end(found.pid, found.started, patience=2.0)
    for path in (home.player, home.player_socket):
        Path(path).unlink(missing_ok=True)
    return found is not None


def _wait_until_ready(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    output, deadline = b"", time.monotonic() + _PATIENCE
    while b"ready" not in output:
        readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(process.stdout.fileno(), 4096) if readable else b""
        if not piece:
            process.kill()
            process.wait()
            words = f": {output.decode(errors='replace')}" if output else ""
            raise PlayerError(f"the player of the simulated cards did not come up{words}")
        output += piece
