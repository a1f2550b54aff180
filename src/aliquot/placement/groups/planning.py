"""Places for several claims at once: as many as are needed, or none.

One claim after the other takes the best place that is left, as `choose` would give it by itself. So equal claims on
single cards always get as many places as there are. For members of different shapes this is a heuristic: those of
roles that are needed go first, then those with the fewest nodes to go to, then the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.model.refusal import Refusal
from aliquot.placement.board import Ints
from aliquot.placement.book import Ledger
from aliquot.placement.choose import Chooser
from aliquot.placement.demand import demand_of


class Member(msgspec.Struct, frozen=True, gc=False):
    """A claim without a place. `rows`: the nodes that it may go to; None: any."""

    claim: Claim
    role: str = ""
    rows: Ints | None = None


class Need(msgspec.Struct, frozen=True, gc=False):
    """How many must get a place: of all, and of each role."""

    total: int
    roles: Mapping[str, int]

    def met(self, roles: Sequence[str]) -> bool:
        """Whether so many, of these roles, are enough."""
        return len(roles) >= self.total and all(roles.count(role) >= needed for role, needed in self.roles.items())


@dataclass(frozen=True, slots=True)
class Plan:
    """What was found for whom. Booked if `enough`."""

    grants: Mapping[str, Grant]  # by uid
    roles: Sequence[str]  # of those that found a place
    enough: bool
    without: Claim | None  # the first that found none
    refusals: Sequence[Refusal] = ()  # why not


def place_together(
    ledger: Ledger,
    chooser: Chooser,
    members: Sequence[Member],
    need: Need,
    deadline: float,
    why: Callable[[Claim], Sequence[Refusal]] | None = None,
) -> Plan:
    """Hold a place until the deadline for every member that finds one, if they are enough; otherwise for none.

    A member that has a booking gets no second one, and keeps it. `why` says what a claim lacks, on the board with the
    others in their places.
    """
    grants: dict[str, Grant] = {}
    roles: list[str] = []
    without: Claim | None = None
    full: set[object] = set()  # kinds of claims for which nothing is left: the board only fills up
    for member in _in_turn(members, need.roles):
        claim = member.claim
        if ledger.get(claim.uid) is not None:  # not ours to give up
            without = without or claim
            continue
        kind = (demand_of(claim), None if member.rows is None else id(member.rows))
        grant = None if kind in full else chooser.choose(claim, member.rows)
        if grant is None or isinstance(ledger.assume(claim, grant, deadline), list):
            full.add(kind)
            without = without or claim
            continue
        grants[claim.uid] = grant
        roles.append(member.role)
    enough = need.met(roles)
    refusals = why(without) if why is not None and without is not None and not enough else ()
    if not enough:
        release(ledger, grants)
    return Plan(grants, roles, enough, without, refusals)


def release(ledger: Ledger, grants: Mapping[str, Grant]) -> None:
    """Give these places up."""
    for uid in grants:
        ledger.forget(uid)


def _in_turn(members: Sequence[Member], roles: Mapping[str, int]) -> Iterator[Member]:
    """First as many of each role as are needed, then the others."""
    left, later = dict(roles), []
    for member in sorted(members, key=_hardest_first):
        if left.get(member.role, 0) > 0:
            left[member.role] -= 1
            yield member
        else:
            later.append(member)
    yield from later


def _hardest_first(member: Member) -> tuple[float, bool, int, float]:
    parts = demand_of(member.claim).parts
    nodes = float("inf") if member.rows is None else len(member.rows)
    size = max((part.slice.memory_mib + part.slice.memory_percent for part in parts), default=0)
    return nodes, not member.claim.whole_node, -sum(part.count for part in parts), -size
