"""The chart of a release in a registry: pushed, pulled as the same bytes, installed from there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imagebuild import entries, image, release
from kit.values.chart import CHART, Objects
from testbed.build import CannotBuildError, binaries
from testbed.plane import ControlPlane
from testbed.registries.depot import Depot

VERSION = image.project_version()
NAMESPACE = "aliquot-system"
VALUES = ("--set=kubeScheduler.image=kube-scheduler:v1.36.4", "--set=agent.simulate=4x16GiB")
Helm = Callable[..., str]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without nodes."""
    try:
        plane = ControlPlane(tmp_path_factory.mktemp("registry-plane"))
    except CannotBuildError as error:
        pytest.exit(f"no control plane to test on: {error}", returncode=1)
    with plane:
        yield plane


@pytest.fixture(scope="module")
def helm(api: ControlPlane) -> Helm:
    program = binaries(("helm",))["helm"]
    environment = {**os.environ, "KUBECONFIG": str(api.kubeconfig), "HOME": str(api.folder)}

    def run(*words: str | Path) -> str:
        done = subprocess.run(
            [program, *words], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make release` packs it."""
    path = tmp_path_factory.mktemp("chart") / f"aliquot-chart-{VERSION}.tgz"
    path.write_bytes(entries.compressed(entries.packed(release.chart(CHART), made_at=86400)))
    return path


@pytest.fixture(scope="module")
def pushed(helm: Helm, archive: Path, depot: Depot) -> str:
    """Where the chart is then: helm names it by its Chart.yaml, not by its file."""
    helm("push", archive, f"oci://{depot.host}/charts", "--plain-http")
    return f"oci://{depot.host}/charts/aliquot"


def test_what_is_pulled_is_what_was_pushed_byte_for_byte(
    helm: Helm, pushed: str, archive: Path, tmp_path: Path
) -> None:
    helm("pull", pushed, f"--version={VERSION}", "--plain-http", f"--destination={tmp_path}")
    (pulled,) = tmp_path.iterdir()

    assert pulled.name == f"aliquot-{VERSION}.tgz"
    assert pulled.read_bytes() == archive.read_bytes()


def test_installed_from_there_it_makes_what_it_makes_from_its_folder(
    helm: Helm, pushed: str, api: ControlPlane
) -> None:
    where = f"--namespace={NAMESPACE}"
    words = (f"--version={VERSION}", "--plain-http", where, "--create-namespace", "--wait=hookOnly", *VALUES)
    helm("install", "aliquot", pushed, *words)

    made = Objects(helm("get", "manifest", "aliquot", where))
    assert (
        made.all == Objects(helm("template", "aliquot", CHART, where, "--no-hooks", "--kube-version=1.36", *VALUES)).all
    )
    daemons = api.kubectl("get", "daemonsets", "-n", NAMESPACE, "-o", "name").split()
    assert daemons == ["daemonset.apps/aliquot-agent", "daemonset.apps/aliquot-simulated-cards"]
