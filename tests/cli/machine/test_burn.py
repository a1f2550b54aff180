"""`aliquot burn`: the sample workload, on a simulated card and by its arithmetic."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from aliquot.adapters.gpu.burnkernel import PTX
from aliquot.adapters.gpu.player import simulation
from aliquot.model.status.burn import BurnResult, ProcessShare
from aliquot.services.burn.gates import merged
from aliquot.services.burn.measuring import Marks, percentiles
from aliquot.services.burn.workload import Outcome, Plan
from kit.running.terminal import shown_on_terminal

COMMAND = (sys.executable, "-m", "aliquot", "burn")
RATE = ("--iterations-per-us", "1000")  # what the simulated card does
QUICK = (*RATE, "--warmup", "50ms", "--seconds", "0.5")


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a process that sees one simulated card of 2 GiB."""
    socket = tmp_path_factory.mktemp("card") / "s"
    arguments = [f"{simulation()}/player", "--socket", str(socket), "--cards", "1", "--memory", "2048"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as player:
        assert player.stdout is not None
        assert "ready" in player.stdout.readline()
        yield {**os.environ, "LD_LIBRARY_PATH": simulation(), "ALIQUOT_SIMGPU": str(socket)}
        player.kill()


@pytest.fixture
def no_card(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that finds no driver: a file that is no library stands in its place."""
    (tmp_path / "libcuda.so.1").touch()
    return {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}


def burn(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], env=env, capture_output=True, text=True, timeout=60, check=False)


def result(env: dict[str, str], *arguments: str) -> dict[str, Any]:
    done = burn(env, *arguments, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


# ---- on a card


@pytest.mark.parametrize("kernel", ["50us", "1ms", "20ms"])
def test_burn_load_alone_gets_whole_card(card: dict[str, str], kernel: str) -> None:
    share = 0.0
    for _ in range(3):  # 1 on a machine with a processor to spare, which the one of the tests may not have for a moment
        share = max(share, result(card, "load", "--kernel", kernel, *QUICK)["share"])
        if share > 0.6:
            break
    assert 0.6 < share < 1.05


def test_burn_load_json(card: dict[str, str]) -> None:
    report = result(card, "load", *RATE, "--warmup", "0us", "--seconds", "2", "--check")
    assert report["mode"] == "load"
    assert report["kernel_us"] == 1000
    assert report["seconds"] == pytest.approx(2, abs=0.2)
    assert report["kernels"] == pytest.approx(1000 * report["seconds"] * report["share"], rel=0.01)
    assert len(report["series"]) == 2
    assert report["right"] is True
    assert report["longest_gap_ms"] > 0


def test_burn_serve_json(card: dict[str, str]) -> None:
    report = result(card, "serve", "--kernel", "1ms", "--kernels", "2", "--period", "10ms", *QUICK, "--check")
    latency = report["latency_us"]
    assert report["mode"] == "serve"
    assert 2000 <= latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    assert 20 <= report["requests"] <= 51
    assert report["share"] == pytest.approx(0.002 * report["requests"] / report["seconds"], abs=0.02)
    assert report["slowest"][0]["us"] == latency["max"]
    assert len(report["slowest"]) == 10
    assert report["right"] is True


@pytest.mark.parametrize("way", [["--graph"], ["--streams", "3"], ["--depth", "1"], ["--kernel", "50us", "--graph"]])
def test_burn_kernels_run_exactly_once(card: dict[str, str], way: list[str]) -> None:
    assert result(card, "load", *way, *QUICK, "--check")["right"] is True


def test_burn_load_adds_up_processes(card: dict[str, str]) -> None:
    report = result(card, "load", "--processes", "3", *QUICK, "--check")
    assert len(report["processes"]) == 3
    assert sum(process["share"] for process in report["processes"]) == pytest.approx(report["share"], abs=0.001)
    assert 0.4 < report["share"] < 1.05
    assert report["right"] is True


def test_burn_calibrate(card: dict[str, str]) -> None:
    assert json.loads(burn(card, "calibrate", "-o", "json").stdout)["iterations_per_us"] == pytest.approx(
        1000, rel=0.02
    )
    rate = burn(card, "calibrate").stdout.strip()
    done = burn({**card, "ALIQUOT_BURN_RATE": rate}, "load", "--warmup", "0us", "--seconds", "0.2")
    assert (done.returncode, done.stderr) == (0, "")


def test_burn_calibrates_beside_another_load(card: dict[str, str]) -> None:
    command = [*COMMAND, "load", *RATE, "--seconds", "60"]
    with subprocess.Popen(command, env=card, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as other:
        time.sleep(2)  # until it computes
        rate = json.loads(burn(card, "calibrate", "-o", "json").stdout)["iterations_per_us"]
        other.kill()
    assert rate == pytest.approx(1000, rel=0.1)


def test_burn_warns_about_measured_rate(card: dict[str, str]) -> None:
    done = burn(card, "load", "--warmup", "0us", "--seconds", "0.2")
    assert done.returncode == 0
    assert "if others used the card meanwhile, shares may be too large" in done.stderr


def test_burn_text_output(card: dict[str, str]) -> None:
    report = burn(card, "load", *QUICK, "--check").stdout
    assert "kernels of 1 ms in 0.5 s" in report
    assert "results: all correct" in report
    assert "requests: p50" in burn(card, "serve", *QUICK).stdout


def test_burn_memory_is_allocated_or_refused(card: dict[str, str]) -> None:
    assert burn(card, "load", "--memory", "512MiB", *QUICK).returncode == 0
    for processes in ("1", "2"):
        done = burn(card, "load", "--memory", "8GiB", "--processes", processes, *QUICK)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert "out of memory: 8 GiB are more than is left of the card" in done.stderr


def test_burn_start_and_until_file(card: dict[str, str], tmp_path: Path) -> None:
    start, until, progress = (tmp_path / name for name in ("start", "until", "progress"))
    arguments = ["--start-file", start, "--until-file", until, "--progress", progress, "--processes", "2", "-o", "json"]
    with subprocess.Popen(
        [*COMMAND, "load", *RATE, *map(str, arguments)], env=card, stdout=-1, stderr=-1, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "READY\n"
        assert not progress.exists()
        begin = time.monotonic() + 0.3
        start.with_suffix(".tmp").write_text(f"{begin:.6f}")
        start.with_suffix(".tmp").rename(start)
        time.sleep(1.0)
        until.touch()
        report = json.loads(process.communicate(timeout=30)[0])
    assert report["begin"] == pytest.approx(begin, abs=0.001)
    assert report["seconds"] == pytest.approx(0.7, abs=0.3)
    lines = [line.split() for line in progress.read_text().splitlines()]
    assert {line[1] for line in lines} == {"0", "1"}
    assert all(float(line[0]) > begin - 1 for line in lines)


@pytest.mark.parametrize("mode", ["load", "serve"])
def test_burn_timeline(card: dict[str, str], tmp_path: Path, mode: str) -> None:
    file = tmp_path / "timeline"
    report = result(card, mode, *QUICK, "--timeline", str(file), "--check")
    drawn = json.loads(file.read_text())
    assert report["right"] is True
    assert len(drawn["spans"]) >= report["kernels"]
    ends = [end for _, end in drawn["spans"]]
    assert ends == sorted(ends)
    assert all(end - begin == pytest.approx(1000 * drawn["kernel_us"], rel=0.01) for begin, end in drawn["spans"])


def test_burn_workers_end_with_parent(card: dict[str, str], tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    command = [*COMMAND, "load", "--processes", "2", *RATE, "--progress", str(progress), "--seconds", "60"]
    with subprocess.Popen(command, env=card, stdout=-1, stderr=-1) as process:
        deadline = time.monotonic() + 30
        while not progress.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)  # the pipes close only when the last of them is gone
    size = progress.stat().st_size
    time.sleep(0.2)
    assert progress.stat().st_size == size


def test_burn_progress_only_on_terminal(card: dict[str, str]) -> None:
    assert "% of the card" in shown_on_terminal([*COMMAND, "load", *QUICK], card)[0]


# ---- bad input


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["load", "--kernel", "5"], "--kernel"),
        (["load", "--kernel", "0us"], "--kernel"),
        (["load", "--kernel", "fast"], "--kernel"),
        (["load", "--kernel", "2000s"], "--kernel"),
        (["load", "--kernel", "-1ms"], "--kernel"),
        (["load", "--seconds", "0"], "--seconds"),
        (["load", "--seconds", "nan"], "--seconds"),
        (["load", "--depth", "0"], "--depth"),
        (["load", "--streams", "1000"], "--streams"),
        (["load", "--processes", "0"], "--processes"),
        (["load", "--memory", "much"], "--memory"),
        (["load", "--memory", "0"], "--memory"),
        (["load", "--iterations-per-us", "0"], "--iterations-per-us"),
        (["load", "--iterations-per-us", "nan"], "--iterations-per-us"),
        (["load", "--timeline", "/no/such/folder/file"], "--timeline"),
        (["load", "--progress", "/no/such/folder/file"], "--progress"),
        (["load", "--graph", "--timeline", "x"], "--graph"),
        (["serve", "--period", "10"], "--period"),
        (["serve", "--kernels", "0"], "--kernels"),
        (["serve", "--device", "-1"], "--device"),
        (["toast"], "toast"),
    ],
)
def test_burn_bad_input_exits_2(no_card: dict[str, str], arguments: list[str], names: str) -> None:
    said = burn(no_card, *arguments)
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.startswith("aliquot: ")
    assert said.stderr.count("\n") == 1
    assert names in said.stderr


@pytest.mark.parametrize("arguments", [["load"], ["load", "--processes", "2", *RATE], ["serve"], ["calibrate"], []])
def test_burn_without_card_has_hint(no_card: dict[str, str], arguments: list[str]) -> None:
    said = burn(no_card, *arguments)
    assert (said.returncode, said.stdout) == (2, "")
    assert "no NVIDIA driver" in said.stderr
    assert "--simulate" in said.stderr
    assert said.stderr.count("\n") == 1


def test_burn_of_missing_card_exits_2(card: dict[str, str]) -> None:
    said = burn(card, "load", "--device", "7", *QUICK)
    assert said.returncode == 2
    assert "there is no card 7" in said.stderr


# ---- arithmetic


def test_burn_marks_interpolate() -> None:
    marks = Marks(10.0)
    for moment, done in ((11.0, 10), (12.0, 30), (12.001, 31)):
        marks.add(moment, done)
    marks.close()
    assert [marks.at(moment) for moment in (9, 10, 10.5, 11.5, 20)] == [0, 0, 5, 20, 31]
    assert marks.longest_gap(10.5, 12.0) == pytest.approx(1.0)


def test_burn_percentiles() -> None:
    assert percentiles([float(value) for value in range(1, 201)]) == {"p50": 100, "p90": 180, "p99": 198, "max": 200}
    assert percentiles([7.0]) == {"p50": 7, "p90": 7, "p99": 7, "max": 7}
    assert percentiles([]) is None


@pytest.mark.parametrize(("kernel_us", "least_us"), [(5, 2_000), (50, 8_000), (1_000, 8_000), (20_000, 40_000)])
def test_burn_queue_covers_descheduling(kernel_us: float, least_us: float) -> None:
    plan = Plan(kernel_us=kernel_us)
    assert plan.batches >= 2
    assert plan.batch * plan.batches * kernel_us >= least_us


def test_burn_merge_keeps_longest_gap() -> None:
    result = BurnResult("T4", 1.0, seconds=1.0, kernels=5.0, share=0.5, series=[0.5], longest_gap_ms=3.0, right=True)
    both = merged([Outcome(result), Outcome(replace(result, longest_gap_ms=9.0, right=False))]).result
    assert (both.share, both.longest_gap_ms, both.right) == (1.0, 9.0, False)
    assert both.processes == [ProcessShare(5.0, 0.5, 3.0), ProcessShare(5.0, 0.5, 9.0)]


def test_burn_kernel_is_ptx_for_volta() -> None:
    text = PTX.decode("ascii")
    assert text.startswith(".version 6.4\n.target sm_70\n")
    assert text.count(".visible .entry ") == 2
