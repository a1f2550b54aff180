"""The taint, label and condition that the scheduler maintains on a Node. Pure.

    taint       T9k's, while the labels say xgn; removed together with them (t9k.taints)
    label       qGPU's, if the agent found cards and no label names another dialect; an existing one stays. Never where
                another plugin or DRA driver hands out the cards, unless the node's owner shares them (otherplugins.py).
                Ours goes again if the owner then chooses whole cards (T9k's xgn), which a node of qGPU does not offer
    condition   GPUHealthy, False while a card is unhealthy. A node that never had an unhealthy card gets no such
                condition: it would be thousands of writes without information

Nothing is written that is there already, so a second look is harmless. On a node with invalid labels or annotations
only the taint is maintained: its cards are not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aliquot.dialects import dra, gpushare, hami, kai, native, qgpu, t9k
from aliquot.dialects.nodereading import parse_node, qgpu_bars_whole_cards
from aliquot.dialects.pods import list_at, mapping_at
from aliquot.dialects.rules import DEFAULT_RULES, Rules
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import NodeObject
from aliquot.dialects.wire.otherplugins import may_label
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.device import Card
from aliquot.model.node import Node
from aliquot.model.refusal import Invalid

CONDITION = "GPUHealthy"
_MOST_NAMED = 16


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """An event about a change."""

    reason: str
    message: str
    type: str = "Normal"


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What has to change on a node, in up to two writes: the node and its status are two resources.

    `node` is a merge patch that is valid only for the version it was made from: it replaces the list of taints, because
    taints cannot be merged by key (one key may have two effects). `status` is a strategic merge patch, which leaves
    the conditions of others alone.
    """

    node: JsonView | None = None
    status: JsonView | None = None
    node_events: tuple[NodeEvent, ...] = ()
    status_events: tuple[NodeEvent, ...] = ()
    problems: tuple[Invalid, ...] = ()  # every rule the node violates

    @property
    def needed(self) -> bool:
        """Whether there is anything to write."""
        return self.node is not None or self.status is not None


def may_need_upkeep(
    labels: JsonView,
    annotations: JsonView,
    taints: Sequence[object],
    conditions: Iterable[object],
    *,
    rules: Rules = DEFAULT_RULES,
) -> bool:
    """A quick check without false negatives: 5,000 nodes arrive at once, and nearly all need nothing."""
    return (
        _wants_qgpu_label(labels, annotations, rules)
        or qgpu_bars_whole_cards(labels, rules.served)
        or _may_be_unhealthy(annotations.get(native.INVENTORY))
        or _our_condition(conditions) is not None
        or (t9k.DIALECT in rules.served and _taint_differs(labels, taints))
    )


def _may_be_unhealthy(inventory: object) -> bool:
    """Healthy cards are written without the field."""
    return isinstance(inventory, str) and '"healthy"' in inventory


def _taint_differs(labels: JsonView, taints: Sequence[object]) -> bool:
    if t9k.MODE_LABEL not in labels and not taints:
        return False
    change = t9k.taints(labels, [taint for taint in taints if isinstance(taint, dict)])
    return bool(change.add or change.remove)


