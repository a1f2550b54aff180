"""Logs: one JSON object per line, with what was decided as data."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


def test_daemon_log_is_bounded_while_the_daemon_runs(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    program = (
        "import logging, sys; from aliquot.adapters.host.logs import start_text_logging\n"
        "start_text_logging(with_time=False, path=sys.argv[1], limit=20_000)\n"
        "for number in range(2000): logging.info('line', extra={'data': {'number': number}})\n"
        "print('said on stdout', flush=True)"
    )
    with open(path, "ab") as log:
        subprocess.run([sys.executable, "-c", program, str(path)], stdout=log, stderr=log, check=True)
    older = Path(f"{path}.1")
    assert 0 < path.stat().st_size <= 11_000
    assert 0 < older.stat().st_size <= 11_000
    assert path.read_text().endswith("line number=1999\nsaid on stdout\n")
    last = older.read_text().splitlines()[-1]
    first = path.read_text().splitlines()[0]
    assert int(first.rpartition("=")[2]) == int(last.rpartition("=")[2]) + 1
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_daemon_goes_on_where_its_log_cannot_be_written(tmp_path: Path) -> None:
    program = (
        "import logging, sys; from aliquot.adapters.host.logs import start_text_logging\n"
        "start_text_logging(with_time=False, path=sys.argv[1], limit=1000)\n"
        "for number in range(100): logging.info('line')\n"
        "print('goes on')"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "daemon.log")]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, check=False)
    assert done.stdout == b"goes on\n"


HOSTILE = "a\n2026-11-17 aliquot: forged\r\x1b[2J\x9b31m\u202eb"


def test_text_of_others_neither_begins_a_line_of_the_text_log_nor_steers_a_terminal(tmp_path: Path) -> None:
    code = f"""
import logging
from aliquot.adapters.host.logs import start_text_logging
start_text_logging(with_time=False, path="", limit=None)
logging.warning("key", extra={{"data": {{"why": {HOSTILE!r}}}}})
logging.warning({HOSTILE!r})
try:
    raise ValueError({HOSTILE!r})
except ValueError:
    logging.exception("failed")
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60).stderr.decode()
    found = said.removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in found)
    entries = [line for line in found if not line.startswith("  ")]
    assert [entry.split()[:2] for entry in entries] == [
        ["aliquot:", "key"],
        ["aliquot:", "a\\n2026-11-17"],
        ["aliquot:", "failed"],
    ]


def test_json_log_has_what_cannot_be_encoded_and_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    start_logging("info")
    logging.getLogger("x").warning("odd", extra={"data": {"why": HOSTILE, "half": ["\ud800"]}})
    said = capsys.readouterr().err
    assert said.removesuffix("\n").isprintable()
    line = json.loads(said)
    assert (line["why"], line["half"]) == (HOSTILE, ["?"])
