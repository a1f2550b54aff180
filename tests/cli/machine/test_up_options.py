"""What the options of `aliquot up` set in the daemon, and in the next one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from aliquot.adapters.gpu import nvml, player
from aliquot.adapters.host import logs
from aliquot.adapters.storage.store import Store
from aliquot.cli.machine.running import dashboard_words
from aliquot.cli.machine.up import up
from aliquot.model.status.machine import DaemonStatus
from aliquot.services.dashboard.access import NO_DASHBOARD, Listen
from aliquot.services.machine import service
from aliquot.services.machine.service import Setup
from aliquot.services.machine.settings import keep_options
from kit.machines.machine import ALIQUOT, Machine


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Setup]:
    """Starts a daemon with these words that ends at once; what it was started with."""
    (tmp_path / "libaliquot.so").touch()
    monkeypatch.setenv("ALIQUOT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ALIQUOT_CONTROL", raising=False)
    monkeypatch.setattr(nvml, "Nvml", Mock())
    monkeypatch.setattr(player, "shim", lambda: str(tmp_path / "libaliquot.so"))
    monkeypatch.setattr(player, "preloadable", lambda home: str(tmp_path))
    monkeypatch.setattr("aliquot.cli.machine.up._check_no_system_daemon", lambda home: None)
    monkeypatch.setattr(logs, "start_text_logging", Mock())

    def started(*words: str, **environment: str) -> Setup:
        def run_daemon(setup: Setup) -> None:
            found.append(setup)
            store = Store(setup.home.database, setup.home.tenants)
            keep_options(store, setup.kept_options)
            store.close()

        found: list[Setup] = []
        monkeypatch.setattr(service, "run_daemon", run_daemon)
        result = CliRunner().invoke(up, words, env=environment)
        assert (result.exit_code, result.exception) == (0, None), result.output
        return found[0]

    return started


@pytest.mark.parametrize(
    ("words", "limit"),
    [([], 64 << 20), (["--log-limit", "256MiB"], 256 << 20), (["--log-limit", "0"], None)],
    ids=["default", "a size", "without a limit"],
)
def test_log_limit_reaches_the_daemon_and_its_own_log(
    start: Callable[..., Setup], monkeypatch: pytest.MonkeyPatch, words: list[str], limit: int | None
) -> None:
    monkeypatch.setattr(logs, "start_text_logging", own := Mock())
    assert start(*words).log_limit == limit
    assert own.call_args.kwargs["limit"] == limit


def test_options_of_the_last_daemon_are_those_of_the_next(start: Callable[..., Setup]) -> None:
    words = ["--listen", "9999", "--log-limit", "256MiB", "--keep-usage", "7", "--control", "gate"]
    given = start(*words, "--metrics-names", "qgpu")
    assert given.options == {
        "--listen": "9999",
        "--log-limit": "256MiB",
        "--keep-usage": "7",
        "--metrics-names": "qgpu",
        "--control": "gate",
    }
    again = start()
    assert again.options == given.options
    assert again.listen == Listen("127.0.0.1", 9999, usual=True), "another program may have the port by now"
    assert (again.log_limit, again.usage_days, again.qgpu_names) == (256 << 20, 7, True)
    other = start("--log-limit", "0", "--listen", "0")
    assert (other.log_limit, other.listen.port, other.usage_days) == (None, 0, 7)
    assert start().options == {**given.options, "--listen": "0", "--log-limit": "0"}


def test_variable_for_control_is_not_kept_and_precedes_what_was_set_last(start: Callable[..., Setup]) -> None:
    start("--control", "gate")
    assert start(ALIQUOT_CONTROL="trust").options["--control"] == "trust"
    assert start().options["--control"] == "gate"


def test_token_belongs_to_its_address(start: Callable[..., Setup], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    given = start("--listen", "0.0.0.0:9999", "--token-file", str(token))
    assert start().listen == replace(given.listen, usual=True)
    assert start().options["--token-file"] == str(token)
    assert start("--listen", "9998").listen.token is None
    assert "--token-file" not in start().options


def test_daemon_starts_without_the_token_of_its_last_address(start: Callable[..., Setup], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    start("--listen", "0.0.0.0:9999", "--token-file", str(token))
    token.unlink()
    assert start().listen == NO_DASHBOARD


@pytest.mark.parametrize("stored", ["", "{", '{"control": "of a later release"}', '{"log_limit": "big"}'])
def test_stored_options_that_cannot_be_read_are_not_used(start: Callable[..., Setup], stored: str) -> None:
    setup = start("--log-limit", "256MiB")
    store = Store(setup.home.database, setup.home.tenants)
    store.set("options", stored)
    store.close()
    assert start().log_limit == 64 << 20


def test_damaged_state_is_no_obstacle_to_reading_options(start: Callable[..., Setup]) -> None:
    database = Path(start().home.database)
    database.write_bytes(b"this is no database" * 1000)
    assert start().log_limit == 64 << 20


def test_dashboard_that_a_daemon_lacks_is_explained() -> None:
    assert dashboard_words(DaemonStatus(pid=1, dashboard="http://h/")) == "dashboard on http://h/"
    assert dashboard_words(DaemonStatus(pid=1, options={"--listen": "0"})) == "no dashboard"
    choose = "choose another with --listen"
    for daemon in (DaemonStatus(pid=1, options={}), DaemonStatus(pid=1)):  # the second: of an older release
        assert dashboard_words(daemon) == f"no dashboard: the default port is in use; {choose}"
    words = dashboard_words(DaemonStatus(pid=1, options={"--listen": "99"}))
    assert words == f"no dashboard: daemon.log says why 99, as set last, is not used; {choose}"


def test_killed_daemon_comes_back_with_its_options() -> None:
    machine = Machine([*ALIQUOT, "up", "--simulate", "1x24GiB", "--listen", "0", "--log-limit", "9MiB"])
    try:
        machine.up()
        machine.kill()
        assert machine.aliquot("run", "--", "true").returncode == 0
        options = machine.status()["daemon"]["options"]
        assert (options["--listen"], options["--log-limit"]) == ("0", "9MiB")
    finally:
        machine.aliquot("down")
        machine.daemon = None
        machine.close()