def upkeep(
    node: object,
    now: str,
    *,
    rules: Rules = DEFAULT_RULES,
    unhealthy: frozenset[int] = frozenset(),
    drivers: tuple[str, ...] = (),
) -> Upkeep:
    """What the node lacks. `unhealthy`: the cards that a ConfigMap takes out; `drivers`: the DRA drivers of its cards.

    Accepts any JSON, never raises.
    """
    parsed = parse_node(node, rules, unhealthy)
    whole = mapping_at(node, "", [])
    metadata = mapping_at(whole.get("metadata"), "", [])
    labels, annotations = (mapping_at(metadata.get(key), "", []) for key in ("labels", "annotations"))
    patch: JsonObject = {}
    events: list[NodeEvent] = []
    condition: dict[str, str] | None = None
    status_events: tuple[NodeEvent, ...] = ()
    if isinstance(parsed, Node):
        conditions = list_at(mapping_at(whole.get("status"), "", []).get("conditions"), "", [])
        condition, status_events = _condition(parsed.cards, conditions, now)
        free = isinstance(read := read_object(node, NodeObject, "node"), NodeObject) and may_label(read, drivers)
        if parsed.cards and free and _wants_qgpu_label(labels, annotations, rules):
            patch["metadata"] = {"labels": {qgpu.ENABLE_LABEL: "enable"}}
            events.append(
                NodeEvent("LabelAdded", f"{qgpu.ENABLE_LABEL}=enable: the agent found {_number(parsed.cards)}")
            )
    barred = qgpu_bars_whole_cards(labels, rules.served) and labels.get(qgpu.MIXED_LABEL) != "enable"
    if barred and qgpu.ENABLE_LABEL in written_labels(metadata):
        patch["metadata"] = {"labels": {qgpu.ENABLE_LABEL: None}}
        message = f"{qgpu.ENABLE_LABEL}, which was set automatically: label {t9k.MODE_LABEL} is xgn"
        events.append(NodeEvent("LabelRemoved", f"{message}, and a node of qGPU offers no whole cards"))
    present = list_at(mapping_at(whole.get("spec"), "", []).get("taints"), "", [])
    taints = [taint for taint in present if isinstance(taint, dict)]
    change = t9k.taints(labels, taints) if t9k.DIALECT in rules.served else t9k.Taints()
    if change.add or change.remove:
        patch["spec"] = {"taints": [taint for taint in present if taint not in change.remove] + list(change.add)}
        events.append(_taint_event(added=bool(change.add)))
    if patch:
        patch.setdefault("metadata", {})["resourceVersion"] = metadata.get("resourceVersion")
    return Upkeep(
        node=patch or None,
        status={"status": {"conditions": [condition]}} if condition else None,
        node_events=tuple(events),
        status_events=status_events,
        problems=() if isinstance(parsed, Node) else parsed,
    )


def _wants_qgpu_label(labels: JsonView, annotations: JsonView, rules: Rules) -> bool:
    """Whether the node has cards, and no label chooses or rejects a dialect."""
    if qgpu.DIALECT not in rules.served:
        return False
    of_t9k, others = (t9k.MODE_LABEL, t9k.ACCELERATOR_LABEL), (hami.LABEL, kai.LABEL, *dra.LABELS)
    chosen = (qgpu.ENABLE_LABEL, *of_t9k, *gpushare.LABELS, *others)
    return native.INVENTORY in annotations and not any(label in labels for label in chosen)


def written_labels(metadata: JsonView) -> set[str]:
    """The labels that our programs wrote last, by the managedFields. Of any JSON."""
    found: set[str] = set()
    for entry in list_at(metadata.get("managedFields"), "", []):
        managed = mapping_at(entry, "", [])
        if str(managed.get("manager", "")).startswith("aliquot"):
            fields = mapping_at(mapping_at(managed.get("fieldsV1"), "", []).get("f:metadata"), "", [])
            found |= {key.removeprefix("f:") for key in mapping_at(fields.get("f:labels"), "", []) if key != "."}
    return found


def _taint_event(*, added: bool) -> NodeEvent:
    taint = f"{t9k.TAINT['key']}={t9k.TAINT['value']}:{t9k.TAINT['effect']}"
    if added:
        return NodeEvent(
            "TaintAdded", f"{taint}: label {t9k.MODE_LABEL} is xgn, so only Pods that request xgn may run here"
        )
    return NodeEvent("TaintRemoved", f"{taint}: label {t9k.MODE_LABEL} is no longer xgn")


def _condition(
    cards: tuple[Card, ...], present: list[object], now: str
) -> tuple[dict[str, str] | None, tuple[NodeEvent, ...]]:
    """The condition, if it has to change, and the events about the change."""
    unhealthy = [card for card in cards if not card.healthy]
    before = _our_condition(present)
    if before is None and not unhealthy:
        return None, ()
    if unhealthy:
        status, reason = "False", "SickCards"
        message = f"{len(unhealthy)} of {_number(cards)} unhealthy: {_names(unhealthy)}"
    elif cards:
        status, reason, message = "True", "CardsHealthy", f"{_number(cards)}, all healthy"
    else:
        status, reason, message = "Unknown", "NoCards", "no cards are reported on this node any more"
    previous = before or {}
    if (previous.get("status"), previous.get("message")) == (status, message):
        return None, ()
    since = previous.get("lastTransitionTime") if previous.get("status") == status else None
    condition = {
        "type": CONDITION,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": since if isinstance(since, str) else now,
    }
    return condition, (NodeEvent(reason, message, "Normal" if status == "True" else "Warning"),)


def _our_condition(conditions: Iterable[object]) -> JsonView | None:
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
