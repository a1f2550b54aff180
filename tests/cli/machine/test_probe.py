"""`aliquot probe` on a simulated card: the whole report, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.adapters.gpu import player
from aliquot.adapters.host.home import Home
from aliquot.adapters.host.process import processes
from aliquot.cli.machine.probe import _added
from aliquot.model.status.probe import PreemptionFigures
from simgpu.rig import wait_until

pytestmark = pytest.mark.skipif(not os.path.exists(player.shim()), reason="the libraries are not built")


def probe(*words: str) -> tuple[subprocess.Popen[str], str, str]:
    command = [sys.executable, "-m", "aliquot", "probe", "--simulate", "1x24GiB", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return process, *process.communicate(timeout=280)


def test_probe_reports_every_figure_and_leaves_nothing() -> None:
    process, output, errors = probe("--seconds", "0.5", "-o", "json")
    assert process.returncode == 0, errors
    report = json.loads(output)
    assert report["control"]["level"] in ("proven", "unproven")  # a busy machine may spoil each trial
    assert report["control"]["reason"] in (None, "inconclusive")
    assert report["memory"] == {"within_limit_allowed": True, "beyond_limit_refused": True}
    assert len(report["shares"]["had"]) == 3
    assert {"preemption", "cap", "switching", "card", "driver"} <= report.keys()
    assert not list(Path("/tmp").glob(f"aliquot-probe-{process.pid}*"))


@pytest.mark.parametrize(
    ("added", "said"),
    [
        (12.5, "p99 12.5 us over 210 us alone"),
        (0.0, "p99 below noise: requests took no longer than the 210 us alone"),
        (-37.1, "p99 below noise: requests took no longer than the 210 us alone"),
    ],
)
def test_latency_that_a_busy_machine_hides_is_not_negative(added: float, said: str) -> None:
    assert _added(PreemptionFigures({"p99": 210.0}, {"p99": 210.0 + added}, added, 0.9)) == said


def test_sample_programs_end_with_a_probe_that_is_killed() -> None:
    command = [sys.executable, "-m", "aliquot", "probe", "--simulate", "1x24GiB", "--seconds", "60"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: burns_of(process.pid), "a sample program runs", 120)
        burns = burns_of(process.pid)
    finally:
        process.kill()
        process.wait()
        for folder in Path("/tmp").glob(f"aliquot-probe-{process.pid}-*"):
            player.end(Home(str(folder), str(folder)))
            shutil.rmtree(folder, ignore_errors=True)
    wait_until(lambda: not any(processes.lives(pid, started) for pid, started in burns.items()), "they end", 60)


def test_probe_that_is_interrupted_while_it_starts_leaves_no_player() -> None:
    """It re-executes itself once the player runs: until it had read its folder again, nobody ended the player."""
    command = [sys.executable, "-m", "aliquot", "probe", "--simulate", "1x24GiB", "--seconds", "60"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    environment = Path(f"/proc/{process.pid}/environ")
    wait_until(lambda: b"ALIQUOT_PROBE_FOLDER=" in environment.read_bytes(), "it re-executes itself", 60)
    (folder,) = Path("/tmp").glob(f"aliquot-probe-{process.pid}-*")
    playing = player.known(Home(str(folder), str(folder)))
    assert playing is not None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    wait_until(lambda: not processes.lives(playing.pid, playing.started), "the player ends", 30)
    assert not folder.exists()


def burns_of(parent: int) -> dict[int, int]:
    """Its children that run `aliquot burn`, with their start times."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if processes.ancestors(int(entry.name))[1:2] == [parent] and b"burn" in words:
                found[int(entry.name)] = processes.start_time(int(entry.name)) or 0
    return found


def test_probe_refuses_a_card_that_is_not_there() -> None:
    process, output, errors = probe("--card", "7")
    assert (process.returncode, output) == (2, "")
    assert "--card: 7 is not allowed: this machine has 1" in errors


def test_probe_ends_nothing_that_a_folder_of_another_user_names() -> None:
    victim = subprocess.Popen(["sleep", "600"])
    folder = None
    try:
        started = processes.start_time(victim.pid)
        playing = player.Playing(victim.pid, started or 0, 1, 1024, "x", boot=processes.boot_id())
        # The shell makes the folder that could be guessed, with the number that the probe will have.
        script = 'mkdir -m 700 "/tmp/aliquot-probe-$$" && printf %s "$1" > "/tmp/aliquot-probe-$$/player.json"; shift; '
        command = ["sh", "-c", f'{script} exec "$@"', "sh", json.dumps(playing._asdict())]
        process = subprocess.Popen([*command, sys.executable, "-m", "aliquot", "probe"], stderr=subprocess.PIPE)
        folder = Path(f"/tmp/aliquot-probe-{process.pid}")
        process.communicate(timeout=120)
        assert process.returncode, "there is no card"
        assert victim.poll() is None
        assert (folder / "player.json").exists()
    finally:
        victim.kill()
        victim.wait()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
