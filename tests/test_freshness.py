"""The built dashboard in the package is the one that web/ says, or `make check` fails."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parent.parent / "web" / "freshness.py"


@pytest.fixture(scope="module")
def freshness() -> ModuleType:
    spec = importlib.util.spec_from_file_location("freshness", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(freshness: ModuleType, tmp_path: Path) -> tuple[Path, Path]:
    """Sources and what was built of them, just now."""
    web, static = tmp_path / "web", tmp_path / "static"
    for file, text in (
        (web / "src" / "main.tsx", "draw()"),
        (web / "package-lock.json", "{}"),
        (static / "index.html", "<html>"),
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (web / freshness.RECORD).write_text(freshness.record(web, static))
    return web, static


def test_static_files_are_fresh_right_after_a_build(freshness: ModuleType, tree: tuple[Path, Path]) -> None:
    assert freshness.trouble(*tree) is None


@pytest.mark.parametrize("changed", ["src/main.tsx", "package-lock.json", "src/new.ts"])
def test_changed_sources_must_be_built_again(freshness: ModuleType, tree: tuple[Path, Path], changed: str) -> None:
    (tree[0] / changed).write_text("draw(more)")
    assert "web/ has changed" in freshness.trouble(*tree)


def test_a_renamed_source_is_a_change(freshness: ModuleType, tree: tuple[Path, Path]) -> None:
    (tree[0] / "src" / "main.tsx").rename(tree[0] / "src" / "start.tsx")
    assert "web/ has changed" in freshness.trouble(*tree)


def test_built_files_are_not_changed_by_hand(freshness: ModuleType, tree: tuple[Path, Path]) -> None:
    (tree[1] / "index.html").write_text("<html lang=en>")
    assert "not what the build wrote" in freshness.trouble(*tree)


def test_tests_and_installed_packages_are_no_sources(freshness: ModuleType, tree: tuple[Path, Path]) -> None:
    for folder in ("tests", "node_modules/preact", "mock"):
        (tree[0] / folder).mkdir(parents=True)
        (tree[0] / folder / "some.ts").write_text("x")
    assert freshness.trouble(*tree) is None


def test_a_build_that_wrote_nothing_down_is_not_trusted(freshness: ModuleType, tree: tuple[Path, Path]) -> None:
    (tree[0] / freshness.RECORD).unlink()
    assert "run make web" in freshness.trouble(*tree)
