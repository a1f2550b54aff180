"""What a Node should be given beside what its agent and its people wrote: taint, label, condition. Pure.

    taint       T9k's, where the labels say xgn; taken away with them (t9k.taints)
    label       qGPU's, where the agent found cards and nobody chose another dialect; a label that is there stays
    condition   GPUHealthy, False while a card is sick. A node that never had a sick card has no such condition: it
                would be thousands of writes that say nothing

Nothing is written that is there already, so looking again is harmless. Of a node that breaks a rule only the taint is
kept in order: what its cards are is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aliquot.dialects import gpushare, native, qgpu, t9k
from aliquot.dialects.pods import Json, list_at, mapping_at
from aliquot.dialects.registry import DEFAULT_RULES, Rules, parse_node
from aliquot.model.device import Card
from aliquot.model.node import Node
from aliquot.model.refusal import Invalid

CONDITION = "GPUHealthy"
_MOST_NAMED = 16


@dataclass(frozen=True, slots=True)
class Told:
    """An event that tells of a change."""

    reason: str
    message: str
    type: str = "Normal"


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What has to change on a node. Two writes, for a node and its status are two resources; each None if not needed.

    `node` is a merge patch that holds only for the version it was made from: a list of taints is replaced as a whole,
    and taints cannot be merged by their key, for one key may stand with two effects. `status` is a strategic merge
    patch, which touches no condition but ours.
    """

    node: Mapping[str, Any] | None = None
    status: Mapping[str, Any] | None = None
    told_of_node: tuple[Told, ...] = ()
    told_of_status: tuple[Told, ...] = ()
    problems: tuple[Invalid, ...] = ()  # every rule the node breaks

    @property
    def needed(self) -> bool:
        """Whether there is anything to write."""
        return self.node is not None or self.status is not None


def may_need_upkeep(
    labels: Json,
    annotations: Json,
    taints: Sequence[object],
    conditions: Iterable[object],
    *,
    rules: Rules = DEFAULT_RULES,
) -> bool:
    """A quick look that misses nobody: five thousand nodes come at once, and nearly all are as they should be."""
    return (
        _for_qgpu(labels, annotations, rules)
        or _may_be_sick(annotations.get(native.INVENTORY))
        or _ours(conditions) is not None
        or (t9k.DIALECT in rules.served and _taint_differs(labels, taints))
    )


def _may_be_sick(inventory: object) -> bool:
    """The field is left out of cards that are well."""
    return isinstance(inventory, str) and '"healthy"' in inventory


def _taint_differs(labels: Json, taints: Sequence[object]) -> bool:
    if t9k.MODE_LABEL not in labels and not taints:
        return False
    change = t9k.taints({"metadata": {"labels": labels}, "spec": {"taints": list(taints)}})
    return bool(change.add or change.remove)


def upkeep(
    node: object,
    now: str,
    *,
    rules: Rules = DEFAULT_RULES,
    unhealthy: frozenset[int] = frozenset(),
) -> Upkeep:
    """What the node lacks. `unhealthy` is what a ConfigMap takes out. Never raises on any JSON."""
    parsed = parse_node(node, rules, unhealthy)
    whole = mapping_at(node, "", [])
    metadata = mapping_at(whole.get("metadata"), "", [])
    labels, annotations = (mapping_at(metadata.get(key), "", []) for key in ("labels", "annotations"))
    patch: dict[str, Any] = {}
    told: list[Told] = []
    condition: dict[str, str] | None = None
    of_status: tuple[Told, ...] = ()
    if isinstance(parsed, Node):
        conditions = list_at(mapping_at(whole.get("status"), "", []).get("conditions"), "", [])
        condition, of_status = _condition(parsed.cards, conditions, now)
        if parsed.cards and _for_qgpu(labels, annotations, rules):
            patch["metadata"] = {"labels": {qgpu.ENABLE_LABEL: "enable"}}
            told.append(Told("LabelAdded", f"{qgpu.ENABLE_LABEL}=enable: the agent found {_number(parsed.cards)}"))
    change = t9k.taints(node) if t9k.DIALECT in rules.served else t9k.Taints()
    if change.add or change.remove:
        present = list_at(mapping_at(whole.get("spec"), "", []).get("taints"), "", [])
        patch["spec"] = {"taints": [each for each in present if each not in change.remove] + list(change.add)}
        told.append(_of_taint(added=bool(change.add)))
    if patch:
        patch.setdefault("metadata", {})["resourceVersion"] = metadata.get("resourceVersion")
    return Upkeep(
        node=patch or None,
        status={"status": {"conditions": [condition]}} if condition else None,
        told_of_node=tuple(told),
        told_of_status=of_status,
        problems=() if isinstance(parsed, Node) else parsed,
    )


def _for_qgpu(labels: Json, annotations: Json, rules: Rules) -> bool:
    """Whether nobody has chosen anything for the node, not even against qGPU."""
    if qgpu.DIALECT not in rules.served:
        return False
    chosen = (qgpu.ENABLE_LABEL, t9k.MODE_LABEL, t9k.ACCELERATOR_LABEL, gpushare.NODE_LABEL)
    return native.INVENTORY in annotations and not any(label in labels for label in chosen)


def _of_taint(*, added: bool) -> Told:
    taint = f"{t9k.TAINT['key']}={t9k.TAINT['value']}:{t9k.TAINT['effect']}"
    if added:
        return Told("TaintAdded", f"{taint}: label {t9k.MODE_LABEL} is xgn, so only Pods that need xgn may come")
    return Told("TaintRemoved", f"{taint}: label {t9k.MODE_LABEL} is not xgn any more")


def _condition(
    cards: tuple[Card, ...], present: list[object], now: str
) -> tuple[dict[str, str] | None, tuple[Told, ...]]:
    """The condition as it should be, if it is not, and what to tell of it."""
    sick = [card for card in cards if not card.healthy]
    before = _ours(present)
    if before is None and not sick:
        return None, ()
    if sick:
        status, reason = "False", "SickCards"
        message = f"{len(sick)} of {_number(cards)} sick: {_names(sick)}"
    elif cards:
        status, reason, message = "True", "CardsHealthy", f"{_number(cards)}, none of them sick"
    else:
        status, reason, message = "Unknown", "NoCards", "nothing tells of cards on this node any more"
    was = before or {}
    if (was.get("status"), was.get("message")) == (status, message):
        return None, ()
    since = was.get("lastTransitionTime") if was.get("status") == status else None
    condition = {
        "type": CONDITION,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": since if isinstance(since, str) else now,
    }
    return condition, (Told(reason, message, "Normal" if status == "True" else "Warning"),)


def _ours(conditions: Iterable[object]) -> Json | None:
    for condition in conditions:
        if isinstance(condition, dict) and condition.get("type") == CONDITION:
            return condition
    return None


def _number(cards: tuple[Card, ...]) -> str:
    return f"{len(cards)} card{'s' * (len(cards) != 1)}"


def _names(cards: list[Card]) -> str:
    names = [f"{card.index} ({card.uuid})" if card.uuid else str(card.index) for card in cards[:_MOST_NAMED]]
    more = len(cards) - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
