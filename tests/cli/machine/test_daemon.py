"""The daemon comes, goes, is killed; its tenants stay."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from aliquot.adapters.host import control
from aliquot.adapters.host.home import Home
from aliquot.cli.errors import InputError
from aliquot.cli.machine.leftbehind import left_behind, left_behind_words
from aliquot.cli.machine.running import differences
from aliquot.cli.machine.up import _check_no_system_daemon
from aliquot.model.node import Isolation
from aliquot.model.status.machine import DaemonStatus, PoolStatus, RulesStatus, Status
from kit.machines.machine import ALIQUOT, FOREVER, PATIENCE, Machine, eventually, paper


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_daemon_restart_adopts_running_tenants(own: Machine, number: signal.Signals) -> None:
    own.up()
    stays = own.detach("--memory", "10", "--core", "30", "--class", "offline", "--", *FOREVER)
    goes = own.detach("--memory", "1", "--", *FOREVER)
    before = {tenant["name"]: tenant for tenant in own.status()["tenants"]}
    own.kill(number)
    os.kill(before[goes]["pid"], signal.SIGKILL)
    assert "adopted 1 running tenant" in own.up()
    (after,) = own.status()["tenants"]
    fields = ("name", "class", "pid", "command", "created", "cards", "log")
    assert {field: after[field] for field in fields} == {field: before[stays][field] for field in fields}
    assert own.status()["cards"][0]["memory_booked_bytes"] == 10 << 30
    assert len(list((own.home / "t").iterdir())) == 2  # its folder, and the copy of what is known of it
    own.clear()
    assert list((own.home / "t").iterdir()) == []


def test_daemon_settings_survive_restart(own: Machine) -> None:
    own.up()
    own.aliquot("policy", "set", "burst-share")
    own.aliquot("policy", "release-delay", "20ms")
    own.kill()
    assert "policy burst-share, release delay 20ms" in own.up()


def test_queued_runs_survive_daemon_restart(own: Machine) -> None:
    own.up()
    blocker = own.detach("--", *FOREVER)
    with own.begin("run", "--", "echo", "done") as process:
        assert process.stderr is not None
        assert "wait" in process.stderr.readline()  # it knows that it is in the queue; otherwise it starts a daemon
        own.kill()
        own.up()
        eventually(lambda: own.status()["queue"])
        own.aliquot("stop", blocker)
        assert process.communicate(timeout=PATIENCE)[0] == "done\n"


def test_one_daemon_per_home(own: Machine) -> None:
    own.up()
    assert own.daemon is not None
    result = own.aliquot("up")
    assert result.returncode == 1
    assert result.stderr == (
        f"aliquot: a daemon already runs for {own.home}: pid {own.daemon.pid}; "
        "for other options stop it with `aliquot down`\n"
    )


def test_up_in_the_background_is_content_with_a_daemon_that_has_its_options(own: Machine) -> None:
    own.up()
    assert own.daemon is not None
    for words in ([], ["--policy", "best-effort"], ["--log-limit", "64MiB", "--keep-usage", "30"]):
        result = own.aliquot("up", "-d", *words)
        assert (result.returncode, result.stdout) == (0, "")
        assert result.stderr.startswith(f"aliquot: already running: pid {own.daemon.pid}; 1 x ")
    result = own.aliquot("up", "-d", "--policy", "fixed-share", "--log-limit", "1GiB", "--rules", "seed")
    assert result.returncode == 1
    assert result.stderr == (
        f"aliquot: a daemon already runs for {own.home}: pid {own.daemon.pid}, without --policy fixed-share (it has "
        "best-effort), --log-limit 1024MiB (it has 64MiB); for other options stop it with `aliquot down`\n"
    )
    result = own.aliquot("up", "-d", "--policy", "fixed-share")
    assert result.stderr.endswith(
        "without --policy fixed-share (it has best-effort); change it with `aliquot policy`\n"
    )
    own.aliquot("policy", "set", "fixed-share")
    assert own.aliquot("up", "-d", "--policy", "fixed-share").returncode == 0, "as it is now"


@pytest.mark.parametrize(
    ("asked", "options", "found"),
    [
        ({"--simulate": "2x24GiB"}, {}, []),
        ({"--simulate": "2x24"}, {}, []),
        ({"--simulate": "1x24GiB"}, {}, ["--simulate 1x24GiB (it has 2x24GiB)"]),
        ({"--listen": "9478"}, {}, []),
        ({"--listen": "0"}, {"--listen": "127.0.0.1:0"}, []),
        ({"--listen": "9000"}, {"--listen": "127.0.0.1:9000"}, []),
        ({"--listen": "9000"}, {}, ["--listen 9000 (it has 127.0.0.1:9478)"]),
        ({"--token-file": "/t"}, {"--token-file": "/t"}, []),
        ({"--token-file": "/t"}, {}, ["--token-file /t (it has none)"]),
        ({"--release-delay": "20ms"}, {}, ["--release-delay 20ms (it has auto)"]),
        ({"--release-delay": "auto", "--enforce": "report", "--host-pool": "8MiB"}, {}, []),
        ({"--enforce": "kill"}, {}, ["--enforce kill (it has report)"]),
        ({"--host-pool": "9MiB"}, {}, ["--host-pool 9MiB (it has 8MiB)"]),
        ({"--control": "gate"}, {"--control": "gate"}, []),
        ({"--control": "gate"}, {}, ["--control gate (it has auto)"]),
    ],
)
def test_options_that_a_running_daemon_lacks(asked: dict[str, str], options: dict[str, str], found: list[str]) -> None:
    daemon = DaemonStatus(pid=1, simulated="2x24GiB", options=options)
    status = Status(daemon, RulesStatus(Isolation.BEST_EFFORT, None), [], [], [], [], pool=PoolStatus(8 << 20, 0, 0))
    assert list(differences(asked, status)) == found


def test_options_of_a_daemon_without_dashboard_pool_or_record_of_them() -> None:
    rules = RulesStatus(Isolation.BEST_EFFORT, None)
    bare = Status(DaemonStatus(pid=1, dashboard=None, options={}), rules, [], [], [], [])
    assert list(differences({"--host-pool": "0", "--listen": "0"}, bare)) == []
    assert list(differences({"--listen": "9478"}, bare)) == ["--listen 9478 (it has 0)"]
    older = Status(DaemonStatus(pid=1), rules, [], [], [], [])
    unknown = "(it is of an older release and does not say what it has)"
    assert list(differences({"--log-limit": "64MiB"}, older)) == [f"--log-limit 64MiB {unknown}"]


def test_system_daemon_that_does_not_talk_to_us_counts_as_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second daemon would book the same cards again."""
    machine = Home(str(tmp_path), str(tmp_path))
    _check_no_system_daemon(machine)

    def busy(*words: object, **more: object) -> None:
        raise control.ControlError("too many others connect to the daemon now")

    monkeypatch.setattr(control, "Connection", busy)
    with pytest.raises(InputError, match="the system's daemon runs already: too many others"):
        _check_no_system_daemon(machine)


