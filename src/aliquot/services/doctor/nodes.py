"""Do nodes advertise what their labels say, and do their parts agree: objects in, findings out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from aliquot import dialects
from aliquot.dialects import Rules, gpushare, native, qgpu, t9k
from aliquot.dialects.nodes import NodeView, read_node
from aliquot.dialects.wire.schedulerconfig import DIALECTS
from aliquot.model.node import Node, Offer
from aliquot.model.quantity import QuantityError, parse_count
from aliquot.model.refusal import Invalid
from aliquot.services.doctor.findings import Finding, Json, Level, found, ok, part

# Which resource a node must advertise that is labelled for a way of use, and how the label is taken off.
_ADVERTISED = {
    Offer.QGPU: (qgpu.MEMORY, qgpu.ENABLE_LABEL),
    Offer.T9K_EXCLUSIVE: (t9k.CARDS, t9k.MODE_LABEL),
    Offer.T9K_SHARED: (t9k.PERCENT, t9k.MODE_LABEL),
    Offer.GPUSHARE: (gpushare.MEMORY, gpushare.NODE_LABEL),
}

# What makes a node serve a dialect.
_LABELS = {
    qgpu.DIALECT: f"{qgpu.ENABLE_LABEL}=enable",
    t9k.DIALECT: f"{t9k.ACCELERATOR_LABEL}=nvidia-gpu {t9k.MODE_LABEL}=sgn",
    gpushare.DIALECT: f"{gpushare.NODE_LABEL}=true",
}

# Labels that are on or off, and how both are written.
_SWITCHES = (
    (qgpu.ENABLE_LABEL, "enable", "disable"),
    (qgpu.MIXED_LABEL, "enable", "disable"),
    (gpushare.NODE_LABEL, "true", "false"),
)


def node_findings(nodes: Iterable[Json], sick: Mapping[str, frozenset[int]], rules: Rules) -> Iterator[Finding]:
    """All that is wrong with nodes; `sick` are the cards that ConfigMaps take out, by node."""
    offering = 0
    for obj in nodes:
        name = str(part(obj, "metadata", "name"))
        view = read_node(obj)
        node = dialects.parse_node(obj, rules, sick.get(name, frozenset()))
        if isinstance(view, Invalid) or not isinstance(node, Node):
            for broken in (view,) if isinstance(view, Invalid) else node if isinstance(node, tuple) else ():
                what = f"breaks a rule, and so takes no Pods of ours: {broken.sentence()}"
                yield found("nodes", name, what, "correct it: kubectl edit node NODE")
            continue
        offering += bool(node.offers and node.cards)
        yield from _labels(name, view, rules.served)
        if t9k.DIALECT in rules.served:
            yield from _taints(name, obj)
        yield from _cards(name, node)
        yield from _inventory(name, obj, node, rules)
    if not offering:
        what = "no node offers GPUs in any of the dialects"
        words = [f"`kubectl label node NAME {label}`" for dialect, label in _LABELS.items() if dialect in rules.served]
        yield found("nodes", "the cluster", what, f"label those with cards, and agents come: {', or '.join(words)}")
    else:
        yield ok("nodes", f"{offering:,} offer GPUs")


def _labels(name: str, view: NodeView, served: frozenset[str]) -> Iterator[Finding]:
    ours = {resource for dialect in served for resource in DIALECTS[dialect]}
    labelled = set(qgpu.offers(view.labels)) | set(t9k.offers(view.labels, []))
    labelled |= {Offer.GPUSHARE} if view.labels.get(gpushare.NODE_LABEL) == "true" else set()
    for offer, (resource, label) in _ADVERTISED.items():
        amount = _advertised(view, resource)
        if offer in labelled and resource in ours and not amount:
            has = "does not advertise" if amount is None else "advertises 0 of"
            what = f"is labelled for {offer.value}, but {has} {resource}: the kubelet would turn such Pods away"
            fix = "is the node agent (or device plugin) running there? kubectl get pods -A --field-selector"
            fix += f" spec.nodeName=NODE; or take the label off: kubectl label node NODE {label}-"
            yield found("labels", name, what, fix)
    enabled = qgpu.ENABLE_LABEL in view.labels or Offer.QGPU in labelled
    if qgpu.MEMORY in ours and _advertised(view, qgpu.MEMORY) and not enabled:
        what = f"advertises {qgpu.MEMORY}, but is not labelled for it: qGPU Pods do not go there"
        yield found("labels", name, what, f"kubectl label node NODE {qgpu.ENABLE_LABEL}=enable")
    for label, yes, no in _SWITCHES:
        value = view.labels.get(label, no)
        if value not in (yes, no):
            what = f'label {label}: "{value}" is neither {yes} nor {no}, and counts as {no}'
            yield found("labels", name, what, f"kubectl label node NODE --overwrite {label}={yes}")
    for resource, mode in ((t9k.CARDS, "xgn"), (t9k.PERCENT, "sgn")):
        if resource in ours and _advertised(view, resource) and t9k.MODE_LABEL not in view.labels:
            what = f"advertises {resource}, but is not labelled for it: T9k Pods do not go there"
            fix = f"kubectl label node NODE {t9k.ACCELERATOR_LABEL}=nvidia-gpu {t9k.MODE_LABEL}={mode}"
            yield found("labels", name, what, fix)


def _advertised(view: NodeView, resource: str) -> int | None:
    """How many Pods may have; None where it is not advertised. What cannot be read was told as a broken rule."""
    amounts = view.allocatable if resource in view.allocatable else view.capacity
    try:
        return parse_count(amounts[resource]) if resource in amounts else None
    except QuantityError:
        return None


def _taints(name: str, obj: Json) -> Iterator[Finding]:
    """The controller does this by itself where it runs and may change nodes."""
    change = dialects.taints(obj)
    for taint in change.add:
        what = f"is labelled xgn, but lacks the taint {taint['key']}: Pods without GPU may fill it"
        fix = f"kubectl taint node NODE {taint['key']}={taint['value']}:{taint['effect']}; the scheduler does it where"
        yield found("taints", name, what, f"{fix} it may patch nodes")
    for taint in change.remove:
        what = f"carries the taint {taint.get('key')} although it is not labelled xgn: Pods stay away"
        yield found("taints", name, what, f"kubectl taint node NODE {taint.get('key')}:{taint.get('effect')}-")


def _cards(name: str, node: Node) -> Iterator[Finding]:
    sick = [str(card.index) for card in node.cards if not card.healthy]
    if sick:
        what = f"GPU {', '.join(sick)} of {len(node.cards)} is sick or taken out: new Pods avoid it"
        fix = "kubectl describe node NODE and the kernel's log (dmesg, Xid) tell why; after a reset it comes back"
        yield found("cards", name, what, fix)


def _inventory(name: str, obj: Json, node: Node, rules: Rules) -> Iterator[Finding]:
    """What the agent found against what the kubelet advertises; or what had to be assumed where no agent tells."""
    annotations = part(obj, "metadata", "annotations")
    if not isinstance(annotations, dict) or native.INVENTORY not in annotations:
        if node.offers:
            for note in node.notes:
                fix = f"if that is wrong: annotation {native.INVENTORY} tells the cards, as the agent will"
                yield Finding("cards", Level.NOTE, (name,), f"had to be guessed at: {note}", fix)
        return
    rest = {key: value for key, value in annotations.items() if key != native.INVENTORY}
    bare = dialects.parse_node({**obj, "metadata": {**obj["metadata"], "annotations": rest}}, rules)
    if not isinstance(bare, Node) or not bare.cards:
        return
    fix = "restart the node agent on NODE, so that it registers with the kubelet again"
    if len(bare.cards) != len(node.cards):
        what = f"the agent found {len(node.cards)} cards, but the kubelet advertises {len(bare.cards)}"
        yield found("cards", name, what, fix)
        return
    if any("is assumed" in note for note in bare.notes):
        return  # nothing advertised tells the memory
    has, told = (sum(card.memory_mib for card in each.cards) for each in (node, bare))
    if abs(has - told) > 1024 * len(node.cards):
        what = f"the agent found {has // 1024} GiB of GPU memory, but the kubelet advertises {told // 1024} GiB"
        yield found("cards", name, what, fix)
