"""Steps of the driver's checkpoint, with a driver on paper."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aliquot.adapters.host.process.processes import start_time
from aliquot.services.mover.checkpoint import Answer, Known, ProcessState, RefusedError, What, perform
from aliquot.services.mover.checkpointer import Checkpointer, patience

RUNNING, LOCKED, AWAY, FAILED = ProcessState
_STEPS = {
    "Lock": (RUNNING, LOCKED),
    "Checkpoint": (LOCKED, AWAY),
    "Restore": (AWAY, LOCKED),
    "Unlock": (LOCKED, RUNNING),
}


class Paper:
    """Processes and their states; what refuses, by step and pid."""

    def __init__(self, *states: int, refuses: dict[tuple[str, int], int] | None = None) -> None:
        self.states: dict[int, int | None] = dict(enumerate(states, 1))
        self.refuses = refuses or {}
        self.ends: set[tuple[str, int]] = set()
        self.silent: set[int] = set()

    def state(self, pid: int) -> int | None:
        if pid in self.silent:
            raise RefusedError("GetState: error 999", 999)
        return self.states[pid]

    def step(self, name: str, pid: int) -> None:
        before, after = _STEPS[name]
        assert self.states[pid] == before
        if (name, pid) in self.ends:
            self.states[pid] = None
            raise RefusedError("it is gone", 1)
        if code := self.refuses.get((name, pid)):
            raise RefusedError(f"{name}: error {code}", code)
        self.states[pid] = after

    def do(self, what: What) -> Answer:
        return perform(self, what, sorted(self.states))


def test_all_processes_are_taken_and_brought_back() -> None:
    paper = Paper(RUNNING, RUNNING)
    assert paper.do(What.TAKE) == Answer({1: AWAY, 2: AWAY})
    assert paper.do(What.BRING) == Answer({1: RUNNING, 2: RUNNING})


@pytest.mark.parametrize("step", ["Lock", "Checkpoint"])
@pytest.mark.parametrize("pid", [1, 2, 3])
def test_where_one_is_refused_all_run_again(step: str, pid: int) -> None:
    paper = Paper(RUNNING, RUNNING, RUNNING, refuses={(step, pid): 801})
    assert paper.do(What.TAKE) == Answer(dict.fromkeys((1, 2, 3), RUNNING), f"{step}: error 801", 801)


def test_pid_that_is_another_process_by_now_is_left_alone() -> None:
    ours, paper = os.getpid(), Paper()
    started = start_time(ours)
    assert started is not None
    paper.states = {ours: RUNNING}
    assert perform(Known(paper, {ours: started - 1}), What.TAKE, [ours]) == Answer({})
    assert paper.states == {ours: RUNNING}
    with pytest.raises(RefusedError):
        Known(paper, {ours: started - 1}).step("Lock", ours)
    assert perform(Known(paper, {ours: started}), What.TAKE, [ours]) == Answer({ours: AWAY})


def test_what_another_left_half_done_is_finished() -> None:
    assert Paper(RUNNING, LOCKED, AWAY).do(What.TAKE) == Answer(dict.fromkeys((1, 2, 3), AWAY))
    assert Paper(RUNNING, LOCKED, AWAY).do(What.BRING) == Answer(dict.fromkeys((1, 2, 3), RUNNING))


def test_processes_that_end_meanwhile_are_left_out() -> None:
    paper = Paper(RUNNING, RUNNING)
    paper.ends = {("Checkpoint", 1)}
    assert paper.do(What.TAKE) == Answer({2: AWAY})
    assert Paper().do(What.LOOK) == Answer({})


def test_without_room_none_of_them_runs_and_the_next_attempt_goes_on() -> None:
    paper = Paper(AWAY, AWAY, refuses={("Restore", 2): 2})
    answer = paper.do(What.BRING)
    assert (answer.states, answer.code) == ({1: LOCKED, 2: AWAY}, 2)
    paper.refuses = {}
    assert paper.do(What.BRING) == Answer({1: RUNNING, 2: RUNNING})


def test_process_that_failed_in_the_driver_is_not_taken() -> None:
    answer = Paper(RUNNING, FAILED).do(What.TAKE)
    assert answer.states == {1: RUNNING, 2: FAILED}
    assert answer.refusal == "an earlier checkpoint of it failed in the driver"


@pytest.mark.parametrize("pid", [1, 2, 3])
def test_process_whose_state_is_not_known_hides_no_other(pid: int) -> None:
    others = {1, 2, 3} - {pid}
    paper = Paper(AWAY, AWAY, AWAY)
    paper.silent = {pid}
    refusal = ("GetState: error 999", 999, False, [pid])
    assert paper.do(What.LOOK) == Answer(dict.fromkeys(others, AWAY), *refusal)
    assert paper.do(What.BRING) == Answer(dict.fromkeys(others, RUNNING), *refusal)
    assert paper.do(What.TAKE) == Answer(dict.fromkeys(others, RUNNING), *refusal, untouched=True)
    assert not paper.do(What.LOOK).are_all(RUNNING)


@pytest.mark.parametrize("state", [LOCKED, AWAY, FAILED])
def test_processes_one_of_which_was_touched_before_are_not_said_to_be_untouched(state: int) -> None:
    paper = Paper(RUNNING, state, RUNNING)
    paper.silent = {3}
    assert not paper.do(What.TAKE).untouched
    paper.silent = {1, 2, 3}
    assert paper.do(What.TAKE).untouched  # by this step
    assert not paper.do(What.BRING).untouched


# --- the process ---------------------------------------------------------------------------------------------------


def finish(step: Any, seconds: float = 30.0) -> Answer:
    deadline = time.monotonic() + seconds
    while (answer := step.poll(time.monotonic())) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert isinstance(answer, Answer)
    return answer


def stepper(folder: Path) -> Checkpointer:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    return Checkpointer(cast(Any, SimpleNamespace(folder=folder / "pool", environment=environment)))


def test_driver_without_checkpoints_is_refused_for_ever(tmp_path: Path) -> None:
    source = tmp_path / "none.c"
    source.write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source], check=True)
    answer = finish(stepper(tmp_path).begin(What.LOOK, [os.getpid()], time.monotonic() + 30))
    assert (answer.refusal, answer.lasting) == ("this driver has no checkpoints (CUDA 12.8 has, driver 570)", True)


def test_driver_that_hangs_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    source = tmp_path / "hangs.c"
    source.write_text(
        "#include <unistd.h>\nint cuInit(unsigned flags) { for (;;) pause(); }\n"
        "int cuCheckpointProcessCheckpoint(int pid, void *with) { return 0; }\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", tmp_path / "libcuda.so.1", source], check=True)
    began = time.monotonic()
    answer = finish(stepper(tmp_path).begin(What.TAKE, [os.getpid()], began + 1.0))
    assert answer.refusal == "the driver did not answer in time"


def test_folder_that_others_can_enter_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool").chmod(0o777)
    answer = finish(stepper(tmp_path).begin(What.LOOK, [os.getpid()], time.monotonic() + 30))
    assert answer.refusal == f"{tmp_path / 'pool'} is not ours alone"
    assert not (tmp_path / "pool" / "checkpoints").exists()


def test_next_step_for_the_same_process_waits_for_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir(mode=0o700)
    held = (
        "import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); fcntl.lockf(f, fcntl.LOCK_EX, 1, 77)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", held + "; print(flush=True); sys.stdin.read()", tmp_path / "pool" / "checkpoints"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    holder.stdout.readline()
    source = tmp_path / "none.c"
    source.write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", source], check=True)
    waits = stepper(tmp_path).begin(What.LOOK, [77], time.monotonic() + 60)
    assert finish(stepper(tmp_path).begin(What.LOOK, [78], time.monotonic() + 60)).lasting
    assert waits.poll(time.monotonic()) is None
    holder.communicate()
    assert finish(waits).lasting


def test_deadline_grows_with_what_is_moved() -> None:
    assert patience(0) == 20.0
    assert patience(16 << 30) == pytest.approx(20.0 + 2 * (16 << 30) / 1e9)
