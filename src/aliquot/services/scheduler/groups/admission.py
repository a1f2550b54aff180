"""Whether a member of a PodGroup may get a card now, and where. No IO; the time is an argument.

An extender sees one Pod at a time. So the first member that kube-scheduler asks about makes a plan for all that wait:

    enough find a place     each is held for a while (`Cluster.held`); this member, and every other when it is asked
                            about, is sent to its own place and nowhere else
    too few                 nothing is held; the member is refused, with what the group has and what it lacks

A plan is made in one step, so two groups never hold halves of what both need. A group may still come to have some
members on nodes and too few: a bind failed, or a member was deleted. Such a group has begun, and goes first: whatever
another group is given must leave it room for the rest. Among those that have begun, the order is that of `Group.order`.
A group that holds places in vain pauses (placement/groups/attempts.py), and then others may have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from aliquot.dialects.podgroups import membership
from aliquot.dialects.wire.objects import PodObject
from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.model.group import Group, Shortfall
from aliquot.model.refusal import Invalid, Refusal
from aliquot.placement.board import Ints
from aliquot.placement.groups.attempts import Pause
from aliquot.placement.groups.planning import Member, Need, Plan, place_together, release
from aliquot.services.scheduler.cluster import Cluster, Placed
from aliquot.services.scheduler.roster import Standing

PATIENCE = 30.0  # seconds for which places are held; kube-scheduler comes for all members within a few
_LONGEST = 120.0  # the same, at most: the group's owner writes it, and other Pods wait for these cards
_FRESH = 1.0  # seconds for which a group that was found short is not planned again: hundreds of members may ask
_LARGE = 200  # members, whose plan takes 60 ms; larger groups wait longer for the next, so that others are answered

Rows = Callable[[str], Ints | None]


@dataclass(slots=True)
class Count:
    """Who of a group is where; roles of those that need nothing any more."""

    group: Group
    placed: list[str] = field(default_factory=list)
    cardless: list[str] = field(default_factory=list)  # wait for kube-scheduler alone: they count as placed
    held: list[str] = field(default_factory=list)
    waiting: list[tuple[Claim, str]] = field(default_factory=list)  # those held among them, the oldest first
    begun: bool = False  # a member has cards

    @property
    def need(self) -> Need:
        """How many members must still get cards."""
        there = [*self.placed, *self.cardless]
        roles = {role: needed - there.count(role) for role, needed in self.group.roles}
        return Need(self.group.needed - len(there), roles)

    @property
    def met(self) -> bool:
        """Whether every other member may go by itself."""
        return self.need.met(())


def count(cluster: Cluster, group: Group, asking: tuple[Claim, str] | None = None) -> Count:
    """Who of the group is where. `asking` is a member that the watch may not have reported yet."""
    found, asked = Count(group), None if asking is None else asking[0].uid
    for seen in cluster.groups.of_group(group):
        role, pending = seen.membership.role, cluster.pending.get(seen.uid)
        has_cards = seen.uid in cluster.assumed or (seen.uid in cluster.placed and seen.standing is Standing.PLACED)
        found.begun |= has_cards
        if has_cards or seen.standing is Standing.PLACED:
            found.placed.append(role)
            if seen.uid == asked:
                asking = None
        elif seen.standing is Standing.PENDING and seen.uid != asked:
            if pending is None:
                found.cardless.append(role)
            elif isinstance(pending.claim, Claim):
                found.waiting.append((pending.claim, role))
        elif seen.uid == asked and asking is not None:
            found.waiting.append(asking)
            asking = None
    if asking is not None:
        found.waiting.append(asking)
    found.held = [role for claim, role in found.waiting if claim.uid in cluster.held]
    return found


def admit(
    cluster: Cluster,
    pod: PodObject,
    claim: Claim,
    rows: Ints,
    *,
    now: float,
    keep: bool = False,
    rows_of: Rows | None = None,
) -> Grant | Shortfall | None:
    """The member's place, or what its group lacks; None: the Pod goes by itself.

    `rows` are the nodes that it may go to, `rows_of` those of other members: what kube-scheduler last asked about, if
    not given. With `keep`, places are held from `now`.
    """
    named = membership(pod)
    group = cluster.groups.find(named)
    if named is None or group is None:
        return None
    if isinstance(group, Invalid):
        return Shortfall(f"{claim.namespace}/{named.name}", broken=group.sentence())
    if claim.uid in cluster.assumed or claim.uid in cluster.placed:  # has its cards; perhaps its bind has no answer yet
        return None
    cluster.groups.remember_rows(claim.uid, rows)
    found = count(cluster, group, (claim, named.role))
    cluster.groups.lacks.pop(group.key, None)
    if found.met:
        cluster.groups.attempts.forget(group.key)
        return None
    answer = _admit_waiting(cluster, found, claim, rows, now=now, keep=keep, rows_of=rows_of)
    if isinstance(answer, Shortfall):
        cluster.groups.lacks[group.key] = answer
    return answer


def _admit_waiting(
    cluster: Cluster, found: Count, claim: Claim, rows: Ints, *, now: float, keep: bool, rows_of: Rows | None
) -> Grant | Shortfall:
    """The same for a member of a group that has too few members in their places."""
    group = found.group
    held = cluster.held.get(claim.uid)
    if held is not None and held.claim == claim and found.need.met(found.held):
        row = cluster.board.row_of.get(held.grant.node)
        if row is not None and (rows == row).any():
            return held.grant
    pause = cluster.groups.attempts.pause(group.key, now)
    if pause is not None:
        return _paused(found, pause)
    known = cluster.groups.refused.get(group.key)
    if known is not None and now - known[0] < _FRESH * max(1.0, len(found.waiting) / _LARGE):
        return known[1]

    def rows_for(uid: str) -> Ints | None:
        if uid == claim.uid:
            return cluster.groups.asked.get(uid, rows)  # members mostly share one array
        others = cluster.groups.asked.get(uid) if rows_of is None else rows_of(uid)
        return rows if others is None else others

    attempts, deadline = cluster.groups.attempts, float("inf")
    if keep:
        deadline = attempts.begin(group.key, now, anew=not found.held) + min(group.patience or PATIENCE, _LONGEST)
    if claim.uid not in cluster.held and found.need.met(found.held):
        return _one_more(cluster, found, claim, rows, deadline, now, keep=keep)
    short, plan = _plan(cluster, found, rows_for, deadline, now, keep=keep)
    if plan is None or not plan.enough:
        attempts.end(group.key)
        cluster.groups.refused[group.key] = (now, short)
        return short
    if keep:
        _drop_spare(cluster, found.need, plan, claim.uid)
    return plan.grants.get(claim.uid, short)


def shortfall(
    cluster: Cluster, uid: str, why: Callable[[Claim], Sequence[Refusal]] | None = None, *, now: float
) -> tuple[Shortfall, Sequence[Refusal]] | None:
    """What the group of a waiting Pod lacks, and what keeps its first member without room from every node; None: it
    lacks nothing, or the Pod goes by itself. Nothing changes but what is held for the group."""
    found = _waiting_members(cluster, uid)
    if found is None or isinstance(found, Shortfall):
        return None if found is None else (found, ())
    pause = cluster.groups.attempts.pause(found.group.key, now)
    if pause is not None:
        return _paused(found, pause), ()
    short, plan = _plan(cluster, found, cluster.groups.asked.get, float("inf"), now, keep=False, why=why)
    return None if plan is not None and plan.enough else (short, () if plan is None else plan.refusals)


def known_shortfall(cluster: Cluster, uid: str) -> Shortfall | None:
    """The same as far as it is known without a plan: for those who only look. Nothing changes."""
    found = _waiting_members(cluster, uid)
    if found is None or isinstance(found, Shortfall):
        return found
    if not found.group.finished and not found.need.met([role for _, role in found.waiting]):
        return _short(found, None)  # some are not created yet
    return cluster.groups.lacks.get(found.group.key)


def _waiting_members(cluster: Cluster, uid: str) -> Count | Shortfall | None:
    """Who of the Pod's group is where, or what is wrong with the group; None: the Pod does not wait for others."""
    seen = cluster.groups.members.get(uid)
    group = None if seen is None else cluster.groups.find(seen.membership)
    if seen is None or group is None:
        return None
    if isinstance(group, Invalid):
        return Shortfall(f"{seen.key.partition('/')[0]}/{seen.membership.name}", broken=group.sentence())
    found = count(cluster, group)
    return None if found.met or found.need.met(found.held) else found


