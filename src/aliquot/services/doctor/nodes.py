"""Do nodes advertise what their labels say, and do their parts agree: objects in, findings out."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from aliquot import dialects
from aliquot.dialects import Rules, dra, elastic, gpushare, hami, kai, native, qgpu, t9k
from aliquot.dialects.nodereading import qgpu_bars_whole_cards
from aliquot.dialects.wire.objects import Amounts, NodeObject
from aliquot.dialects.wire.schedulerconfig import DIALECTS
from aliquot.model.node import Node, NodeNote, NoteKind, Offer
from aliquot.model.numbers.quantity import QuantityError, parse_count
from aliquot.services.doctor.findings import Finding, Level, found, ok
from aliquot.services.doctor.otherplugins import other_plugin_findings
from aliquot.services.explain.snapshot import Snapshot
from aliquot.wording import nodes as words
from aliquot.wording.amounts import memory

# Which resource a node must advertise that is labelled for a way of use, and how the label is taken off.
_ADVERTISED = {
    Offer.QGPU: (qgpu.MEMORY, qgpu.ENABLE_LABEL),
    Offer.T9K_EXCLUSIVE: (t9k.CARDS, t9k.MODE_LABEL),
    Offer.T9K_SHARED: (t9k.PERCENT, t9k.MODE_LABEL),
    Offer.GPUSHARE: (gpushare.MEMORY, gpushare.NODE_LABEL),
    Offer.HAMI: (hami.CARDS, hami.LABEL),
    Offer.HAMI_SHARED: (hami.SHARED, hami.LABEL),
    Offer.KAI: (native.PLACE, kai.LABEL),
}

# What makes a node serve a dialect.
_LABELS = {
    qgpu.DIALECT: f"{qgpu.ENABLE_LABEL}=enable",
    t9k.DIALECT: f"{t9k.ACCELERATOR_LABEL}=nvidia-gpu {t9k.MODE_LABEL}=sgn",
    gpushare.DIALECT: f"{gpushare.NODE_LABEL}=true",
    hami.DIALECT: f"{hami.LABEL}=true",
    kai.DIALECT: f"{kai.LABEL}=true",
}

# Notes of a node whose advertised resources do not say how much memory each card has.
_UNKNOWN = frozenset({NoteKind.NO_CARD_COUNT, NoteKind.NO_MEMORY})

# Labels that are on or off, and how both are written.
_SWITCHES = (
    (qgpu.ENABLE_LABEL, "enable", "disable"),
    (qgpu.MIXED_LABEL, "enable", "disable"),
    (gpushare.NODE_LABEL, "true", "false"),
    (hami.LABEL, "true", "false"),
    (kai.LABEL, "true", "false"),
)


def node_findings(snapshot: Snapshot) -> Iterator[Finding]:
    """All that is wrong with nodes."""
    cluster, rules = snapshot.cluster, snapshot.cluster.rules
    offering = 0
    for name, broken in cluster.reported.unusable.items():
        for invalid in broken:
            what = f"breaks a rule, so it takes no GPU Pods: {invalid.sentence()}"
            yield found("nodes", name, what, "correct it: kubectl edit node NODE")
    for name, obj in snapshot.nodes.items():
        node = cluster.board.node(name)
        if node is None:
            continue
        by_claims = (obj.metadata.labels or {}).get(dra.LABEL) == "true"
        offering += bool(node.cards and (node.offers or by_claims))
        yield from _labels(obj, rules.served)
        if t9k.DIALECT in rules.served:
            yield from _taints(obj)
        if not obj.agent_away:  # while it is away, no card of the node takes Pods, well or not
            yield from _cards(node)
        yield from _inventory(obj, node, rules)
    yield from other_plugin_findings(snapshot)
    if not offering:
        what = "no node offers GPUs in any of the dialects"
        words = [f"`kubectl label node NAME {label}`" for dialect, label in _LABELS.items() if dialect in rules.served]
        yield found(
            "nodes", "the cluster", what, f"label nodes with GPUs, and agents start there: {', or '.join(words)}"
        )
    else:
        yield ok("nodes", f"{offering:,} offer GPUs")


def _labels(node: NodeObject, served: frozenset[str]) -> Iterator[Finding]:
    name, labels = node.metadata.name, node.metadata.labels or {}
    ours = {resource for dialect in served for resource in DIALECTS[dialect]}
    labelled = set(qgpu.offers(labels)) | set(t9k.offers(labels, [])) | set(kai.offers(labels))
    labelled |= {Offer.GPUSHARE} if gpushare.labelled(labels) else set()
    labelled |= hami.OFFERS if hami.labelled(labels) else set()
    if qgpu_bars_whole_cards(labels, served):
        labelled.discard(Offer.T9K_EXCLUSIVE)
        what = "is labelled for whole cards (xgn) and for qGPU: a node of qGPU offers no whole cards"
        fix = f"kubectl label node NODE --overwrite {qgpu.ENABLE_LABEL}=disable; or, to mix both on purpose,"
        yield found("labels", name, what, f"{fix} kubectl label node NODE {native.MIX_LABEL}=true")
    for offer, (resource, label) in _ADVERTISED.items():
        amount = _advertised(node, resource)
        if offer in labelled and resource in ours and not amount:
            has = "does not advertise" if amount is None else "advertises 0 of"
            what = f"is labelled for {offer.value}, but {has} {resource}: the kubelet would reject such Pods"
            fix = "is the node agent (or device plugin) running there? kubectl get pods -A --field-selector"
            fix += f" spec.nodeName=NODE; or take the label off: kubectl label node NODE {label}-"
            yield found("labels", name, what, fix)
    enabled = qgpu.ENABLE_LABEL in labels or Offer.QGPU in labelled
    if qgpu.MEMORY in ours and _advertised(node, qgpu.MEMORY) and not enabled:
        what = f"advertises {qgpu.MEMORY}, but is not labelled for it: qGPU Pods do not go there"
        yield found("labels", name, what, f"kubectl label node NODE {qgpu.ENABLE_LABEL}=enable")
    for label, yes, no in _SWITCHES:
        value = labels.get(label, no)
        if value not in (yes, no):
            what = f'label {label}: "{value}" is neither {yes} nor {no}, and counts as {no}'
            yield found("labels", name, what, f"kubectl label node NODE --overwrite {label}={yes}")
    for resource, mode in ((t9k.CARDS, "xgn"), (t9k.PERCENT, "sgn")):
        if resource in ours and _advertised(node, resource) and t9k.MODE_LABEL not in labels:
            what = f"advertises {resource}, but is not labelled for it: T9k Pods do not go there"
            fix = f"kubectl label node NODE {t9k.ACCELERATOR_LABEL}=nvidia-gpu {t9k.MODE_LABEL}={mode}"
            yield found("labels", name, what, fix)


def _advertised(node: NodeObject, resource: str) -> int | None:
    """How many Pods may have; None where the node does not advertise it, or in an amount that breaks a rule."""
    amounts = {**(node.status.capacity or {}), **(node.status.allocatable or {})}
    try:
        return parse_count(amounts[resource]) if resource in amounts else None
    except QuantityError:
        return None


def _taints(node: NodeObject) -> Iterator[Finding]:
    """The controller does this by itself where it runs and may change nodes."""
    name = node.metadata.name
    change = dialects.taints(node.metadata.labels or {}, node.spec.taints or ())
    for taint in change.add:
        what = f"is labelled xgn, but lacks the taint {taint['key']}: Pods without GPU may fill it"
        fix = f"kubectl taint node NODE {taint['key']}={taint['value']}:{taint['effect']}; the scheduler does it where"
        yield found("taints", name, what, f"{fix} it may patch nodes")
    for taint in change.remove:
        what = f"carries the taint {taint.get('key')} although it is not labelled xgn: Pods stay away"
        yield found("taints", name, what, f"kubectl taint node NODE {taint.get('key')}:{taint.get('effect')}-")


def _cards(node: Node) -> Iterator[Finding]:
    sick = [str(card.index) for card in node.cards if not card.healthy]
    if sick:
        what = f"GPU {', '.join(sick)} of {len(node.cards)} is unhealthy or taken out: new Pods avoid it"
        fix = "kubectl describe node NODE and the kernel's log (dmesg, Xid) say why; after a reset it comes back"
        yield found("cards", node.name, what, fix)


def _advice(note: NodeNote) -> tuple[str, str]:
    """The check that finds what the note of a node with an inventory says, and the fix."""
    if note.kind is NoteKind.OTHER_UNIT:
        fix = "set --memory-unit to the same for scheduler and agents (scheduler.memoryUnit and agent.memoryUnit of the"
        return "memory-unit", f"{fix} chart)"
    if note.kind is NoteKind.UNKNOWN_MODE:
        return "labels", f"kubectl label node NODE --overwrite {gpushare.ACK_LABEL}=share"
    fix = f"kubectl label node NODE {elastic.OVERSUBSCRIBE}=1.5 --overwrite, and agent.hostPool of the chart"
    return "oversubscribe", fix


def _available(obj: NodeObject) -> Amounts:
    """The capacity without resources of which nothing can be had: the kubelet keeps those of a plugin that has left."""
    left = obj.status.allocatable or {}
    return {key: amount for key, amount in (obj.status.capacity or {}).items() if left.get(key) != "0"}


def _inventory(obj: NodeObject, node: Node, rules: Rules) -> Iterator[Finding]:
    """What the agent found against what the kubelet advertises; or what had to be assumed where there is no agent."""
    name, annotations = node.name, obj.metadata.annotations or {}
    if native.INVENTORY not in annotations:
        if node.offers:
            for note in node.notes:
                fix = f"if that is wrong: set annotation {native.INVENTORY}, as the agent will"
                yield Finding("cards", Level.NOTE, (name,), f"had to be guessed: {words.note(note)}", fix)
        return
    for note in node.notes:  # with an inventory nothing about the cards is assumed: these are about its labels
        check, fix = _advice(note)
        yield found(check, name, words.note(note), fix)
    rest = {key: value for key, value in annotations.items() if key != native.INVENTORY}
    metadata = msgspec.structs.replace(obj.metadata, annotations=rest)
    status = msgspec.structs.replace(obj.status, capacity=_available(obj))
    bare = dialects.parse_node(msgspec.structs.replace(obj, metadata=metadata, status=status), rules)
    if not isinstance(bare, Node) or not bare.cards:
        return
    fix = "restart the node agent on NODE, so that it registers with the kubelet again"
    if len(bare.cards) != len(node.cards):
        what = f"the agent found {len(node.cards)} cards, but the kubelet advertises {len(bare.cards)}"
        yield found("cards", name, what, fix)
        return
    if any(note.kind in _UNKNOWN for note in bare.notes):
        return  # no advertised resource says the memory
    if native.COUNTED in annotations and not all(card.usable for card in node.cards):
        return  # the agent leaves cards out of use out of the amount
    has, advertised = sum(card.bookable_mib for card in node.cards), sum(card.memory_mib for card in bare.cards)
    if abs(has - advertised) > 1024 * len(node.cards):
        what = f"the agent found {memory(has)} of GPU memory, but the kubelet advertises {memory(advertised)}"
        yield found("cards", name, what, fix)
