"""The sentences of the dashboards: each as a code with its values, and in English. Pure.

The page words the codes in other languages: web/src/text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET

from aliquot.dialects.dra import LABEL
from aliquot.model.cardstate.control import ControlLevel
from aliquot.model.claim import AppClass, Claim
from aliquot.model.node import Closed, Isolation, NodeNote
from aliquot.model.refusal import Invalid
from aliquot.model.status.dashboard import PodCard
from aliquot.model.status.machine import (
    CardStatus,
    FindingStatus,
    QueueEntry,
    RefusalStatus,
    RequestStatus,
    requests_of,
)
from aliquot.model.status.messages import FINDINGS, Message, Refused, Wants
from aliquot.model.status.messages import MessageCode as Code
from aliquot.model.withheld import Withheld
from aliquot.wording import nodes, promises, shortage
from aliquot.wording.amounts import duration, memory
from aliquot.wording.control import control_words
from aliquot.wording.requests import on_cards, wants
from aliquot.wording.requests import requests as request_words
from aliquot.wording.withheld import withheld_words

_PRIORITIES = {
    "binpack": "the fullest of the nodes and cards with room",
    "spread": "a card without a Pod of this owner, then an empty card, then the node with fewest Pods per card",
    "fgd": "where it leaves the most usable room for later Pods",
    "dense": "where what is left of each card is most useful to later Pods",
    # What these ask for goes before the policy.
    "online": "a card without a Pod of this owner, then one without offline Pods, then an empty card",
    "offline": "the fullest of the cards with room, first those without online Pods",
    "whole-node": "the smallest of the empty nodes",
}
_POLICIES = {
    Isolation.BEST_EFFORT: "tenants with work share the card evenly",
    Isolation.FIXED_SHARE: "each tenant has its quota of the compute and no more",
    Isolation.BURST_SHARE: "each tenant has its quota at least, and what the others leave",
}
_CLOSED = {Closed.CORDONED: Code.CORDONED, Closed.NOT_READY: Code.NOT_READY, Closed.AGENT_AWAY: Code.AGENT_AWAY}

# --- requests --------------------------------------------------------------------------------------------------------


def wants_of_claim(claim: Claim) -> Wants:
    """What a Pod asks for."""
    return Wants(text=wants(claim), requests=requests_of(claim))


def wants_of_entry(entry: QueueEntry) -> Wants:
    """What a run in the queue asks for."""
    mib = 0 if entry.memory_bytes is None else entry.memory_bytes >> 20
    parts = ([memory(mib)] if mib else []) + ([] if entry.core is None else [f"{entry.core:g}%"])
    request = RequestStatus(count=entry.gpus, whole=not parts, memory_mib=mib, core=entry.core)
    return Wants(text=on_cards(parts, entry.gpus), requests=[request])


def requests(asked: Wants, dialect: str) -> Message:
    """The first line of why a Pod is where it is."""
    words = request_words(asked.text, dialect)
    return Message(Code.REQUESTS, f"{words[0].upper()}{words[1:]}.", wants=asked.requests, dialect=dialect)


# --- refusals --------------------------------------------------------------------------------------------------------


def refused_by_card(refusal: RefusalStatus) -> Refused:
    """What one card of a machine lacks."""
    return Refused(
        reason=refusal.reason,
        text=f"{shortage.card_named(refusal)} {shortage.lacks(refusal)}",
        nodes=1,
        example=None,
        wanted=_number(refusal.wanted),
        had=_number(refusal.had),
        card=refusal.card,
        node=None if refusal.node is UNSET else refusal.node,
    )


def _number(amount: int | str | None) -> int | None:
    return amount if isinstance(amount, int) else None


# --- why a Pod or a run waits ----------------------------------------------------------------------------------------


def queued(entry: QueueEntry) -> Message:
    """Its place in the queue."""
    text = f"Number {entry.position} of {entry.of} in the queue."
    return Message(Code.QUEUED, text, position=entry.position, of=entry.of)


def short_of(entry: QueueEntry) -> Message:
    """What a run in the queue of a machine waits for."""
    text = shortage.reason(entry)
    if entry.kept_for:
        return Message(Code.ROOM_RESERVED, text, name=entry.kept_for)
    nearest, others = shortage.nearest(entry.refusals)
    return Message(Code.NO_ROOM, text, refusals=[*map(refused_by_card, nearest)], count=others)


def fits_on(node: str) -> Message:
    """Its cards are not what a Pod waits for."""
    text = f"its GPU request fits on {node}: kube-scheduler has another reason, or tries it soon"
    return Message(Code.FITS_ON, text, node=node)


NOT_TRIED = Message(Code.NOT_TRIED, "kube-scheduler has not tried it yet")
TRIED = Message(Code.TRIED, "kube-scheduler tried it and found no node")
WORKING = Message(Code.WORKING, "the reason is being worked out")


def claim_waits(name: str) -> Message:
    """A ResourceClaim without a card."""
    text = f"Claim {name} has no card yet: kube-scheduler chooses one when a Pod that uses it is placed."
    return Message(Code.CLAIM_WAITS, text, name=name)


def claim_missing(name: str) -> Message:
    """A ResourceClaim that a Pod names and that is not there."""
    text = f"Claim {name} is not there: create it or its ResourceClaimTemplate, or correct spec.resourceClaims."
    return Message(Code.CLAIM_MISSING, text, name=name)


CLAIM_NOWHERE = Message(
    Code.CLAIM_NOWHERE, f"no node hands out cards by claims: kubectl label node NODE {LABEL}=true; docs/dra.md"
)


def scheduler_said(refusal: str) -> Message:
    """Why kube-scheduler, which places Pods with claims by itself, found no node."""
    return Message(Code.SCHEDULER_SAID, f"kube-scheduler last said: {refusal}", detail=refusal)


def invalid_pod(broken: Invalid | None) -> Message:
    """A Pod breaks a rule of its dialect."""
    if broken is None:
        return Message(Code.INVALID_POD, "invalid Pod")
    return Message(Code.INVALID_POD, f"invalid Pod: {broken.sentence()}", name=broken.field, detail=broken.sentence())


# --- why a Pod or a run is where it is -------------------------------------------------------------------------------


def placed(cards: Sequence[int], node: str | None) -> Message:
    """The cards of a machine that were chosen."""
    numbers = ", ".join(map(str, cards))
    where = f"Card{'s' * (len(cards) > 1)} {numbers}{f' of {node}' if node else ''}"
    text = f"{where}: of the cards with room, the fullest (binpack)."
    return Message(Code.PLACED, text, cards=[*cards], node=node)


def promised(cards: Sequence[PodCard], app_class: AppClass, isolation: str) -> Message:
    """What a Pod or a run has of each of its cards, by its class and the node's policy."""
    amounts = [
        RequestStatus(whole=card.exclusive, memory_mib=card.memory_mib, core=card.core, offline=card.greedy)
        for card in cards
    ]
    different = [amount for at, amount in enumerate(amounts) if amount not in amounts[:at]]
    words = promises.promised(different, len(cards), app_class, Isolation(isolation))
    return Message(Code.PROMISED, words, wants=different, count=len(cards), names=[app_class.value, isolation])


