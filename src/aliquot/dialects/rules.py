"""What a cluster decides for all of its Pods and nodes, in whatever dialect."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aliquot.dialects import gpushare, qgpu, t9k
from aliquot.dialects.gpushare import MemoryUnit
from aliquot.dialects.qgpu import QgpuRules
from aliquot.model.refusal import Invalid

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


def parse_dialects(text: str | None) -> frozenset[str] | Invalid:
    """The dialects that `--dialects` names, separated by commas; all of them without the option."""
    if text is None:
        return frozenset(DIALECTS)
    named = {word.strip() for word in text.split(",")}
    if named <= set(DIALECTS):
        return frozenset(named)
    return Invalid("--dialects", text, f"{', '.join(DIALECTS)}, with commas between")
