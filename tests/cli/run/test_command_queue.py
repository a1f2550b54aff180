"""Runs that wait for room."""

from __future__ import annotations

import signal

from kit.machine import FOREVER, PATIENCE, Machine, eventually


def test_without_memory_and_core_a_card_is_held_whole(machine: Machine) -> None:
    machine.detach("--", *FOREVER)
    machine.detach("--", *FOREVER)
    said = machine.aliquot("run", "--no-wait", "--memory", "1", "--", "true")
    assert said.returncode == 75
    assert said.stderr == "aliquot: no room now: card 0 is in use; 1 other card has no room either\n"


def test_one_that_waits_says_where_it_stands_and_why_and_starts_when_there_is_room(machine: Machine) -> None:
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


def test_a_line_is_said_again_only_when_it_says_something_else(machine: Machine) -> None:
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


def test_no_wait_is_refused_with_the_reason(machine: Machine) -> None:
    machine.detach("--gpus", "2", "--memory", "20", "--core", "80", "--", *FOREVER)
    said = machine.aliquot("run", "--no-wait", "--memory", "8", "--core", "30", "--", "true")
    assert said.returncode == 75
    assert said.stderr == (
        "aliquot: no room now: card 0 has 4 GiB free, needs 8 GiB, and has 20% of its compute free, needs 30%;"
        " 1 other card has no room either\n"
    )


def test_a_wait_has_an_end_when_one_is_given(machine: Machine) -> None:
    machine.detach("--gpus", "2", "--", *FOREVER)
    said = machine.aliquot("run", "--timeout", "100ms", "--", "true")
    assert said.returncode == 75
    assert (
        said.stderr.splitlines()[-1]
        == "aliquot: --timeout: no room in time: card 0 is in use; 1 other card has no room either"
    )
    assert machine.status()["queue"] == []


def test_ctrl_c_leaves_the_queue(machine: Machine) -> None:
    machine.detach("--gpus", "2", "--", *FOREVER)
    with machine.begin("run", "--", "true") as process:
        eventually(lambda: machine.status()["queue"])
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    eventually(lambda: not machine.status()["queue"])


def test_a_small_run_passes_a_big_one_only_where_it_takes_nothing_from_it(machine: Machine) -> None:
    machine.detach("--memory", "20", "--", *FOREVER)  # card 0
    machine.detach("--memory", "12", "--", *FOREVER)  # card 1
    with machine.begin("run", "--name", "big", "--memory", "20", "--", "true") as big:
        eventually(lambda: machine.status()["queue"])
        assert machine.aliquot("run", "--no-wait", "--memory", "4", "--", "true").returncode == 0  # beside it, card 0
        said = machine.aliquot("run", "--no-wait", "--memory", "8", "--", "true")
        assert (said.returncode, said.stderr) == (
            75,
            "aliquot: no room now: room is reserved for big, which is first\n",
        )
        big.kill()
    eventually(lambda: not machine.status()["queue"])


def test_a_run_that_is_stopped_in_the_queue_ends_with_143(machine: Machine) -> None:
    machine.detach("--gpus", "2", "--", *FOREVER)
    with machine.begin("run", "--name", "late", "--", "true") as process:
        eventually(lambda: machine.status()["queue"])
        assert machine.aliquot("stop", "late").stderr == "late: removed from the queue\n"
        assert process.wait(PATIENCE) == 143
