"""Which end-to-end tests share a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.sides import LONGEST_FIRST, OWN_PLANE, SECOND, scope_of

E2E = Path(__file__).parent.parent / "e2e"


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/e2e/test_binds.py::test_a[x/y]", "test_binds.py"),
        ("tests/e2e/node/test_faults.py::test_a", "node"),
        ("tests/e2e/node/test_doctor.py::test_a[x]", "node, second half"),
        ("tests/e2e/node/test_without_cdi.py::TestA::test_a", "node/test_without_cdi.py"),
        ("tests/e2e/ship/test_install.py::test_a", "ship"),
        ("tests/e2e/ship/test_soak.py::test_a", "ship, second half"),
        ("tests/e2e/ship/test_chart.py::test_a", "ship/test_chart.py"),
        ("tests/e2e/ship/test_hami.py::test_a", "ship/test_hami.py"),
        ("tests/e2e/versions/test_smoke.py::test_a", "versions"),
    ],
)
def test_scope_is_the_folder_its_half_or_the_module(nodeid: str, scope: str) -> None:
    assert scope_of(nodeid) == scope


@pytest.mark.parametrize("module", [*OWN_PLANE, *SECOND])
def test_modules_that_are_named_exist(module: str) -> None:
    assert (E2E / module).is_file()


def test_scopes_that_begin_first_exist() -> None:
    modules = [path.relative_to(E2E.parent.parent).as_posix() for path in E2E.rglob("test_*.py")]
    assert set(LONGEST_FIRST) <= {scope_of(module) for module in modules}


def test_image_compiles_in_the_process_that_makes_the_next_image() -> None:
    assert scope_of("tests/e2e/ship/test_image.py") == scope_of("tests/e2e/ship/test_upgrade.py")


@pytest.mark.parametrize("module", OWN_PLANE)
def test_modules_with_a_plane_of_their_own_use_none_of_their_folder(module: str) -> None:
    text = (E2E / module).read_text()
    for fixture in ("bare", "cluster", "nodes", "whole_fleet", "both", "nodes_plane"):
        used = f"{fixture}: "
        assert used not in text or f"def {fixture}(" in text
