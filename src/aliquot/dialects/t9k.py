"""T9k (TensorStack): whole cards, a percentage of one card's memory, or the whole node.

    resource                              per container          the node's node-alloc-mode
    tensorstack.dev/nvidia-gpu            1 or more cards        xgn
    tensorstack.dev/nvidia-gpu-percent    1..100 of one card     sgn
    tensorstack.dev/nvidia-gpu-node       1, one container only  xgn

A Pod uses one of the three resources. xgn nodes have a taint that keeps other Pods away, and lose it with the label;
the webhook adds the toleration to Pods that need an xgn node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aliquot.dialects.nodes import Capacity, NodeView, advertised, advertised_percent
from aliquot.dialects.podrendering import Words
from aliquot.dialects.pods import Container, Pod, list_at, mapping_at, tolerates, unnamed
from aliquot.model.claim import Claim, ContainerClaim, Slice
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node, NodeNote, Offer
from aliquot.model.refusal import Invalid

DIALECT = "t9k"
CARDS = "tensorstack.dev/nvidia-gpu"
PERCENT = "tensorstack.dev/nvidia-gpu-percent"
NODE = "tensorstack.dev/nvidia-gpu-node"
RESOURCES = (CARDS, PERCENT, NODE)
ANNOTATIONS: tuple[str, ...] = ()

ACCELERATOR_LABEL = "sched.tensorstack.dev/accelerator"
MODE_LABEL = "sched.tensorstack.dev/node-alloc-mode"
LABELS = (ACCELERATOR_LABEL, MODE_LABEL)
_MODES = {"xgn": Offer.T9K_EXCLUSIVE, "sgn": Offer.T9K_SHARED}

TAINT = {"key": "sched.tensorstack.dev/xgn-mode", "value": "true", "effect": "NoSchedule"}

_ALLOWED = {
    CARDS: "a whole number of cards, at least 1",
    PERCENT: "1 to 100 percent of one card's memory",
    NODE: "1: a Pod takes one whole node",
}
_MOST = {CARDS: 10**9, PERCENT: 100, NODE: 1}


def first_mention(pod: Pod) -> str | None:
    """The first field in which the Pod uses this dialect."""
    return pod.first_mention(RESOURCES)


def parse_pod(pod: Pod) -> Claim | list[Invalid]:
    """The claim of a Pod of this dialect, or every rule it violates."""
    asking = pod.asking(*RESOURCES)
    problems = unnamed(asking)
    containers = []
    for container in asking:
        for resource in RESOURCES:
            count = container.count(resource, problems, allowed=_ALLOWED[resource], most=_MOST[resource])
            if count is not None:
                containers.append(_claim(container, resource, count))
    problems += _mixed(asking) + _second_node(asking)
    if problems:
        return problems
    shared = asking[0].asks(PERCENT)
    offer = Offer.T9K_SHARED if shared else Offer.T9K_EXCLUSIVE
    return pod.claim(DIALECT, offer, containers, whole_node=asking[0].asks(NODE))


def _claim(container: Container, resource: str, count: int) -> ContainerClaim:
    if resource == PERCENT:
        return container.claim(Slice(memory_percent=count))
    whole = Slice(memory_percent=100, exclusive=True)
    return container.claim(whole, None if resource == NODE else count)


def _mixed(asking: list[Container]) -> list[Invalid]:
    """Whole cards, percentages and whole nodes are on different nodes."""
    mentions = [(container, resource) for container in asking for resource in RESOURCES if container.asks(resource)]
    first, used = mentions[0]
    allowed = f"one kind of request per Pod: {first.field(used)} already requests {used}"
    return [
        Invalid(container.field(resource), container.value(resource), allowed)
        for container, resource in mentions
        if resource != used
    ]


def _second_node(asking: list[Container]) -> list[Invalid]:
    whole = [container for container in asking if container.asks(NODE)]
    return [
        Invalid(
            container.field(NODE),
            container.value(NODE),
            f"only one container per Pod: {whole[0].field(NODE)} already has it",
        )
        for container in whole[1:]
    ]


def words(claim: Claim) -> Words:
    """The claim in the words of this dialect."""
    return Words({container.name: _spell(container) for container in claim.containers}, {})


def _spell(container: ContainerClaim) -> dict[str, int]:
    if container.count is None:
        return {NODE: 1}
    if container.slice.exclusive:
        return {CARDS: container.count}
    return {PERCENT: int(container.slice.memory_percent)}


def offers(labels: JsonView, problems: list[Invalid]) -> frozenset[Offer]:
    """What the node's labels offer; AMD and Huawei accelerators offer nothing of ours."""
    mode = labels.get(MODE_LABEL)
    if mode is None:
        return frozenset()
    if not isinstance(mode, str) or mode not in _MODES:
        problems.append(Invalid(f'metadata.labels["{MODE_LABEL}"]', mode, "xgn (exclusive) or sgn (shared)"))
        return frozenset()
    return frozenset({_MODES[mode]}) if labels.get(ACCELERATOR_LABEL) == "nvidia-gpu" else frozenset()


