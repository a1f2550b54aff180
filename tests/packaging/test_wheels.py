"""Wheels become files of the image as an installer would put them there."""

from __future__ import annotations

import importlib.util
import marshal
import zipfile
from pathlib import Path

import pytest

from imagebuild import bytecode, wheels
from imagebuild.entries import Entry
from imagebuild.errors import CannotBuildError

SITE = wheels.SITE


def _wheel(folder: Path, files: dict[str, str], name: str = "some-1.0-py3-none-any.whl") -> wheels.Wheel:
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheels.of_file(folder / name)


def test_packages_go_where_debians_python_looks_and_data_where_wheels_say(tmp_path: Path) -> None:
    found = wheels.unpacked(
        _wheel(
            tmp_path, {"some/__init__.py": "", "some-1.0.data/scripts/tool": "", "some-1.0.data/purelib/more.py": ""}
        )
    )

    assert set(found) == {f"{SITE}/some/__init__.py", "usr/bin/tool", f"{SITE}/more.py"}


def test_a_kind_of_data_without_a_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotBuildError, match="headers has no place in the image"):
        wheels.unpacked(_wheel(tmp_path, {"some-1.0.data/headers/some.h": ""}))


def test_a_wheel_is_known_by_its_normal_name(tmp_path: Path) -> None:
    locked = _wheel(tmp_path, {}, "Prometheus_Client-0.2-py3-none-any.whl").locked

    assert (locked.kind, locked.name, locked.version) == ("wheel", "prometheus-client", "0.2")


def test_an_entry_point_becomes_a_program_that_imports_nothing_of_its_surroundings() -> None:
    declared = Entry(data=b"[console_scripts]\nkubectl-x = some.cli:main\n")

    (program,) = wheels.programs({f"{SITE}/some-1.0.dist-info/entry_points.txt": declared}).items()

    assert program[0] == "usr/bin/kubectl-x"
    assert program[1].mode == 0o755
    assert program[1].data.decode().splitlines()[0] == "#!/usr/bin/python3.11 -IB"
    assert "from some.cli import main" in program[1].data.decode()


def _own(version: str) -> dict[str, Entry]:
    return {
        f"{SITE}/aliquot/__init__.py": Entry(data=f'"""A."""\n\n__version__ = "{version}"\n'.encode()),
        f"{SITE}/aliquot-{version}.dist-info/METADATA": Entry(data=f"Name: aliquot\nVersion: {version}\n".encode()),
    }


def test_a_stamped_version_is_in_the_metadata_and_in_the_program() -> None:
    assert wheels.stamped(_own("0.1.0"), was="0.1.0", version="0.1.1") == _own("0.1.1")


def test_a_version_that_is_not_where_it_was_is_not_stamped() -> None:
    with pytest.raises(CannotBuildError, match=r"there is nothing to stamp 0\.3 over"):
        wheels.stamped({f"{SITE}/aliquot/__init__.py": Entry()}, was="0.1.0", version="0.3")


SOURCES = {f"{SITE}/m{number}.py": Entry(data=f"SAID = {{'a', 'b', {number}}}\n".encode()) for number in range(3)}


def test_compiling_the_same_modules_twice_gives_the_same_bytes() -> None:
    assert bytecode.compiled(SOURCES) == bytecode.compiled(SOURCES)


def test_a_compiled_module_is_never_checked_against_its_source() -> None:
    made = bytecode.compiled(SOURCES)[f"{SITE}/__pycache__/m0.cpython-311.pyc"].data

    assert made[:4] == importlib.util.MAGIC_NUMBER
    assert int.from_bytes(made[4:8], "little") == 0b01  # by hash (bit 0), not checked (bit 1): PEP 552


def test_a_compiled_module_reports_its_place_in_the_image() -> None:
    made = bytecode.compiled(SOURCES)[f"{SITE}/__pycache__/m0.cpython-311.pyc"].data

    assert marshal.loads(made[16:]).co_filename == f"/{SITE}/m0.py"