def waiting_groups(cluster: Cluster, uids: Iterable[str]) -> dict[str, list[str]]:
    """By group, those of these Pods whose group has too few members in their places, or cannot be read."""
    roster = cluster.groups
    found: dict[str, list[str]] = {}
    for uid in uids:
        seen = roster.members.get(uid)
        key = None if seen is None else next((key for key in seen.membership.keys if key in roster.groups), None)
        if key is not None:
            found.setdefault(key, []).append(uid)
    return {
        key: waiting
        for key, waiting in found.items()
        if not isinstance(group := roster.groups[key], Group) or not count(cluster, group).met
    }


def _plan(
    cluster: Cluster,
    found: Count,
    rows_of: Rows,
    deadline: float,
    now: float,
    *,
    keep: bool,
    why: Callable[[Claim], Sequence[Refusal]] | None = None,
) -> tuple[Shortfall, Plan | None]:
    """Places for all that wait, held if `keep`; no Plan where there is no point in one."""
    need = found.need
    if found.group.finished:
        return Shortfall(found.group.name, finished=True), None
    there = [role for _, role in found.waiting]
    if not need.met(there):  # some are not created yet
        return _short(found, None), None
    for claim, _ in found.waiting:
        cluster.release_hold(claim.uid)
        cluster.reserved.drop(claim.uid)  # room that was promised to it alone, before it had a group
    ahead = [*_places_ahead(cluster, found, now)]
    try:
        members = [Member(claim, role, _known(cluster, rows_of(claim.uid))) for claim, role in found.waiting]
        plan = place_together(cluster.ledger, cluster.chooser, members, need, deadline, why)
    finally:
        for other in ahead:
            release(cluster.ledger, other.grants)
    if plan.enough and keep:
        claims = {claim.uid: claim for claim, _ in found.waiting}
        for uid, grant in plan.grants.items():
            cluster.held[uid] = Placed(claims[uid], grant)
    elif plan.enough:
        release(cluster.ledger, plan.grants)
    return _short(found, plan.roles, plan.without), plan


