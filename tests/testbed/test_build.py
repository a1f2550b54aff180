"""Building the testbed: what it says when it cannot."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from testbed import build
from testbed.build import CannotBuildError, binaries


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is built, and only what a test puts there is on the PATH."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("KUBEBUILDER_ASSETS", "CC"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    return build.cache_folder()


def _go(folder: Path, version: str, otherwise: str) -> None:
    """A `go` that tells this version and does the rest as the script says."""
    script = folder / "bin" / "go"
    script.write_text(
        f'#!/bin/sh\nif [ "$1" = version ]; then echo go version {version} linux/amd64; exit; fi\n{otherwise}\n'
    )
    script.chmod(0o755)


def test_build_uses_existing_programs_without_go(empty_cache: Path) -> None:
    empty_cache.mkdir(parents=True)
    (empty_cache / "etcd").touch()
    assert binaries(["etcd"]) == {"etcd": empty_cache / "etcd"}


def test_without_go_the_error_says_what_to_install() -> None:
    with pytest.raises(CannotBuildError, match=r"no `go` on the PATH.*install Go 1\.\d+.*KUBEBUILDER_ASSETS"):
        binaries(["etcd"])


def test_a_go_that_cannot_fetch_a_newer_one_is_named_with_its_version(tmp_path: Path) -> None:
    _go(tmp_path, "go1.19.8", "exit 1")
    with pytest.raises(CannotBuildError, match=r"bin/go is go1\.19; 1\.21 is the oldest"):
        binaries(["etcd"])


def test_modules_that_cannot_be_fetched_are_reported_in_gos_own_words(tmp_path: Path, empty_cache: Path) -> None:
    _go(tmp_path, "go1.26.0", "echo dial tcp: no route to host >&2; exit 1")
    with pytest.raises(CannotBuildError, match=r"fetching the Go modules.*\n.*no route to host\n.*GOPROXY"):
        binaries(["etcd"])
    assert not (empty_cache / "etcd").exists()


def test_each_program_is_built_once_and_progress_shows_which_of_how_many(
    tmp_path: Path, empty_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # $7 is what follows -o: a shell script stands for Go, and writes what it was asked to build.
    _go(tmp_path, "go1.26.0", '[ "$1" = build ] && echo "$8" >"$7"; exit 0')
    assert binaries(["etcd", "kubectl"]) == {"etcd": empty_cache / "etcd", "kubectl": empty_cache / "kubectl"}
    assert (empty_cache / "kubectl").read_text().strip() == "k8s.io/kubernetes/cmd/kubectl"
    printed = capsys.readouterr().err
    assert "[1/2] etcd (1 of 2)" in printed
    assert "[2/2] kubectl (2 of 2)" in printed
    os.unlink(tmp_path / "bin" / "go")
    binaries(["etcd", "kubectl"])
    assert capsys.readouterr().err == ""
    assert sorted(path.name for path in empty_cache.iterdir()) == [".lock", "etcd", "kubectl"]


def test_a_program_that_fails_to_build_leaves_nothing_that_looks_built(tmp_path: Path, empty_cache: Path) -> None:
    _go(tmp_path, "go1.26.0", '[ "$1" = build ] || exit 0; echo half >"$7"; echo undefined: x >&2; exit 1')
    with pytest.raises(CannotBuildError, match=r"etcd \(1 of 1\).*exit code 1:\nundefined: x"):
        binaries(["etcd"])
    assert [path.name for path in empty_cache.iterdir()] == [".lock"]


def test_programs_of_kubebuilder_assets_are_taken_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / "etcd").touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    assert binaries(["etcd"]) == {"etcd": assets / "etcd"}


def test_kubebuilder_assets_that_name_no_folder_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", "/nowhere")
    with pytest.raises(CannotBuildError, match="KUBEBUILDER_ASSETS is '/nowhere', which is no folder"):
        binaries(["etcd"])


def test_an_unknown_program_is_refused_with_those_known() -> None:
    with pytest.raises(CannotBuildError, match=r"no such program: kubelt; known are etcd, .*kubelet"):
        binaries(["kubelt"])


@pytest.mark.parametrize("module", [*build.MODULES, *build.OLDER.values()], ids=lambda module: module.title)
def test_every_program_is_named_in_tools_go(module: build.Module) -> None:
    tools = (module.folder / "tools.go").read_text()
    assert all(f'_ "{package}"' in tools for package in module.packages.values())


def test_programs_of_both_modules_are_kept_apart_by_their_versions(tmp_path: Path, empty_cache: Path) -> None:
    _go(tmp_path, "go1.26.8", '[ "$1" = build ] && echo "$8" >"$7"; exit 0')
    found = binaries(["runc", "kubelet"])
    assert list(found) == ["runc", "kubelet"]
    assert found["kubelet"].parent == empty_cache
    version = r"v\d+\.\d+\.\d+"
    assert re.fullmatch(rf"containerd-{version}-runc-{version}", found["runc"].parent.name)


def test_runc_is_built_with_c_and_the_others_without(tmp_path: Path) -> None:
    _go(tmp_path, "go1.26.8", '[ "$1" = build ] && echo "$CGO_ENABLED" "$CC" >"$7"; exit 0')
    found = binaries(["runc", "ctr"])
    assert found["ctr"].read_text().strip() == "0"
    assert re.fullmatch(r"1 .+ -m ziglang cc", found["runc"].read_text().strip())  # there is no gcc here


@pytest.mark.parametrize("release", ["1.28", "1.32"])
def test_another_release_of_kubernetes_has_the_clusters_programs_of_that_version(release: str) -> None:
    module = build.chosen(release)
    assert module.version("k8s.io/kubernetes").startswith(f"v{release}.")
    assert set(build.NEWEST.packages) - set(module.packages) == {"etcd", "kubectl"}


def test_without_a_release_the_newest_is_chosen() -> None:
    assert build.chosen(None) is build.chosen("") is build.NEWEST


def test_a_release_without_a_folder_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(SystemExit, match=r'KUBERNETES: "1\.30" is not allowed: one of 1\.28, 1\.32, 1\.\d+'):
        build.chosen("1.30")
