"""A release is of one version, of a commit, in the changelog; and its archives follow from their files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from imagebuild import entries, image, readiness, release

VERSION = image.project_version()
CHART = readiness.CHART
PLUGIN = "deploy/dropin/gpushare/device-plugin-ds.yaml"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What says a version, as it is here."""
    programs = ("pyproject.toml", "src/aliquot/__init__.py", f"{CHART}/Chart.yaml")
    for name in (*programs, "deploy/install.yaml", PLUGIN, "examples/seeds/qgpu-manager.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((image.ROOT / name).read_text())
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## Unreleased\n\n## {VERSION} - 2026-11-15\n")
    return tmp_path


def _replace(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def _git(tree: Path, *words: str) -> None:
    named = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", tree, *named, *words], check=True, capture_output=True)


def test_every_place_that_says_the_version_says_the_same() -> None:
    assert readiness.other_versions(image.ROOT, VERSION) == []


@pytest.mark.parametrize(
    ("file", "old", "message"),
    [
        ("src/aliquot/__init__.py", f'__version__ = "{VERSION}"', "src/aliquot/__init__.py: __version__ is"),
        (f"{CHART}/Chart.yaml", f"\nversion: {VERSION}", f"{CHART}/Chart.yaml: version is"),
        (f"{CHART}/Chart.yaml", f"appVersion: {VERSION}", f"{CHART}/Chart.yaml: appVersion is"),
        ("deploy/install.yaml", f"aliquot/aliquot:{VERSION}", "deploy/install.yaml: image is"),
        (PLUGIN, f"aliquot/aliquot:{VERSION}", f"{PLUGIN}: image is"),
    ],
)
def test_a_place_that_says_another_version_is_named(tree: Path, file: str, old: str, message: str) -> None:
    _replace(tree / file, old, old.replace(VERSION, "9.9.9"))

    (sentence,) = readiness.other_versions(tree, VERSION)
    assert sentence == f"{message} 9.9.9, and pyproject.toml's version is {VERSION}: they are one"


@pytest.mark.parametrize("heading", ["## {} - 2026-11-15", "## [{}] - 2026-11-15"])
def test_a_version_with_a_day_in_the_changelog_is_written(tree: Path, heading: str) -> None:
    (tree / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading.format(VERSION)}\n")

    assert readiness.unwritten(tree, VERSION) == []


def test_a_version_that_the_changelog_does_not_know_is_too_early(tree: Path) -> None:
    (sentence,) = readiness.unwritten(tree, "9.9.9")

    assert "no heading `## 9.9.9 - YYYY-MM-DD`" in sentence


def test_a_committed_tree_is_ready_and_a_changed_one_is_not(tree: Path) -> None:
    _git(tree, "init", "--quiet")
    _git(tree, "add", ".")
    _git(tree, "commit", "--quiet", "--message", "all")
    assert readiness.obstacles(tree) == readiness.Obstacles((), ())

    (tree / "more").write_text("")

    assert readiness.uncommitted(tree) == [
        "1 files differ from the last commit: commit them, a release is made of a commit"
    ]


def test_a_tree_without_git_is_too_early(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tree.parent))

    (sentence,) = readiness.uncommitted(tree)
    assert sentence.startswith("git does not know this tree")


def test_the_chart_is_packed_under_its_name_without_what_helm_ignores(tmp_path: Path) -> None:
    folder = tmp_path / "aliquot"
    (folder / "templates").mkdir(parents=True)
    (folder / ".helmignore").write_text("# patterns\n*.orig\n")
    (folder / "Chart.yaml").write_text("name: aliquot\n")
    (folder / "templates" / "a.yaml.orig").write_text("")

    assert set(release.chart(folder)) == {"aliquot/Chart.yaml", "aliquot/.helmignore"}


def test_the_chart_packed_twice_is_the_same() -> None:
    one, other = (entries.packed(release.chart(image.ROOT / CHART), made_at=0) for _ in range(2))

    assert entries.compressed(one) == entries.compressed(other)


def test_every_page_of_the_documents_says_of_which_version_it_is() -> None:
    found = release.documents(image.ROOT, "9.9.9")

    pages = {path: entry.data for path, entry in found.items() if re.search(r"/docs/[^/]*\.md$", path)}
    assert len(pages) > 10
    assert [path for path, text in pages.items() if b"*Aliquot 9.9.9*" not in text] == []


def test_every_link_of_the_documents_leads_somewhere_in_their_archive() -> None:
    found = release.documents(image.ROOT, "9.9.9")
    folders = {str(parent) for path in found for parent in PurePosixPath(path).parents}
    pages = {path: entry.data.decode() for path, entry in found.items() if path.endswith(".md")}
    links = [(path, link) for path, text in pages.items() for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)]

    broken = [link for link in links if "://" not in link[1] and _resolved(*link) not in {*found, *folders}]
    assert len(links) > 50
    assert broken == []


def _resolved(path: str, link: str) -> str:
    parts: list[str] = []
    for part in (PurePosixPath(path).parent / link).parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def test_the_checksums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"wheel")
    (tmp_path / "SHA256SUMS").write_text(release.checksums(tmp_path))

    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=False)
    assert done.returncode == 0
