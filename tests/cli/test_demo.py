"""`aliquot demo` tells what was promised beside what was measured, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aliquot.adapters.host.process.procscan import with_environment
from aliquot.cli.demo import command, promises
from aliquot.cli.demo.command import Found, choose, print_results
from aliquot.cli.demo.promises import REAL, SIMULATED, Counter, expected_shares, pace
from aliquot.cli.demo.sandbox import clean_up, pool_of
from aliquot.cli.demo.story import Printed, size_mib
from aliquot.cli.errors import InputError
from kit.machines.machine import ALIQUOT, Machine, cards, eventually
from kit.running.hostilefolder import hostile_folder, taken

QUOTAS = (0.5, 0.3, 0.2)
SHORT = (*ALIQUOT, "demo", "--simulate", "2x24GiB", "--seconds", "20")


# --- what is promised ------------------------------------------------------------------------------------------------


def test_expected_shares_of_best_effort_are_equal() -> None:
    assert expected_shares("best-effort", QUOTAS) == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert expected_shares("best-effort", QUOTAS, idle=2) == pytest.approx((1 / 2, 1 / 2, 0))


def test_expected_shares_of_burst_share_with_idle_tenant() -> None:
    assert expected_shares("burst-share", QUOTAS) == pytest.approx(QUOTAS)
    assert expected_shares("burst-share", QUOTAS, idle=2) == pytest.approx((0.625, 0.375, 0))


def test_expected_shares_of_fixed_share_with_idle_tenant() -> None:
    assert expected_shares("fixed-share", QUOTAS) == pytest.approx(QUOTAS)
    assert expected_shares("fixed-share", QUOTAS, idle=2) == pytest.approx((0.5, 0.3, 0))


@pytest.mark.parametrize(("measured", "held"), [((0.519, 0.3, 0.181), True), ((0.521, 0.3, 0.179), False)])
def test_promise_of_shares_has_bounds(measured: tuple[float, ...], held: bool) -> None:
    assert promises.shares("fixed-share", QUOTAS, measured, REAL).held is held


def test_promise_bounds_of_simulated_cards() -> None:
    measured = (0.46, 0.3, 0.2)
    real, simulated = (promises.shares("fixed-share", QUOTAS, measured, bounds) for bounds in (REAL, SIMULATED))
    assert (real.held, simulated.held) == (False, True)
    assert real.promised.endswith("±2")
    assert simulated.promised.endswith("±5")


@pytest.mark.parametrize(("bounds", "held"), [(REAL, False), (SIMULATED, True)])
def test_promise_of_latency_uses_p99_or_p50(bounds: promises.Bounds, held: bool) -> None:
    alone, beside = {"p50": 1000.0, "p90": 1000.0, "p99": 1100.0}, {"p50": 1100.0, "p90": 1100.0, "p99": 5100.0}
    row = promises.added(alone, beside, bounds, delay="0", requests=1000)
    assert row.measured == "p50 +100 us, p99 +4 ms"
    assert row.held is held


def test_promise_of_latency_with_few_requests_uses_p90() -> None:
    alone, beside = {"p50": 1000.0, "p90": 1000.0, "p99": 1100.0}, {"p50": 1100.0, "p90": 1150.0, "p99": 5100.0}
    row = promises.added(alone, beside, REAL, delay="0", requests=80)
    assert row.promised.endswith("+300 us at most (p90)")
    assert row.measured == "p90 +150 us, p99 +4 ms"
    assert row.held


@pytest.mark.parametrize(("p50", "p99", "measured"), [(-8, -1200, "no measurable cost"), (0.4, 0, "no measurable cost"),
    (86, -1600, "p50 +86 us, p99 no cost"), (-8, 900, "p50 no cost, p99 +900 us")])  # fmt: skip
def test_latency_below_that_alone_is_no_negative_cost(p50: float, p99: float, measured: str) -> None:
    """Alone and beside differ by chance too."""
    alone = {"p50": 5000.0, "p90": 5000.0, "p99": 5000.0}
    beside = {"p50": 5000 + p50, "p90": 5000.0, "p99": 5000 + p99}
    assert promises.added(alone, beside, SIMULATED, delay="0", requests=1000).measured == measured


def test_promise_of_resume() -> None:
    assert not promises.resumed(None, delay=0.1, bounds=REAL).held
    assert promises.resumed(0.19, delay=0.1, bounds=REAL).held
    assert not promises.resumed(0.21, delay=0.1, bounds=REAL).held


@pytest.mark.parametrize(("right", "same"), [(False, True), (None, True), (True, False)])
def test_promise_of_nothing_lost(right: bool | None, same: bool) -> None:
    assert promises.nothing_lost(right=True, same_process=True, kernels=9).held
    assert not promises.nothing_lost(right=right, same_process=same, kernels=9).held


def test_promise_of_placement_has_reasons() -> None:
    row = promises.placed(wanted=3, running=2, reasons=["t9k: card 0 has 1 GiB free"])
    assert (row.held, row.measured) == (False, "2 of 3 run")
    assert row.reasons == ("t9k: card 0 has 1 GiB free",)


# --- what is measured ------------------------------------------------------------------------------------------------


def test_counter_share() -> None:
    counter = Counter("10.0 0 0\n11.0 0 500\n12.0 0 500\n")
    assert counter.share(10.5, 11.0, 1000) == pytest.approx(0.5)
    assert counter.share(11.0, 12.0, 1000) == 0
    assert counter.done == 500


def test_counter_ignores_incomplete_line() -> None:
    assert Counter("10.0 0 0\n11.0 0 500\n11.5 0 7").done == 500


def test_counter_completed_ignores_paused_kernel() -> None:
    counter = Counter("10.0 0 1\n13.0 0 2\n")
    assert counter.completed(11.0, 12.0, 20_000) == 0
    assert counter.completed(11.0, 13.5, 20_000) == pytest.approx(0.008)
    assert counter.first_after(11.0) == 13.0
    assert counter.first_after(13.0) is None


@pytest.mark.parametrize("seconds", [20, 30, 40, 120, 600])
def test_pace_fills_the_time(seconds: float) -> None:
    phases = pace(seconds)
    assert (phases["idle"] > 0) == (seconds >= 40)
    measured = sum(phases.values()) + 2 * phases["shares"] + phases["idle"]  # three policies; with an idle tenant two
    settling = promises.SETTLE * (5 if phases["idle"] else 3)
    assert 0.7 * seconds - 10 < measured + settling < seconds
    assert min(phases["shares"], phases["alone"], phases["kept"]) > 0.5


def test_demo_bars(capsys: pytest.CaptureFixture[str]) -> None:
    Printed().bars([("train", "offline", 1.0), ("serve", "online 50%", 0.5)])
    full, half = (line.strip() for line in capsys.readouterr().out.splitlines())
    assert full == "train  offline     100.0%  " + 30 * "█"
    assert half == "serve  online 50%   50.0%  " + 15 * "█"


@pytest.mark.parametrize(("card", "pool", "real", "size"), [(24, 32, False, 9), (141, 32, True, 8), (141, 6, True, 6),
    (6, 32, True, 0), (24, 2, True, 0)])  # fmt: skip
def test_demo_size_of_three_programs(card: int, pool: int, real: bool, size: int) -> None:
    assert size_mib(1024 * card, 1024 * pool, real=real) == 1024 * size


def _promises(bounds: promises.Bounds, latency: float = 0.0) -> list[promises.Promise]:
    """The rows of the table; requests take that many microseconds longer beside the job."""
    alone = {"p50": 1000.0, "p90": 1000.0, "p99": 1000.0}
    beside = {rank: value + latency for rank, value in alone.items()}
    return [
        promises.placed(wanted=3, running=3, reasons=()),
        promises.shares("best-effort", QUOTAS, QUOTAS, bounds),
        promises.shares("burst-share", QUOTAS, QUOTAS, bounds),
        promises.shares("fixed-share", QUOTAS, QUOTAS, bounds),
        promises.shares("fixed-share", QUOTAS, QUOTAS, bounds, idle=2),
        promises.shares("burst-share", QUOTAS, QUOTAS, bounds, idle=2),
        promises.whole(1.0, bounds),
        promises.added(alone, beside, bounds, delay="0", requests=1),
        promises.added(alone, beside, bounds, delay="100 ms", requests=1),
        promises.kept_off(0.0, bounds),
        promises.resumed(0.1, delay=0.1, bounds=bounds),
        promises.nothing_lost(right=True, same_process=True, kernels=123_456),
        promises.memory(refused=True, asked="3 GiB", quota="2 GiB"),
        promises.crowded(size="9 GiB", card="24 GiB", parked="9 GiB", held=True),
        promises.woken(0.31, size="9 GiB", bounds=bounds),
        promises.memory_kept(right=True, kernels=12_345),
    ]


@pytest.mark.parametrize("bounds", [REAL, SIMULATED])
@pytest.mark.parametrize("latency", [0.0, 134.0, 3_210.0, 123_456.0])
def test_demo_results_fit_80_columns(
    bounds: promises.Bounds, latency: float, capsys: pytest.CaptureFixture[str]
) -> None:
    print_results(Printed(), _promises(bounds, latency), bounds)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80, lines


def test_demo_results_begin_with_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    missed = promises.placed(wanted=3, running=2, reasons=["t9k: card 0 has 1 GiB free"])
    print_results(Printed(), [missed, *_promises(REAL)[6:]], REAL)
    lines = capsys.readouterr().out.splitlines()
    assert next(filter(None, lines)) == "10 of 11 promises held"
    table = lines[lines.index(next(line for line in lines if line.startswith("RESULT"))) :]
    assert table[1].startswith("MISSED  3 Pods")
    assert table[2].strip() == "t9k: card 0 has 1 GiB free"


def test_demo_wraps_texts_and_continues_commands(capsys: pytest.CaptureFixture[str]) -> None:
    Printed().note("word " * 40)
    Printed().command("run", *["--name x"] * 20)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    pasted = " ".join(line.strip().removesuffix(" \\") for line in lines if "word" not in line)
    assert pasted == "$ aliquot run " + " ".join(["--name x"] * 20)


# --- on which cards --------------------------------------------------------------------------------------------------


@pytest.fixture
def held() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def no_daemon(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("ALIQUOT_HOME", str(folder))
    monkeypatch.setattr(command, "ON_REAL_CARDS", f"\0{folder}")  # tests run side by side


def test_demo_without_gpu_uses_simulated_cards(held: contextlib.ExitStack) -> None:
    spec, line = choose(None, lambda: Found(why="no driver"), held)
    assert spec == "2x24GiB"
    assert line.startswith("No NVIDIA GPU here (no driver): using two simulated cards (2x24GiB).")


@pytest.mark.usefixtures("no_daemon")
def test_second_demo_uses_simulated_cards(held: contextlib.ExitStack) -> None:
    assert choose(None, lambda: Found(cards(2)), held)[0] is None
    spec, line = choose(None, lambda: Found(cards(2)), held)
    assert spec == "2x24GiB"
    assert line.startswith("Another demo uses the cards of this machine")


@pytest.mark.usefixtures("no_daemon")
def test_demo_leaves_busy_cards_alone(held: contextlib.ExitStack) -> None:
    spec, line = choose(None, lambda: Found(cards(2), busy=(1,)), held)
    assert spec == "2x24GiB"
    assert line.startswith("Other programs use the cards (card 1)")


def test_demo_refuses_beside_daemon(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, held: contextlib.ExitStack
) -> None:
    monkeypatch.setenv("ALIQUOT_HOME", str(machine.home))
    with pytest.raises(InputError, match=r"aliquot demo --simulate 2x24GiB.*aliquot down"):
        choose(None, lambda: Found(cards(2)), held)


def test_simulated_demo_runs_beside_daemon(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, held: contextlib.ExitStack
) -> None:
    monkeypatch.setenv("ALIQUOT_HOME", str(machine.home))
    assert choose("1x8GiB", lambda: Found(cards(2)), held)[0] == "1x8GiB"


# --- the story -------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the story has its home: short enough for sockets, and empty when all is over."""
    with tempfile.TemporaryDirectory(prefix="alq") as name:
        yield Path(name)


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder)}


