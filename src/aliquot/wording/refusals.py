"""Why a Pod fits nowhere: lines for `aliquot explain`, one sentence for an event, a reason per node for kube-scheduler.

As short for five thousand nodes as for five. Every node is in one of three groups, so that people see first whether
waiting helps:

    busy     it could take the Pod when others leave
    closed   Kubernetes keeps the Pod away for now (cordon, taint, not ready)
    never    it will not take the Pod as node and Pod are

Each group lists every reason of its nodes once, the deciding ones first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

from aliquot.dialects import ENABLED_BY, WHOLE_CARDS_NEED
from aliquot.model.claim import Claim
from aliquot.model.refusal import Invalid, Reason, Refusal
from aliquot.placement.demand import demand_of
from aliquot.wording import amounts, reasons
from aliquot.wording.reasons import NEVER, ONE, OWN, UNKNOWN, Facts

_CLOSING = frozenset({Reason.UNSCHEDULABLE, Reason.NOT_READY, Reason.TAINT})

_MOST_LINES = 8  # of a group; five thousand nodes may have as many different taints
_MOST_NAMES = 3  # of a line
_MOST_REASONS = 3  # of a group, in one sentence
_LONGEST = 900  # an event's note takes 1,024 bytes
_LONGEST_WORDS = 120  # of a node's own: a taint, a broken label


class RefusalData(TypedDict):
    """See `as_data`."""

    code: str
    node: str
    card: int | None
    wanted: object
    had: object
    unit: str | None
    never: bool


def as_data(refusal: Refusal, claim: Claim | None) -> RefusalData:
    """The refusal as plain values, for JSON. `wanted` and `had` are numbers in `unit` (GiB, %, CPU; None: a count), or
    the words that name a condition."""
    wanted, had = reasons.numbers(refusal.reason, refusal.wanted, refusal.had)
    if claim is not None and (required := requires(refusal.reason, claim)) is not None:
        wanted, had = required, None
    return {
        "code": refusal.reason.value,
        "node": refusal.node,
        "card": refusal.card,
        "wanted": wanted,
        "had": had,
        "unit": reasons.unit(refusal.reason),
        "never": refusal.never,
    }


def requires(reason: Reason, claim: Claim) -> str | None:
    """What a node lacks to serve the claim's dialect; None for other reasons."""
    if reason is Reason.QGPU_NODE:
        return WHOLE_CARDS_NEED
    return ENABLED_BY[claim.offer] if reason in (Reason.MODE, Reason.MIXED) else None


def short_reason(reason: Reason, never: bool, claim: Claim) -> str:
    """Why a node does not take the claim, in the same words for every such node: kube-scheduler counts equal ones."""
    amount = needed(reason, claim)
    wanted, _ = reasons.needed_and_had(reason, amount, 0)
    if reason is Reason.MEMORY and not amount:
        wanted = f"{needed_percent(claim):g}%"
    facts = Facts(wanted=wanted, dialect=claim.dialect, requires=requires(reason, claim) or "")
    one = [ONE] * (amount <= 1)
    return reasons.short(reason, facts, *one, *_cases(reason, never, claim))


def coded_reason(reason: Reason, never: bool, claim: Claim) -> str:
    """The short reason with its code, for kube-scheduler to repeat."""
    return reasons.with_code(short_reason(reason, never, claim), reason)


def invalid_node(broken: Sequence[Invalid]) -> str:
    """Why a node that breaks a rule takes no Pod, with its code."""
    return _invalid(Reason.INVALID, broken[:1])


def invalid_pod(broken: Sequence[Invalid]) -> str:
    """Why no node takes a Pod that breaks rules, with its code."""
    return _invalid(Reason.INVALID_POD, broken)


def _invalid(reason: Reason, broken: Sequence[Invalid]) -> str:
    detail = "; ".join(rule.sentence() for rule in broken)
    return reasons.with_code(reasons.short(reason, Facts(detail=detail)), reason)


UNKNOWN_NODE = reasons.with_code(reasons.short(Reason.UNKNOWN_NODE, Facts()), Reason.UNKNOWN_NODE)


