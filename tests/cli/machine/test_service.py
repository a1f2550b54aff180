"""`aliquot service`: the unit, and what is asked of systemctl. A stand-in plays systemctl: it writes down its words."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aliquot.adapters.host import systemd
from aliquot.cli.machine import service as module
from aliquot.cli.machine.service import unit
from kit.machines.machine import ALIQUOT, Machine

Service = Callable[..., Result]
SYSTEMCTL = """#!/bin/sh
echo "$*" >> "$0.words"
case "$*" in *is-active*) exit ${ACTIVE:-3};; *restart*) echo "$FAILS" >&2; [ -z "$FAILS" ];; esac
"""
KILL = ("--enforce", "kill", "--enforce-grace", "30000ms")
OPTIONS = (
    "--policy",
    "burst-share",
    "--simulate",
    "2x24GiB",
    "--release-delay",
    "100ms",
    "--listen",
    "0",
    "--control",
    "gate",
    *KILL,
)


@pytest.fixture
def booted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a systemd of straw; the folder of its units."""
    programs, units = tmp_path / "bin", tmp_path / "units"
    programs.mkdir()
    (programs / "systemctl").write_text(SYSTEMCTL)
    (programs / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("ALIQUOT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(systemd, "SYSTEM_RUNS", str(tmp_path))
    monkeypatch.setattr(module, "SYSTEM_FOLDER", str(units))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return units


def service(*words: str) -> Result:
    return CliRunner().invoke(module.service, words)


def asked(units: Path) -> list[str]:
    """What systemctl was asked to change."""
    lines = (units.parent / "bin" / "systemctl.words").read_text().splitlines()
    return [line.removeprefix("--no-pager ") for line in lines if "is-" not in line]


def test_install_writes_enables_and_starts_the_unit_with_the_options_of_up(booted: Path) -> None:
    result = service("install", *OPTIONS)
    assert result.exit_code == 0, result.output
    text = (booted / "aliquot.service").read_text()
    assert f"ExecStart={sys.executable} -P -m aliquot up " in text
    line = next(line for line in text.splitlines() if line.startswith("ExecStart="))
    assert set(OPTIONS) <= set(line.split())
    assert f"Environment=ALIQUOT_HOME={booted.parent}/home\n" in text
    assert asked(booted) == ["daemon-reload", "enable aliquot.service", "restart aliquot.service"]
    assert (booted / "aliquot.service").stat().st_mode & 0o777 == 0o644
    assert os.listdir(booted) == ["aliquot.service"]


def test_install_without_systemd_says_what_to_run(booted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "SYSTEM_RUNS", str(booted / "none"))
    result = service("install")
    assert result.exit_code == 0
    assert f"wrote {booted}/aliquot.service\n" in result.output
    assert "systemctl daemon-reload && systemctl enable aliquot.service && systemctl restart" in result.output
    assert not (booted.parent / "bin" / "systemctl.words").exists()


def test_install_reports_what_systemctl_said(booted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILS", "Job failed")
    result = service("install")
    assert result.exit_code == 1
    assert (
        "systemctl restart aliquot.service failed (1): Job failed; see journalctl -u aliquot.service" in result.output
    )


def test_install_refuses_beside_a_daemon_that_the_unit_did_not_start(
    booted: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALIQUOT_HOME", str(machine.home))
    result = service("install")
    assert result.exit_code == 1
    assert "a daemon already runs" in result.output
    assert not booted.exists()
    monkeypatch.setenv("ACTIVE", "0")  # it is the unit's own: restarted with the new options
    assert service("install").exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--simulate", "x"], "--simulate: x is not allowed"),
        (["--listen", "0.0.0.0:9"], "--token-file"),
        (["--policy", "fair"], "best-effort"),
    ],
)
def test_install_checks_the_options_before_it_writes(booted: Path, words: list[str], said: str) -> None:
    result = service("install", *words)
    assert result.exit_code == 2
    assert said in result.output
    assert not booted.exists()


def test_uninstall_removes_what_install_made(booted: Path) -> None:
    service("install")
    result = service("uninstall")
    assert (result.exit_code, result.output) == (0, f"removed {booted}/aliquot.service\n")
    assert asked(booted)[-2:] == ["disable --now aliquot.service", "daemon-reload"]
    assert os.listdir(booted) == []
    assert service("uninstall").output == f"{booted}/aliquot.service is not there: nothing to remove\n"


def test_status_has_an_exit_code_for_each_state(
    booted: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = service("status")
    assert (result.exit_code, "not installed" in result.output) == (4, True)
    service("install")
    assert service("status").exit_code == 3
    monkeypatch.setenv("ALIQUOT_HOME", str(machine.home))
    result = service("status", "-o", "json")
    assert result.exit_code == 0
    assert json.loads(result.output)["daemon"]["home"] == str(machine.home)


def test_only_root_installs_for_all(booted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for words in (["install"], ["uninstall"]):
        result = service(*words)
        assert result.exit_code == 77
        assert "use sudo, or --user" in result.output
    assert service("install", "--print").exit_code == 0


def test_user_unit_is_in_the_users_folder(booted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(booted))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(booted.parent / "run"))
    (booted.parent / "run" / "systemd").mkdir(parents=True)
    result = service("install", "--user")
    assert "loginctl enable-linger" in result.output
    text = (booted / "systemd" / "user" / "aliquot.service").read_text()
    assert "WantedBy=default.target" in text
    assert "CapabilityBoundingSet" not in text, "a user's systemd may not"
    words = (booted.parent / "bin" / "systemctl.words").read_text()
    assert all(line.startswith("--user ") for line in words.splitlines())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("user", [False, True])
def test_systemd_accepts_the_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: bool) -> None:
    folder = tmp_path / "a b%n$HOME"  # nothing of that is expanded
    folder.mkdir()
    (folder / "python").symlink_to("/bin/true")
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("ALIQUOT_HOME", str(folder))
    path = tmp_path / "aliquot.service"
    path.write_text(unit(["--token-file", str(folder / 'to"ken\\')], user=user))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(["--user"] if user else []), str(path)],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    about_unit = [line for line in done.stderr.splitlines() if "aliquot" in line]
    assert (done.returncode, about_unit) == (0, []), done.stderr


def test_misspelled_subcommand_is_corrected() -> None:
    done = subprocess.run([*ALIQUOT, "service", "instal"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "did you mean install?" in done.stderr) == (2, True)


def test_daemon_notifies_systemd_that_it_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        systemd.notify_ready()
        systemd.notify_ready()  # once is enough
        listener.setblocking(False)
        assert listener.recv(100) == b"READY=1"
        with pytest.raises(BlockingIOError):
            listener.recv(100)
