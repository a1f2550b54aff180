"""What was found out about the control of cards: it holds for one boot and one driver, and survives a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.adapters.storage.verdicts import Verdicts
from aliquot.model.cardstate.control import PROVEN, CardControl, ControlLevel, ControlReason

INERT = CardControl(ControlLevel.GATE, ControlReason.SLICES_INERT)


def test_verdicts_are_kept_by_model(tmp_path: Path) -> None:
    first = Verdicts(tmp_path / "control.json", "580.1", "boot-1")
    assert first.of("H200") is None
    first.set("H200", PROVEN)
    first.set("A100", INERT)
    again = Verdicts(tmp_path / "control.json", "580.1", "boot-1")
    assert (again.of("H200"), again.of("A100"), again.of("L4")) == (PROVEN, INERT, None)


@pytest.mark.parametrize(("driver", "boot"), [("610.2", "boot-1"), ("580.1", "boot-2")])
def test_another_driver_or_boot_knows_nothing(tmp_path: Path, driver: str, boot: str) -> None:
    Verdicts(tmp_path / "control.json", "580.1", "boot-1").set("H200", PROVEN)
    later = Verdicts(tmp_path / "control.json", driver, boot)
    assert later.of("H200") is None
    later.set("A100", INERT)
    assert Verdicts(tmp_path / "control.json", driver, boot).of("H200") is None


def test_a_file_that_was_cut_off_or_changed_means_that_nothing_is_known(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    Verdicts(path, "580.1", "boot-1").set("H200", PROVEN)
    whole = path.read_bytes()
    for content in [whole[:end] for end in range(len(whole))] + [b"[]", whole.replace(b"proven", b"perhaps"), b"\xff"]:
        path.write_bytes(content)
        assert Verdicts(path, "580.1", "boot-1").of("H200") is None


def test_a_verdict_holds_in_this_process_where_it_cannot_be_written(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path / "missing" / "control.json", "580.1", "boot-1")
    with pytest.raises(OSError, match="No such file"):
        verdicts.set("H200", PROVEN)
    assert verdicts.of("H200") == PROVEN
