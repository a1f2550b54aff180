"""The product as it is shipped: its image in containers of a cluster that had nothing of it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from testbed.build import CannotBuildError
from testbed.cluster import Cluster
from testbed.judges.traces import Traces, remove, traces, until_gone
from testbed.registries.depot import Depot


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One for all tests. Its logs stay in pytest's folder for the run, to be read after a failure."""
    if os.geteuid():
        pytest.fail("real nodes need root: run as root, or leave them out with --ignore=tests/e2e/ship", pytrace=False)
    try:
        whole = Cluster(tmp_path_factory.mktemp("cluster"))
        with whole:
            yield whole
    except CannotBuildError as error:
        pytest.exit(f"no cluster to ship to: {error}", returncode=1)


@pytest.fixture(scope="session")
def depot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Depot]:
    """An empty registry, to push to."""
    try:
        serving = Depot(tmp_path_factory.mktemp("depot"))
    except CannotBuildError as error:
        pytest.exit(f"no registry to push to: {error}", returncode=1)
    with serving:
        yield serving


@pytest.fixture(scope="session")
def untouched(cluster: Cluster) -> Traces:
    """What the cluster has by itself."""
    return traces(cluster)


@pytest.fixture
def bare(cluster: Cluster, untouched: Traces) -> Iterator[Cluster]:
    """The cluster with nothing of ours on it, as every test leaves it; one that does not, fails, and is tidied up."""
    cluster.heal()
    yield cluster
    cluster.heal()
    found = until_gone(cluster, untouched)
    if found:
        remove(cluster, untouched)
        pytest.fail("left behind:\n  " + "\n  ".join(found), pytrace=False)