def test_down_stops_daemon_and_lists_running_tenants(own: Machine) -> None:
    own.up()
    name = own.detach("--", *FOREVER)
    pid = own.status()["tenants"][0]["pid"]
    with own.begin("run", "--", "true") as waiting:
        eventually(lambda: own.status()["queue"])
        result = own.aliquot("down")
        assert result.stdout.splitlines()[0] == "daemon stopped"
        assert result.stdout.splitlines()[1].startswith(f"{name}: still running")
        assert waiting.wait(PATIENCE) == 143
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("words", [["ps"], ["top"], ["stop", "x"], ["logs", "x"], ["policy"]])
def test_commands_without_daemon_say_how_to_start_it(own: Machine, words: list[str]) -> None:
    result = own.aliquot(*words)
    assert result.returncode == 2
    assert result.stderr == (
        "aliquot: no daemon runs on this machine: start one with `aliquot up -d`; `aliquot run` starts it too\n"
    )


def test_down_without_daemon(own: Machine) -> None:
    result = own.aliquot("down")
    assert (result.returncode, result.stdout, result.stderr) == (0, "no daemon runs\n", "")


def test_down_without_daemon_names_what_a_killed_one_left(own: Machine) -> None:
    own.up()
    own.detach("--name", "left", "--memory", "1", "--", *FOREVER)
    own.kill()
    result = own.aliquot("down")
    assert result.stdout == (
        "no daemon runs\nleft: still running; `aliquot up -d` adopts it, then `aliquot stop NAME` ends it\n"
    )
    own.up()
    own.aliquot("stop", "left")
    own.kill()
    assert own.aliquot("down").stdout == "no daemon runs\n"


