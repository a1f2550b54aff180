"""What `aliquot run` asks for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.claim import AppClass, Slice
from aliquot.model.device import Card
from aliquot.model.refusal import Invalid
from aliquot.services.machine.requests import RunRequest, never_fits, parse_run_request, readable_name
from kit.machines.machine import cards
from kit.values.anyjson import any_json


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (RunRequest(("x",)), Slice(memory_percent=100, exclusive=True)),
        (RunRequest(("x",), core=30), Slice(memory_percent=30, core_milli=300)),
        (RunRequest(("x",), memory_mib=512), Slice(memory_mib=512)),
        (RunRequest(("x",), memory_mib=512, core=30), Slice(memory_mib=512, core_milli=300)),
        (
            RunRequest(("x",), memory_mib=512, core=30, app_class=AppClass.OFFLINE),
            Slice(memory_mib=512, greedy_milli=300),
        ),
        (RunRequest(("x",), core=30, app_class=AppClass.OFFLINE), Slice(memory_percent=30, greedy_milli=300)),
        (RunRequest(("x",), memory_mib=512, core=30, app_class=AppClass.ONLINE), Slice(memory_mib=512, core_milli=300)),
        (RunRequest(("x",), memory_percent=25), Slice(memory_percent=25)),
        (RunRequest(("x",), memory_percent=25, core=30), Slice(memory_percent=25, core_milli=300)),
    ],
    ids=[
        "nothing is the whole card",
        "core alone is as much memory",
        "memory alone is no quota",
        "both",
        "offline core is greedy",
        "offline core alone",
        "online",
        "a percentage of memory is no quota",
        "a percentage of memory and another of compute",
    ],
)
def test_run_request_slice(ask: RunRequest, expected: Slice) -> None:
    assert ask.slice() == expected


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python", "train.py"), "train"),
        (("/usr/bin/python3.12", "-u", "/a/b/train.py", "--x"), "train"),
        (("python", "-m", "torch.distributed.run", "x.py"), "torch-distributed-run"),
        (("python", "-c", "print('x.y')"), "python"),
        (("torchrun", "--nproc", "2", "pre.train.py"), "pre"),
        (("./serve", "--port", "1"), "serve"),
        (("sh", "-c", "a.b"), "sh"),
        (("…",), "run"),
        (("x" * 99,), "x" * 24),
    ],
)
def test_readable_name_of_command(command: tuple[str, ...], name: str) -> None:
    assert readable_name(command) == name


def test_never_fits_names_the_limit() -> None:
    there = (*cards(1, 24), *cards(2, 80)[1:])
    assert never_fits(RunRequest(("x",), memory_mib=80 * 1024), [there]) is None
    assert never_fits(RunRequest(("x",), memory_mib=81 * 1024), [there]) == Invalid(
        "memory", "81 GiB", "at most 80 GiB: the largest card here"
    )
    assert never_fits(RunRequest(("x",), memory_mib=80 * 1024, gpus=2), [there]) == Invalid(
        "gpus", 2, "at most 1 with 80 GiB each: no more cards are that large"
    )
    assert never_fits(RunRequest(("x",), gpus=3), [there]) == Invalid(
        "gpus", 3, "at most 2: this machine has no more cards"
    )


FIELDS = ("command", "name", "class", "core", "memory_mib", "gpus", "wait", "detach")


@given(st.dictionaries(st.sampled_from(FIELDS), any_json(leaves=5) | st.just(["x"])))
def test_parse_run_request_of_any_json(message: dict[str, Any]) -> None:
    ask = parse_run_request(message)
    if isinstance(ask, RunRequest):
        assert ask.command
        assert ask.core is None or 1 <= ask.core <= 100
        assert ask.gpus >= 1
        ask.claim("uid", "name")
        assert readable_name(ask.command)
    else:
        assert ask.field in {"command", "name", "class", "core", "memory", "gpus", "wait", "detach"}


def test_parse_run_request_shortens_long_command() -> None:
    ask = parse_run_request({"command": ["x" * 10_000] * 1000})
    assert isinstance(ask, RunRequest)
    assert [len(word) for word in ask.command[:3]] == [256, 256, 256]
    assert sum(map(len, ask.command)) <= 1024  # everybody's `ps` has it: a thousand of them must fit into an answer
    assert parse_run_request({"command": ["a", "", "b"] + ["c"] * 100}) == RunRequest(("a", "", "b", *("c" * 61)))


def run_2026(**more: Any) -> RunRequest | Invalid:
    return parse_run_request({"command": ["x"], "rules": "2026", **more})


@pytest.mark.parametrize(
    ("core", "memory", "expected"),
    [
        (30, 1024, (30, 1024, 1)),
        (100, None, (None, None, 1)),
        (200, 1024, (None, None, 2)),  # whole cards come with all their memory
        (160, 61440, (80, 30720, 2)),  # the vendor's example
        (121, None, (60, None, 2)),
    ],
)
def test_run_by_the_rules_of_2026_spreads_its_core_over_cards(
    core: int, memory: int | None, expected: tuple[int | None, int | None, int]
) -> None:
    found = run_2026(core=core, memory_mib=memory)
    assert isinstance(found, RunRequest)
    assert (found.core, found.memory_mib, found.gpus) == expected


def test_core_that_asks_for_more_cards_than_there_are_is_named() -> None:
    request = run_2026(core=250, memory_mib=2048)
    assert isinstance(request, RunRequest)
    refused = never_fits(request, [[Card(0, 24576), Card(1, 24576)]])
    assert refused is not None
    assert (refused.field, refused.value, refused.allowed) == ("core", 250, "at most 200: this machine has 2 cards")


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"core": 33}, "core"),
        ({"core": 200, "gpus": 2}, "gpus"),
        ({"core": 250, "memory_mib": 2}, "memory"),
        ({"core": 200, "class": "offline"}, "core"),
        ({"rules": "2027"}, "rules"),
        ({"rules": 2026}, "rules"),
    ],
)
def test_run_against_the_rules_of_2026_is_refused(more: dict[str, Any], field: str) -> None:
    found = run_2026(**more)
    assert isinstance(found, Invalid)
    assert found.field == field


def test_run_with_core_above_100_names_the_flag_that_allows_it() -> None:
    found = parse_run_request({"command": ["x"], "core": 200})
    assert isinstance(found, Invalid)
    assert "--rules 2026" in found.allowed


@pytest.mark.parametrize(
    ("latency", "app_class", "problem"),
    [
        (0.002, "online", None),
        (10, "online", None),
        (0.0, "online", "0.1ms to 10s"),
        (11, "online", "0.1ms to 10s"),
        (True, "online", "0.1ms to 10s"),
        ("2ms", "online", "0.1ms to 10s"),
        (float("nan"), "online", "0.1ms to 10s"),
        (0.002, "offline", "add --class online"),
    ],
)
def test_latency_of_a_run_request(latency: object, app_class: str, problem: str | None) -> None:
    found = parse_run_request({"command": ["x"], "class": app_class, "latency": latency})
    if problem is None:
        assert isinstance(found, RunRequest)
        assert found.claim("u", "n").latency == latency
    else:
        assert isinstance(found, Invalid)
        assert (found.field, problem in found.allowed) == ("latency", True)
