"""The whole of it, on simulated cards: daemon, arbiter, shim and tenants that compute."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aliquot.adapters.gpu import player
from aliquot.adapters.host.control import ControlError, NoDaemonError
from kit.machines.machine import ALIQUOT, Machine, eventually
from kit.running.ports import free_port

pytestmark = pytest.mark.skipif(not os.path.exists(player.shim()), reason="the libraries are not built")

CONTEXT_MIB = 64  # of a simulated card
LOAD = (*ALIQUOT, "burn", "load", "--seconds", "600", "--iterations-per-us", "1000")


@pytest.fixture(scope="module")
def shared() -> Iterator[Machine]:
    machine = Machine([*ALIQUOT, "up", "--simulate", "2x24GiB", "--listen", "0"])
    machine.up()
    yield machine
    machine.aliquot("down")
    machine.close()


def standing(machine: Machine, name: str) -> dict[str, Any]:
    """How the run stands on its first card."""
    found: dict[str, Any] = next(tenant for tenant in machine.status()["tenants"] if tenant["name"] == name)["cards"][0]
    return found


def computes(machine: Machine, name: str) -> dict[str, Any]:
    """How it stands once it computes, and that is measured."""

    def look() -> dict[str, Any] | None:
        found = standing(machine, name)
        return found if found["state"] == "running" and found["share"] else None

    found: dict[str, Any] = eventually(look)
    return found


def holds_its_context(machine: Machine, name: str) -> None:
    """What NVML says a program takes beside its own memory: the daemon asks for it now and then."""
    eventually(lambda: standing(machine, name)["memory_used_bytes"] >> 20 == CONTEXT_MIB)


def test_simulated_run_starts_daemon_and_down_leaves_nothing(tmp_path: Path) -> None:
    machine = Machine([])
    try:
        result = machine.aliquot("run", "--simulate", "1x8GiB", "--", *ALIQUOT, "burn", "load", "--seconds", "0.2")
        assert result.returncode == 0, result.stderr
        assert result.stderr.startswith("aliquot: starting the daemon with simulated cards, 1x8GiB\n")
        assert "Simulated GPU" in result.stdout
        about = machine.status()["daemon"]
        assert about["simulated"] == "1x8GiB"
        playing = json.loads((machine.home / "player.json").read_text())
        other = machine.aliquot("run", "--simulate", "2x8GiB", "--", "true")
        assert (other.returncode, other.stderr) == (
            2, "aliquot: --simulate: 2x8GiB is not allowed: 1x8GiB is simulated already; stop it with `aliquot down`\n",
        )  # fmt: skip
        assert machine.aliquot("run", "--simulate", "--", "true").returncode == 0  # those there are do
    finally:
        machine.aliquot("down")
        machine.close()
    gone = [Path(f"/proc/{pid}") for pid in (about["pid"], playing["pid"])]
    eventually(lambda: not any(path.exists() for path in gone))


def test_simulated_tenant_is_limited_and_measured(machine: Machine) -> None:
    name = machine.detach("--memory", "4", "--core", "30", "--", *LOAD)
    found = computes(machine, name)
    assert found["level"] == "hardware"
    assert found["memory_limit_bytes"] == 4 << 30
    assert 0 < found["memory_used_bytes"] < 1 << 30
    assert len(found["pids"]) == 1


def test_simulated_memory_limit(machine: Machine) -> None:
    result = machine.aliquot("run", "--memory", "1", "--", *LOAD, "--memory", "2GiB")
    assert result.returncode not in (0, 75)
    assert "quota" in result.stderr
    name = machine.detach("--memory", "3", "--", *LOAD, "--memory", "2GiB")
    assert computes(machine, name)["memory_used_bytes"] > 2 << 30


def test_simulated_online_preempts_offline(machine: Machine) -> None:
    offline = machine.detach("--name", "off", "--class", "offline", "--memory", "4", "--core", "50", "--", *LOAD)
    computes(machine, offline)
    online = machine.detach("--name", "on", "--class", "online", "--memory", "20", "--", *LOAD)
    computes(machine, online)
    assert standing(machine, "on")["uuid"] != standing(machine, "off")["uuid"]  # there is a card without offline work
    beside = machine.detach("--name", "beside", "--class", "online", "--memory", "20", "--", *LOAD)
    assert standing(machine, beside)["uuid"] == standing(machine, "off")["uuid"]
    eventually(lambda: standing(machine, "off")["state"] == "paused")
    assert standing(machine, "off")["preemptions"] >= 1
    machine.aliquot("stop", "beside")
    computes(machine, "off")


def test_killed_simulated_daemon_adopts_tenants(machine: Machine) -> None:
    name = machine.detach("--memory", "4", "--core", "30", "--", *LOAD)
    pid = computes(machine, name)["pids"]
    os.kill(machine.status()["daemon"]["pid"], signal.SIGKILL)
    result = machine.aliquot("run", "--memory", "1", "--", "echo", "on")
    assert (result.stdout, result.stderr) == ("on\n", "aliquot: starting the daemon\n")
    again = computes(machine, name)
    assert (again["pids"], again["level"]) == (pid, "hardware")
    eventually(lambda: machine.status()["cards"][0]["memory_booked_bytes"] == 4 << 30)  # `echo` has left


@pytest.mark.parametrize("daemon_too", [False, True])
def test_killed_player_of_simulated_cards_is_replaced(machine: Machine, daemon_too: bool) -> None:
    """Programs on the cards go on, held to their shares, whatever was killed with the player."""
    name = machine.detach("--memory", "4", "--core", "30", "--", *LOAD)
    before = computes(machine, name)
    holds_its_context(machine, name)
    record = machine.home / "player.json"
    first = json.loads(record.read_text())["pid"]
    if daemon_too:
        os.kill(machine.status()["daemon"]["pid"], signal.SIGKILL)
    os.kill(first, signal.SIGKILL)
    if daemon_too:
        started = machine.aliquot("run", "--memory", "1", "--", "echo", "on")
        assert started.stdout == "on\n", started.stderr
    eventually(lambda: json.loads(record.read_text())["pid"] != first)
    after = computes(machine, name)
    assert (after["pids"], after["uuid"], after["level"]) == (before["pids"], before["uuid"], "hardware")
    holds_its_context(machine, name)
    assert machine.status()["daemon"]["simulated"] == "2x24GiB"


def test_simulated_policy_change(machine: Machine) -> None:
    for name, core in (("third", "25"), ("most", "75")):
        machine.detach("--name", name, "--memory", "4", "--core", core, "--", *LOAD)
    computes(machine, "most")
    machine.aliquot("policy", "set", "fixed-share")
    try:
        eventually(lambda: standing(machine, "most")["share"] > 0.6 > 0.4 > standing(machine, "third")["share"])
    finally:
        machine.aliquot("policy", "set", "best-effort")


def test_up_simulates_two_cards_by_default() -> None:
    machine = Machine([*ALIQUOT, "up", "--simulate", "--listen", "0"])
    machine.up()
    try:
        assert machine.status()["daemon"]["simulated"] == "2x24GiB"
        assert machine.detach("--name", "alone", "--memory", "1", "--", "sleep", "600") == "alone"
        pid = machine.status()["tenants"][0]["pid"]
        assert machine.aliquot("down").stdout == "daemon stopped\nalone: lost its simulated cards\n"
        os.kill(pid, signal.SIGKILL)
    finally:
        machine.close()


def test_simulated_metrics() -> None:
    port = free_port()
    machine = Machine([*ALIQUOT, "up", "--simulate", "1x8GiB", "--listen", str(port)])
    try:
        assert f"dashboard on http://127.0.0.1:{port}/" in machine.up()
        machine.detach("--name", "m", "--memory", "2", "--core", "50", "--", *LOAD)
        computes(machine, "m")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            lines = answer.read().decode().splitlines()
        values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}
        uuid = machine.status()["cards"][0]["uuid"]
        labels = f'{{card="0",class="normal",tenant="m",uuid="{uuid}"}}'
        assert values[f"aliquot_tenant_memory_limit_bytes{labels}"] == 2 << 30
        assert values[f"aliquot_tenant_memory_used_bytes{labels}"] > 0
        assert values[f"aliquot_tenant_share_ratio{labels}"] > 0
        for counter in ("paused_seconds", "preemptions", "refused_allocations"):
            assert f"aliquot_tenant_{counter}_total{labels}" in values
        assert values["aliquot_queue_length"] == 0
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/nothing")
        machine.clear()
    finally:
        machine.aliquot("down")
        machine.close()


def test_daemon_is_no_process_of_the_run_that_started_it() -> None:
    """A command that waits for all its children would wait for the daemon, and `aliquot stop` would end it."""
    machine = Machine([])
    try:
        words = ("run", "--simulate", "1x8GiB", "--name", "first", "--", "sleep", "600")
        with machine.begin(*words) as first:
            eventually(lambda: _answers(machine, running=["first"]))
            assert Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text() == ""
            stopped = machine.aliquot("stop", "first")
            assert (stopped.returncode, stopped.stderr) == (0, "first: SIGTERM to 1 process\nfirst: stopped\n")
            assert machine.names() == []
    finally:
        machine.aliquot("down")
        machine.close()


def test_simulated_cards_are_no_process_of_the_run_in_whose_shell_the_daemon_was_started() -> None:
    machine = Machine([])
    aliquot = shlex.join(ALIQUOT)
    up = ("up", "--simulate", "1x8GiB", "--listen", "0")
    shell = f"sleep 600 & {aliquot} down; {aliquot} {shlex.join(up)} & wait; sleep 600"
    try:
        machine.aliquot(*up, "-d")
        first = int((machine.home / "lock").read_text())
        machine.detach("--name", "shell", "--memory", "1", "--", "sh", "-c", shell)
        eventually(lambda: _answers(machine, running=["shell"]) and int((machine.home / "lock").read_text()) != first)
        cards = json.loads((machine.home / "player.json").read_text())
        stopped = machine.aliquot("stop", "shell")
        assert (stopped.returncode, stopped.stderr) == (0, "shell: SIGTERM to 2 processes\nshell: stopped\n")
        assert json.loads((machine.home / "player.json").read_text()) == cards
        assert _answers(machine, running=[])
    finally:
        machine.aliquot("down")
        machine.close()


def test_daemon_does_not_inherit_the_folder_and_the_limits_of_the_run_that_started_it(tmp_path: Path) -> None:
    machine = Machine([])
    shell = 'ulimit -S -t 3600; ulimit -S -v 9999999; ulimit -S -f 99999; exec nice -n 3 "$@"'
    words = [*ALIQUOT, "run", "--simulate", "1x8GiB", "--", "sh", "-c", "pwd; nice; ulimit -t; ulimit -v; ulimit -f"]
    relative = {**machine.environment, "ALIQUOT_HOME": os.path.relpath(machine.home, tmp_path), "PYTHONPATH": "."}
    try:
        command = ["bash", "-c", shell, "bash", *words]
        said = subprocess.check_output(command, cwd=tmp_path, env=relative, text=True)
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        assert said.split() == [str(tmp_path), str(nice + 3), "3600", "9999999", str(99999 * 2)]  # blocks of 512 bytes
        daemon = int((machine.home / "lock").read_text())
        assert os.readlink(f"/proc/{daemon}/cwd") == "/"
        limits = Path(f"/proc/{daemon}/limits").read_text()
        for limit in ("Max cpu time", "Max file size", "Max address space"):
            soft, hard = re.search(rf"^{limit} +(\S+) +(\S+)", limits, re.MULTILINE).groups()  # type: ignore[union-attr]
            assert soft == hard
        if os.geteuid() == 0:
            assert os.getpriority(os.PRIO_PROCESS, daemon) <= 0
    finally:
        machine.aliquot("down")
        machine.close()


def test_daemons_killed_at_random_lose_no_run(machine: Machine) -> None:
    """Runs come and go; the daemon is killed again and again, wherever it happens to be, and comes back when needed."""
    chance = random.Random(3)
    lock = machine.home / "lock"
    with contextlib.ExitStack() as stack:
        runs = []
        for _ in range(6):
            for _ in range(3):
                words = ("run", "--memory", "14", "--", "sleep", f"{chance.random() / 2:.2f}")
                runs.append(stack.enter_context(machine.begin(*words)))
            time.sleep(chance.random() / 2)
            with contextlib.suppress(ProcessLookupError, ValueError):  # nobody, or nobody who has signed yet
                os.kill(int(lock.read_text()), signal.SIGKILL)
        ended = [(run.wait(120), run.stderr.read()) for run in runs if run.stderr is not None]
        assert [code for code, _ in ended] == [0] * len(runs), [result for code, result in ended if code]
    assert machine.aliquot("run", "--", "true").returncode == 0  # starts the daemon where it was killed last
    eventually(lambda: machine.names() == [])
    eventually(lambda: not list((machine.home / "t").iterdir()))  # a folder goes after the name that it had


@pytest.mark.parametrize("detached", [False, True])
def test_run_in_queue_starts_the_daemon_that_was_killed(machine: Machine, detached: bool) -> None:
    """If no other run and no service manager does."""
    blocker = machine.detach("--gpus", "2", "--memory", "20", "--", "sleep", "600")
    words = ["run", "--name", "late", "--memory", "8", "--", "sleep", "600"]
    with machine.begin(*words) if not detached else contextlib.nullcontext() as run:
        if detached:
            assert machine.aliquot("run", "-d", *words[1:]).stdout == "late\n"
        eventually(lambda: machine.status()["queue"])
        os.kill(int((machine.home / "lock").read_text()), signal.SIGKILL)
        eventually(lambda: _answers(machine, running=[blocker], waiting=["late"]))
        machine.aliquot("stop", blocker)
        eventually(lambda: machine.names() == ["late"])
        machine.aliquot("stop", "late")
        if run is not None:
            assert run.wait(60) == -signal.SIGTERM


def test_run_in_queue_starts_no_daemon_after_one_that_was_ended(machine: Machine) -> None:
    """As by `systemctl stop`: who ended it starts the next one, or none."""
    blocker = machine.detach("--gpus", "2", "--memory", "20", "--", "sleep", "600")
    with machine.begin("run", "--memory", "8", "--", "true") as run:
        eventually(lambda: machine.status()["queue"])
        os.kill(int((machine.home / "lock").read_text()), signal.SIGTERM)
        assert run.wait(60) == 1
        assert run.stderr is not None
        assert "did not restart within 15 s: start it with `aliquot up -d`" in run.stderr.read()
    with pytest.raises(NoDaemonError):
        machine.status()
    assert machine.aliquot("up", "-d").returncode == 0
    machine.aliquot("stop", blocker)


def _answers(machine: Machine, *, running: list[str], waiting: list[str] | None = None) -> bool:
    """Whether a daemon runs that knows exactly these."""
    with contextlib.suppress(NoDaemonError, ControlError):
        found = machine.status()
        names = [[entry["name"] for entry in found[part]] for part in ("tenants", "queue")]
        return names == [running, waiting or []]
    return False


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_readme_console_block_matches_program(readme: str) -> None:
    """But for the numbers that are measured."""
    text = (Path(__file__).parent.parent.parent / readme).read_text()
    found = re.search(r"```console\n(\$ aliquot up -d --simulate.*?)```", text, re.DOTALL)
    assert found
    machine = Machine([])
    machine.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    try:
        for block in found[1].removeprefix("$ ").split("\n$ "):
            command, _, shown = block.partition("\n")
            words = shlex.split(command)[1:]
            if words == ["top"]:  # as soon as it has something to show
                eventually(partial(_shows, machine, shown))
                continue
            result = machine.aliquot(*words)
            assert _unmeasured(result.stderr + result.stdout) == _unmeasured(shown), command
        machine.clear()
    finally:
        machine.aliquot("down")
        machine.close()


def _shows(machine: Machine, shown: str) -> bool:
    return _unmeasured(machine.aliquot("top").stdout) == _unmeasured(shown)


def _unmeasured(text: str) -> list[str]:
    # Whether control is proven depends on whether the card was idle before; tests do not try it.
    masked = re.sub(r"hardware \(.*", "hardware", text)
    masked = re.sub(r"pid \d+", "pid #", re.sub(r"; (no )?dashboard.*", "", masked))  # another test may have the port
    lines = [re.sub(r"[█▏▎▍▌▋▊▉]+", " ", line) for line in masked.strip().splitlines()]
    return [" ".join(re.sub(r"[0-9.]+%|[0-9]+ MiB|\b[0-9.]+m?s\b", "#", line).split()) for line in lines]


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has a GPU")
def test_machine_without_gpu_has_hint(own: Machine) -> None:
    for words in (["run", "--", "true"], ["up"], ["up", "-d"]):
        result = own.aliquot(*words)
        assert result.returncode == 2
        assert result.stderr.splitlines()[-1] == (
            "aliquot: no usable NVIDIA GPU (NVML: NVML Shared Library Not Found). To try aliquot without one:"
            " `aliquot run --simulate -- COMMAND` or `aliquot up --simulate 2x24GiB`"
        )
