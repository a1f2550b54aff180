"""What a cluster decides for all of its Pods and nodes, in whatever dialect."""

from __future__ import annotations

from dataclasses import dataclass, replace

from . import gpushare, qgpu, t9k
from .gpushare import MemoryUnit
from .qgpu import QgpuRules

DIALECTS = (qgpu.DIALECT, t9k.DIALECT, gpushare.DIALECT)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a cluster decides for all of its Pods. `served` are the dialects that it speaks: what is asked for in
    another is somebody else's, and nodes offer nothing of it."""

    qgpu: QgpuRules = QgpuRules.SEED
    gpushare_unit: MemoryUnit = MemoryUnit.GIB
    served: frozenset[str] = frozenset(DIALECTS)

    @property
    def whole(self) -> Rules:
        """The same for all dialects: who is on a card counts, in whatever he asked for it."""
        return self if self.served == frozenset(DIALECTS) else replace(self, served=frozenset(DIALECTS))


DEFAULT_RULES = Rules()
