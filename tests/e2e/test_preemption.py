"""An important Pod drives lesser ones away only where that frees the cards it needs, and no more of them than that."""

from __future__ import annotations

from typing import Any

from kit.values.manifests import MEM
from testbed import objects
from testbed.gpus import gpushare_node
from testbed.objects import Object, pod
from testbed.programs.wired import Wired


def _pod(name: str, gib: int, *, important: bool = False, **more: Any) -> Object:
    return pod(name, {MEM: gib}, priorityClassName="system-cluster-critical" if important else None, **more)


def _left(cluster: Wired) -> set[str]:
    return {pod["metadata"]["name"] for pod in objects.list_pods(cluster.plane)}


def test_preemption_takes_card_of_lower_priority_pod(cluster: Wired) -> None:
    cluster.create(gpushare_node("n", 8))
    cluster.placed(_pod("lesser", 6))
    assert cluster.placed(_pod("important", 4, important=True)) == [("n", [0])]
    assert _left(cluster) == {"important"}


def test_preemption_evicts_no_pod_without_freeing_a_card(cluster: Wired) -> None:
    """On `halves` there would be 8 GiB, 4 on each of two cards: of no use to a Pod that wants 6 on one."""
    cluster.create(gpushare_node("halves", 8, 8))
    cluster.placed(
        _pod("stays-0", 4, important=True),
        _pod("lesser-0", 4),
        _pod("stays-1", 4, important=True),
        _pod("lesser-1", 4),
    )
    assert cluster.cards("stays-0") == cluster.cards("lesser-0") != cluster.cards("stays-1")
    cluster.create(_pod("important", 6, important=True))
    cluster.waits("important")
    cluster.create(gpushare_node("whole", 8))
    assert cluster.bound("important") == {"important": "whole"}
    assert _left(cluster) == {"important", "stays-0", "stays-1", "lesser-0", "lesser-1"}


def test_preemption_picks_node_where_a_card_is_freed(cluster: Wired) -> None:
    cluster.create(gpushare_node("halves", 8, 8))
    cluster.placed(
        _pod("stays-0", 4, important=True),
        _pod("lesser-0", 4),
        _pod("stays-1", 4, important=True),
        _pod("lesser-1", 4),
    )
    cluster.create(gpushare_node("other", 8))
    cluster.placed(_pod("victim", 8))
    assert cluster.placed(_pod("important", 6, important=True)) == [("other", [0])]
    assert _left(cluster) == {"important", "stays-0", "stays-1", "lesser-0", "lesser-1"}


def test_preemption_evicts_pods_that_share_one_card(cluster: Wired) -> None:
    """kube-scheduler spares the oldest: a and c. What is left of b and d is 4 GiB on each of two cards."""
    cluster.create(gpushare_node("n", 8, 8))
    cluster.placed(_pod("a", 4), _pod("x", 4), _pod("c", 4))
    objects.delete_pod(cluster.plane, "x")
    _started(cluster, "a", 1)
    _started(cluster, "c", 2)
    cluster.placed(_pod("b", 4), _pod("d", 4))
    assert cluster.cards("a") == cluster.cards("b") != cluster.cards("c") == cluster.cards("d")
    _started(cluster, "b", 3)
    _started(cluster, "d", 4)
    cluster.placed(_pod("important", 8, important=True))
    assert _left(cluster) in ({"important", "a", "b"}, {"important", "c", "d"})


def _started(cluster: Wired, name: str, minute: int) -> None:
    """As kubelet would say it."""
    when = f"2026-01-01T12:{minute:02d}:00Z"
    cluster.patch(f"/api/v1/namespaces/default/pods/{name}/status", {"status": {"startTime": when}})
