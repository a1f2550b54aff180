"""`aliquot policy oversubscribe`, `park`, `wake` and `run --park` against a daemon with paper cards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aliquot.cli.errors import InputError
from aliquot.cli.options import elastic
from aliquot.cli.options.elastic import check_host_pool
from kit.machines.machine import FOREVER, Machine, paper


@pytest.fixture(scope="module")
def daemon() -> Iterator[Machine]:
    machine = paper("2x24")
    machine.up()
    yield machine
    machine.clear()
    machine.close()


def test_oversubscribe_is_shown_and_books_more_than_the_card(daemon: Machine) -> None:
    said = daemon.aliquot("policy", "oversubscribe", "1.01", "--card", "1")
    assert (said.returncode, said.stdout) == (0, "policy best-effort, release delay auto, oversubscribe 1 1.01\n")
    assert [card["oversubscribe"] for card in daemon.status()["cards"]] == [1.0, 1.01]
    assert daemon.aliquot("policy", "oversubscribe", "1.0").stdout == "policy best-effort, release delay auto\n"


@pytest.mark.parametrize("factor", ["0.5", "9", "nan", "two", "1.5x"])
def test_bad_factor_is_an_error_of_one_line(daemon: Machine, factor: str) -> None:
    said = daemon.aliquot("policy", "oversubscribe", factor)
    assert said.returncode == 2
    assert f"{factor} is not allowed: 1.0 to 8.0, for example 1.5" in said.stderr


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--park", "soon", "--memory", "1"), "--park: soon is not allowed: 0 to 24h, for example 30s"),
        (("--park", "25h", "--memory", "1"), "--park: 25h is not allowed: 0 to 24h, for example 30s"),
        (("--park", "30s"), "--park: 30s is not allowed: whole cards are shared"),
    ],
)
def test_bad_park_is_an_error_and_nothing_runs(daemon: Machine, words: tuple[str, ...], error: str) -> None:
    said = daemon.aliquot("run", *words, "--", *FOREVER)
    assert said.returncode == 2
    assert error in said.stderr
    assert daemon.names() == []


def test_park_and_wake_say_what_is_where_or_why_not(daemon: Machine) -> None:
    daemon.detach("--name", "serve", "--memory", "1", "--park", "30s", "--", *FOREVER)
    daemon.detach("--name", "plain", "--memory", "1", "--", *FOREVER)
    assert [tenant["park_after_seconds"] for tenant in daemon.status()["tenants"]] == [30.0, None]
    for verb in ("park", "wake"):
        said = daemon.aliquot(verb, "serve")
        assert (said.returncode, "on the card" in said.stderr) == (0, True)  # nothing of it was on the card yet
    said = daemon.aliquot("park", "plain", "nobody")
    assert said.returncode == 1
    assert "plain cannot be parked: its class is normal, and it was started without --park" in said.stderr
    assert "nobody" in said.stderr


def test_pool_larger_than_the_machine_is_refused(daemon: Machine) -> None:
    said = daemon.aliquot("up", "--host-pool", "1000000GiB")
    assert said.returncode == 2
    assert "--host-pool: 1000000 GiB is not allowed: at most " in said.stderr
    assert "--host-pool" in daemon.aliquot("up", "--host-pool", "much").stderr


def test_pool_larger_than_its_tmpfs_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "pool_room_mib", lambda: 64)
    monkeypatch.setattr(elastic, "host_memory_mib", lambda: 4096)
    with pytest.raises(
        InputError, match=r"--host-pool: 1 GiB is not allowed: at most 64 MiB, .*remount.*mount the host's"
    ):
        check_host_pool(1024)
    check_host_pool(64)
    check_host_pool(1024, simulated=True)