def _left(folder: Path) -> list[Any]:
    """What is still there of a story: its home, and the processes that were started for it."""
    here = f"ALIQUOT_HOME={folder}/".encode()
    found: list[Any] = list(folder.iterdir())
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and here in (entry / "environ").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


def test_shortest_demo_runs_and_leaves_nothing_also_in_a_folder_of_another_user(folder: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [*SHORT, "-o", "json"],
        cwd=hostile_folder(tmp_path),
        env=_environment(folder),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert taken(tmp_path) == []
    report = json.loads(done.stdout)
    held = {row["key"]: row["held"] for row in report["promises"]}
    assert list(held) == [
        "placed", "best-effort", "burst-share", "fixed-share", "offline-alone", "added-0", "added-100 ms",
        "offline-beside", "resumed", "nothing-lost", "memory", "crowded", "woken", "memory-kept",
    ]  # fmt: skip
    assert all(held[key] for key in ("placed", "nothing-lost", "memory", "crowded", "memory-kept")), report["promises"]
    assert 0 < report["first_share_seconds"] < 60
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", report["dashboard"])
    assert _left(folder) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_interrupted_demo_leaves_nothing(folder: Path, number: int, code: int) -> None:
    with subprocess.Popen(
        SHORT,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "best-effort" in next(line for line in process.stdout if "best-effort" in line or "aliquot:" in line)
        assert len(_left(folder)) > 3  # its home, the daemon, the player, the tenants
        process.send_signal(number)
        assert process.wait(30) == code
    eventually(lambda: not _left(folder))


def test_clean_up_spares_other_processes(folder: Path) -> None:
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "ALIQUOT_HOME": str(folder / "other")}) as neighbour:
        mine = subprocess.Popen(["sleep", "60"], env={**os.environ, "ALIQUOT_HOME": str(folder / "mine")})
        (folder / "mine").mkdir()
        pool_of(folder / "mine").mkdir()
        eventually(lambda: with_environment("ALIQUOT_HOME", str(folder / "mine")))
        clean_up(folder / "mine")
        assert mine.wait(10) == -signal.SIGKILL
        assert neighbour.poll() is None
        assert not (folder / "mine").exists()
        assert not pool_of(folder / "mine").exists()
        neighbour.kill()


def test_demo_refuses_too_few_seconds() -> None:
    done = subprocess.run([*ALIQUOT, "demo", "--seconds", "5"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "20" in done.stderr


# --- the documents ---------------------------------------------------------------------------------------------------


def test_docs_show_demo_promises() -> None:
    text = (Path(__file__).parents[2] / "docs" / "one-machine.md").read_text()
    shown = re.findall(r"^held +(.+?)  +.+$", text, re.MULTILINE)
    assert shown == [row.promised for row in _promises(SIMULATED)]
