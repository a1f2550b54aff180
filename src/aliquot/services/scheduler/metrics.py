"""The scheduler's metrics: base units, prefix aliquot_. Sums over the cluster, not a series per card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import aliquot
from aliquot.model.device import CORE_MILLI
from aliquot.services.daemon.calls import Calls
from aliquot.services.daemon.metrics import expose, of_calls
from aliquot.services.scheduler.cluster import Cluster

_MIB = 1 << 20


def exposition(
    cluster: Cluster, calls: Calls, gauges: dict[str, tuple[str, float]], counters: dict[str, tuple[str, float]]
) -> bytes:
    """What a scrape answers; `gauges` and `counters` are name -> (help, value) of what the parts count themselves."""
    return expose(_families(cluster, calls, gauges, counters))


def _families(
    cluster: Cluster, calls: Calls, gauges: dict[str, tuple[str, float]], counters: dict[str, tuple[str, float]]
) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    yield InfoMetricFamily("aliquot_build", "This scheduler.", {"version": aliquot.__version__})
    yield from of_calls(calls, "aliquot_extender")
    for name, help_text, value in _of_cluster(cluster):
        yield GaugeMetricFamily(name, help_text, value=value)
    for name, (help_text, number) in gauges.items():
        yield GaugeMetricFamily(name, help_text, value=number)
    for name, (help_text, number) in counters.items():
        yield CounterMetricFamily(name, help_text, value=number)


def _of_cluster(cluster: Cluster) -> tuple[tuple[str, str, float], ...]:
    """Name, help and value."""
    board = cluster.board
    here = board.present[: board.rows]
    return (
        ("aliquot_nodes", "Nodes that can take Pods that ask for cards.", int(here.sum())),
        ("aliquot_nodes_unusable", "Nodes that break a rule of their dialect.", len(cluster.reported.unusable)),
        ("aliquot_cards", "Healthy cards.", int(board.cards[: board.rows][here].sum())),
        ("aliquot_cards_memory_bytes", "Memory of all cards.", int(board.memory[: board.rows][here].sum()) * _MIB),
        (
            "aliquot_cards_memory_booked_bytes",
            "Memory given to Pods.",
            int(board.used_memory[: board.rows][here].sum()) * _MIB,
        ),
        (
            "aliquot_cards_core_booked_ratio",
            "Compute given to Pods, in cards.",
            int(board.booked_core(np.flatnonzero(here), slice(None)).sum()) / CORE_MILLI,
        ),
        (
            "aliquot_cards_free_ratio",
            "What is free of all cards, in cards.",
            int(board.free[: board.rows][here].sum()) / 1000,
        ),
        ("aliquot_pods_placed", "Pods with cards on nodes.", len(cluster.placed)),
        ("aliquot_pods_assumed", "Pods sent to a node and not confirmed yet.", len(cluster.assumed)),
        (
            "aliquot_pods_doubtful",
            "Pods whose cards are a guess.",
            sum(cluster.doubt(placed) is not None for placed in cluster.placed.values()),
        ),
        ("aliquot_pods_pending", "Pods that ask for cards and have no node.", len(cluster.pending)),
        (
            "aliquot_pods_waiting",
            "Of those, given up by kube-scheduler for now.",
            sum(pod.refused for pod in cluster.pending.values()),
        ),
        ("aliquot_cards_overbooked", "Cards with more booked than they hold.", _overbooked(cluster)),
    )


def _overbooked(cluster: Cluster) -> int:
    board = cluster.board
    memory = board.memory[: board.rows]
    over = (board.used_memory[: board.rows] > board.limit[: board.rows]) | (board.used_core[: board.rows] > CORE_MILLI)
    return int((over & (memory > 0)).sum())
