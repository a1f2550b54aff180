"""What the watches read again, and when."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aliquot.services.scheduler.settings import Settings
from aliquot.services.scheduler.watches.following import Watches
from kit.clusters.watchobjects import a_cluster, live_node
from kit.values.manifests import MEM


@pytest.mark.parametrize("synced", [False, True])
def test_slices_of_another_driver_have_all_nodes_read_again_also_during_the_first_list(synced: bool) -> None:
    """Nodes of the list's first parts would be offered with cards that the other driver hands out."""

    async def scene() -> None:
        watches = Watches(cast(Any, SimpleNamespace()), a_cluster(), Settings(), None, cast(Any, None))
        if synced:
            watches.nodes.synced.set()
        again = []
        watches.nodes.report_all_again = lambda: again.append("report")  # type: ignore[method-assign]

        async def relist() -> None:
            again.append("list")

        watches.nodes.relist = relist  # type: ignore[method-assign]
        watches._reread_nodes()
        await asyncio.sleep(0)
        assert again == ["report", "list"][: 1 + synced]

    asyncio.run(scene())


def test_another_unit_of_gpu_mem_has_nodes_and_pods_read_again() -> None:
    """A node of gpushare's own plugin has cards as large as the unit says; nodes do not change by themselves."""

    async def scene() -> None:
        watches = Watches(cast(Any, SimpleNamespace()), a_cluster(), Settings(), None, cast(Any, None))
        again: list[str] = []
        watches.nodes.report_all_again = lambda: again.append("nodes")  # type: ignore[method-assign]
        watches.pods.report_all_again = lambda: again.append("pods")  # type: ignore[method-assign]
        sink = watches.nodes._sink
        sink.listing()
        sink.listed(0)
        sink.changed(live_node("n1", labels={}, **{MEM: "16000"}))
        assert sorted(again) == ["nodes", "pods"]

    asyncio.run(scene())
