"""`aliquot usage` on simulated cards: the rows add up, also after the daemon was killed."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aliquot.adapters.host.control import Connection, ask
from aliquot.adapters.host.home import Home
from aliquot.cli.main import cli
from aliquot.cli.usagerows import render
from aliquot.model.status.usage import UsageEntry, UsageReport
from kit.machines.fakedaemon import FakeDaemon
from kit.machines.machine import ALIQUOT, PATIENCE, Machine, eventually

TWO = 2  # cards


@pytest.fixture
def simulated() -> Iterator[Machine]:
    machine = Machine([*ALIQUOT, "up", "--simulate", "2x24GiB", "--listen", "0"])
    yield machine
    machine.aliquot("down")
    machine.close()


def usage(machine: Machine, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(machine.aliquot("usage", "-o", "json", *words).stdout)
    return found


def seconds(answer: dict[str, Any], kind: str) -> float:
    return sum(float(row["gpu_seconds"]) for row in answer["rows"] if row["kind"] == kind)


def cards_on_bill(machine: Machine, kind: str | None = None) -> int:
    """How many cards have rows; `kind`: of that kind. An idle card has its first seconds after a busy one."""
    answer = ask([Home(str(machine.home), str(machine.home))], {"op": "usage"}, PATIENCE)
    return len({entry["uuid"] for entry in answer["entries"] if kind is None or entry["kind"] == kind})


def test_rows_add_up_to_the_time_of_the_cards_across_a_kill_and_a_restart(simulated: Machine) -> None:
    began = time.monotonic()
    simulated.up()
    first = time.monotonic()
    load = ("--", *ALIQUOT, "burn", "load", "--seconds", "600")
    simulated.detach("--name", "train", "--class", "offline", "--core", "50", "--memory", "10", *load)
    eventually(lambda: any(row.get("run") == "train" and row["gpu_seconds"] > 2 for row in usage(simulated)["rows"]))
    eventually(lambda: cards_on_bill(simulated) == TWO)  # what comes before a card's first row is on no bill
    simulated.kill()
    time.sleep(1.0)
    simulated.up()
    eventually(lambda: cards_on_bill(simulated, "unknown") == TWO)

    def lag() -> float:
        """Seconds of a card that are on no row; never negative, which would be time counted twice."""
        before = time.monotonic()
        measured = float(usage(simulated)["card_seconds"]) / TWO
        assert measured <= time.monotonic() - began
        return before - first - measured

    # An idle card's loop looks every two seconds, and its first stretch needs two looks.
    eventually(lambda: lag() < 5.0)
    answer = usage(simulated)
    assert seconds(answer, "unknown") <= TWO * 10.0 + 1e-6
    assert seconds(answer, "unknown") + seconds(answer, "unmeasured") >= TWO * 1.0
    (train,) = (row for row in answer["rows"] if row["run"] == "train")
    assert train["memory_booked_byte_seconds"] >= train["gpu_seconds"] * (10 << 30) * 0.5
    assert train["memory_used_byte_seconds"] > 0


def test_output_is_a_table_or_csv_by_user(simulated: Machine) -> None:
    simulated.up()
    load = ("--", *ALIQUOT, "burn", "load", "--seconds", "600")
    simulated.detach("--name", "a", "--memory", "2", *load)
    eventually(lambda: any(row.get("run") == "a" for row in usage(simulated)["rows"]))
    hardware = simulated.status()["cards"][0]["hardware"]
    assert (hardware["temperature_celsius"], hardware["power_watts"], hardware["sm_clock_hertz"]) == (
        36.0,
        120.0,
        1.98e9,
    )
    assert hardware["encoder_utilisation"] == 0.0
    table = simulated.aliquot("usage", "--since", "7d").stdout.splitlines()
    assert table[0].startswith("since ")
    assert table[1].split()[:4] == ["RUN", "GPU", "TIME", "PART"]
    assert table[-1].split()[0] == "total"
    rows = list(csv.DictReader(io.StringIO(simulated.aliquot("usage", "--by", "user", "-o", "csv").stdout)))
    assert [row["kind"] for row in rows][:2] == ["tenant", "idle"]
    assert rows[0]["user"] == Path.home().owner()


def test_table_leaves_columns_out_on_a_narrow_terminal() -> None:
    entry = UsageEntry("GPU-0", "", "", "train", "", "offline", 0, 90.0, 1.0, 2.0, 3e12, 4e12)
    report = UsageReport(0.0, 100.0, [entry])
    head = [render([report], "run", "table", width).splitlines()[1].split("  ") for width in (None, 50, 20)]
    assert [[name.strip() for name in names if name.strip()] for names in head] == [
        ["RUN", "GPU TIME", "PART", "WAITED", "PREEMPTED", "BOOKED (GiB h)", "USED (GiB h)"],
        ["RUN", "GPU TIME", "PART", "WAITED", "BOOKED (GiB h)"],
        ["RUN", "GPU TIME", "PART"],
    ]
    assert "used_byte" in render([report], "run", "csv", 20)


@pytest.mark.parametrize("since", ["7", "yesterday", "0h", "-1d", ""])
def test_bad_since_says_what_is_allowed(machine: Machine, since: str) -> None:
    result = machine.aliquot("usage", f"--since={since}")
    assert result.returncode == 2
    assert f"{since} is not allowed: a number with a unit, as in 90m, 24h, 7d or 4w" in result.stderr


def test_usage_waits_for_a_large_bill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that adds up many rows is healthy: the command does not advise to kill it after ten seconds."""
    monkeypatch.setenv("ALIQUOT_HOME", str(tmp_path))
    waited: list[float | None] = []
    really = Connection.events

    def events(self: Connection, timeout: float | None) -> Iterator[dict[str, Any]]:
        waited.append(timeout)
        return really(self, timeout)

    monkeypatch.setattr(Connection, "events", events)
    daemon = FakeDaemon(tmp_path, usage={"since": 0.0, "until": 1.0, "entries": []})
    result = CliRunner().invoke(cli, ["usage"])
    daemon.close()
    assert (result.exit_code, waited) == (0, [120.0])
