"""What the options of `aliquot up` set in the daemon."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from aliquot.adapters.gpu import nvml, player
from aliquot.adapters.host import logs
from aliquot.cli.machine.up import up
from aliquot.services.machine import service


@pytest.mark.parametrize(
    ("words", "limit"),
    [([], 64 << 20), (["--log-limit", "256MiB"], 256 << 20), (["--log-limit", "0"], None)],
    ids=["default", "a size", "without a limit"],
)
def test_log_limit_reaches_the_daemon_and_its_own_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], limit: int | None
) -> None:
    (tmp_path / "libaliquot.so").touch()
    monkeypatch.setenv("ALIQUOT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(nvml, "Nvml", Mock())
    monkeypatch.setattr(player, "shim", lambda: str(tmp_path / "libaliquot.so"))
    monkeypatch.setattr(player, "preloadable", lambda home: str(tmp_path))
    monkeypatch.setattr("aliquot.cli.machine.up._check_no_system_daemon", lambda home: None)
    monkeypatch.setattr("aliquot.cli.machine.up._arbiter", Mock())
    monkeypatch.setattr(logs, "start_text_logging", own := Mock())
    monkeypatch.setattr(service, "run_daemon", ran := Mock())
    result = CliRunner().invoke(up, words)
    assert (result.exit_code, result.exception) == (0, None), result.output
    assert ran.call_args.args[0].log_limit == limit
    assert own.call_args.kwargs["limit"] == limit
