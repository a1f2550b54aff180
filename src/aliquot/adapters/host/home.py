"""Where the daemon of this machine lives: its folders and sockets. Imported by `aliquot run`: os and nothing else."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO, NamedTuple

SYSTEM_RUN = "/run/aliquot"
SYSTEM_STATE = "/var/lib/aliquot"
# The same in the kubelet's folder device-plugins, for an agent that has no other folder of the host.
RUN_IN_PLUGINS = "aliquot/run"
STATE_IN_PLUGINS = "aliquot/state"
POOLS = "/dev/shm"  # noqa: S108 - a tmpfs: pools of parked memory outlive the mover, and not a reboot
TENANT_VARIABLE = "ALIQUOT_TENANT"  # names the folder of a process's tenant
NAME_VARIABLE = "ALIQUOT_NAME"  # and the tenant's name
SIM_VARIABLE = "ALIQUOT_SIMGPU"  # names the player's socket to the stand-ins
OF_A_TENANT = (TENANT_VARIABLE, NAME_VARIABLE, SIM_VARIABLE)  # what processes of others may not inherit

_SUN_PATH = 107  # bytes of a unix socket's name, without the NUL
# What opening a file says that another user put there, a link, a pipe or a socket.
_NOT_OURS = (errno.EPERM, errno.EACCES, errno.ELOOP, errno.ENXIO)
_ASIDE = "not-ours"
_ID = 10  # characters of a tenant's id


def pool_name(state: str, uid: int) -> str:
    """The folder in POOLS for the daemon of this user with this state."""
    import hashlib

    return f"aliquot-{uid}-{hashlib.sha256(state.encode()).hexdigest()[:12]}"


class HomeError(ValueError):
    """The home cannot be used; the message says what to do."""


class Home(NamedTuple):
    """`run` holds what ends with the boot (sockets, tenants' folders), `state` what outlives it (SQLite, logs)."""

    run: str
    state: str

    @property
    def control(self) -> str:
        """The socket on which the daemon listens."""
        return f"{self.run}/control.sock"

    @property
    def lock(self) -> str:
        """Held (flock) by the one daemon, with its pid in it."""
        return f"{self.run}/lock"

    @property
    def tenants(self) -> str:
        """One folder per tenant, named by its id."""
        return f"{self.run}/t"

    @property
    def groups(self) -> str:
        """One folder per group that shares its cards in space, named by its id."""
        return f"{self.run}/g"

    @property
    def player(self) -> str:
        """What is known of the process that plays the simulated cards."""
        return f"{self.run}/player.json"

    @property
    def player_socket(self) -> str:
        """Where it listens: in a folder that containers mount, because every player makes a new socket."""
        return f"{self.run}/player/sock"

    @property
    def player_state(self) -> str:
        """What the next player goes on with when this one dies."""
        return f"{self.run}/player.state"

    @property
    def database(self) -> str:
        """SQLite."""
        return f"{self.state}/state.db"

    @property
    def usage(self) -> str:
        """SQLite: who used how much of the cards."""
        return f"{self.state}/usage.db"

    @property
    def logs(self) -> str:
        """The output of detached tenants, one file each."""
        return f"{self.state}/logs"

    @property
    def daemon_log(self) -> str:
        """What a daemon in the background says."""
        return f"{self.state}/daemon.log"

    @property
    def player_log(self) -> str:
        """What the player of the simulated cards says."""
        return f"{self.state}/player.log"

    def log_of(self, name: str) -> str:
        """The output of one detached tenant."""
        return f"{self.logs}/{name}.log"

    def check(self) -> None:
        """Raises HomeError when a tenant's socket would not fit into a unix address."""
        longest = len(os.fsencode(f"{self.tenants}/{'x' * _ID}/.sock.4194304"))  # as it is called while it is made
        if longest > _SUN_PATH:
            raise HomeError(
                f"{self.run} is {longest - _SUN_PATH} bytes too long a path for the sockets in it: "
                "set ALIQUOT_HOME to a shorter one, such as /tmp/aliquot"
            )


def open_private(path: str, flags: int) -> BinaryIO:
    """Open the file to write, for this user alone from its creation on. `flags`: O_APPEND or O_TRUNC. The folder may be
    another user's: what they put there (a link, a pipe, a file of their own or with a second name) is refused."""
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(path, os.O_WRONLY | os.O_CREAT | safe | flags & ~os.O_TRUNC, 0o600)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "another user may have put it there", path)
        os.fchmod(file, 0o600)  # it may be of an earlier release
        os.set_blocking(file, True)
        if flags & os.O_TRUNC:
            os.ftruncate(file, 0)
    except BaseException:
        os.close(file)
        raise
    return os.fdopen(file, "wb")


def open_log(path: str) -> tuple[BinaryIO, str | None]:
    """Open a log in a folder of ours to append to it. What is there and not ours alone (a file that another user or a
    backup put there) gets another name, which is returned: a log is no reason not to start. Raises OSError."""
    try:
        return open_private(path, os.O_APPEND), None
    except OSError as error:
        if error.errno not in _NOT_OURS or not os.path.lexists(path):
            raise
    aside = f"{path}.{_ASIDE}"
    os.replace(path, aside)  # the name only: nothing of it is opened or changed
    return open_private(path, os.O_APPEND), aside


def make_private(path: str) -> None:
    """Take an existing file from all other users. Without opening it: closing it would drop locks of this process. Its
    folder must be ours, so that no other user replaces it meanwhile. Raises OSError."""
    found = os.lstat(path)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        os.chmod(path, 0o600)


def own_home() -> Home:
    """Where a daemon of this user belongs."""
    chosen = os.environ.get("ALIQUOT_HOME")
    if chosen:
        chosen = os.path.abspath(os.path.expanduser(chosen))
        return Home(chosen, chosen)
    if os.geteuid() == 0:
        return Home(SYSTEM_RUN, SYSTEM_STATE)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        return Home(os.path.join(runtime, "aliquot"), os.path.join(state, "aliquot"))
    beside = os.path.expanduser("~/.aliquot")
    return Home(beside, beside)


def homes() -> list[Home]:
    """Where to look for a daemon: the machine's own comes first, two would book the same cards twice."""
    own = own_home()
    if os.environ.get("ALIQUOT_HOME") or own.run == SYSTEM_RUN:
        return [own]
    return [Home(SYSTEM_RUN, SYSTEM_STATE), own]