def _drop_spare(cluster: Cluster, need: Need, plan: Plan, asking: str) -> None:
    """Give up places beyond `need` of members that kube-scheduler never asked about: it may never do so."""
    role_of = dict(zip(plan.grants, plan.roles, strict=True))
    kept = [role for uid, role in role_of.items() if uid == asking or uid in cluster.groups.asked]
    for uid, role in role_of.items():  # those of roles that are needed come first
        if uid == asking or uid in cluster.groups.asked:
            continue
        if need.met(kept):
            cluster.release_hold(uid)
        else:
            kept.append(role)


def _one_more(
    cluster: Cluster, found: Count, claim: Claim, rows: Ints, deadline: float, now: float, *, keep: bool
) -> Grant | Shortfall:
    """A place for a member beside those of the plan, which others may be on their way to."""
    cluster.reserved.drop(claim.uid)
    ahead = [*_places_ahead(cluster, found, now)]
    grant = cluster.chooser.choose(claim, rows)
    for other in ahead:
        release(cluster.ledger, other.grants)
    if grant is None:
        return _short(found, found.held, claim)
    if keep:
        cluster.hold(claim, grant, deadline)
    return grant


def _known(cluster: Cluster, rows: Ints | None) -> Ints | None:
    """Rows that may be older than the board."""
    return rows if rows is None or not len(rows) or rows.max() < cluster.board.rows else rows[rows < cluster.board.rows]


