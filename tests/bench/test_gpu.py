"""The bench of the GPU, as far as it can be held to account without one: its arithmetic and its pictures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from bench.gpu.children import Child, ChildError
from bench.gpu.drawing import Lane, Panel, held, timeline
from bench.gpu.engines import rows as engines
from bench.gpu.engines.figures import Request, busy
from bench.gpu.main import EXTRA, ROWS
from bench.gpu.report import Row, render
from bench.gpu.rows import shares, tail
from bench.gpu.rows.chaos import Life
from bench.gpu.rows.memory import _verdict
from bench.gpu.stage import Load, Window, micros
from bench.gpu.workloads.parked import wait_while

from aliquot.adapters.host.process.procscan import with_environment
from kit.machines.machine import eventually

ROOT = Path(__file__).parents[2]
GIB = 1 << 30


def test_a_kernel_that_was_stopped_held_the_card_before_and_after() -> None:
    assert held([(0, 100), (100, 200)], [(20, 30), (90, 120), (150, 160)]) == [
        (0, 20),
        (30, 90),
        (120, 150),
        (160, 200),
    ]


def test_a_kernel_that_was_not_stopped_held_the_card_all_the_while() -> None:
    assert held([(5, 9)], []) == [(5, 9)]
    assert held([(5, 9)], [(0, 5), (9, 12)]) == [(5, 9)]
    assert held([(5, 9)], [(0, 20)]) == []


def test_the_timeline_has_a_lane_for_each_tenant_of_each_panel() -> None:
    panels = [Panel("ours", [Lane("online", [(0, 1)]), Lane("offline <1>", [])]), Panel("stock", [Lane("online", [])])]
    drawn = ElementTree.fromstring(timeline("t", panels, 300))
    words = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert [word for word in words if word in ("online", "offline <1>")] == ["online", "offline <1>", "online"]
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}path"))) == 1


@pytest.mark.parametrize("policy", shares.POLICIES)
@pytest.mark.parametrize("count", shares.COUNTS)
def test_the_shares_that_are_expected_never_exceed_the_card(policy: str, count: int) -> None:
    wanted = shares.expected(policy, count)
    assert len(wanted) == count
    assert sum(wanted) == pytest.approx(1.0) or (policy == "fixed-share" and sum(wanted) < 1)


def test_the_cast_mixes_kernels_and_has_one_tenant_of_three_processes() -> None:
    assert {part.kernel for part in shares.CAST} == {"50us", "1ms", "20ms"}
    assert sorted(part.processes for part in shares.CAST)[-2:] == [1, 3]
    assert sum(part.quota for part in shares.CAST) == 100


def test_a_share_is_read_between_two_completions_and_added_over_processes(tmp_path: Path) -> None:
    load = Load("t", tmp_path, "1ms")
    load.progress_file.write_text("10.0 0 0\n11.0 0 500\n10.0 1 0\n12.0 1 400\n13.0 0 1500\n13.5 0 15")
    assert load.share(Window(10.5, 12.0)) == pytest.approx((750 + 300) * 0.001 / 1.5)


def test_durations_are_read_as_they_are_written() -> None:
    assert [micros(text) for text in ("50us", "1.5ms", "2s")] == [50.0, 1500.0, 2e6]


def test_a_gap_is_excused_only_while_we_had_stopped_the_process(tmp_path: Path) -> None:
    file = tmp_path / "progress"
    file.write_text("1.0 0 1\n1.5 0 2\n3.5 0 3\n")
    life = Life(cast(Child, None), file, stopped=[(1.6, 3.0)], ended=3.6, began=0.0)
    assert [gap for _, gap in life.gaps()] == pytest.approx([0.0, 0.5, 2.0 - 1.5, 0.1])


def test_a_tenant_that_never_comes_to_its_first_kernel_stands_still(tmp_path: Path) -> None:
    life = Life(cast(Child, None), tmp_path / "nothing", ended=20.0, began=0.0)
    assert [gap for _, gap in life.gaps()] == [20.0 - 12.0]


@pytest.mark.parametrize(
    ("granted", "used", "verdict"),
    [
        (3.5 * GIB, 4.0 * GIB, "ok"),
        (4.0 * GIB, 4.5 * GIB, "ok"),
        (4.1 * GIB, 4.5 * GIB, "granted 4198 MiB of 4096"),
        (3.0 * GIB, 3.5 * GIB, "refused at 3072 MiB of 4096, overhead 512"),
    ],
)
def test_memory_is_judged_by_the_quota_and_what_the_context_takes(granted: float, used: float, verdict: str) -> None:
    assert _verdict("alloc", int(granted), 4 * GIB, int(used)) == verdict


def test_bench_report_marks_a_missed_row() -> None:
    rows = [Row(what="a", must="1", measured="2", ok=ok) for ok in (True, False, None)]
    assert [line.split()[3] for line in render(rows).splitlines()[1:]] == ["ok", "MISSED", "-"]


def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    code = "import sys; print('no card', file=sys.stderr); sys.exit(3)"
    child = Child("c", [sys.executable, "-c", code], {}, tmp_path)
    with pytest.raises(ChildError, match=r"c ended with 3.*no card"):
        child.wait_for("READY", 20)
    with pytest.raises(ChildError, match=r"c ended with 3.*no card"):
        child.result(20)


def test_a_child_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    code = "import os, time; print('READY', os.fork(), flush=True); time.sleep(60)"
    child = Child("c", [sys.executable, "-c", code], {}, tmp_path)
    child.wait_for("READY", 20)
    child.kill()
    assert not child.alive()


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "bench" / "gpu" / "run.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_a_row_can_be_measured_on_a_simulated_card(tmp_path: Path) -> None:
    done = command("--simulate", "--only", "cap,timeline", "--seconds", "0.5", "--out", str(tmp_path))
    assert "over the cap" in done.stdout
    assert "failed" not in done.stdout
    (row,) = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert 0 < row["numbers"]["share"] < 0.5  # a quota of 30%; how exact, the machine of the tests cannot tell
    assert (tmp_path / "timeline.svg").exists()
    assert done.returncode == (0 if row["ok"] else 1)


@pytest.mark.parametrize("row", ["shares", "chaos"])
def test_a_bench_that_is_ended_leaves_no_process(tmp_path: Path, row: str) -> None:
    """`timeout` ends one that takes too long; what it left would disturb the next."""
    mark = ("BENCH_TEST", str(tmp_path))
    words = [sys.executable, "bench/gpu/run.py", "--simulate", "--seconds", "60", "--only", row, "--out", str(tmp_path)]
    with subprocess.Popen(words, cwd=ROOT, env=os.environ | dict([mark])) as bench:
        eventually(lambda: len(with_environment(*mark)) > 4)  # bench, daemon, player, tenants
        bench.terminate()
        assert bench.wait(60) == 128 + signal.SIGTERM
    eventually(lambda: not with_environment(*mark))


def test_parked_memory_can_be_measured_on_a_simulated_card(tmp_path: Path) -> None:
    done = command("--simulate", "--only", "park-wake", "--seconds", "0.5", "--out", str(tmp_path))
    assert "failed" not in done.stdout, done.stdout + done.stderr
    (row,) = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert (row["numbers"]["wrong"], len(row["numbers"]["woken"])) == (0, 2)


@pytest.mark.parametrize("looks", list(product([False, True], repeat=3)))
def test_a_program_that_waits_says_so_whenever_it_is_held(
    looks: tuple[bool, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter([*looks, False])
    waited = wait_while(lambda: next(answers))
    taken = len(looks) - len(list(answers))  # looks that found it held
    assert waited == (taken > 0)
    assert capsys.readouterr().out == "HELD\n" * waited


def test_slow_requests_are_named_with_the_steps_that_overlap_them(tmp_path: Path) -> None:
    log = tmp_path / "steps"
    assert tail.read_steps(log) == []
    lines = [["Pause", "a/1", 1.0, 1.0004], ["Resume", "b/1", 1.0004, 1.0008], ["meter", "", 0.5, 0.52]]
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '["Pau')
    steps = tail.read_steps(log)
    assert [step["step"] for step in tail.overlapping(steps, 1.0003, 500.0)] == ["Pause", "Resume"]
    assert tail.overlapping(steps, 0.51, 100.0) == [
        {"step": "meter", "whose": "", "after_us": -10000, "took_us": 20000}
    ]
    assert tail.overlapping(steps, 2.0, 500.0) == []
    assert tail.step_times(steps)["Pause"] == {"count": 1, "p50": 400, "p99": 400, "max": 400}


def test_a_server_is_busy_once_while_requests_overlap() -> None:
    over = Window(10.0, 20.0)
    answered = [Request(due, 1000.0, (1000.0,), (0, "")) for due in (9.0, 12.0, 13.0, 19.5)]  # two seconds each
    assert busy(answered, over) == pytest.approx((1.0 + 3.0 + 0.5) / 10)
    assert busy([], over) == 0


def test_engines_are_measured_without_the_rows_that_take_minutes() -> None:
    chosen = {name: engines.chosen(name) for name in ("engines", "engines.sweep", "engines.valve")}
    assert [row for rows in chosen.values() for row in sorted(rows)] == [
        row for rows in chosen.values() for row in sorted(set(rows))
    ]
    assert set().union(*chosen.values()) == set(engines.ROWS)
    assert engines.chosen("engines.llama") == ["engines.llama"]


def test_shares_of_engines_can_be_measured_without_engines(tmp_path: Path) -> None:
    done = command("--simulate", "--only", "engines.shares", "--seconds", "0.3", "--out", str(tmp_path))
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert [len(row["numbers"]["figures"]) for row in rows] == [2, 2, 2], done.stdout + done.stderr


def test_the_default_run_leaves_out_what_takes_minutes() -> None:
    assert "tail" in EXTRA
    assert not [name for name in ROWS if name.startswith("park-")]
    assert len([name for name in EXTRA if name.startswith("park-")]) == 9


def test_the_rows_can_be_listed() -> None:
    assert command("--list").stdout.split() == [*ROWS, *EXTRA]


@pytest.mark.parametrize("arguments", [["--only", "nonsense"], ["--seconds", "0"], ["--what"]])
def test_a_slip_in_the_command_line_is_exit_code_2(arguments: list[str]) -> None:
    said: Any = command(*arguments)
    assert said.returncode == 2
    assert "error" in said.stderr
