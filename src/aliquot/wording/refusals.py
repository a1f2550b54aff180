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
from aliquot.model.refusal import Reason, Refusal

Amount = int | float | str | None

_CLOSED = frozenset({Reason.UNSCHEDULABLE, Reason.NOT_READY, Reason.TAINT})
_PER = {Reason.MEMORY: 1024, Reason.HOST_MEMORY: 1024, Reason.CORE: 10, Reason.GREEDY: 10, Reason.CPU: 1000}

_MOST_LINES = 8  # of a group; five thousand nodes may have as many different taints
_MOST_NAMES = 3  # of a line
_MOST_REASONS = 3  # of a group, in one sentence
_LONGEST = 900  # an event's note takes 1,024 bytes
_LONGEST_WORDS = 120  # of a node's own: a taint, a broken label


def amounts(refusal: Refusal, claim: Claim | None) -> tuple[Amount, Amount]:
    """Wanted and had in the units people use: GiB, percent of a card, CPUs; or the words that name a condition."""
    if refusal.reason in (Reason.MODE, Reason.MIXED) and claim is not None:
        return ENABLED_BY[claim.offer], None
    per = _PER.get(refusal.reason, 1)
    return in_units(refusal.wanted, per), _cut(refusal.had, per)


def in_units(amount: int | str | None, per: int) -> Amount:
    """To two decimals; an integer where that is whole."""
    return _plain(round(amount / per, 2)) if isinstance(amount, int) else amount


def _cut(amount: int | str | None, per: int) -> Amount:
    """The same, but never more than there is: 3,071 MiB free must not look like the 3 GiB that are wanted."""
    return _plain(amount * 100 // per / 100) if isinstance(amount, int) else amount


def _plain(amount: float) -> int | float:
    return int(amount) if amount == int(amount) else amount


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
        reasons = []
        for (reason, never, said), line in told[:_MOST_REASONS]:
            of_them = "" if len(line.nodes) == count else f"{len(line.nodes):,} of them: "
            reasons.append(of_them + _sentence(reason, never, _shortened(said), line, claim))
        if len(told) > _MOST_REASONS:
            reasons.append(f"{len(told) - _MOST_REASONS:,} more reasons")
        parts.append(f"{count:,} {many if count > 1 else one} ({'; '.join(reasons)})")
    if not parts:
        return "fits nowhere: there is no node to try" if not nodes else f"fits none of {_nodes(nodes)}"
    text = f"fits none of {_nodes(nodes)}: {', '.join(parts)}"
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


def _sentence(reason: Reason, never: bool, words: object, line: _Line, claim: Claim) -> str:
    wanted, had = in_units(line.wanted, _PER.get(reason, 1)), _cut(line.had, _PER.get(reason, 1))
    cards = f"{line.cards or line.had:,} card{'s' * ((line.cards or line.had) > 1)}"
    match reason:
        case Reason.MEMORY if never:
            return f"GPU memory: {wanted} GiB wanted of a card, too small for that: {cards}"
        case Reason.MEMORY:
            return f"GPU memory: {wanted} GiB wanted, at most {had} GiB free on {cards}"
        case Reason.CORE:
            return f"compute: {wanted}% of a card wanted, at most {had}% free on {cards}"
        case Reason.GREEDY:
            return f"offline compute: {wanted}% of a card wanted, at most {had}% free on {cards}"
        case Reason.SLICES if never:
            return f"sharing: {wanted} containers on one card, more than may ever share {cards}"
        case Reason.SLICES:
            return f"sharing: as many as may share a card do so already on {cards}"
        case Reason.EXCLUSIVE if any(container.slice.exclusive for container in claim.containers):
            return f"whole cards wanted, and others are on {cards}"
        case Reason.EXCLUSIVE:
            return f"held whole by other Pods: {cards}"
        case Reason.HEALTH:
            return f"sick or gone: {cards}"
        case Reason.MODEL:
            return f"another model than the one wanted on {cards}"
        case Reason.CARDS if line.wanted == 1:
            return "no card on the node"
        case Reason.CARDS:
            return f"{wanted} cards wanted on one node, at most {had} of them would do"
        case Reason.CONTAINERS:
            return f"each of the {wanted} containers would fit alone, all together do not"
        case Reason.MODE:
            return f"not for {claim.dialect} Pods: that takes {ENABLED_BY[claim.offer]}"
        case Reason.MIXED:
            return f"not for online and offline Pods: that takes {ENABLED_BY[claim.offer]}"
        case Reason.WHOLE_NODE if claim.whole_node:
            return "the whole node is wanted, and other Pods are on it"
        case Reason.WHOLE_NODE:
            return "another Pod has the whole node"
        case Reason.CPU:
            return f"CPU: {wanted} wanted, {'the node has fewer' if never else f'at most {had} free'}"
        case Reason.HOST_MEMORY:
            free = "the node has less" if never else f"at most {had} GiB free"
            return f"memory of the node: {wanted} GiB wanted, {free}"
        case Reason.INVALID:
            return f"broken: {words}"
        case Reason.UNSCHEDULABLE:
            return "cordoned"
        case Reason.NOT_READY:
            return f"not ready (Ready is {words})"
        case Reason.TAINT:
            return f"the Pod does not tolerate the taint {words}"
        case Reason.SELECTOR:
            return f"the Pod wants {words}"
