"""`aliquot ps -a` and `aliquot logs` of runs that have ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aliquot.adapters.host.control import AnswerError, ask
from aliquot.adapters.host.home import Home
from aliquot.cli.main import cli
from kit.machines.fakedaemon import FakeDaemon, a_status, a_tenant
from kit.machines.machine import ALIQUOT, FOREVER, PATIENCE, Machine, eventually


def ended(machine: Machine) -> dict[str, dict[str, Any]]:
    answer = json.loads(machine.aliquot("ps", "-a", "-o", "json").stdout)
    return {run["name"]: run for run in answer["ended"]}


def gone(machine: Machine, name: str) -> dict[str, Any]:
    found: dict[str, Any] = eventually(lambda: ended(machine).get(name))
    return found


def run_in_background(machine: Machine, name: str, script: str) -> None:
    assert machine.detach("--name", name, "--memory", "1", "--", "sh", "-c", script) == name


@pytest.mark.parametrize(
    ("script", "code", "by"), [("exit 3", 3, None), ("true", 0, None), ("kill -9 $$", 137, "SIGKILL")]
)
def test_detached_run_keeps_its_exit_code(machine: Machine, script: str, code: int, by: str | None) -> None:
    run_in_background(machine, "x", f"echo out; {script}")
    eventually(lambda: not machine.names())
    found = gone(machine, "x")
    assert (found["exit_code"], found["signal"], found["command"][0]) == (code, by, "sh")
    assert found["started"] <= found["ended"]
    result = machine.aliquot("logs", "x")
    assert result.stdout == "out\n", "the program's own"
    how = f"with exit code {code}" + (f" ({by})" if by else "")
    assert result.stderr.startswith("aliquot: x ended at ")
    assert result.stderr.endswith(f" {how}\n")


def test_table_has_ended_runs_below_the_others(machine: Machine) -> None:
    run_in_background(machine, "over", "exit 3")
    gone(machine, "over")
    machine.detach("--name", "goes-on", "--memory", "1", "--", *FOREVER)
    assert "over" not in machine.aliquot("ps").stdout
    above, below = machine.aliquot("ps", "-a").stdout.split("\n\n")
    assert [line.split()[0] for line in above.splitlines()] == ["NAME", "goes-on"]
    rows = [line.split() for line in below.splitlines()]
    assert rows[0] == ["NAME", "USER", "CLASS", "EXIT", "STARTED", "ENDED", "COMMAND"]
    assert next(row[3] for row in rows if row[0] == "over") == "3"


def test_run_that_ends_while_no_daemon_runs_keeps_its_exit_code(own: Machine, tmp_path: Path) -> None:
    own.up()
    pipe = tmp_path / "go"
    os.mkfifo(pipe)
    run_in_background(own, "alone", f"read line < {pipe}; exit 4")
    (run,) = (tenant for tenant in own.status()["tenants"] if tenant["name"] == "alone")
    own.kill(signal.SIGKILL)
    pipe.write_text("go\n")
    eventually(lambda: not os.path.exists(f"/proc/{run['pid']}"))
    own.up()
    found = gone(own, "alone")
    assert found["exit_code"] == 4
    assert found["ended"] is not None


def test_what_is_known_of_a_run_whose_keeper_died_too(own: Machine) -> None:
    own.up()
    run_in_background(own, "lost", "exec sleep 600")
    (run,) = (tenant for tenant in own.status()["tenants"] if tenant["name"] == "lost")
    keeper = int(Path(f"/proc/{run['pid']}/stat").read_text().rpartition(")")[2].split()[1])
    own.kill(signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)
    os.kill(run["pid"], signal.SIGKILL)
    eventually(lambda: not os.path.exists(f"/proc/{run['pid']}"))
    own.up()
    found = gone(own, "lost")
    assert (found["exit_code"], found["ended"], found["started"]) == (None, None, run["created"])
    assert own.aliquot("logs", "lost").stderr == "aliquot: lost ended; its exit code is not known\n"
    assert own.aliquot("ps", "-a").returncode == 0


def test_follow_returns_when_the_run_ends(machine: Machine, tmp_path: Path) -> None:
    pipe = tmp_path / "go"
    os.mkfifo(pipe)
    run_in_background(machine, "y", f"echo one; read line < {pipe}; echo two; exit 6")
    with machine.begin("logs", "-f", "y") as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "one\n"
        pipe.write_text("go\n")
        out, err = following.communicate(timeout=PATIENCE)
    assert out == "two\n"
    assert err.endswith("with exit code 6\n")


def test_follow_goes_on_while_the_daemon_restarts(own: Machine, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"  # one would lose a line written before it is opened again
    os.mkfifo(first)
    os.mkfifo(second)
    own.up()
    run_in_background(own, "y", f"echo one; read line < {first}; echo two; read line < {second}; echo three; exit 6")
    with own.begin("logs", "-f", "y") as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "one\n"
        own.kill()
        time.sleep(0.5)  # it has asked
        first.write_text("go\n")
        assert following.stdout.readline() == "two\n"
        own.up()
        second.write_text("go\n")
        out, err = following.communicate(timeout=PATIENCE)
    assert out == "three\n"
    assert err.endswith("with exit code 6\n")


def test_foreground_run_is_listed_and_has_no_log(machine: Machine) -> None:
    result = machine.aliquot("run", "--name", "fore", "--memory", "1", "--", "sh", "-c", "exit 5")
    assert result.returncode == 5
    assert gone(machine, "fore")["exit_code"] in (5, None)  # None: Linux before 6.15
    result = machine.aliquot("logs", "fore")
    assert result.returncode == 2
    assert result.stderr.startswith("aliquot: fore was not started with --detach: there is no output of it; fore ended")


def test_process_that_waits_for_a_run_holds_nothing_of_the_caller(machine: Machine) -> None:
    """Else `name=$(aliquot run -d ...)` waits for the run, and so does a reader of another pipe of the shell."""
    reader, writer = os.pipe()
    command = [*ALIQUOT, "run", "-d", "--name", "z", "--memory", "1", "--", "sh", "-c", f"exec {writer}>&- sleep 600"]
    done = subprocess.run(
        command, env=machine.environment, pass_fds=[writer], capture_output=True, timeout=PATIENCE, check=True
    )
    os.close(writer)
    assert done.stdout == b"z\n"
    assert os.read(reader, 1) == b"", "closed by the command, and by the one that waits for it"
    os.close(reader)


@pytest.mark.parametrize("name", ["", "\ud800", "a\0b", "../state.db", "/etc/passwd"])
def test_logs_of_a_name_that_no_run_can_have(machine: Machine, name: str) -> None:
    run_in_background(machine, "real", "true")
    gone(machine, "real")
    with pytest.raises(AnswerError) as refused:
        ask([Home(str(machine.home), str(machine.home))], {"op": "logs", "name": name}, PATIENCE)
    assert refused.value.kind == "unknown-name"


@pytest.mark.parametrize("words", [[], ["-o", "json"]])
def test_a_run_that_ends_between_the_two_answers_is_listed_once(daemon: FakeDaemon, words: list[str]) -> None:
    over = {"id": "id-short", "name": "short", "class": "normal", "uid": 0, "command": ["x"], "started": 1.0}
    daemon.answers["status"] = a_status(tenants=[a_tenant("short"), a_tenant("long")])
    daemon.answers["ended"] = {"ended": [{**over, "ended": 2.0, "exit_code": 0, "signal": None, "log": None}]}
    shown = CliRunner().invoke(cli, ["ps", "-a", *words], catch_exceptions=False).output
    assert (shown.count("short"), shown.count("long")) == ((2, 2) if words else (1, 1))  # in JSON also in the id


def test_runs_are_completed(machine: Machine) -> None:
    run_in_background(machine, "finished", "true")
    gone(machine, "finished")
    machine.detach("--name", "present", "--memory", "1", "--", *FOREVER)

    def completed(words: str) -> set[str]:
        variables = {"_ALIQUOT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "2"}
        result = machine.aliquot(env={**machine.environment, **variables})
        return {line.partition(",")[2] for line in result.stdout.splitlines()}

    assert {"finished", "present"} <= completed("aliquot logs ")
    assert completed("aliquot stop p") == {"present"}
