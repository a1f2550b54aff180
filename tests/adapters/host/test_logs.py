"""Logs: one JSON object per line, with what was decided as data."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from aliquot.adapters.host.logs import start_logging


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_log_line_has_time_level_key_and_fields(capsys: pytest.CaptureFixture[str]) -> None:
    start_logging("info")
    logging.getLogger("x").info("bound %s", "it", extra={"data": {"pod": "ns/p", "cards": [0, 1]}})
    (line,) = lines(capsys)
    assert str(line.pop("ts")).endswith("+00:00")
    assert line == {"level": "info", "msg": "bound it", "pod": "ns/p", "cards": [0, 1]}


def test_log_fields_that_json_does_not_know_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    start_logging("info")
    logging.getLogger("x").warning("odd", extra={"data": {"why": ValueError("a"), "set": {1}}})
    (line,) = lines(capsys)
    assert line["why"] == "a"


def test_a_logged_exception_is_one_line_with_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    start_logging("info")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("x").exception("failed")
    (line,) = lines(capsys)
    assert "ValueError: broken" in str(line["trace"])


def test_log_level_hides_lesser_records(capsys: pytest.CaptureFixture[str]) -> None:
    start_logging("warning")
    logging.getLogger("x").info("quiet")
    logging.getLogger("aiohttp.access").info("GET /")
    assert lines(capsys) == []


@pytest.mark.parametrize("name", ["aiohttp.access", "grpc._cython.cygrpc"])
def test_libraries_do_not_write_a_line_for_every_call(capsys: pytest.CaptureFixture[str], name: str) -> None:
    start_logging("debug")
    logging.getLogger(name).debug("a call")
    assert lines(capsys) == []