def paused(card: int, by: str, seconds: float) -> Message:
    """Why a Pod or a run stands still."""
    text = f"Paused: {by} has card {card}. Online work took {duration(int(seconds))} from it in all."
    return Message(Code.PAUSED, text, card=card, name=by, number=int(seconds))


def claim_holds(name: str, node: str, cards: Sequence[int], users: Sequence[str]) -> Message:
    """The cards of a ResourceClaim, and the Pods that share it."""
    which = f"card{'s' * (len(cards) > 1)} {', '.join(map(str, cards))}"
    text = f"Claim {name} has {which} of {node}; used by {', '.join(users) or 'no Pod now'}."
    return Message(Code.CLAIM_HOLDS, text, name=name, node=node, cards=[*cards], names=[*users])


def node_gone(node: str) -> Message:
    """The node of a placed Pod was removed."""
    text = f"{node} is gone; the Pod counts there until Kubernetes removes it."
    return Message(Code.NODE_GONE, text, node=node)


def offers(node: str, names: Sequence[str]) -> Message:
    """What the node of a placed Pod offers."""
    text = f"{node} offers {', '.join(names) or 'no resource of Aliquot any more'}."
    return Message(Code.OFFERS, text, node=node, names=[*names])


def chosen_by(priority: str, claim: Claim) -> Message:
    """The rule by which the scheduler chose."""
    rule = priority if claim.app_class is AppClass.NORMAL else claim.app_class.value
    rule = "whole-node" if claim.whole_node else rule
    words = f"policy {rule}" if rule == priority else f"the rule for {rule} Pods"
    return Message(Code.CHOSEN_BY, f"Chosen by {words}: {_PRIORITIES[rule]}.", name=rule)


