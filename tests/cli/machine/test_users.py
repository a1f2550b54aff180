"""Several users on one machine: root's daemon serves all, and each may stop only what is theirs."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from aliquot.adapters.host.users import user_name
from kit.machines.machine import ALIQUOT, FOREVER, PATIENCE, Machine, eventually

NOBODY = 65534


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

# The other user may not be able to read this Python: everything is loaded before the change.
BECOME = f"""
import encodings.idna, json, os, signal, subprocess, sys
import aliquot.__main__, aliquot.cli.main, aliquot.cli.machine.policy, aliquot.cli.run.command
import aliquot.cli.machine.stop, aliquot.cli.machine.up
import aliquot.adapters.gpu.player, aliquot.cli.machine.logs, click.shell_completion
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); os.chdir("/")
sys.argv[0] = "aliquot"
aliquot.__main__.main()
"""


def as_nobody(machine: Machine, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BECOME, *words]
    return subprocess.run(
        command, env=machine.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_any_user_may_run_in_own_folder(machine: Machine) -> None:
    result = as_nobody(machine, "run", "--memory", "1", "--", "sh", "-c", "id -u; stat -c '%u %a' $ALIQUOT_TENANT")
    assert (result.returncode, result.stdout) == (0, f"{NOBODY}\n{NOBODY} 700\n"), result.stderr


def test_log_belongs_to_user_of_run(machine: Machine) -> None:
    name = as_nobody(machine, "run", "-d", "--memory", "1", "--", "echo", "mine").stdout.strip()
    eventually(lambda: as_nobody(machine, "logs", name).stdout == "mine\n")
    other = machine.detach("--memory", "1", "--", "echo", "yours")
    result = as_nobody(machine, "logs", other)
    assert (result.returncode, result.stderr) == (77, f"aliquot: only root may read the output of {other}\n")


def test_run_name_cannot_truncate_other_users_log(machine: Machine) -> None:
    name = machine.detach("--name", "precious", "--memory", "1", "--", "echo", "ours")
    eventually(lambda: not machine.names())
    result = as_nobody(machine, "run", "-d", "--name", name, "--memory", "1", "--", "echo", "theirs")
    assert result.returncode == 2
    assert "is not allowed: the log of another user's run has this name" in result.stderr
    assert machine.aliquot("logs", name).stdout == "ours\n"


def test_users_stop_only_their_own_runs(machine: Machine) -> None:
    roots = machine.detach("--memory", "1", "--", *FOREVER)
    result = as_nobody(machine, "stop", roots)
    assert (result.returncode, result.stderr) == (77, f"aliquot: only root may stop {roots}\n")
    name = as_nobody(machine, "run", "-d", "--memory", "1", "--", *FOREVER).stdout.strip()
    shown = [line.split()[:2] for line in machine.aliquot("ps").stdout.splitlines()[1:]]
    assert shown == [[roots, "root"], [name, user_name(NOBODY)]]
    assert "USER" in machine.aliquot("top").stdout, "tenants of two users"
    assert as_nobody(machine, "stop", name).returncode == 0
    assert "USER" not in machine.aliquot("top").stdout
    assert machine.names() == [roots]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["policy", "set", "fixed-share"], "change the policy"),
        (["policy", "release-delay", "0"], "change the policy"),
        (["down"], "stop the daemon"),
    ],
)
def test_only_owner_changes_settings(machine: Machine, words: list[str], what: str) -> None:
    result = as_nobody(machine, *words)
    assert (result.returncode, result.stderr) == (77, f"aliquot: only root may {what}\n")
    assert as_nobody(machine, "policy").stdout == "policy best-effort, release delay auto\n"


REACH = """
import os, socket, sys
print(os.environ["ALIQUOT_TENANT"], os.environ["ALIQUOT_NAME"])
for name in ("page", "sock"):
    for flags in (os.O_RDONLY, os.O_RDWR):
        try:
            os.open(f"{sys.argv[1]}/{name}", flags)
        except PermissionError:
            print("refused")
try:
    socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(f"{sys.argv[1]}/sock")
except PermissionError:
    print("refused")
