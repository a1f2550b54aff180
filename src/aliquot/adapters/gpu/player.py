"""The process that simulates the cards. Like real cards it outlives the daemon; `aliquot down` ends it.

It may be killed at any time: programs wait, and the next player goes on (simgpu/player/store.c). The daemon, or the
agent, starts that one. A second player of the same cards stands by.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import select
import shutil
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import aliquot
from aliquot.adapters.host.home import Home, open_log, open_private, own_home
from aliquot.adapters.host.process import processes

_SEPARATORS = re.compile(r"[\s:]")
_PATIENCE = 10.0  # seconds until it must report that it is ready
_LOOK = 0.05  # seconds between two looks whether it lives
_LONGEST = 1 << 16  # bytes of what is known of a player
_AGAIN = 1.0  # seconds until a player that cannot be started is tried again

log = logging.getLogger(__name__)


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
    boot: str = ""
    node: str | None = None  # the name that the UUIDs are made of; None: of the machine's

    @property
    def spec(self) -> str:
        """The cards as they are written on the command line."""
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


def known(home: Home) -> Playing | None:
    """The player of this home that was started since the machine was, alive or not. `aliquot down` forgets it. What
    another user wrote is not believed: it may name any process. Raises OSError where we lack files to read it."""
    try:
        found = Playing(**json.loads(_read_own(home.player)))
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, OSError) and processes.is_shortage(error):
            raise
        return None
    return found if found.boot == _boot() else None


def _read_own(path: str) -> bytes:
    """The file, if it is this user's or root's; a pipe would block for ever. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EPERM, "it is no regular file of this user or of root", path)
        return os.read(file, _LONGEST)
    finally:
        os.close(file)


def playing(home: Home) -> Playing | None:
    """The player of this home, if it lives."""
    found = known(home)
    return found if found is not None and processes.lives(found.pid, found.started) else None


def command(home: Home, cards: int, memory_mib: int, node: str | None) -> list[str]:
    """The program and its arguments. Raises PlayerError."""
    program = Path(simulation()) / "player"
    if not os.access(program, os.X_OK):
        raise PlayerError(f"{program} is not there: build it with `make native`")
    places = ["--socket", home.player_socket, "--state", home.player_state]
    # Root's daemon serves all users, and a node's containers run as any user. They reach only their own RM files.
    who = ["--any-user"] if node is not None or os.geteuid() == 0 else []
    amounts = ["--cards", str(cards), "--memory", str(memory_mib), "--seed", str(_seed(home, node))]
    return [str(program), *places, *who, *amounts]


def play(home: Home, cards: int, memory_mib: int, *, nodes: int = 1, node: str | None = None) -> Playing:
    """Start a player of such cards, or return the one that runs. Raises PlayerError."""
    found = playing(home)
    if found is not None:
        if (found.cards, found.memory_mib, found.nodes) != (cards, memory_mib, nodes):
            where = "" if home.run == own_home().run else f"ALIQUOT_HOME={home.run} "
            raise PlayerError(f"{found.spec} are simulated here already: `{where}aliquot down` ends them")
        return found
    arguments = command(home, cards, memory_mib, node)
    with open_log(home.player_log)[0] as output:
        process = subprocess.Popen(  # noqa: S603 - our own program
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=output, start_new_session=True, cwd="/"
        )
    with process.stdout or contextlib.nullcontext():
        _wait_until_ready(process, home.player_log)
    pid = processes.known_as(process.pid)
    started = processes.start_time(pid)
    if started is None:
        raise PlayerError(f"{arguments[0]} ended at once: {home.player_log} may say why")
    found = Playing(pid, started, cards, memory_mib, home.player_socket, nodes, _boot(), node)
    written = Path(f"{home.player}~")
    try:
        with open_private(str(written), os.O_TRUNC) as file:
            file.write(json.dumps(found._asdict()).encode())
        written.rename(home.player)
    except OSError as error:  # it could not be found again
        process.kill()
        process.wait()
        raise PlayerError(f"{home.player}: {error.strerror}") from error
    process.returncode = 0  # it outlives us: do not wait for it
    return found


def keep(home: Home, found: Playing) -> None:
    """Start the next player whenever this one dies, as long as this process lives. In a thread of its own: everything
    that asks the cards waits meanwhile."""
    threading.Thread(target=_keep, args=(home, found), name="player", daemon=True).start()


def _keep(home: Home, found: Playing) -> None:
    while True:
        processes.wait_ended(found.pid, found.started, look=_LOOK)
        with contextlib.suppress(OSError):  # it may be our child
            os.waitpid(found.pid, os.WNOHANG)
        try:
            if known(home) is None:  # ended on purpose
                return
            found = play(home, found.cards, found.memory_mib, nodes=found.nodes, node=found.node)
            log.warning("simulated_cards_restarted", extra={"data": {"pid": found.pid}})
        except (PlayerError, OSError) as error:
            log.warning("simulated_cards_not_restarted", extra={"data": {"error": str(error)}})
            time.sleep(_AGAIN)


def end(home: Home) -> bool:
    """End the simulation: programs stop waiting for the next player. False if there was none.

    Of another user's home root ends it with the rights of that user: they choose what is in their files and folders.
    """
    try:
        owner, of_name = os.stat(home.run), os.lstat(home.run)
    except OSError:
        return False
    if of_name.st_uid not in (0, os.geteuid()):  # another user's link: it may lead anywhere
        owner = of_name
    if owner.st_uid != os.geteuid():
        return os.geteuid() == 0 and _as_user(owner.st_uid, owner.st_gid, lambda: end(home))
    found = playing(home)
    for path in (home.player, home.player_socket):
        Path(path).unlink(missing_ok=True)
    if found is not None:
        processes.end(found.pid, found.started, patience=2.0)
    for folder in (os.path.dirname(home.player_socket), home.player_state):
        shutil.rmtree(folder, ignore_errors=True)
    return found is not None


def _as_user(uid: int, gid: int, act: Callable[[], bool]) -> bool:
    """Do it in a process of that user."""
    child = os.fork()
    if child == 0:
        done = False
        try:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            done = act()
        finally:
            os._exit(0 if done else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _seed(home: Home, node: str | None) -> int:
    """Of the UUIDs: they differ between nodes, machines and homes, and stay the same for each."""
    if node is None:
        try:
            machine = Path("/etc/machine-id").read_text().strip()
        except OSError:
            machine = socket.gethostname()
        node = f"{machine}\0{home.run}"
    return int.from_bytes(hashlib.sha256(node.encode()).digest()[:7], "big") + 1  # 0 means: no seed


def _wait_until_ready(process: subprocess.Popen[bytes], log_file: str) -> None:
    assert process.stdout is not None
    output, deadline = b"", time.monotonic() + _PATIENCE
    while b"ready" not in output:
        readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(process.stdout.fileno(), 4096) if readable else b""
        if not piece:
            process.kill()
            process.wait()
            raise PlayerError(f"the player of the simulated cards did not come up: {log_file} may say why")
        output += piece
