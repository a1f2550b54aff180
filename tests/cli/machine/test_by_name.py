"""`ps`, `top`, `stop`, `logs` and `policy`: what is seen of runs, and done to them by name."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aliquot.adapters.host.users import user_name
from aliquot.cli.errors import InputError
from aliquot.cli.machine.top import fitted
from aliquot.cli.main import cli
from kit.machines.fakedaemon import FakeDaemon, a_share, a_status, a_tenant
from kit.machines.machine import ALIQUOT, FOREVER, PATIENCE, Machine, eventually, processes_of


def test_logs_of_detached_run(machine: Machine) -> None:
    name = machine.detach("--memory", "1", "--", "sh", "-c", "echo out; echo err >&2; read x || echo no input")
    eventually(lambda: name not in machine.names())
    assert machine.aliquot("logs", name).stdout == "out\nerr\nno input\n"


def test_detached_run_waits_in_background(machine: Machine) -> None:
    blocker = machine.detach("--gpus", "2", "--", *FOREVER)
    result = machine.aliquot("run", "-d", "--name", "later", "--", "echo", "done")
    assert (result.returncode, result.stdout) == (0, "later\n")
    assert result.stderr.startswith("aliquot: waiting: 1st of 1; card 0 is in use")
    machine.aliquot("stop", blocker)
    eventually(lambda: machine.aliquot("logs", "later").stdout.endswith("done\n"))


def test_logs_follow_until_run_ends(machine: Machine) -> None:
    name = machine.detach("--memory", "1", "--", "sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.2; done")
    assert machine.aliquot("logs", "-f", name).stdout == "1\n2\n3\n"


def test_logs_follow_ends_with_the_run_also_when_the_next_one_has_its_name(machine: Machine, tmp_path: Path) -> None:
    pipe = tmp_path / "go"
    os.mkfifo(pipe)
    script = f"echo first; read line < {pipe}; echo last; exit 3"
    machine.detach("--name", "again", "--memory", "1", "--", "sh", "-c", script)
    with machine.begin("logs", "-f", "again") as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "first\n"
        following.send_signal(signal.SIGSTOP)
        pipe.write_text("go\n")
        eventually(lambda: "again" not in machine.names())
        machine.detach("--name", "again", "--memory", "1", "--", "sh", "-c", "echo another; exec sleep 600")
        eventually(lambda: machine.aliquot("logs", "again").stdout == "another\n")
        following.send_signal(signal.SIGCONT)
        out, err = following.communicate(timeout=PATIENCE)
    assert out == "last\n", "of the run that was followed"
    assert err.endswith(" with exit code 3\n")
    machine.aliquot("stop", "again", "--grace", "0")


def test_logs_follow_a_waiting_run_that_is_stopped(machine: Machine) -> None:
    machine.detach("--name", "holds", "--gpus", "2", "--", *FOREVER)
    machine.detach("--name", "waits", "--memory", "1", "--", "true")
    with machine.begin("logs", "-f", "waits") as following:
        assert following.stdout is not None
        assert "waiting" in following.stdout.readline()
        machine.aliquot("stop", "waits")
        _, err = following.communicate(timeout=PATIENCE)
    assert (following.returncode, err) == (0, "")
    machine.aliquot("stop", "holds", "--grace", "0")


def test_logs_of_foreground_run_names_its_terminal(machine: Machine, tmp_path: Path) -> None:
    with (
        (tmp_path / "out").open("w") as out,
        machine.begin("run", "--name", "fore", "--", *FOREVER, stdout=out) as process,
    ):
        eventually(lambda: machine.names() == ["fore"])
        result = machine.aliquot("logs", "fore")
        assert result.returncode == 2
        assert result.stderr == (
            f"aliquot: fore was not started with --detach: its output goes to {tmp_path / 'out'} (pid {process.pid})\n"
        )
        process.kill()


def test_stop_all_stops_running_and_queued_runs(machine: Machine) -> None:
    machine.detach("--name", "first", "--gpus", "2", "--", *FOREVER)
    machine.aliquot("run", "-d", "--name", "second", "--", *FOREVER)
    result = machine.aliquot("stop", "--all")
    assert (result.returncode, result.stderr) == (
        0,
        "second: removed from the queue\nfirst: SIGTERM to 1 process\nfirst: stopped\n",
    )
    assert (machine.names(), machine.status()["queue"]) == ([], [])
    assert machine.aliquot("stop", "--all").stderr == "no run of yours to stop\n"


@pytest.mark.parametrize("words", [["--all"], ["runs", "large", "small"]])
def test_stop_of_several_starts_none_that_waits(machine: Machine, tmp_path: Path, words: list[str]) -> None:
    """The small one has room as soon as the large one before it is gone."""
    started = tmp_path / "started"
    machine.detach("--name", "runs", "--memory", "4", "--", *FOREVER)
    machine.detach("--name", "large", "--gpus", "2", "--", "touch", str(started))
    machine.detach("--name", "small", "--memory", "4", "--", "sh", "-c", f"touch {started}; exec sleep 600")
    result = machine.aliquot("stop", *words)
    assert (result.returncode, result.stderr) == (
        0,
        "small: removed from the queue\nlarge: removed from the queue\nruns: SIGTERM to 1 process\nruns: stopped\n",
    )
    assert not started.exists()


@pytest.mark.parametrize("words", [[], ["x", "--all"]])
def test_stop_takes_names_or_all(machine: Machine, words: list[str]) -> None:
    result = machine.aliquot("stop", *words)
    assert (result.returncode, result.stderr) == (
        2,
        "aliquot: give either a NAME or --all (see aliquot stop --help)\n",
    )


def test_stop_of_all_leaves_runs_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIQUOT_HOME", str(tmp_path))
    daemon = FakeDaemon(tmp_path, stop={"was": "running"})
    mine = a_tenant("mine", uid=os.geteuid())
    daemon.answers["status"] = a_status(tenants=[mine, a_tenant("theirs", uid=4711)])
    CliRunner().invoke(cli, ["stop", "--all"])
    assert [request["name"] for request in daemon.requests("stop")] == ["mine"]
    daemon.answers["stop"] = [{"error": {"kind": "unknown-name", "name": "mine", "names": []}}]  # it ended meanwhile
    assert CliRunner().invoke(cli, ["stop", "--all"]).exit_code == 0
    daemon.close()


def test_stop_of_all_ends_runs_at_once_and_goes_on_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that ignores SIGTERM takes 10 s."""
    monkeypatch.setenv("ALIQUOT_HOME", str(tmp_path))
    together = threading.Barrier(12)

    def stop(request: dict[str, Any]) -> Any:
        together.wait(PATIENCE)
        if request["name"] == "run-3":
            return [{"error": {"kind": "failed", "text": "run-3 cannot be stopped"}}]
        return {"was": "running"}

    daemon = FakeDaemon(tmp_path, stop=stop)
    daemon.answers["status"] = a_status(tenants=[a_tenant(f"run-{at}", uid=os.geteuid()) for at in range(12)])
    result = CliRunner().invoke(cli, ["stop", "--all"])
    daemon.close()
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert sorted(lines[:-1]) == sorted(f"run-{at}: stopped" for at in range(12) if at != 3)
    assert lines[-1] == "aliquot: run-3 cannot be stopped"


