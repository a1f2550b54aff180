"""Pods as the cluster knows them, and what those that are on a node hold there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec import structs

from aliquot import dialects
from aliquot.dialects import PodReader, Rules, kai, native
from aliquot.dialects.registry import PodRequest, claim_for
from aliquot.dialects.rules import EVERY
from aliquot.dialects.wire.objects import PodObject, asks_for
from aliquot.dialects.wire.ownpods import belongs_to_node
from aliquot.dialects.wire.views import Names, pod_view
from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.model.node import Node, Offer
from aliquot.model.refusal import Invalid
from aliquot.placement.board import Occupant


class Placed(msgspec.Struct, frozen=True, gc=False):
    """A Pod of ours on a node."""

    claim: Claim
    grant: Grant
    doubt: str | None = None  # why its cards are a guess, where they are


@dataclass(slots=True)
class Pending:
    """A Pod of ours that has no node. `claim` is the rules that it breaks where it breaks any."""

    key: str
    uid: str
    claim: Claim | tuple[Invalid, ...]
    refused: bool  # kube-scheduler has tried and found no node
    scheduler: str
    created: str | None = None  # as the API server writes it
    tolerations: Sequence[object] = ()
    priority: int = 0
    preempts: bool = True  # its preemptionPolicy is not Never
    nominated: str = ""  # the node on which others make room for it


class BoundPodReader:
    """Reads what Pods on nodes hold, in any dialect."""

    def __init__(self, rules: Rules, reader: PodReader) -> None:
        self._rules = rules
        self._whole = reader if rules.whole is rules else PodReader(rules.whole)
        self._every = PodReader(replace(rules, served=frozenset(EVERY)))  # HAMi's too where it is not served any more

    def read(
        self,
        pod: PodObject,
        names: Names,
        name: str,
        node: Node | None,
        *,
        known: Placed | None,
        assumed: Placed | None,
    ) -> Placed | Occupant | tuple[Claim, str]:
        """What the Pod holds on the node of that name; an Occupant where it is no Pod of ours; its claim, and why its
        cards must be guessed, where no annotation names them. `known`: what it held before, `assumed`: what we gave it.
        """
        asked = self._whole.read_bound(pod)
        if isinstance(asked.claim, Claim):
            claim = claim_for(names, asked.claim)
            if claim.dialect != kai.DIALECT:  # the short way, for nearly all that have cards
                grant = dialects.parse_grant(pod, claim, node)
                if isinstance(grant, Grant):
                    return Placed(claim, grant)
            asked = PodRequest(claim, asked.cpu_milli, asked.memory_mib)
        return self._read_unusual(pod, names, name, node, asked, known, assumed)

    def _read_unusual(
        self,
        pod: PodObject,
        names: Names,
        name: str,
        node: Node | None,
        asked: PodRequest,
        known: Placed | None,
        assumed: Placed | None,
    ) -> Placed | Occupant | tuple[Claim, str]:
        if asked.claim is None and native.GRANT in (pod.metadata.annotations or {}):
            asked = self._every.read(pod, names)  # of a dialect that was served when it was placed
        claim = asked.claim
        grant = dialects.parse_grant(pod, claim, node) if isinstance(claim, Claim) else None
        if isinstance(claim, Claim) and claim.dialect not in self._rules.served and not isinstance(grant, Grant):
            claim = None  # another scheduler's, and not on a card of ours
        if isinstance(claim, Claim) and claim.dialect == kai.DIALECT and not asks_for(pod, (native.PLACE,)):
            claim = None  # its annotations alone get it no card, so they book none
        kept = _unreadable(pod, names, name, node, asked, known)
        if kept is not None:
            return kept
        if not isinstance(claim, Claim):
            of_node = belongs_to_node(pod, self._rules.own_account)
            return Occupant({}, cpu_milli=asked.cpu_milli, memory_mib=asked.memory_mib, of_node=of_node)
        if isinstance(grant, Grant):
            return Placed(claim, grant)
        if assumed is not None and assumed.grant.node == name:
            return structs.replace(assumed, doubt="its annotations were taken away")
        why = grant[0].sentence() if grant else "no annotation names its cards"
        if known is not None and known.grant.node == name and known.grant.containers:
            return structs.replace(known, doubt=why)  # it stays where it was counted before
        return claim, why


def _unreadable(
    pod: PodObject, names: Names, name: str, node: Node | None, asked: PodRequest, known: Placed | None
) -> Placed | None:
    """A Pod that has cards, and whose author made its request unreadable: it has its cards all the same. Those are
    what was booked before, or what its grant says; without either, its node takes no other Pods."""
    if isinstance(asked.claim, Claim) or (asked.claim is None and not asks_for(pod, (native.PLACE,))):
        return None
    why = asked.claim[0].sentence() if asked.claim else "its request was taken away"
    if known is not None and known.grant.node == name:
        return structs.replace(known, doubt=why)
    annotations = pod.metadata.annotations or {}
    if native.GRANT not in annotations:
        return None
    roles = {part.name: part.role for part in pod_view(pod).containers}
    claim = native.claim_of_grant(annotations, names.uid, names.namespace, names.name, roles)
    grant = claim and native.parse_grant(annotations, claim, name, node)
    if claim is None or not isinstance(grant, Grant):
        why = f"{why}; nor can its grant be read, so its node takes no other Pods"
        claim = Claim(names.uid, names.namespace, names.name, native.UNREADABLE, Offer.ANY, ())
        grant = Grant(names.uid, name, (), whole_node=True)
    return Placed(structs.replace(claim, cpu_milli=asked.cpu_milli, memory_mib=asked.memory_mib), grant, why)
