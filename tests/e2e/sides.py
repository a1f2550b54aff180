"""Which end-to-end tests run side by side: those that share a control plane run in one process, one after the other.

The modules of tests/e2e itself need an empty control plane, and every process makes one for all that it is given. The
modules of `node` and `ship` share the nodes of their folder, but for those that make their own. Each of the two folders
has two such clusters, in two processes: one for the modules of SECOND, one for the rest. test_image and test_upgrade
are in one half: the first compiles into the source tree, of which the second makes the product's next image.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
from xdist.scheduler import LoadScopeScheduling

HERE = "tests/e2e/"
OWN_PLANE = (
    "node/test_gpu_mem_in_mib.py",
    "node/test_without_cdi.py",
    "ship/test_chart.py",
    "ship/test_hami.py",
    "ship/test_registry.py",
    "ship/test_strict_clusters.py",
    "ship/test_takeover.py",
)
# About half of the time of their folder.
SECOND = (
    "node/test_dashboard.py",
    "node/test_doctor.py",
    "node/test_dra.py",
    "node/test_equal_pods.py",
    "node/test_sharing.py",
    "node/test_together.py",
    "ship/test_dropin.py",
    "ship/test_replicas.py",
    "ship/test_soak.py",
    "ship/test_takeover_chart.py",
)
CLUSTERS = ("cluster", "nodes_plane")  # the fixtures of `ship` and `node` on which their others depend
# A long one that begins last keeps one process busy while the others have ended. The rest follow by number of tests.
LONGEST_FIRST = (
    "ship",
    "ship, second half",
    "node",
    "node, second half",
    "test_faults.py",
    "ship/test_hami.py",
    "test_two_schedulers.py",
    "test_churn.py",
    "ship/test_takeover.py",
    "test_webhook_serving.py",
    "test_webhook.py",
    "test_fuzz.py",
    "ship/test_chart.py",
    "node/test_gpu_mem_in_mib.py",
    "node/test_without_cdi.py",
    "test_come_and_go.py",
)


def scope_of(nodeid: str) -> str:
    """What runs in one process with this test: its folder, half of its folder, or its module."""
    module = nodeid.partition("::")[0].rpartition(HERE)[2]
    folder = module.rpartition("/")[0]
    if module in OWN_PLANE or not folder:
        return module
    return f"{folder}, second half" if module in SECOND else folder


def end_clusters(item: pytest.Item) -> None:
    """End what stands for a whole folder, with all that depends on it; a later test would make it again."""
    for name in CLUSTERS:
        for fixture in item.session._fixturemanager.getfixturedefs(name, item) or ():
            if fixture.scope == "session":
                fixture.finish(cast(Any, item)._request)


class ByPlane(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """The scheduler of `make e2e`."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        longest = next((scope for scope in LONGEST_FIRST if scope in self.workqueue), None)
        if longest is not None:
            self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)
