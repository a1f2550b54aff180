"""Settings of a cluster that apply to all of its Pods and nodes, in all dialects."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aliquot.dialects import gpushare, hami, kai, qgpu, t9k
from aliquot.dialects.gpushare import MemoryUnit
from aliquot.dialects.qgpu import QgpuRules
from aliquot.model.refusal import Invalid

DIALECTS = (qgpu.DIALECT, t9k.DIALECT, gpushare.DIALECT)  # those that are served unless others are named
# Whose names are others' unless the cluster's owner names the dialect: nvidia.com/gpu is NVIDIA's plugin's, KAI's
# annotations are its own scheduler's.
ON_REQUEST = (hami.DIALECT, kai.DIALECT)
EVERY = (*DIALECTS, *ON_REQUEST)
ALL = "all"  # stands for DIALECTS


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of a cluster. `served` are its dialects: Pods of other dialects are ignored, and nodes offer none of
    their resources. `own_account`: namespace/name of our scheduler's service account, if it has one."""

    qgpu: QgpuRules = QgpuRules.SEED
    gpushare_unit: MemoryUnit = MemoryUnit.GIB
    served: frozenset[str] = frozenset(DIALECTS)
    own_account: str | None = None
    one_user: bool = False  # on one machine: a Pod's processes are its submitter's; its securityContext does not count
    counted: bool = False  # whether a node of the cluster counts gpu-mem without devices: Pods then need a place

    @property
    def whole(self) -> Rules:
        """The same with all dialects: a Pod on a card counts in every dialect. Those on
        request are others' where they are not served."""
        return self if self.served >= frozenset(DIALECTS) else replace(self, served=self.served | frozenset(DIALECTS))


DEFAULT_RULES = Rules()


def parse_dialects(text: str | None) -> frozenset[str] | Invalid:
    """Parse `--dialects`: names separated by commas; without the option all but those on request."""
    named = {word.strip() for word in (ALL if text is None else text).split(",")}
    if named <= {ALL, *EVERY}:
        return frozenset((named - {ALL}).union(DIALECTS if ALL in named else ()))
    allowed = f"{', '.join(EVERY)}, separated by commas; all is every one but {' and '.join(ON_REQUEST)}"
    return Invalid("--dialects", text, allowed)
