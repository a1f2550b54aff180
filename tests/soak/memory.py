"""How much memory the product's programs have, over the life of each process."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from soak.faults import AGENT, SCHEDULER, running
from testbed.cluster import Cluster

ROLES = {"scheduler": SCHEDULER, "agent": AGENT}


@dataclass(frozen=True, slots=True)
class Sample:
    at: float  # seconds
    rss_mib: float
    files: int  # open


@dataclass(slots=True)
class Life:
    """One process from its start to its end."""

    role: str
    node: str
    pid: int
    samples: list[Sample] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.samples[-1].at - self.samples[0].at

    @property
    def most_mib(self) -> float:
        return max(sample.rss_mib for sample in self.samples)

    def growth(self, begin: float, end: float) -> float | None:
        """MiB from `begin` to `end` by a straight line through the samples; None: it did not live all that time."""
        inside = [sample for sample in self.samples if begin <= sample.at <= end]
        if len(inside) < 5 or inside[0].at > begin + 15 or inside[-1].at < end - 15:
            return None
        mean_at = sum(sample.at for sample in inside) / len(inside)
        mean = sum(sample.rss_mib for sample in inside) / len(inside)
        across = sum((sample.at - mean_at) ** 2 for sample in inside)
        slope = sum((sample.at - mean_at) * (sample.rss_mib - mean) for sample in inside) / across
        return slope * (end - begin)


class Memory:
    """Reads the memory of the product's processes when it is called."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lives: dict[tuple[int, str], Life] = {}

    @property
    def lives(self) -> list[Life]:
        return list(self._lives.values())

    def sample(self, at: float) -> None:
        for node in self._cluster.nodes:
            for role, program in ROLES.items():
                for pid in running(node, program):
                    with contextlib.suppress(OSError, StopIteration):
                        self._take(role, node.name, pid, at)

    def _take(self, role: str, node: str, pid: int, at: float) -> None:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        rss = int(next(line for line in status if line.startswith("VmRSS:")).split()[1]) / 1024
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        life = self._lives.setdefault((pid, started), Life(role, node, pid))
        life.samples.append(Sample(at, rss, len(os.listdir(f"/proc/{pid}/fd"))))
