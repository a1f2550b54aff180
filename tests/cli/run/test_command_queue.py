"""Runs that wait for room."""

from __future__ import annotations

import signal

from kit.machines.machine import FOREVER, PATIENCE, Machine, eventually


def test_run_without_memory_and_core_gets_whole_card(machine: Machine) -> None:
    machine.detach("--", *FOREVER)
    machine.detach("--", *FOREVER)
    result = machine.aliquot("run", "--no-wait", "--memory", "1", "--", "true")
    assert result.returncode == 75
    assert result.stderr == "aliquot: no room now: card 0 is in use; 1 other card has no room either\n"


def test_run_prints_position_and_starts_when_room(machine: Machine) -> None:
    blocker = machine.detach("--gpus", "2", "--memory", "20", "--", *FOREVER)
    with machine.begin("run", "--memory", "8", "--", "echo", "first") as first:
        assert first.stderr is not None
        assert first.stderr.readline() == (
            "aliquot: waiting: 1st of 1; card 0 has 4 GiB free, needs 8 GiB; 1 other card has no room either\n"
        )
        with machine.begin("run", "--memory", "9", "--", "echo", "second") as second:
            assert second.stderr is not None
            assert second.stderr.readline().startswith("aliquot: waiting: 2nd of 2; card 0 has 4 GiB free, needs 9 GiB")
            assert first.stderr.readline().startswith("aliquot: waiting: 1st of 2; ")
            machine.aliquot("stop", blocker)
            assert first.communicate(timeout=PATIENCE)[0] == "first\n"
            assert second.communicate(timeout=PATIENCE)[0] == "second\n"


def test_run_prints_position_only_on_change(machine: Machine) -> None:
    blocker = machine.detach("--gpus", "2", "--memory", "14", "--", *FOREVER)
    machine.detach("--memory", "1", "--", *FOREVER)
    with machine.begin("run", "--memory", "20", "--", "echo", "first") as first:
        eventually(lambda: machine.status()["queue"])
        small = machine.detach("--memory", "1", "--", *FOREVER)  # less is free on the card that is not the nearest
        machine.aliquot("stop", small)
        machine.aliquot("stop", blocker)
        assert first.communicate(timeout=PATIENCE)[1] == (
            "aliquot: waiting: 1st of 1; card 1 has 10 GiB free, needs 20 GiB; 1 other card has no room either\n"
        )


def test_run_no_wait_is_refused_with_reason(machine: Machine) -> None:
    machine.detach("--gpus", "2", "--memory", "20", "--core", "80", "--", *FOREVER)
    result = machine.aliquot("run", "--no-wait", "--memory", "8", "--core", "30", "--", "true")
    assert result.returncode == 75
    assert result.stderr == (
        "aliquot: no room now: card 0 has 4 GiB free, needs 8 GiB, and has 20% of its compute free, needs 30%;"
        " 1 other card has no room either\n"
    )


def test_run_timeout_ends_wait(machine: Machine) -> None:
    machine.detach("--gpus", "2", "--", *FOREVER)
    result = machine.aliquot("run", "--timeout", "100ms", "--", "true")
    assert result.returncode == 75
    assert (
        result.stderr.splitlines()[-1]
        == "aliquot: --timeout: no room in time: card 0 is in use; 1 other card has no room either"
    )
    assert machine.status()["queue"] == []


def test_run_ctrl_c_leaves_queue(machine: Machine) -> None:
    machine.detach("--gpus", "2", "--", *FOREVER)
    with machine.begin("run", "--", "true") as process:
        eventually(lambda: machine.status()["queue"])
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    eventually(lambda: not machine.status()["queue"])


def test_run_backfills_without_delaying_big_run(machine: Machine) -> None:
    machine.detach("--memory", "20", "--", *FOREVER)  # card 0
    machine.detach("--memory", "12", "--", *FOREVER)  # card 1
    with machine.begin("run", "--name", "big", "--memory", "20", "--", "true") as big:
        eventually(lambda: machine.status()["queue"])
        assert machine.aliquot("run", "--no-wait", "--memory", "4", "--", "true").returncode == 0  # beside it, card 0
        result = machine.aliquot("run", "--no-wait", "--memory", "8", "--", "true")
        assert (result.returncode, result.stderr) == (
            75,
            "aliquot: no room now: room is reserved for big, which is first\n",
        )
        big.kill()
    eventually(lambda: not machine.status()["queue"])


def test_run_stopped_in_queue_exits_143(machine: Machine) -> None:
    machine.detach("--gpus", "2", "--", *FOREVER)
    with machine.begin("run", "--name", "late", "--", "true") as process:
        eventually(lambda: machine.status()["queue"])
        assert machine.aliquot("stop", "late").stderr == "late: removed from the queue\n"
        assert process.wait(PATIENCE) == 143