"""


def test_variables_that_a_user_sets_lead_to_no_other_tenant(machine: Machine) -> None:
    """Its page and socket are its own user's; the variables of a run are the daemon's."""
    machine.detach("--memory", "1", "--name", "victim", "--", *FOREVER)
    (theirs,) = [path for path in (machine.home / "t").iterdir() if path.is_dir()]
    preset = {"ALIQUOT_TENANT": str(theirs), "ALIQUOT_NAME": "victim", "ALIQUOT_SIMGPU": "/tmp/fake"}
    command = [sys.executable, "-c", BECOME, "run", "--memory", "1", "--name", "mine", "--", "/usr/bin/python3"]
    result = subprocess.run(
        [*command, "-c", REACH, str(theirs)],
        env={**machine.environment, **preset},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    first, *rest = result.stdout.splitlines()
    folder, name = first.split()
    assert folder != str(theirs)
    assert name == "mine"
    assert rest == ["refused"] * 5


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a\nb", "\x1b[2J", "\u202ex", "", ".", "..", "x" * 64])
def test_name_of_a_run_is_neither_a_path_nor_steers_a_terminal(machine: Machine, name: str) -> None:
    result = as_nobody(machine, "run", "--memory", "1", "--name", name, "--", "true")
    assert result.returncode != 0
    assert "is not allowed: use at most 63 letters" in result.stderr
    assert result.stderr.replace("\n", "", 1).isprintable()


def test_up_refuses_home_of_other_user(tmp_path: Path) -> None:
    home = tmp_path / "theirs"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    result = subprocess.run(
        [*ALIQUOT, "up"], env={**os.environ, "ALIQUOT_HOME": str(home)}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert result.stderr == f"aliquot: {home} belongs to user {NOBODY}: set ALIQUOT_HOME to a folder that you own\n"


def a_pipe(home: Path) -> None:
    os.mkfifo(home / "daemon.log", 0o666)


def a_file_of_their_own(home: Path) -> None:
    (home / "daemon.log").write_text("\x1b[2J")
    os.chown(home / "daemon.log", NOBODY, NOBODY)


def a_link(home: Path) -> None:
    (home / "daemon.log").symlink_to(home.parent / "precious")


def a_second_name(home: Path) -> None:
    os.link(home.parent / "precious", home / "daemon.log")


def a_held_lock(home: Path) -> None:
    lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o666)  # open as long as the test's process
    fcntl.flock(lock, fcntl.LOCK_EX)


@pytest.mark.parametrize("put", [a_pipe, a_file_of_their_own, a_link, a_second_name])
def test_log_that_is_not_ours_alone_is_put_aside_and_the_daemon_starts(put: Callable[[Path], None]) -> None:
    """A restored backup gave it to another user, or linked it: no run started any more."""
    with tempfile.TemporaryDirectory(prefix="alq") as folder:
        (Path(folder) / "precious").write_text("precious")
        home = Path(folder) / "h"
        home.mkdir()
        put(home)
        environment = {**os.environ, "ALIQUOT_HOME": str(home)}

        def aliquot(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*ALIQUOT, *words], env=environment, capture_output=True, text=True, check=False, timeout=2 * PATIENCE
            )

        try:
            result = aliquot("up", "-d", "--simulate", "1x1GiB", "--listen", "0")
            assert result.returncode == 0, result.stderr
            log = home / "daemon.log"
            assert f"aliquot: {log}: it is not a file of yours alone: it is called {log}.not-ours now" in result.stderr
            assert "\x1b" not in result.stderr
            assert (stat.S_IMODE(log.stat().st_mode), log.stat().st_nlink) == (0o600, 1)
            assert "ready" in log.read_text()
            assert (Path(folder) / "precious").read_text() == "precious"
        finally:
            aliquot("down")


@pytest.mark.parametrize("put", [a_pipe, a_file_of_their_own, a_link, a_second_name, a_held_lock])
@pytest.mark.parametrize("words", [["up", "-d"], ["run", "--memory", "1", "--", "true"], ["up"], ["down"]])
def test_home_that_another_user_prepared_is_refused_at_once_and_nothing_in_it_used(
    tmp_path: Path, put: Callable[[Path], None], words: list[str]
) -> None:
    """A pipe as log blocked the command for ever, a held lock for a minute; a second name let it write to the file."""
    home = tmp_path / "theirs"
    home.mkdir()
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "precious").chmod(0o644)
    put(home)
    os.chown(home, NOBODY, NOBODY)
    before = sorted(home.iterdir())
    result = subprocess.run(
        [*ALIQUOT, *words],
        env={**os.environ, "ALIQUOT_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )
    if words == ["down"]:
        assert result.stdout == "no daemon runs\n"
    else:
        assert result.returncode == 2
        assert f"{home} belongs to user {NOBODY}: set ALIQUOT_HOME" in result.stderr
    assert "\x1b" not in result.stderr
    assert sorted(home.iterdir()) == before
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "precious").stat().st_mode & 0o777 == 0o644
