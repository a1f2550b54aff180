"""`make check` counts the tree, and refuses what is too large or binary."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from kit.values.chart import ROOT


@pytest.fixture(scope="module")
def ceilings() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ceilings", ROOT / "deploy" / "ceilings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ceilings"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


FILES = {
    "src/aliquot/__main__.py": b"1\n",
    "src/aliquot/model/claim.py": b"1\n2\n",
    "src/aliquot/services/doctor/site.py": b"1\n2\n3\n",
    "src/aliquot/services/__init__.py": b"",
    "src/aliquot/static/index.html": b"1\n",
    "docs/a.md": b"x" * 1500,
    "docs/img/a.png": b"\0",
}


def test_lines_are_counted_by_package(ceilings: ModuleType) -> None:
    found = {name: lines for name, lines in ceilings.packages(FILES).items() if lines}
    assert found == {"(root)": 1, "model": 2, "services/doctor": 3}


@pytest.mark.parametrize(("most", "wrong"), [(6, []), (5, ["src is 1 lines over its ceiling"])])
def test_more_lines_than_the_ceiling_are_refused(ceilings: ModuleType, most: int, wrong: list[str]) -> None:
    said, found = ceilings.report(FILES, [ceilings.Ceiling("src", (".py",), most, "lines")])
    assert said[-1] == f"      6 lines of .py in src, at most {most}"
    assert [line.split(":")[0] for line in found] == wrong


def test_documents_are_weighed(ceilings: ModuleType) -> None:
    assert ceilings.size(ceilings.Ceiling("docs", (".md",), 1, "kB"), FILES) == 2


def test_binary_files_are_refused_unless_they_are_listed(ceilings: ModuleType) -> None:
    files = {**FILES, "py_spy-0.4.3-py3-none-any.whl": b"PK\3\4\0"}
    assert ceilings.binaries(files) == ["py_spy-0.4.3-py3-none-any.whl"]
    assert ceilings.report(files, ())[1] == [
        "py_spy-0.4.3-py3-none-any.whl is a binary file: only docs/img/*.png may be"
    ]
