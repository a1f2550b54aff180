"""What the extender's verbs answer, as functions of the cluster and the question: no IO, no clock of their own."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.dialects import ENABLED_BY
from aliquot.dialects.wire import extender
from aliquot.dialects.wire.extender import Args, Preemption, Victim, Victims
from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.model.refusal import Reason
from aliquot.placement.demand import demand_of
from aliquot.placement.verdicts import verdict_of
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.preemption import victims as victims_of
from aliquot.wording.refusals import in_units

_UNKNOWN = "aliquot has not heard of this node yet"
_CHOSEN = 10  # a score of its own: kube-scheduler breaks ties by chance
_OURS = (  # a piece of each sentence below that kube-scheduler's own have not
    "GPU memory: ",
    "GPU compute: ",
    "share each GPU",
    "a whole GPU is wanted",
    "hold the GPUs whole",
    "the GPUs that would do",
    "another GPU model",
    "no GPU on the node",
    "GPUs wanted on one node",
    "would fit a GPU alone",
    "Pods: that takes ",
    "the whole node is wanted",
    "another Pod has the whole node",
    "too little CPU",
    "too little memory",
    "not now: ",
    "the node is broken: ",
    _UNKNOWN,
    "is not allowed: ",
)


@dataclass(frozen=True, slots=True)
class Told:
    """What a filter call came to: how many nodes were asked about and told, and what the Pod will get, where that is
    certain enough."""

    asked: int
    fit: int
    claim: Claim | None = None
    likely: Grant | None = None


def filter_answer(cluster: Cluster, args: Args) -> tuple[bytes, Told]:
    """The answer, and what it came to."""
    names = extender.asked_names(args)
    claim = cluster.read(args.Pod)
    if claim is None:  # not ours: nothing to object
        return extender.render_filtered(args, names, names, {}, {}), Told(len(names), len(names))
    if not isinstance(claim, Claim):
        broken = "; ".join(each.sentence() for each in claim)
        return extender.render_filtered(args, names, [], {}, dict.fromkeys(names, broken)), Told(len(names), 0)
    found = cluster.filter(claim, names)
    busy: dict[str, str] = {}
    never: dict[str, str] = {}
    if found.codes or found.unknown:
        sentences = {code: _sentence(code, claim) for code in set(found.codes.values())}
        busy = {name: sentences[code] for name, code in found.codes.items() if not code & 1}
        never = {name: sentences[code] for name, code in found.codes.items() if code & 1}
        for name in found.unknown:
            broken_node = cluster.unusable.get(name)
            if broken_node:
                never[name] = f"the node is broken: {broken_node[0].sentence()}"
            else:
                busy[name] = _UNKNOWN
    told = Told(len(names), len(found.fit), claim, found.likely)
    return extender.render_filtered(args, names, found.fit, busy, never), told


def _sentence(code: int, claim: Claim) -> str:
    return short_reason(*verdict_of(code), claim)


def short_reason(reason: Reason, never: bool, claim: Claim) -> str:
    """Why a node does not take the claim, in the same words for every such node: kube-scheduler counts equal ones."""
    parts = demand_of(claim).parts
    memory = in_units(max((part.slice.memory_mib for part in parts), default=0), 1024)
    percent = max((part.slice.memory_percent for part in parts), default=0)
    much = f"{memory} GiB" if memory else f"{percent}%"
    core = in_units(max((part.slice.core_milli or 0 for part in parts), default=0), 10)
    greedy = in_units(max((part.slice.greedy_milli or 0 for part in parts), default=0), 10)
    cards = max((part.count for part in parts), default=0)
    match reason:
        case Reason.MEMORY:
            return f"GPU memory: {much} wanted, {'no card is that large' if never else 'no card has that much free'}"
        case Reason.CORE:
            return f"GPU compute: {core}% of a card wanted, no card has that much free"
        case Reason.GREEDY:
            return f"offline GPU compute: {greedy}% of a card wanted, no card has that much free"
        case Reason.SLICES:
            return f"as many Pods share each GPU as {'ever may' if never else 'may'}"
        case Reason.EXCLUSIVE if any(container.slice.exclusive for container in claim.containers):
            return "a whole GPU is wanted, and others are on each"
        case Reason.EXCLUSIVE:
            return "other Pods hold the GPUs whole"
        case Reason.HEALTH:
            return "the GPUs that would do are sick or gone, or the node's agent is away for a moment"
        case Reason.MODEL:
            return "another GPU model is wanted"
        case Reason.CARDS if cards <= 1:
            return "no GPU on the node"
        case Reason.CARDS:
            return f"{cards} GPUs wanted on one node, {'it has not so many' if never else 'not so many are free'}"
        case Reason.CONTAINERS:
            return "each container would fit a GPU alone, all together do not"
        case Reason.MODE | Reason.MIXED:
            who = f"{claim.dialect} Pods" if reason is Reason.MODE else "online and offline Pods"
            return f"not for {who}: that takes {ENABLED_BY[claim.offer]}"
        case Reason.WHOLE_NODE if claim.whole_node:
            return "the whole node is wanted, and other Pods are on it"
        case Reason.WHOLE_NODE:
            return "another Pod has the whole node"
        case Reason.CPU:
            return "too little CPU"
        case Reason.HOST_MEMORY:
            return "too little memory"
        case _:
            return f"not now: {reason}"


def repeats_us(said: str) -> bool:
    """Whether kube-scheduler, in what it says of a Pod that waits, names a reason that it has of us."""
    return any(entry in said for entry in _OURS)


def scores_answer(cluster: Cluster, args: Args) -> tuple[bytes, Claim | None, Grant | None]:
    """The answer, and the place that will be taken if kube-scheduler heeds it."""
    names = extender.asked_names(args)
    claim = cluster.read(args.Pod)
    if not isinstance(claim, Claim):
        return extender.render_scores(names, [0] * len(names)), None, None
    ranks, best = cluster.rank(claim, names)
    scores = ranks.tolist()
    if best is not None:
        scores[names.index(best.node)] = _CHOSEN
    return extender.render_scores(names, scores), claim, best


def preemption_answer(cluster: Cluster, asked: Preemption) -> dict[str, Victims]:
    """Where Pods would have to go for this one, and which: only where that frees the cards it needs."""
    offered = extender.offered_victims(asked)
    claim = cluster.read(asked.Pod)
    if claim is None:
        return offered
    if not isinstance(claim, Claim):
        return {}
    uids = {name: [pod.UID for pod in victims.Pods or ()] for name, victims in offered.items()}
    chosen = victims_of(cluster, claim, asked.Pod.spec.priority or 0, uids)
    return {
        name: Victims([Victim(uid) for uid in gone], offered[name].NumPDBViolations) for name, gone in chosen.items()
    }
