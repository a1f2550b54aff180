"""One real node and all of the product, on the release of Kubernetes that $KUBERNETES names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.judges import holdings
from testbed.programs.site import Site, started
from testbed.realnodes.nodes import remove_pods
from testbed.registries.images import Registry


@pytest.fixture(scope="session")
def running(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with started(tmp_path_factory.mktemp("site"), registry) as whole:
        yield whole


@pytest.fixture
def site(running: Site) -> Iterator[Site]:
    """The same for one test: in the end no card was given away twice, and nothing is left on the node."""
    yield running
    wrong = holdings.overbooked(running.plane)
    remove_pods(running.plane, [running.node], seconds=90)
    running.agent.until_empty(60)
    assert wrong == []