def shared_with(card: int, others: int) -> Message:
    """Who else is on the card."""
    sharing = f"{others} other{'s share' if others > 1 else ' shares'} it" if others > 0 else "not shared"
    return Message(Code.SHARED_WITH, f"Card {card}: {sharing}.", card=card, count=max(0, others))


def policy(isolation: Isolation) -> Message:
    """What the node promises its tenants."""
    text = f"Policy {isolation.value}: {_POLICIES[isolation]}."
    return Message(Code.POLICY, text, name=isolation.value)


def guessed(doubt: str) -> Message:
    """The cards of a Pod are not known for certain."""
    return Message(Code.GUESSED, f"Its cards are a guess: {doubt}.", detail=doubt)


# --- what is wrong ---------------------------------------------------------------------------------------------------


def closed(why: Closed) -> Message:
    """Why Kubernetes sends no Pods to a node."""
    return Message(_CLOSED[why], nodes.closed(why))


def other_plugins(names: Sequence[str]) -> list[Message]:
    """That a node offers nothing because others hand out its cards; nothing where none do."""
    text = f"offers nothing: {', '.join(names)} hands out its cards; docs/migration.md"
    return [Message(Code.OTHER_PLUGIN, text, names=[*names])] if names else []


def withheld(why: Withheld) -> Message:
    """Why a healthy card is not offered."""
    words, holder = withheld_words(why), why.holder
    return Message(
        Code.WITHHELD,
        f"not offered: {words}",
        name=why.code.value,
        names=None if holder is None else [holder.pod, holder.resource],
        more=holder.more or None if holder is not None else None,
        detail=None if why.code.known else words,
    )


def cards_out(count: int) -> list[Message]:
    """Nothing where no card is out."""
    return [Message(Code.CARDS_OUT, f"{count} card{'s' * (count > 1)} out", count=count)] if count else []


FOUND_SOMETHING = Message(Code.FINDINGS, "findings")


def invalid_node(broken: Iterable[Invalid]) -> list[Message]:
    """The rules that a node breaks."""
    return [Message(Code.INVALID_NODE, rule.sentence(), name=rule.field, detail=rule.sentence()) for rule in broken]


def claim_unreadable(key: str, broken: Invalid) -> Message:
    """A ResourceClaim that has cards of a node, and is not counted."""
    text = f"ResourceClaim {key} cannot be read: {broken.sentence()}"
    return Message(Code.CLAIM_UNREADABLE, text, name=key, detail=broken.sentence())


def assumed(notes: Iterable[NodeNote]) -> list[Message]:
    """What had to be assumed about a node."""
    return [
        Message(
            Code.ASSUMED,
            nodes.note(note),
            name=note.kind,
            names=[note.source, note.other],
            number=note.number,
            count=note.other_number,
        )
        for note in notes
    ]


def why_out(card: CardStatus) -> Message | None:
    """Why a card of a machine or of an agent takes no new tenants."""
    if not card.is_out:
        return None
    text = card.why_out or ""
    if card.withheld and card.healthy is not False:
        return withheld(Withheld(card.withheld, card.held_by or None))
    if card.xid is not UNSET:
        return Message(Code.XID, text, number=card.xid, detail=text)
    return Message(Code.DRIVER_SILENT, text, detail=text) if text else OUT


OUT = Message(Code.OUT, "unhealthy, taken out by a ConfigMap, or the node's agent is away")


def control(card: CardStatus) -> Message | None:
    """What holds tenants on the card to their shares."""
    if not card.control:
        return None
    codes = {
        ControlLevel.PROVEN: Code.CONTROL_PROVEN,
        ControlLevel.UNPROVEN: Code.CONTROL_UNPROVEN,
        ControlLevel.GATE: Code.CONTROL_GATE,
    }
    level = card.control.level
    code = codes.get(level) or Code(f"control-{level}")
    return Message(code, control_words(card.control), name=card.control.reason)


def finding(found: FindingStatus) -> Message:
    """Something that should not be on a card."""
    if found.kind is UNSET:
        return Message(Code.FINDINGS, found.text, detail=found.text)
    return Message(FINDINGS.get(found.kind, Code.FINDINGS), found.text, number=found.pid, detail=found.text)
