"""The chart on a cluster of another release: to the first Pods on a card, and back to nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.build import CannotBuildError
from testbed.cards import QCORE, QMEM
from testbed.cluster import Cluster
from testbed.programs.shipping import install, label, report, uninstall
from testbed.realnodes.nodes import probe

GIB = 1 << 30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        whole = Cluster(tmp_path_factory.mktemp("cluster"))
    except CannotBuildError as error:
        pytest.exit(f"no cluster to ship to: {error}", returncode=1)
    with whole:
        yield whole


def test_from_nothing_by_helm_to_the_first_shared_card_and_back_to_nothing(cluster: Cluster) -> None:
    label(cluster, "qgpu-device-enable=enable")
    install(cluster)
    cluster.apply(probe("first", limits={QCORE: 30, QMEM: 5}), probe("second", limits={QCORE: 30, QMEM: 7}))
    reports = [report(cluster, name, seconds=120) for name in ("first", "second")]
    first, second = (found["env"]["NVIDIA_VISIBLE_DEVICES"] for found in reports)
    assert first == second, "they fit on one card"
    sizes = [[card["total"] for card in found["cuda"]["cards"] if card["uuid"] == first] for found in reports]
    assert sizes == [[5 * GIB], [7 * GIB]]
    cluster.kubectl("delete", "pods", "--all")
    uninstall(cluster)
