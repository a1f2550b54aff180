"""Settings of a cluster that apply to all of its Pods and nodes, in all dialects."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aliquot.dialects import gpushare, qgpu, t9k
from aliquot.dialects.gpushare import MemoryUnit
from aliquot.dialects.qgpu import QgpuRules
from aliquot.model.refusal import Invalid

DIALECTS = (qgpu.DIALECT, t9k.DIALECT, gpushare.DIALECT)


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of a cluster. `served` are its dialects: Pods of other dialects are ignored, and nodes offer none of
    their resources. `own_account`: namespace/name of our scheduler's service account, if it has one."""

    qgpu: QgpuRules = QgpuRules.SEED
    gpushare_unit: MemoryUnit = MemoryUnit.GIB
    served: frozenset[str] = frozenset(DIALECTS)
    own_account: str | None = None

    @property
    def whole(self) -> Rules:
        """The same with all dialects: a Pod on a card counts in whatever dialect it requested the card."""
        return self if self.served == frozenset(DIALECTS) else replace(self, served=frozenset(DIALECTS))


DEFAULT_RULES = Rules()


def parse_dialects(text: str | None) -> frozenset[str] | Invalid:
    """Parse `--dialects`: names separated by commas; all dialects without the option."""
    if text is None:
        return frozenset(DIALECTS)
    named = {word.strip() for word in text.split(",")}
    if named <= set(DIALECTS):
        return frozenset(named)
    return Invalid("--dialects", text, f"{', '.join(DIALECTS)}, separated by commas")
