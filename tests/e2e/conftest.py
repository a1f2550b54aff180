"""The product on a real control plane, which all tests share: `make e2e`."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from e2e.sides import ByPlane, end_clusters, scope_of
from e2e.webhooks import SECRET
from testbed import objects
from testbed.build import CONTROL_PLANE, NODE, CannotBuildError, binaries
from testbed.client import Refused
from testbed.judges.holdings import overbooked
from testbed.plane import ControlPlane, KubeScheduler
from testbed.programs.product import AliquotScheduler
from testbed.programs.wired import Wired
from testbed.proxy import Proxy
from testbed.registries.images import Registry


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByPlane:
    """Tests wait for their control plane much of the time: `make e2e` runs them side by side."""
    return ByPlane(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """The cluster of a folder ends with its last test: it would take a part of the processors until all tests end."""
    try:
        return (yield)
    finally:
        together = hasattr(item.config, "workerinput")  # else the tests of a cluster need not follow each other
        if together and nextitem is not None and scope_of(nextitem.nodeid) != scope_of(item.nodeid):
            end_clusters(item)


@pytest.fixture(scope="session")
def registry() -> Iterator[Registry]:
    """Any image that is pulled from it is the probe."""
    if os.geteuid():
        instead = "--ignore=tests/e2e/node --ignore=tests/e2e/ship"
        pytest.fail(f"real nodes need root: run as root, or leave them out with {instead}", pytrace=False)
    try:
        binaries((*CONTROL_PLANE, *NODE))
        serving = Registry()
    except CannotBuildError as error:
        pytest.exit(f"no real nodes to test on: {error}", returncode=1)
    yield serving
    serving.close()


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for all tests. Its logs stay in pytest's folder for the run, to be read after a failure."""
    try:
        control_plane = ControlPlane(tmp_path_factory.mktemp("plane"))
    except CannotBuildError as error:
        pytest.exit(f"no control plane to test on: {error}", returncode=1)
    with control_plane:
        yield control_plane


@pytest.fixture
def clean(plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane, empty before the test, as every test leaves it empty."""
    yield plane
    plane.start_apiserver()  # a test that stopped it may have failed before it started it again
    objects.remove_all(plane)


@pytest.fixture
def fresh(clean: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane; the keys that a test made are gone after it."""
    yield clean
    with suppress(Refused):
        clean.api("DELETE", SECRET)


@pytest.fixture
def aliquot_scheduler(clean: ControlPlane, tmp_path: Path) -> Iterator[Callable[..., AliquotScheduler]]:
    """Starts `aliquot scheduler` with these arguments, with the admin's kubeconfig unless another is given.

    Those still running are ended after the test, before the objects they look after.
    """
    started: list[AliquotScheduler] = []

    def start(*args: str, kubeconfig: Path | None = None, **more: Any) -> AliquotScheduler:
        name = f"aliquot-scheduler-{len(started) + 1}"
        log = tmp_path / f"{name}.log"
        scheduler = AliquotScheduler(*args, kubeconfig=kubeconfig or clean.kubeconfig, log=log, name=name, **more)
        started.append(scheduler)
        return scheduler

    yield start
    for scheduler in started:
        scheduler.stop()


@pytest.fixture
def kube_scheduler(clean: ControlPlane) -> Iterator[Callable[..., KubeScheduler]]:
    """Starts kube-scheduler with this KubeSchedulerConfiguration (a mapping or a file), or a plain one."""
    started: list[KubeScheduler] = []

    def start(config: Mapping[str, Any] | Path | None = None, name: str = "kube-scheduler") -> KubeScheduler:
        plain = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        scheduler = clean.start_scheduler(plain if config is None else config, name)
        started.append(scheduler)
        return scheduler

    yield start
    for scheduler in started:
        scheduler.stop(patience=3)


@pytest.fixture(scope="module")
def wired(
    plane: ControlPlane, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Wired]:
    """Ours and a kube-scheduler that knows of it, once for a module.

    The module's SCHEDULER_ARGS are given to ours, its EXTENDER to kube-scheduler, over what our file says.
    """
    args: tuple[str, ...] = getattr(request.module, "SCHEDULER_ARGS", ())
    extender: Mapping[str, Any] = getattr(request.module, "EXTENDER", {})
    running = Wired(plane, tmp_path_factory.mktemp("wired"), *args, extender=extender)
    yield running
    running.stop()
    objects.remove_all(plane)


@pytest.fixture
def cluster(wired: Wired) -> Iterator[Wired]:
    """The same for one test. Whatever it did: in the end no card is given away twice, says the API server alone."""
    if not wired.ours.running:  # a test that failed in the middle of a restart
        wired.restart_ours()
    yield wired
    wrong = overbooked(wired.plane)
    wired.tidy()
    assert wrong == []


@pytest.fixture
def proxy(clean: ControlPlane) -> Iterator[Proxy]:
    """A line to the API server that works until a test breaks it."""
    with Proxy(clean) as line:
        yield line
