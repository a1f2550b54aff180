"""Which end-to-end tests run side by side: those that share a control plane run in one process, one after the other.

The modules of tests/e2e itself need an empty control plane, and every process makes one for all that it is given. The
modules of `node` and `ship` share the nodes of their folder, but for those that make their own. test_image stays with
`ship`: it compiles into the source tree, which the cluster's image is made of.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

HERE = "tests/e2e/"
OWN_PLANE = (
    "node/test_gpu_mem_in_mib.py",
    "node/test_without_cdi.py",
    "ship/test_hami.py",
    "ship/test_registry.py",
    "ship/test_strict_clusters.py",
    "ship/test_takeover.py",
)
# A long one that begins last keeps one process busy while the others have ended. The rest follow by number of tests.
LONGEST_FIRST = (
    "ship",
    "node",
    "node/test_gpu_mem_in_mib.py",
    "test_faults.py",
    "ship/test_hami.py",
    "ship/test_takeover.py",
    "test_two_schedulers.py",
    "test_webhook.py",
    "test_churn.py",
    "test_come_and_go.py",
    "node/test_without_cdi.py",
)


def scope_of(nodeid: str) -> str:
    """What runs in one process with this test: its folder or its module."""
    module = nodeid.partition("::")[0].rpartition(HERE)[2]
    folder = module.rpartition("/")[0]
    return module if module in OWN_PLANE or not folder else folder


class ByPlane(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """The scheduler of `make e2e`."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        longest = next((scope for scope in LONGEST_FIRST if scope in self.workqueue), None)
        if longest is not None:
            self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)