def needed(reason: Reason, claim: Claim) -> int:
    """The most that any part of the claim asks for, in the unit of the reason; 0: nothing that has an amount."""
    parts = demand_of(claim).parts
    match reason:
        case Reason.MEMORY:
            return max((part.slice.memory_mib for part in parts), default=0)
        case Reason.CORE:
            return max((part.slice.core_milli or 0 for part in parts), default=0)
        case Reason.GREEDY:
            return max((part.slice.greedy_milli or 0 for part in parts), default=0)
        case Reason.CARDS:
            return max((part.count for part in parts), default=0)
        case Reason.CPU:
            return claim.cpu_milli
        case Reason.HOST_MEMORY:
            return claim.memory_mib
        case _:
            return 0


def needed_percent(claim: Claim) -> float:
    """Of a card's memory, where the claim asks for no amount."""
    return max((part.slice.memory_percent for part in demand_of(claim).parts), default=0)


def wants_alone(reason: Reason, claim: Claim) -> bool:
    """Whether it is the claim itself that wants the card or the node to itself."""
    if reason is Reason.WHOLE_NODE:
        return claim.whole_node
    return reason is Reason.EXCLUSIVE and any(part.slice.exclusive for part in claim.containers)


def _cases(reason: Reason, never: bool, claim: Claim) -> list[str]:
    """Which rows of the table fit, the best first."""
    return [OWN] * wants_alone(reason, claim) + [NEVER] * never


@dataclass(slots=True)
class _Line:
    """One reason, over all the nodes of a group that gave it."""

    wanted: int = 0
    had: int = 0
    cards: int = 0
    deciding: bool = False
    nodes: dict[str, None] = field(default_factory=dict)

    def add(self, refusal: Refusal) -> None:
        self.nodes[refusal.node] = None
        self.cards += refusal.card is not None
        if isinstance(refusal.wanted, int):
            self.wanted = max(self.wanted, refusal.wanted)
        if isinstance(refusal.had, int):
            self.had = max(self.had, refusal.had)


def why_not(refusals: Sequence[Refusal], claim: Claim) -> Iterator[str]:
    """The lines under "fits none of N nodes": a heading for each group of nodes, then its reasons."""
    for group, nodes, of_group in _by_group(refusals):
        yield f"  {amounts.count(nodes, 'node')} {group.heading[nodes > 1]}"
        yield from _lines(of_group, claim, group)


def one_sentence(refusals: Sequence[Refusal], claim: Claim, nodes: int) -> str:
    """Why a Pod fits none of so many nodes, for an event: of each group only the reasons that decide."""
    parts = []
    for group, count, of_group in _by_group(refusals):
        ranked = _ranked(of_group, group)
        deciding = [entry for entry in ranked if entry[1].deciding] or ranked
        sentences = []
        for (reason, never, detail), line in deciding[:_MOST_REASONS]:
            of_them = "" if len(line.nodes) == count else f"{len(line.nodes):,} of them: "
            sentence = _sentence(reason, never, _shortened(detail), line, claim)
            sentences.append(of_them + sentence.replace("; ", ", "))  # semicolons stand between reasons
        if len(deciding) > _MOST_REASONS:
            sentences.append(f"{len(deciding) - _MOST_REASONS:,} more reasons")
        parts.append(f"{count:,} {group.verb[count > 1]}: {'; '.join(sentences)}")
    if not parts and not nodes:
        return "fits nowhere: there is no node to try"
    text = ". ".join([f"fits none of {amounts.count(nodes, 'node')}", *parts])
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def held_back(gates: Iterable[str]) -> str:
    """Why a Pod with scheduling gates waits, on a cluster and on one machine."""
    return f"is held back by its scheduling gates: {', '.join(gates)}"


def waiting_helps(refusals: Iterable[Refusal]) -> bool:
    """Whether any node could take the Pod later, as node and Pod are."""
    return any(group is not _NEVER for group in _groups(list(refusals)).values())


# --- groups of nodes -------------------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """Words for one node, and for several."""

    heading: tuple[str, str]
    verb: tuple[str, str]


