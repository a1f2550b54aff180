"""The checks of one machine: what is wrong is found, with what to do, and what is well is not."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aliquot
from aliquot.adapters.gpu import player
from aliquot.adapters.gpu.page import VERSION
from aliquot.adapters.host.home import Home
from aliquot.model.cardstate.control import ControlLevel, ControlReason
from aliquot.model.status.machine import ControlStatus, Status
from aliquot.services.doctor.findings import Finding, Level
from aliquot.services.doctor.machine import machine_findings
from aliquot.services.doctor.machinesite import Entry, MachineSite, _load, look

HOME = Home("/run/aliquot", "/var/lib/aliquot")
GIB = 1 << 30


def a_status(level: str = "hardware", **daemon: Any) -> Status:
    about = {
        "pid": 7,
        "uid": 0,
        "version": aliquot.__version__,
        "simulated": None,
        "dashboard": "http://127.0.0.1:9478/",
    }
    card = {
        "index": 0, "uuid": "GPU-0", "model": "x", "memory_bytes": GIB, "memory_used_bytes": 0,
        "memory_booked_bytes": 0, "core_booked": 0.0, "tenants": 1, "utilisation": None,
    }  # fmt: skip
    share = {
        "index": 0, "uuid": "GPU-0", "exclusive": False, "core": None, "memory_limit_bytes": 1, "state": "running",
        "level": level, "share": None, "memory_used_bytes": 0, "pids": [], "preemptions": 0, "paused_seconds": 0.0,
        "refused_allocations": 0,
    }  # fmt: skip
    tenant = {
        "id": "a", "name": "a", "class": "normal", "uid": 0, "pid": 1, "command": [], "created": 0.0,
        "age_seconds": 0.0, "log": None, "cards": [share],
    }  # fmt: skip
    rules = {"policy": "best-effort", "release_delay_seconds": 0.1}
    whole = {
        "daemon": about | daemon,
        "rules": rules,
        "cards": [card],
        "tenants": [tenant],
        "queue": [],
        "findings": [],
    }
    return msgspec.convert(whole, Status)


def controlled(level: str, reason: str | None) -> Status:
    status = a_status()
    status.cards[0].control = ControlStatus(ControlLevel(level), None if reason is None else ControlReason(reason))
    return status


WELL = MachineSite(
    HOME, 0, status=a_status(), socket_mode=0o666, driver="580.65.06", nvml_cards=1, shim="/opt/libaliquot.so",
    shim_version=VERSION,
    entries=(
        Entry("/run/aliquot", 0o711, 0, GIB, None),
        Entry("/var/lib/aliquot/state.db", 0o600, 0, GIB, None, is_folder=False),
    ),
)  # fmt: skip
ENTRY = WELL.entries[0]


def wrong(site: MachineSite) -> list[Finding]:
    return [finding for finding in machine_findings(site) if finding.level is not Level.OK]


def test_machine_that_is_well_has_a_line_per_check() -> None:
    checks = [finding.check for finding in machine_findings(WELL)]
    assert checks == ["driver", "nvml", "shim", "daemon", "folders", "port", "control"]
    assert wrong(WELL) == []
    simulated = replace(WELL, status=a_status(simulated="1x8GiB"), driver=None, nvml_problem="none", nvml_cards=0)
    assert wrong(simulated) == []


@pytest.mark.parametrize(
    ("change", "check", "said", "fix"),
    [
        ({"driver": None}, "driver", "is not loaded", "nvidia-smi"),
        ({"device_problem": "/dev/nvidiactl: Permission denied"}, "driver", "Permission denied", "group"),
        ({"nvml_problem": "NVML: Driver/library version mismatch"}, "nvml", "mismatch", "reboot"),
        ({"nvml_cards": 0}, "nvml", "no card", "lspci"),
        ({"shim_problem": "wrong ELF class"}, "shim", "without a memory limit", "make native"),
        ({"shim_version": VERSION + 1}, "shim", f"is of version {VERSION + 1}", "install aliquot again"),
        ({"shim_hidden": "/root"}, "shim", "/root is closed", "/opt/aliquot"),
        ({"status": None, "daemon_problem": "it does not answer"}, "daemon", "does not answer", "aliquot up -d"),
        ({"status": a_status(version="0.0.9")}, "daemon", "is version 0.0.9", "systemctl restart"),
        ({"socket_mode": 0o600}, "daemon", "0600", "chmod 666 /run/aliquot/control.sock"),
        ({"home_problem": "too long"}, "folders", "too long", "ALIQUOT_HOME"),
        ({"unmakeable": "cannot be made"}, "folders", "cannot be made", "ALIQUOT_HOME"),
        ({"entries": (replace(ENTRY, mode=0o777),)}, "folders", "can change", "chmod 711 /run/aliquot"),
        ({"entries": (replace(WELL.entries[1], mode=0o644),)}, "folders", "can read", "chmod 600 /var/lib"),
        ({"entries": (replace(ENTRY, mode=0o511),)}, "folders", "cannot write", "chmod 711"),
        ({"entries": (replace(ENTRY, uid=1000),)}, "folders", "belongs to user 1000", "chown 0"),
        ({"entries": (replace(ENTRY, free=1 << 20),)}, "folders", "1 MiB left", "df -h"),
        ({"entries": (replace(ENTRY, inodes=3),)}, "folders", "3 files", "df -i"),
        ({"entries": (replace(ENTRY, read_only=True),)}, "folders", "read-only", "mount it writable"),
        ({"port_problem": "http://x does not answer"}, "port", "does not answer", "aliquot down"),
        ({"status": a_status(level="gate")}, "control", "only between kernels", "MPS"),
        ({"status": controlled("gate", "both_inert")}, "control", "neither time slices nor pauses", "hardware.md"),
    ],
)
def test_each_problem_is_found_with_what_to_do(change: dict[str, Any], check: str, said: str, fix: str) -> None:
    (finding,) = [finding for finding in wrong(replace(WELL, **change)) if finding.check == check]
    assert finding.level is Level.FINDING
    assert said in f"{finding.whom}: {finding.what}"
    assert fix in (finding.advice or "")


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"status": None, "no_daemon": True}, "daemon"),
        ({"status": None, "no_daemon": True, "port_problem": "in use"}, "port"),
        ({"status": a_status(dashboard=None)}, "port"),
        ({"status": a_status(level="none")}, "control"),
    ],
)
def test_what_need_not_be_wrong_is_a_note(change: dict[str, Any], check: str) -> None:
    found = [finding.level for finding in wrong(replace(WELL, **change)) if finding.check == check]
    assert found == [Level.NOTE]


@pytest.mark.parametrize(
    ("reason", "tenants", "said"),
    [
        ("not_tried", 0, "is being proven"),
        ("not_tried", 1, "is proven as soon as the card is idle"),
        ("exclusive", 0, "compute mode"),
        ("inconclusive", 0, "its figures say neither"),
    ],
)
def test_control_that_is_not_proven_yet_says_what_happens(reason: str, tenants: int, said: str) -> None:
    status = controlled("unproven", reason)
    status.cards[0].tenants, status.tenants = tenants, []
    (finding,) = [finding for finding in wrong(replace(WELL, status=status)) if finding.check == "control"]
    assert (finding.level, said in finding.what) == (Level.NOTE, True), finding.what


@given(st.builds(Entry, st.just("/x"), st.integers(0, 0o7777), st.integers(0, 3), st.integers(0, 1 << 40)))
def test_every_finding_of_the_machine_says_what_to_do(entry: Entry) -> None:
    for finding in machine_findings(replace(WELL, entries=(entry,))):
        assert finding.level is Level.OK or finding.advice


def test_shim_is_loaded_and_says_its_version(tmp_path: Path) -> None:
    if not os.path.exists(player.shim()):
        pytest.skip("the libraries are not built")
    assert _load(player.shim()) == (VERSION, None)
    assert _load(f"{player.simulation()}/libsimrm.so") == (0, None), "another library does not say"
    (tmp_path / "broken.so").write_text("x")
    version, problem = _load(str(tmp_path / "broken.so"))
    assert version is None
    assert "broken.so" in (problem or "")
    assert _load(str(tmp_path / "none.so")) == (None, "it is not there")


@pytest.mark.parametrize("below", ["", "/x/y"])
def test_home_that_cannot_be_made_is_found(below: str) -> None:
    with tempfile.NamedTemporaryFile(prefix="alq") as made:  # a short path: pytest's may be too long for sockets
        site = look([Home(f"{made.name}{below}", f"{made.name}{below}")])
        (folders,) = [finding for finding in machine_findings(site) if finding.check == "folders"]
    assert (folders.level, folders.what) == (Level.FINDING, f"cannot be made: {made.name} is not a folder")


def test_look_at_a_home_that_is_not_there(tmp_path: Path) -> None:
    site = look([Home(f"{tmp_path}/x", f"{tmp_path}/x")])
    assert (site.no_daemon, site.entries) == (True, ())


@pytest.mark.parametrize(("level", "reason"), [("proven", None), ("gate", "forced")])
def test_control_that_is_as_wanted_is_well(level: str, reason: str | None) -> None:
    site = replace(WELL, status=controlled(level, reason))
    (finding,) = [finding for finding in machine_findings(site) if finding.check == "control"]
    assert finding.level is Level.OK
    assert finding.what in ("card 0: hardware (proven)", "card 0: gate: as configured")