def _places_ahead(cluster: Cluster, found: Count, now: float) -> Iterator[Plan]:
    """Book the rest of the groups that have begun and come before this one; the caller gives the places back."""
    for other in _begun(cluster, found, now):
        need = other.need
        if need.met(other.held):
            continue
        members = [
            Member(claim, role, _known(cluster, cluster.groups.asked[claim.uid]))
            for claim, role in other.waiting
            # One that kube-scheduler never asked about may never be schedulable: no Pod should wait for it.
            if claim.uid not in cluster.held and claim.uid in cluster.groups.asked
        ]
        roles = {role: needed - other.held.count(role) for role, needed in need.roles.items()}
        missing = Need(need.total - len(other.held), roles)
        plan = place_together(cluster.ledger, cluster.chooser, members, missing, float("inf"))
        if plan.enough:
            yield plan


def _begun(cluster: Cluster, found: Count, now: float) -> list[Count]:
    """The groups that have begun, have too few members, and come before this one. While one of them pauses, others may
    have the cards."""
    waiting = {
        group.key: group
        for uid in cluster.pending
        if (group := cluster.groups.group_of(uid)) is not None and group.key != found.group.key and not group.finished
    }
    attempts = cluster.groups.attempts
    counts = (count(cluster, group) for key, group in waiting.items() if attempts.pause(key, now) is None)
    begun = [other for other in counts if other.begun and not other.met]
    if found.begun:
        begun = [other for other in begun if other.group.order < found.group.order]
    return sorted(begun, key=lambda other: other.group.order)


def _short(found: Count, fitting: Sequence[str] | None, without: Claim | None = None) -> Shortfall:
    """What the group has, where so many that wait, of these roles, would find a place; None: some do not exist yet."""
    group, done = found.group, [*found.placed, *found.cardless]
    waiting = [role for _, role in found.waiting]
    decisive = [*done, *(waiting if fitting is None else fitting)]
    if len(decisive) < group.needed:
        roles: tuple[tuple[str, int], ...] = (("", group.needed),)
    else:
        roles = (*((role, needed) for role, needed in group.roles if decisive.count(role) < needed), ("", group.needed))
    role, needed = roles[0]

    def number(of: Sequence[str]) -> int:
        return of.count(role) if role else len(of)

    return Shortfall(
        group.name,
        needed,
        number(found.placed),
        number(found.cardless),
        number(fitting or ()),
        max(0, needed - number([*done, *waiting])),
        role,
        without,
    )


def _paused(found: Count, pause: Pause) -> Shortfall:
    """What keeps a group waiting that held cards in vain."""
    return Shortfall(
        found.group.name,
        found.group.needed,
        len(found.placed),
        len(found.cardless),
        came=pause.came,
        pause=pause.seconds,
    )


def expire_holds(cluster: Cluster, now: float) -> None:
    """Give up the places for which no bind came in time; their groups pause."""
    late = cluster.drop_late_holds(now)
    groups = {group.key: group for uid in late if (group := cluster.groups.group_of(uid)) is not None}
    for group in groups.values():
        found = count(cluster, group)
        if not found.met:
            cluster.groups.attempts.fail(group.key, now, len(found.placed) + len(found.cardless))


def admit_to_names(
    cluster: Cluster, pod: PodObject, claim: Claim, names: Sequence[str], *, now: float, keep: bool
) -> Grant | Shortfall | None:
    """`admit`, for the nodes of a filter call. Nearly all Pods have no group: they must not pay for a list of rows."""
    if not cluster.groups.groups or cluster.groups.find(membership(pod)) is None:
        return None
    row_of = cluster.board.row_of
    rows = np.fromiter((row for name in names if (row := row_of.get(name)) is not None), np.int64)
    return admit(cluster, pod, claim, rows, now=now, keep=keep)
