"""Why a Pod fits nowhere, for people: a few lines (`why_not`), or one sentence for an event (`one_sentence`).

As short on five thousand nodes as on five. Every node is in one of three groups, so that the first thing seen is
whether waiting helps:

    busy     it could take the Pod when others leave
    closed   Kubernetes keeps the Pod away for now (cordon, taint, not ready)
    never    it will not take the Pod as node and Pod are

and each group says once every reason its nodes gave, the deciding ones first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from aliquot.dialects import ENABLED_BY
from aliquot.model.claim import Claim
from aliquot.model.refusal import Invalid, Reason, Refusal
from aliquot.placement.demand import demand_of
from aliquot.wording import amounts, reasons
from aliquot.wording.reasons import NEVER, ONE, OWN, UNKNOWN, Facts

_CLOSED = frozenset({Reason.UNSCHEDULABLE, Reason.NOT_READY, Reason.TAINT})

_MOST_LINES = 8  # of a group; five thousand nodes may have as many different taints
_MOST_NAMES = 3  # of a line
_MOST_REASONS = 3  # of a group, in one sentence
_LONGEST = 900  # an event's note takes 1,024 bytes
_LONGEST_WORDS = 120  # of a node's own: a taint, a broken label


def as_data(refusal: Refusal, claim: Claim | None) -> dict[str, object]:
    """The refusal as plain values, for JSON. `wanted` and `had` are numbers in `unit` (GiB, %, CPU; None: a count), or
    the words that name a condition."""
    wanted, had = reasons.numbers(refusal.reason, refusal.wanted, refusal.had)
    if refusal.reason in (Reason.MODE, Reason.MIXED) and claim is not None:
        wanted, had = ENABLED_BY[claim.offer], None
    return {
        "code": refusal.reason.value,
        "node": refusal.node,
        "card": refusal.card,
        "wanted": wanted,
        "had": had,
        "unit": reasons.unit(refusal.reason),
        "never": refusal.never,
    }


def short_reason(reason: Reason, never: bool, claim: Claim) -> str:
    """Why a node does not take the claim, in the same words for every such node: kube-scheduler counts equal ones."""
    amount = needed(reason, claim)
    wanted, _ = reasons.needed_and_had(reason, amount, 0)
    if reason is Reason.MEMORY and not amount:
        wanted = f"{needed_percent(claim)}%"
    facts = Facts(wanted=wanted, dialect=claim.dialect, requires=ENABLED_BY[claim.offer])
    one = [ONE] * (amount <= 1)
    return reasons.short(reason, facts, *one, *_cases(reason, never, claim))


def coded_reason(reason: Reason, never: bool, claim: Claim) -> str:
    """The same with its code, for kube-scheduler to repeat."""
    return reasons.with_code(short_reason(reason, never, claim), reason)


def invalid_node(broken: Sequence[Invalid]) -> str:
    """Why a node that breaks a rule takes no Pod, with its code."""
    return _invalid(Reason.INVALID, broken[:1])


def invalid_pod(broken: Sequence[Invalid]) -> str:
    """Why no node takes a Pod that breaks rules, with its code."""
    return _invalid(Reason.INVALID_POD, broken)


def _invalid(reason: Reason, broken: Sequence[Invalid]) -> str:
    detail = "; ".join(each.sentence() for each in broken)
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


def needed_percent(claim: Claim) -> int:
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
    """The lines that tell it, under the line that says that it fits nowhere."""
    hopes = _hopes(refusals)
    for hope, heading in (
        (
            "busy",
            ("is busy: it could take the Pod when others leave", "are busy: they could take the Pod when others leave"),
        ),
        ("closed", ("is closed to the Pod for now", "are closed to the Pod for now")),
        ("never", ("will not take the Pod as it is", "will not take the Pod as they are")),
    ):
        count = sum(found == hope for found in hopes.values())
        if count:
            yield f"  {count:,} node{'s' * (count > 1)} {heading[count > 1]}"
            yield from _lines((refusal for refusal in refusals if hopes[refusal.node] == hope), claim, hope)


def waiting_helps(refusals: Iterable[Refusal]) -> bool:
    """Whether any node could take the Pod later, as node and Pod are."""
    return any(hope != "never" for hope in _hopes(list(refusals)).values())


def _hopes(refusals: Iterable[Refusal]) -> dict[str, str]:
    """Per node: busy, closed or never."""
    hopes: dict[str, str] = {}
    cards: dict[str, dict[int, bool]] = {}  # whether each card that refused could ever do
    for refusal in refusals:
        if refusal.card is not None:
            known = cards.setdefault(refusal.node, {})
            known[refusal.card] = known.get(refusal.card, False) or refusal.never
        elif refusal.never:
            hopes[refusal.node] = "never"
        elif refusal.reason in _CLOSED:
            hopes.setdefault(refusal.node, "closed")
    # A node is out for good when every one of its cards is. One that lacks only some of several says so itself.
    hopes |= {node: "never" for node, known in cards.items() if all(known.values())}
    return {refusal.node: hopes.get(refusal.node, "busy") for refusal in refusals}


def one_sentence(refusals: Sequence[Refusal], claim: Claim, nodes: int) -> str:
    """Why a Pod fits none of so many nodes, in one sentence for an event: of each group the deciding reasons only."""
    hopes = _hopes(refusals)
    parts = []
    for hope, (one, many) in (
        ("busy", ("is busy", "are busy")),
        ("closed", ("is closed to it for now", "are closed to it for now")),
        ("never", ("will not take it", "will not take it")),
    ):
        count = sum(found == hope for found in hopes.values())
        if not count:
            continue
        ranked = _ranked((refusal for refusal in refusals if hopes[refusal.node] == hope), hope)
        told = [item for item in ranked if item[1].deciding] or ranked
        told_reasons = []
        for (reason, never, said), line in told[:_MOST_REASONS]:
            of_them = "" if len(line.nodes) == count else f"{len(line.nodes):,} of them: "
            reason_words = _sentence(reason, never, _shortened(said), line, claim)
            told_reasons.append(of_them + reason_words.replace("; ", ", "))  # semicolons stand between reasons
        if len(told) > _MOST_REASONS:
            told_reasons.append(f"{len(told) - _MOST_REASONS:,} more reasons")
        parts.append(f"{count:,} {many if count > 1 else one}: {'; '.join(told_reasons)}")
    if not parts:
        return "fits nowhere: there is no node to try" if not nodes else f"fits none of {_nodes(nodes)}"
    text = f"fits none of {_nodes(nodes)}. {'. '.join(parts)}"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _nodes(count: int) -> str:
    return f"{count:,} node{'s' * (count != 1)}"


def _shortened(words: object) -> object:
    return words[: _LONGEST_WORDS - 3] + "..." if isinstance(words, str) and len(words) > _LONGEST_WORDS else words


_Ranked = list[tuple[tuple[Reason, bool, object], _Line]]


def _ranked(refusals: Iterable[Refusal], hope: str) -> _Ranked:
    """The reasons of one group of nodes, the deciding ones first, then those of most nodes."""
    lines: dict[tuple[Reason, bool, object], _Line] = {}
    for refusal in refusals:
        # Nodes differ in what they have instead of a label, but all lack the same one; taints differ.
        words = (
            refusal.wanted
            if refusal.reason is Reason.SELECTOR
            else refusal.had
            if isinstance(refusal.had, str)
            else None
        )
        line = lines.setdefault((refusal.reason, refusal.never, words), _Line())
        line.add(refusal)
        line.deciding = refusal.never == (hope == "never") and (hope == "closed") == (refusal.reason in _CLOSED)
    return sorted(lines.items(), key=lambda item: (not item[1].deciding, -len(item[1].nodes), item[0][0]))


def _lines(refusals: Iterable[Refusal], claim: Claim, hope: str) -> Iterator[str]:
    ranked = _ranked(refusals, hope)
    wide = max(len(f"{len(line.nodes):,}") for _, line in ranked)
    for (reason, never, said), line in ranked[:_MOST_LINES]:
        names = list(line.nodes)
        shown = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        yield f"    {len(names):>{wide},}  {_sentence(reason, never, said, line, claim)}  [{shown}]"
    rest = ranked[_MOST_LINES:]
    if rest:
        nodes = len({name for _, line in rest for name in line.nodes})
        yield f"    {nodes:>{wide},}  for {len(rest):,} more reasons (-o json tells them all)"


def _sentence(reason: Reason, never: bool, detail: object, line: _Line, claim: Claim) -> str:
    wanted, had = reasons.needed_and_had(reason, line.wanted, line.had)
    facts = Facts(
        wanted, had, amounts.count(line.cards or line.had, "card"), str(detail), claim.dialect, ENABLED_BY[claim.offer]
    )
    one = [ONE] * (line.wanted == 1) + [UNKNOWN] * (detail is None)
    return reasons.line(reason, facts, *one, *_cases(reason, never, claim))