ENABLED_BY = {offer: f"labels {ACCELERATOR_LABEL}=nvidia-gpu and {MODE_LABEL}={mode}" for mode, offer in _MODES.items()}


def capacity(node: NodeView, notes: list[NodeNote], problems: list[Invalid]) -> Capacity:
    """The number of cards according to nvidia-gpu or nvidia-gpu-percent. Neither gives their memory."""
    cards = advertised(CARDS, node.count(CARDS, problems))
    return Capacity(cards or advertised_percent(PERCENT, node.count(PERCENT, problems), notes))


def amounts(card: Card, offers: frozenset[Offer]) -> dict[str, int]:
    """What the card adds to the node's resources, by the node's mode."""
    return {
        **({CARDS: 1} if Offer.T9K_EXCLUSIVE in offers else {}),
        **({PERCENT: int(100 * card.oversubscribe)} if Offer.T9K_SHARED in offers else {}),
    }


def amounts_of_node(offers: frozenset[Offer]) -> dict[str, int]:
    """The resources of the node as a whole, independent of its cards."""
    return {NODE: 1} if Offer.T9K_EXCLUSIVE in offers else {}


@dataclass(frozen=True, slots=True)
class Taints:
    """What has to change on a node: the taints it should get and those it should lose."""

    add: tuple[dict[str, str], ...] = ()
    remove: tuple[JsonObject, ...] = ()  # as on the node


def taints(labels: JsonView, present: Iterable[JsonView]) -> Taints:
    """The change that makes a node's taint follow its labels. A label that cannot be read changes nothing."""
    problems: list[Invalid] = []
    wanted = Offer.T9K_EXCLUSIVE in offers(labels, problems)
    if problems:
        return Taints()
    ours = [taint for taint in present if _same(taint, "key") and _same(taint, "effect")]
    right = [taint for taint in ours if _same(taint, "value")]
    wrong = ours if not wanted else [taint for taint in ours if not _same(taint, "value")]
    return Taints(
        add=(dict(TAINT),) if wanted and not right else (),
        remove=tuple(map(dict, wrong)),
    )


def _same(taint: JsonView, part: str) -> bool:
    return bool(taint.get(part) == TAINT[part])


def tolerations(claim: Claim) -> list[dict[str, str]]:
    """What a Pod with this claim must tolerate to reach the nodes it needs."""
    return [{**TAINT, "operator": "Equal"}] if claim.offer is Offer.T9K_EXCLUSIVE else []


def missing_tolerations(pod: object, claim: Claim) -> list[dict[str, str]]:
    """The tolerations that the Pod lacks; a wider one of its own counts."""
    spec = mapping_at(mapping_at(pod, "", []).get("spec"), "spec", [])
    present = list_at(spec.get("tolerations"), "spec.tolerations", [])
    return [] if any(tolerates(toleration, TAINT) for toleration in present) else tolerations(claim)


def whole_node_grant(claim: Claim, node: Node) -> Grant:
    """A Pod with the whole node has all of its cards, without an annotation."""
    return Grant(
        uid=claim.uid,
        node=node.name,
        containers=tuple(
            ContainerGrant(container.name, container.index, container.role, tuple(_all_of(card) for card in node.cards))
            for container in claim.containers
        ),
        whole_node=True,
    )


def _all_of(card: Card) -> Share:
    return Share(card=card.index, memory_mib=card.memory_mib, exclusive=True, uuid=card.uuid)


def render_env(claim: Claim, asked: ContainerClaim | None, granted: ContainerGrant, visible: str) -> dict[str, str]:
    """The environment promised to the container. `asked`: what the claim says of it.

    T9K_GPU_MEMORY is documented as "m MB"; frameworks take such limits in units of 2^20, so that is what it holds.
    """
    if claim.whole_node:
        return {"NVIDIA_VISIBLE_DEVICES": "all"}
    env = {"NVIDIA_VISIBLE_DEVICES": visible}
    if asked is not None and not asked.slice.exclusive:
        env["T9K_GPU_PERCENT"] = str(asked.slice.memory_percent)
        env["T9K_GPU_MEMORY"] = str(sum(share.memory_mib for share in granted.shares))
    return env