def test_nothing_was_left_in_a_home_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who starts a daemon of their own books the same cards again."""
    home = Home(str(tmp_path), str(tmp_path))
    with subprocess.Popen(
        ["sleep", "600"], env={"ALIQUOT_TENANT": f"{home.tenants}/x", "ALIQUOT_NAME": "a"}
    ) as process:
        try:
            assert left_behind(home) == ["a"]
            monkeypatch.setattr(os, "stat", lambda path: Mock(st_uid=os.geteuid() + 1))
            assert left_behind(home) == []
        finally:
            process.kill()
    monkeypatch.undo()
    assert left_behind(Home("/nowhere", "/nowhere")) == []


@pytest.mark.parametrize(
    ("names", "cards", "words"),
    [
        (["a"], None, "a: still running; `aliquot up -d` adopts it, then `aliquot stop NAME` ends it"),
        (
            ["a", "b"],
            "1x24GiB",
            "a, b: still running; `aliquot up -d --simulate 1x24GiB` adopts them, then `aliquot stop NAME` ends them",
        ),
    ],
)
def test_words_of_what_was_left(names: list[str], cards: str | None, words: str) -> None:
    assert left_behind_words(names, cards) == words


def test_damaged_database_is_rebuilt(own: Machine) -> None:
    own.up()
    name = own.detach("--name", "survivor", "--memory", "10", "--core", "20", "--", *FOREVER)
    own.kill()
    for path in own.home.glob("state.db*"):
        path.write_bytes(b"this is no database, and has not been one for a while" * 100)
    own.up()
    (after,) = own.status()["tenants"]
    assert (after["name"], after["cards"][0]["core"], after["cards"][0]["memory_limit_bytes"]) == (name, 20, 10 << 30)
    assert list(own.home.glob("state.db.damaged-*"))
    own.clear()


def test_log_that_cannot_be_written_has_hint(tmp_path: Path) -> None:
    (tmp_path / "daemon.log").mkdir()
    environment = {**os.environ, "ALIQUOT_HOME": str(tmp_path)}
    command = [*ALIQUOT, "run", "--simulate", "--", "true"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == (
        f"aliquot: {tmp_path}/daemon.log: Is a directory: set ALIQUOT_HOME to a folder that you own"
    )


def test_home_path_too_long_has_hint(tmp_path: Path) -> None:
    home = tmp_path / ("x" * 100)
    environment = {**os.environ, "ALIQUOT_HOME": str(home)}
    command = [*ALIQUOT, "run", "--simulate", "--", "true"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "set ALIQUOT_HOME to a shorter one, such as /tmp/aliquot" in result.stderr


@pytest.mark.parametrize(
    ("cards", "result"),
    [
        ("2x24", "ready: 2 cards (2 x Paper 1000 24 GiB); "),
        ("2x8x24", "ready: 16 cards (16 x Paper 1000 24 GiB on 2 nodes); "),
    ],
)
def test_ready_line_counts_equal_cards(cards: str, result: str) -> None:
    machine = paper(cards)
    try:
        assert result in machine.up()
    finally:
        machine.close()
