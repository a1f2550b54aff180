"""NVIDIA's own CDI file: found where people put it, read again when it changes, and never half."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aliquot.adapters.gpu import driverfile
from aliquot.adapters.gpu.driverfile import DriverFile, DriverFileError


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, ...]:
    return tmp_path / "run.yaml", tmp_path / "etc.json"


def test_driverfile_places_have_var_run_before_etc() -> None:
    assert [str(place) for place in driverfile.PLACES] == [
        "/var/run/cdi/nvidia.yaml",
        "/var/run/cdi/nvidia.json",
        "/etc/cdi/nvidia.yaml",
        "/etc/cdi/nvidia.json",
    ]


def test_driverfile_is_read_as_yaml_and_as_json(places: tuple[Path, ...]) -> None:
    places[0].write_text("kind: nvidia.com/gpu\n")
    places[1].write_text('{"kind": "nvidia.com/gpu"}')
    for place in places:
        assert DriverFile(wanted=True, places=(place,)).read() == {"kind": "nvidia.com/gpu"}


def test_driverfile_takes_the_first_that_exists(places: tuple[Path, ...]) -> None:
    places[1].write_text("{kind: second}")
    file = DriverFile(wanted=True, places=places)
    assert file.read() == {"kind": "second"}
    places[0].write_text("{kind: first}")
    assert file.read() == {"kind": "first"}
    places[0].unlink()
    assert file.read() == {"kind": "second"}


def test_driverfile_is_parsed_once_while_it_does_not_change(
    places: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    places[0].write_text("{kind: one}")
    file = DriverFile(wanted=True, places=places)
    first = file.read()
    monkeypatch.setattr("yaml.safe_load", lambda text: pytest.fail("parsed again"))
    assert file.read() is first


def test_driverfile_is_read_again_when_it_is_replaced(places: tuple[Path, ...]) -> None:
    places[0].write_text("{kind: one}")
    file = DriverFile(wanted=True, places=places)
    file.read()
    places[0].write_text("{kind: two}")
    os.utime(places[0], ns=(1, 1))
    assert file.read() == {"kind": "two"}


def test_driverfile_that_is_missing_and_not_wanted_is_none(places: tuple[Path, ...]) -> None:
    assert DriverFile(wanted=False, places=places).read() is None


def test_driverfile_that_is_missing_and_wanted_names_the_command(places: tuple[Path, ...]) -> None:
    with pytest.raises(DriverFileError) as error:
        DriverFile(wanted=True, places=places).read()
    message = str(error.value)
    assert message.startswith("--driver cdi: none of ")
    assert all(str(place) in message for place in places)
    assert "nvidia-ctk cdi generate" in message


@pytest.mark.parametrize("content", [b"{kind: [", b"\xff\xfe\x00"], ids=["no YAML", "no text"])
@pytest.mark.parametrize("wanted", [True, False])
def test_driverfile_that_is_unreadable_is_named(places: tuple[Path, ...], content: bytes, wanted: bool) -> None:
    places[0].write_bytes(content)
    with pytest.raises(DriverFileError, match=f"{places[0]}: cannot be read: [^\n]+$"):
        DriverFile(wanted=wanted, places=places).read()


def test_driverfile_recovers_after_a_bad_file(places: tuple[Path, ...]) -> None:
    places[0].write_text("{kind: [")
    file = DriverFile(wanted=True, places=places)
    with pytest.raises(DriverFileError):
        file.read()
    places[0].write_text("{kind: good}")
    assert file.read() == {"kind": "good"}