_BUSY = _Group(
    ("is busy: it could take the Pod when others leave", "are busy: they could take the Pod when others leave"),
    ("is busy", "are busy"),
)
_CLOSED = _Group(
    ("is closed to the Pod for now", "are closed to the Pod for now"),
    ("is closed to it for now", "are closed to it for now"),
)
_NEVER = _Group(
    ("will not take the Pod as it is", "will not take the Pod as they are"),
    ("will not take it", "will not take it"),
)


def _by_group(refusals: Sequence[Refusal]) -> Iterator[tuple[_Group, int, list[Refusal]]]:
    """Each group that has nodes, with their number and their refusals."""
    groups = _groups(refusals)
    for group in (_BUSY, _CLOSED, _NEVER):
        nodes = sum(found is group for found in groups.values())
        if nodes:
            yield group, nodes, [refusal for refusal in refusals if groups[refusal.node] is group]


def _groups(refusals: Iterable[Refusal]) -> dict[str, _Group]:
    """The group of every node."""
    groups: dict[str, _Group] = {}
    cards: dict[str, dict[int, bool]] = {}  # per node and card that refused: whether it never fits
    for refusal in refusals:
        if refusal.card is not None:
            known = cards.setdefault(refusal.node, {})
            known[refusal.card] = known.get(refusal.card, False) or refusal.never
        elif refusal.never:
            groups[refusal.node] = _NEVER
        elif refusal.reason in _CLOSING:
            groups.setdefault(refusal.node, _CLOSED)
    # A node never fits when none of its cards does. A node that has too few of several cards has a refusal of its own.
    groups |= {node: _NEVER for node, known in cards.items() if all(known.values())}
    return {refusal.node: groups.get(refusal.node, _BUSY) for refusal in refusals}


def _shortened(detail: object) -> object:
    return detail[: _LONGEST_WORDS - 3] + "..." if isinstance(detail, str) and len(detail) > _LONGEST_WORDS else detail


_Ranked = list[tuple[tuple[Reason, bool, object], _Line]]


def _ranked(refusals: Iterable[Refusal], group: _Group) -> _Ranked:
    """The reasons of one group of nodes, the deciding ones first, then those of most nodes."""
    lines: dict[tuple[Reason, bool, object], _Line] = {}
    for refusal in refusals:
        detail = (
            refusal.wanted if refusal.reason is Reason.SELECTOR else refusal.had
        )  # nodes differ in what they have instead
        detail = detail if isinstance(detail, str) else None
        line = lines.setdefault((refusal.reason, refusal.never, detail), _Line())
        line.add(refusal)
        closing = refusal.reason in _CLOSING
        line.deciding = refusal.never == (group is _NEVER) and closing == (group is _CLOSED)
    return sorted(lines.items(), key=lambda entry: (not entry[1].deciding, -len(entry[1].nodes), entry[0][0]))


def _lines(refusals: Iterable[Refusal], claim: Claim, group: _Group) -> Iterator[str]:
    ranked = _ranked(refusals, group)
    width = max(len(f"{len(line.nodes):,}") for _, line in ranked)
    for (reason, never, detail), line in ranked[:_MOST_LINES]:
        names = list(line.nodes)
        shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        yield f"    {len(names):>{width},}  {_sentence(reason, never, detail, line, claim)}  [{shown}]"
    rest = ranked[_MOST_LINES:]
    if rest:
        nodes = len({name for _, line in rest for name in line.nodes})
        yield f"    {nodes:>{width},}  for {len(rest):,} more reasons (-o json shows them all)"


def _sentence(reason: Reason, never: bool, detail: object, line: _Line, claim: Claim) -> str:
    wanted, had = reasons.needed_and_had(reason, line.wanted, line.had)
    facts = Facts(
        wanted,
        had,
        amounts.count(line.cards or line.had, "card"),
        str(detail),
        claim.dialect,
        requires(reason, claim) or "",
    )
    one = [ONE] * (line.wanted == 1) + [UNKNOWN] * (detail is None)
    return reasons.line(reason, facts, *one, *_cases(reason, never, claim))
