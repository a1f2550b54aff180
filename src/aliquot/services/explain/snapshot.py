"""The scheduler's own cluster, filled from a list of Kubernetes objects, and where Pods would go on it.

`Cluster` decides, as it does in the scheduler. Here are only: kube-scheduler's conditions of a node by itself, which
nothing else applies to a command; notes on what had to be assumed; and the booking of one Pod after the other. What
kube-scheduler decides by the Pods that are there (affinity, spread, ports) it alone answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from msgspec import structs

from aliquot import dialects
from aliquot.dialects import Rules
from aliquot.dialects.kube.conditions import node_refusals, scheduling_gates
from aliquot.dialects.kube.podfields import with_slips, wrong_metadata
from aliquot.dialects.kube.shapes import mapping
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import ConfigMapObject, NodeObject, PodObject
from aliquot.dialects.wire.otherplugins import hand_out, read_slices, share_command
from aliquot.dialects.wire.views import pod_names
from aliquot.model.claim import Claim
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.grant import Grant
from aliquot.model.group import Shortfall
from aliquot.model.refusal import Invalid, Reason, Refusal
from aliquot.placement.board import Bools, Ints
from aliquot.placement.demand import Demand, demand_of
from aliquot.services.explain.claims import PodClaims
from aliquot.services.explain.groups import GroupMembers
from aliquot.services.explain.manifests import (
    NODE_FIELDS,
    left_to_kubernetes,
    name_of,
    other_scheduler,
    pod_key,
    priority_of,
    uncalled,
)
from aliquot.services.explain.others import why_not_ours
from aliquot.services.explain.running import stays
from aliquot.services.explain.verdicts import Note, Preemption, Verdict
from aliquot.services.scheduler.cluster import NEVER, Cluster, Placed
from aliquot.services.scheduler.preemption.tenants import best_plan
from aliquot.wording import nodes as words
from aliquot.wording.preemption import Victim


@dataclass(frozen=True, slots=True)
class _Gate:
    """The rows that Kubernetes lets a kind of Pod on, and why not on the others."""

    rows: Bools
    closed: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class _Latest:
    """The latest refusals, and of what."""

    demand: Demand
    gate: _Gate
    clock: int
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True, slots=True)
class ClusterPod:
    """A Pod of the cluster as the scheduler reads it, and whole, for what kube-scheduler reads of it."""

    read: PodObject
    manifest: JsonObject

    @property
    def key(self) -> str:
        """namespace/name."""
        names = pod_names(self.read)
        return f"{names.namespace}/{names.name}"

    @property
    def created(self) -> str:
        """When, as the API server writes it; empty where it does not say."""
        return self.read.metadata.creation_timestamp or ""


@dataclass(slots=True)
class Snapshot:
    """See the head of the file."""

    cluster: Cluster
    nodes: dict[str, NodeObject] = field(default_factory=dict)  # by name, those that take Pods
    pods: list[ClusterPod] = field(default_factory=list)  # all, in the order given
    running: dict[str, Placed] = field(default_factory=dict)  # by namespace/name, with cards known or guessed
    claims: PodClaims = field(default_factory=PodClaims)
    unheeded: dict[str, Invalid] = field(default_factory=dict)  # ConfigMaps that cannot be read, by namespace/name
    notes: list[Note] = field(default_factory=list)
    _gates: dict[str, _Gate] = field(default_factory=dict)
    _latest: _Latest | None = None
    _preemption: tuple[tuple[object, ...], Preemption | None] = ((), None)  # the latest, and of what
    _members: GroupMembers = field(init=False)

    def __post_init__(self) -> None:
        self._members = GroupMembers(self.cluster)

    # --- filling the cluster -----------------------------------------------------------------------------------

    def add_config_map(self, manifest: JsonObject) -> None:
        """One of the ConfigMaps that take cards out."""
        config = read_object(manifest, ConfigMapObject, "ConfigMap")
        wrong = config if isinstance(config, Invalid) else self.cluster.set_unhealthy(config)
        if wrong is not None:
            self.unheeded[pod_key(manifest)] = wrong
            self.notes.append(Note(pod_key(manifest), f"is ignored: {wrong.sentence()}"))

    def add_group(self, manifest: JsonObject) -> None:
        """One of the PodGroups."""
        wrong = self._members.add_group(manifest)
        if wrong is not None:
            self.notes.append(Note(pod_key(manifest), wrong))

    def expect(self, manifests: Iterable[JsonObject]) -> None:
        """Pods that will be placed: those of a PodGroup count for each other."""
        self._members.expect(manifest for manifest in manifests if pod_key(manifest) not in self.running)

    def add_nodes(self, manifests: Iterable[JsonObject]) -> None:
        """The Nodes there are."""
        self.cluster.begin()
        for manifest in manifests:
            node = read_object(manifest, NodeObject, "node")
            name = name_of(manifest) or "(a node without a name)"
            if isinstance(node, NodeObject) and node.metadata.name:
                self.cluster.set_node(node)
            else:  # the scheduler's reflector would pass over it
                missing = Invalid("metadata.name", None, "a node needs a name")
                self.cluster.reported.unusable[name] = (node if isinstance(node, Invalid) else missing,)
            broken = self.cluster.reported.unusable.get(name, ())
            self.notes += [Note(name, f"takes no GPU Pods: {invalid.sentence()}") for invalid in broken]
            if isinstance(node, NodeObject) and not broken:
                self.nodes[name] = node
                self.notes += self._notes_on_node(node)
        self.cluster.end()

    def _notes_on_node(self, node: NodeObject) -> Iterator[Note]:
        shown = self.cluster.board.node(node.metadata.name)
        yield from (Note(node.metadata.name, words.note(note)) for note in (shown.notes if shown else ()))
        others = self.cluster.reported.others.get(node.metadata.name, ())
        if others:
            yield Note(node.metadata.name, f"offers nothing: {hand_out(others)}; {share_command(node.metadata.name)}")
        if node.agent_away:
            yield Note(node.metadata.name, "takes no new GPU Pods for now: its agent is away")

    def add_pods(self, manifests: Iterable[JsonObject]) -> None:
        """The Pods there are. Those on nodes hold what their annotations say, or what is guessed around those."""
        self.cluster.begin()
        for manifest in manifests:
            pod = read_object(manifest, PodObject, "pod")
            if isinstance(pod, Invalid):
                self.notes.append(Note(pod_key(manifest), f"is not counted: {pod.sentence()}"))
                continue
            self.pods.append(ClusterPod(pod, manifest))
            self.cluster.set_pod(pod)
            self._members.note(pod, manifest)
            claim = self.cluster.read(pod) if pod.spec.node_name and not pod.finished else None
            if isinstance(claim, tuple) and pod_names(pod).uid not in self.cluster.placed:
                text = f"its GPU is not counted: {claim[0].sentence()}"
                self.notes.append(Note(f"{self.pods[-1].key} on {pod.spec.node_name}", text))
        self.cluster.end()
        for uid, placed in self.cluster.placed.items():
            self.cluster.chooser.observe(placed.claim)  # the scheduler saw it when it was pending
            if uid not in self.cluster.unseated:
                self.running[placed.claim.key] = placed
            if placed.doubt is not None:
                self.notes.append(self._note_on_guess(placed))

    def _note_on_guess(self, placed: Placed) -> Note:
        key, node = placed.claim.key, placed.grant.node
        if placed.claim.uid in self.cluster.unseated:
            known = self.cluster.board.node(node) is not None
            reason = "and none of the node's has room" if known else "and its node is not among those given"
            return Note(f"{key} on {node}", f"its GPU is not counted: {placed.doubt}, {reason}")
        cards = sorted(placed.grant.usage())
        where = f"card{'s' * (len(cards) > 1)} {', '.join(map(str, cards))}"
        return Note(f"{key} ({where} of {node})", f"the place is a guess: {placed.doubt}")

    # --- placing -------------------------------------------------------------------------------------------

    def place(
        self, manifest: JsonObject, *, why_not_elsewhere: bool = True, book: bool = True, who_goes: bool = False
    ) -> Verdict:
        """Where the Pod goes, booked if `book`; or every reason why not.

        With `why_not_elsewhere`, a Pod that has a place gets the refusals of the other nodes too; with `who_goes`, one
        without a place the Pods that would have to go for it. A Pod of its name that asks for something else, or
        terminates, makes room for it, also without `book`.
        """
        cluster, key = self.cluster, pod_key(manifest)
        created = bool(mapping(manifest.get("metadata")).get("uid"))
        claim = dialects.parse_pod(manifest, cluster.rules, created=created)
        if claim is not None and (slips := wrong_metadata(manifest)):
            return Verdict(key, broken=with_slips(slips, claim if isinstance(claim, tuple) else ()))
        if isinstance(claim, Claim) and not created:
            claim = dialects.as_admitted(claim)
        if claim is None and (claims := self.claims.of(manifest, cluster.board.node, bool(cluster.reported.by_claims))):
            return Verdict(key, claims=claims)
        if claim is None:
            return Verdict(key, remark=why_not_ours(manifest, cluster.rules))
        if isinstance(claim, Claim) and created:
            claim = uncalled(manifest, claim) or claim
        if not isinstance(claim, Claim):
            return Verdict(key, broken=claim)
        running = self.running.get(claim.key)
        if running is not None:
            if stays(running, claim, created=created, going=running.claim.uid in cluster.going):
                return Verdict(key, claim, running.grant, remark="runs there already")
            self._drop(running, manifest)
        spec = mapping(manifest.get("spec"))
        gates = scheduling_gates(spec)
        if gates:
            return Verdict(key, claim, gates=gates)
        verdict = self._decide(manifest, claim, why_not_elsewhere=why_not_elsewhere, book=book, who_goes=who_goes)
        place = None if running is None else f"in place of the one on {running.grant.node}"
        left = left_to_kubernetes(manifest, created=created) if verdict.grant is not None else None
        remarks = (other_scheduler(spec, cluster.rules.served), left, place)
        return replace(verdict, remark="; ".join(filter(None, remarks)) or None)

    def _decide(
        self, manifest: JsonObject, claim: Claim, *, why_not_elsewhere: bool, book: bool, who_goes: bool
    ) -> Verdict:
        """Of a Pod that breaks no rule and is not there yet."""
        cluster, key, spec = self.cluster, pod_key(manifest), mapping(manifest.get("spec"))
        if claim.uid not in cluster.pending:
            cluster.chooser.observe(claim)
        gate = self._gate(manifest, claim)
        rows = np.flatnonzero(gate.rows)
        admitted = self._admit(manifest, claim, rows, keep=book)
        if isinstance(admitted, Shortfall):  # it evicts no Pod
            refusals = self._members.refusals(admitted, self._refusals(claim, gate), claim, rows)
            return Verdict(key, claim, refusals=refusals, group=admitted)
        if admitted is None:
            cluster.release_hold(claim.uid)  # of a group that has enough members by now: it is decided anew
        grant = admitted or cluster.chooser.choose(claim, rows)
        refusals = self._refusals(claim, gate) if grant is None or why_not_elsewhere else ()
        if grant is not None and book:
            if claim.uid in cluster.held:  # with the other members of its group
                cluster.assume(claim, grant.node)
            else:
                self._book(structs.replace(claim, uid=self._new_uid(claim)), grant)
        preemption = self._who_goes(claim, spec, rows, refusals) if grant is None and who_goes else None
        return Verdict(key, claim, grant, refusals=refusals, preemption=preemption)

    def _admit(self, manifest: JsonObject, claim: Claim, rows: Ints, *, keep: bool) -> Grant | Shortfall | None:
        """As the scheduler's filter does with a member of a PodGroup; None: the Pod goes by itself."""
        clock, latest = self.cluster.board.clock, self._latest
        admitted = self._members.admit(manifest, claim, rows, self._rows_of_member, keep=keep)
        if isinstance(admitted, Shortfall) and latest is not None and latest.clock == clock:
            self._latest = replace(latest, clock=self.cluster.board.clock)  # the board is as it was
        return admitted

    def _rows_of_member(self, uid: str) -> Ints | None:
        """The rows that kube-scheduler lets another member of a group on."""
        manifest, pending = self._members.manifests.get(uid), self.cluster.pending.get(uid)
        if manifest is None or pending is None or not isinstance(pending.claim, Claim):
            return None
        return np.flatnonzero(self._gate(manifest, pending.claim).rows)

    def _who_goes(self, claim: Claim, spec: JsonView, rows: Ints, refusals: tuple[Refusal, ...]) -> Preemption | None:
        """Of the nodes that kube-scheduler lets the Pod on. Replicas share the answer, as they share their refusals."""
        cluster, priority = self.cluster, priority_of(spec)
        if priority is None:
            return None
        allowed = spec.get("preemptionPolicy") != "Never"
        known, found = self._preemption
        if not (known and known[0] is refusals and known[1:] == (priority, allowed)):
            names = [cluster.board.names[row] for row in rows.tolist()]
            plan = best_plan(cluster, claim, priority, names)
            found = None
            if plan is not None and plan.victims:
                keys = {uid: key for key, uid in cluster.seen.items()}
                victims = tuple(
                    Victim(keys.get(tenant.uid, tenant.uid), tenant.priority, tenant.occupant.app_class)
                    for tenant in plan.victims
                )
                found = Preemption(victims, plan.grant, allowed)
            self._preemption = ((refusals, priority, allowed), found)
            if self._latest is not None:  # the board is as it was, though its clock went on
                self._latest = replace(self._latest, clock=cluster.board.clock)
        return found

    def _drop(self, running: Placed, manifest: JsonObject) -> None:
        """A Pod goes, and the one of the manifest comes in its place."""
        key = running.claim.key
        self.pods = [pod for pod in self.pods if pod.key != key]
        del self.running[key]
        self.cluster.drop_pod(key)
        self._members.expect([manifest])

    def _book(self, claim: Claim, grant: Grant) -> None:
        """Book the grant, as the scheduler does after its answer to filter, and at bind."""
        self.cluster.hold(claim, grant, NEVER)
        self.cluster.assume(claim, grant.node)

    def _refusals(self, claim: Claim, gate: _Gate) -> tuple[Refusal, ...]:
        """Every reason, of Kubernetes and ours. Replicas that all do not fit share one tuple: nothing changed."""
        demand, latest, clock = demand_of(claim), self._latest, self.cluster.board.clock
        if latest is None or latest.demand != demand or latest.gate is not gate or latest.clock != clock:
            refusals = (*gate.closed, *self.cluster.chooser.refusals(claim))
            latest = self._latest = _Latest(demand, gate, clock, refusals)
        return latest.refusals

    def _gate(self, manifest: JsonObject, claim: Claim) -> _Gate:
        """kube-scheduler's conditions; computed once per kind of Pod."""
        spec = mapping(manifest.get("spec"))
        try:
            key = json.dumps([dialects.tolerations(claim), *(spec.get(gate) for gate in NODE_FIELDS)], default=str)
        except (ValueError, RecursionError):  # nested deeper than anything Kubernetes would take
            return self._compute_gate(manifest, claim)
        if key not in self._gates:
            self._gates[key] = self._compute_gate(manifest, claim)
        return self._gates[key]

    def _compute_gate(self, manifest: JsonObject, claim: Claim) -> _Gate:
        board = self.cluster.board
        rows = board.present[: board.rows].copy()
        closed = [
            Refusal(name, None, Reason.INVALID, None, broken[0].sentence(), never=True)
            for name, broken in self.cluster.reported.unusable.items()
        ]
        for name, node in self.nodes.items():
            refusals = node_refusals(manifest, claim, node)
            if refusals:
                closed += refusals
                rows[board.row_of[name]] = False
        return _Gate(rows, tuple(closed))

    def _new_uid(self, claim: Claim) -> str:
        """The claim's UID, or one of our own where manifests without a UID share a name."""
        uid, more = claim.uid, 1
        while self.cluster.ledger.get(uid) is not None:
            more += 1
            uid = f"{claim.uid}#{more}"
        return uid


def take_snapshot(objects: Iterable[object], *, policy: str, rules: Rules) -> Snapshot:
    """The cluster that these objects show, in any order. Other kinds than those read below are ignored."""
    kinds: dict[str, list[JsonObject]] = {}
    for obj in objects:
        if isinstance(obj, dict):
            kinds.setdefault(str(obj.get("kind")), []).append(obj)
    snapshot = Snapshot(Cluster(policy, rules))
    for config in kinds.get("ConfigMap", []):
        snapshot.add_config_map(config)
    snapshot.cluster.reported.drivers = read_slices(kinds.get("ResourceSlice", []))
    for group in kinds.get("PodGroup", []):
        snapshot.add_group(group)
    snapshot.claims = PodClaims(kinds.get("ResourceClaim", []))
    snapshot.add_nodes(kinds.get("Node", []))
    snapshot.add_pods(kinds.get("Pod", []))
    return snapshot