def test_stop_of_several_names_ends_them_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ignores SIGTERM for its whole timeout does not hold up the others."""
    monkeypatch.setenv("ALIQUOT_HOME", str(tmp_path))
    together = threading.Barrier(3)

    def stop(request: dict[str, Any]) -> Any:
        together.wait(PATIENCE)
        if request["name"] == "b":
            return [{"error": {"kind": "failed", "text": "b cannot be stopped"}}]
        return {"was": "running"}

    daemon = FakeDaemon(tmp_path, stop=stop)
    daemon.answers["status"] = a_status(tenants=[a_tenant(name) for name in "abc"])
    result = CliRunner().invoke(cli, ["stop", "a", "b", "c", "a"])
    daemon.close()
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert sorted(lines[:-1]) == ["a: stopped", "c: stopped"]
    assert lines[-1] == "aliquot: b cannot be stopped"


@pytest.mark.parametrize("words", [["a", "b", "c"], ["--all"]])
def test_stop_ends_the_other_runs_and_fails_after_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("ALIQUOT_HOME", str(tmp_path))
    answers: dict[str, Any] = {"b": [{"ok": {"unheard": "of"}}]}
    daemon = FakeDaemon(tmp_path, stop=lambda request: answers.get(request["name"], {"was": "running"}))
    daemon.answers["status"] = a_status(tenants=[a_tenant(name, uid=os.geteuid()) for name in "abc"])
    result = CliRunner().invoke(cli, ["stop", *words])
    daemon.close()
    assert result.exit_code == 1
    assert isinstance(result.exception, KeyError)
    assert sorted(result.stderr.splitlines()) == ["a: stopped", "c: stopped"]


def test_stop_all_with_sudo_names_the_runs_of_the_calling_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIQUOT_HOME", str(tmp_path))
    monkeypatch.setenv("SUDO_UID", "70001")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    daemon = FakeDaemon(tmp_path, stop={"was": "running"})
    theirs = [a_tenant("train", uid=70001), a_tenant("other", uid=70002)]
    daemon.answers["status"] = a_status(tenants=theirs)
    result = CliRunner().invoke(cli, ["stop", "--all"], standalone_mode=False)
    assert isinstance(result.exception, InputError)
    assert result.exception.exit_code == 1
    assert str(result.exception) == (
        f"root has no run, {user_name(70001)} has train: use `aliquot stop --all` without sudo"
    )
    daemon.answers["status"] = a_status(tenants=theirs[1:])
    result = CliRunner().invoke(cli, ["stop", "--all"])
    assert (result.exit_code, result.stderr) == (0, "no run of yours to stop\n")
    assert not daemon.requests("stop")
    daemon.close()


def test_stop_ends_all_processes_of_a_run(machine: Machine) -> None:
    name = machine.detach("--memory", "1", "--", "sh", "-c", "sleep 600 & sleep 600 & wait")
    pids = eventually(lambda: processes_of(name) if len(processes_of(name)) == 3 else None)
    result = machine.aliquot("stop", name)
    assert (result.returncode, result.stderr) == (0, f"{name}: SIGTERM to 3 processes\n{name}: stopped\n")
    assert not any(Path(f"/proc/{pid}").exists() and _state(pid) != "Z" for pid in pids)


def test_stop_sends_sigkill_after_timeout(machine: Machine) -> None:
    name = machine.detach("--memory", "1", "--", "sh", "-c", "trap '' TERM; while :; do sleep 0.05; done")
    eventually(lambda: len(processes_of(name)) >= 2)
    result = machine.aliquot("stop", name, "--timeout", "300ms")
    assert result.stderr.splitlines()[-1] == f"{name}: stopped"
    assert "SIGKILL" in result.stderr


@pytest.mark.parametrize(("command", "more"), [("stop", ""), ("logs", "; `aliquot ps -a` lists what has ended")])
def test_stop_of_unknown_name_lists_runs(machine: Machine, command: str, more: str) -> None:
    assert machine.aliquot(command, "ghost").stderr == f"aliquot: no run is called ghost: nothing runs{more}\n"
    machine.detach("--name", "one", "--memory", "1", "--", *FOREVER)
    result = machine.aliquot(command, "ghost")
    assert (result.returncode, result.stderr) == (2, f"aliquot: no run is called ghost: there are one{more}\n")


def test_run_lives_until_last_process_ends(machine: Machine) -> None:
    name = machine.detach("--memory", "1", "--", "sh", "-c", "sleep 600 >/dev/null 2>&1 & exit 0")
    left = eventually(lambda: _only_sleep(name))
    time.sleep(0.6)  # two sweeps
    assert machine.names() == [name]
    os.kill(left, signal.SIGKILL)
    eventually(lambda: machine.names() == [])


def _only_sleep(name: str) -> int | None:
    """The one process of the run, once that is `sleep`: before, the shell is alone, and it ends."""
    found = processes_of(name)
    with contextlib.suppress(OSError):
        if len(found) == 1 and Path(f"/proc/{min(found)}/cmdline").read_bytes().startswith(b"sleep\0"):
            return found.pop()
    return None


def test_run_names_are_unique_and_name_the_command(machine: Machine) -> None:
    one = machine.detach("--memory", "1", "--", sys.executable, "-c", "pass")
    two = machine.detach("--memory", "1", "--", "sh", "-c", "exit 0")
    assert one.startswith("python")
    assert two.startswith("sh-")
    assert int(two.rpartition("-")[2]) == int(one.rpartition("-")[2]) + 1


def test_ps_shows_who_runs_and_who_waits(machine: Machine) -> None:
    machine.detach("--name", "train", "--class", "offline", "--core", "50", "--memory", "20", "--", *FOREVER)
    machine.detach("--name", "big", "--gpus", "2", "--", *FOREVER)
    shown = machine.aliquot("ps").stdout.splitlines()
    assert shown[0].split() == ["NAME", "USER", "CLASS", "PID", "CARDS", "MEMORY", "CORE", "STATE", "SINCE", "COMMAND"]
    user = user_name(os.geteuid())
    assert shown[1].split()[:3] + shown[1].split()[4:8] == ["train", user, "offline", "0", "20", "GiB", "50%"]
    assert shown[2].split()[0] == "big"
    assert shown[3] == "big waits (1 of 1): card 0 is in use"
    answer = json.loads(machine.aliquot("ps", "-o", "json").stdout)
    assert [tenant["name"] for tenant in answer["tenants"]] == ["train"]
    assert [(entry["name"], entry["position"]) for entry in answer["queue"]] == [("big", 1)]


def test_top_shows_each_card_with_its_tenants(machine: Machine) -> None:
    machine.detach("--name", "serve", "--class", "online", "--memory", "8", "--core", "30", "--", *FOREVER)
    shown = machine.aliquot("top").stdout
    assert "policy best-effort, release delay auto" in shown
    assert "card 0  Paper 1000, busy 0%, 0 GiB of 24 GiB in use, 8 GiB and 30% of compute booked" in shown
    assert "serve  online   30%      -              0 GiB / 8 GiB  none        -  idle" in shown
    answer = machine.status()
    card = answer["tenants"][0]["cards"][0]
    assert (card["core"], card["memory_limit_bytes"], card["state"], card["level"]) == (30, 8 << 30, "idle", "none")
    assert answer["cards"][0]["core_booked"] == 30


def test_top_and_ps_show_a_dash_where_nothing_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stays = {"where": "resident", "resident_bytes": 0, "parked_bytes": 0, "moves": 0, "moved_bytes": 0}
    stays |= dict.fromkeys(("last_out_seconds", "last_in_seconds", "why"))
    share = a_share(residency=stays)
    moved = a_share(residency={**stays, "parked_bytes": 5 << 30, "moves": 1})
    tenants = [a_tenant("stays", cards=[share]), a_tenant("moved", cards=[moved]), a_tenant("bare", cards=[])]
    monkeypatch.setenv("ALIQUOT_HOME", str(tmp_path))
    FakeDaemon(tmp_path, status=a_status(tenants=tenants))
    shown = [CliRunner().invoke(cli, [command], catch_exceptions=False).output for command in ("top", "ps")]
    rows = [{line.split()[0]: line for line in text.splitlines() if line} for text in shown]
    assert "5 GiB, 1 move" in rows[0]["moved"]
    assert "0 moves" not in rows[0]["stays"]
    assert " - " in rows[0]["stays"]
    assert rows[1]["bare"].split()[4:7] == ["-", "-", "-"]


def test_top_refreshes(machine: Machine) -> None:
    ours, theirs = pty.openpty()
    environment = {**machine.environment, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    command = [*ALIQUOT, "top", "--every", "0.1"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=-1, env=environment) as process:
        os.close(theirs)
        shown = b""
        while shown.count(b"Paper 1000") < 4:  # two cards, twice
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        with contextlib.suppress(OSError):  # the other end is closed
            while os.read(ours, 4096):
                pass
        process.wait(PATIENCE)
        assert (process.returncode, process.stderr.read()) == (130, b"")
    os.close(ours)


def test_top_waits_for_a_daemon_that_restarts(own: Machine) -> None:
    own.up()
    ours, theirs = pty.openpty()
    environment = {**own.environment, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    with subprocess.Popen([*ALIQUOT, "top", "--every", "0.1"], stdin=theirs, stdout=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        while b"Paper 1000" not in shown:
            shown += os.read(ours, 4096)
        own.kill()
        note = b"no daemon runs: waiting for it to come back"
        while note not in shown:
            shown += os.read(ours, 4096)
        own.up()
        while shown.rpartition(note)[2].count(b"Paper 1000") < 2:  # the second one without the note
            shown += os.read(ours, 4096)
        os.write(ours, b"q")
        with contextlib.suppress(OSError):  # the other end is closed
            while os.read(ours, 4096):
                pass
        assert process.wait(PATIENCE) == 0
    os.close(ours)


def test_top_on_a_dumb_terminal_prints_once(machine: Machine) -> None:
    """It cannot be redrawn: nothing at all was shown."""
    ours, theirs = pty.openpty()
    environment = {**machine.environment, "TERM": "dumb"}
    done = subprocess.run([*ALIQUOT, "top"], stdin=theirs, stdout=theirs, timeout=PATIENCE, env=environment, check=True)
    os.close(theirs)
    assert b"Paper 1000" in os.read(ours, 4096)
    assert done.returncode == 0
    os.close(ours)


@pytest.mark.parametrize(("words", "looks"), [(["-n", "1"], 1), (["-n", "3", "-d", "0.1"], 3), (["--once"], 1)])
def test_top_prints_so_often_as_it_is_told(machine: Machine, words: list[str], looks: int) -> None:
    for more in ([], ["-o", "json"]):
        shown = machine.aliquot("top", *words, *more).stdout
        assert shown.count("Paper 1000") == looks * len(machine.status()["cards"])


def test_top_with_a_count_is_not_redrawn_on_a_terminal(machine: Machine) -> None:
    ours, theirs = pty.openpty()
    subprocess.run(
        [*ALIQUOT, "top", "-n", "1"],
        stdin=theirs,
        stdout=theirs,
        timeout=PATIENCE,
        env={**machine.environment, "TERM": "xterm"},
        check=True,
    )
    os.close(theirs)
    shown = os.read(ours, 4096)
    assert b"Paper 1000" in shown
    assert b"\x1b[?1049h" not in shown, "the screen is left as it was"
    os.close(ours)


def test_q_leaves_top_and_a_narrow_terminal_cuts_lines_short(machine: Machine) -> None:
    machine.detach("--name", "tenant-with-a-long-name", "--memory", "1", "--", *FOREVER)
    ours, theirs = pty.openpty()
    environment = {**machine.environment, "TERM": "xterm", "COLUMNS": "40", "LINES": "6"}
    with subprocess.Popen([*ALIQUOT, "top"], stdin=theirs, stdout=theirs, stderr=-1, env=environment) as process:
        os.close(theirs)
        shown = b""
        while b"more lines: aliquot top --once" not in shown:
            shown += os.read(ours, 4096)
        os.write(ours, b"xq")
        with contextlib.suppress(OSError):  # the other end is closed
            while os.read(ours, 4096):
                pass
        assert process.wait(PATIENCE) == 0
    os.close(ours)
    lines = shown.decode().splitlines()
    assert next(line for line in lines if line.startswith("tenant-with")).rstrip().endswith("…")
    assert max(map(len, lines[1:])) <= 40


@pytest.mark.parametrize(
    ("height", "shown"), [(3, "a\nb\nc"), (2, "a\n... 2 more lines: aliquot top --once"), (9, "a\nb\nc")]
)
def test_top_counts_lines_that_do_not_fit(height: int, shown: str) -> None:
    assert fitted("a\nb\nc", height) == shown


def test_stop_continues_after_unknown_name(machine: Machine) -> None:
    name = machine.detach("--memory", "1", "--", *FOREVER)
    result = machine.aliquot("stop", "ghost", name)
    assert result.returncode == 2
    assert result.stderr.splitlines()[0] == f"aliquot: no run is called ghost: there are {name}"
    assert result.stderr.splitlines()[-1] == f"{name}: stopped"
    assert machine.names() == []


def test_policy_as_json(machine: Machine) -> None:
    expected = {"policy": "best-effort", "release_delay_seconds": None, "oversubscribe": [1.0, 1.0]}
    for words in (["policy", "-o", "json"], ["policy", "get", "-o", "json"], ["policy", "-o", "json", "get"]):
        shown = json.loads(machine.aliquot(*words).stdout)
        assert {key: shown[key] for key in expected} == expected


@pytest.mark.parametrize("words", [["set", "fixed-share"], ["release-delay", "0"], ["oversubscribe", "1.5"]])
def test_policy_as_json_when_it_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setenv("ALIQUOT_HOME", str(tmp_path))
    policy = {"policy": "fixed-share", "release_delay_seconds": 0.0, "oversubscribe": [1.5], "notes": ["a note"]}
    daemon = FakeDaemon(tmp_path, policy=policy)
    result = CliRunner().invoke(cli, ["policy", "-o", "json", *words])
    daemon.close()
    assert (json.loads(result.stdout), result.stderr) == (policy, "")


def test_policy_set_while_running(machine: Machine) -> None:
    assert machine.aliquot("policy").stdout == "policy best-effort, release delay auto\n"
    assert machine.aliquot("policy", "set", "fixed-share").stdout == "policy fixed-share, release delay auto\n"
    assert machine.aliquot("policy", "release-delay", "0").stdout == "policy fixed-share, release delay 0s\n"
    assert machine.aliquot("policy", "get").stdout == "policy fixed-share, release delay 0s\n"
    assert machine.aliquot("policy", "release-delay", "1500ms").stdout == "policy fixed-share, release delay 1.5s\n"
    assert machine.aliquot("policy", "release-delay", "auto").stdout == "policy fixed-share, release delay auto\n"
    for text, allowed in (("2m", "is not allowed: auto, or 0 to 60s, for example"), ("100", "needs a unit, as in")):
        result = machine.aliquot("policy", "release-delay", text)
        assert result.returncode == 2
        assert f"{text} {allowed} 100ms" in result.stderr
    machine.aliquot("policy", "set", "best-effort")
    machine.aliquot("policy", "release-delay", "auto")


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
