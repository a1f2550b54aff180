"""The tables of `kubectl aliquot`: nodes, cards, Pods and what waits, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from aliquot.cli.tables import table
from aliquot.model.device import Card
from aliquot.wording.amounts import count, duration, in_units, memory, memory_of
from aliquot.wording.withheld import withheld_words

if TYPE_CHECKING:
    from aliquot.model.claim import Usage
    from aliquot.services.explain.overview import CardStanding, ClaimStanding, NodeStanding, Overview, PodStanding

_MANY = 40  # nodes; with more, alike ones are summed up
_MOST_WAITING = 10  # shown beside the nodes
_MOST_TROUBLED = 10


def tables(seen: Overview, nodes: Sequence[NodeStanding], *, wide: bool, alone: bool) -> Iterator[str]:
    """The nodes, alike ones summed up when there are many; then those who wait."""
    if not nodes:
        yield "Aliquot shares no GPU of this cluster: `aliquot doctor` shows what the nodes lack"
    elif wide or len(nodes) <= _MANY:
        yield _per_node(nodes, wide)
        if len(nodes) > 1:
            yield ""
            yield _in_all(nodes)
    else:
        yield _per_kind(nodes)
        yield ""
        yield _in_all(nodes)
        yield from _troubled(nodes)
        yield "-o wide shows every node, NODE -d one of them with its Pods"
    if seen.waiting and not alone:
        yield ""
        yield from waiting_lines(seen, _MOST_WAITING)


def _per_node(nodes: Sequence[NodeStanding], wide: bool) -> str:
    head = ["NODE", "OFFERS", "POLICY", "GPU", "MEMORY (GiB)", "CORE", "PODS", "ONLINE", "OFFLINE"]
    head += ["CARDS (GiB)"] if wide else []
    elastic = any(node.factor > 1 for node in nodes)
    head += ["BOOKABLE", "POOL (GiB)"] if elastic else []
    rows = [
        [
            node.name,
            ",".join(node.offers) or "-",
            "-" if node.node is None else node.node.isolation.value,
            str(len(node.cards)),
            *_used([node]),
            *_people([node]),
            *([" ".join(_card(card) for card in node.cards) or "-"] if wide else []),
            *((f"{node.factor:g}x", _pool(node)) if elastic else ()),
            ", ".join(_state(node)),
        ]
        for node in nodes
    ]
    return table([*head, "STATE"], rows, right=frozenset({3, 4, 5, 6, 7, 8}))


def _per_kind(nodes: Sequence[NodeStanding]) -> str:
    kinds: dict[tuple[str, ...], list[NodeStanding]] = {}
    for node in nodes:
        kinds.setdefault((",".join(node.offers) or "-", _policy(node), _hardware(node)), []).append(node)
    head = ["NODES", "OFFERS", "POLICY", "GPU", "MEMORY (GiB)", "CORE (GPU)", "FREE GPU", "PODS", "ONLINE", "OFFLINE"]
    rows = [
        [
            f"{len(alike):,}",
            offers,
            policy,
            hardware,
            *_used(alike, in_cards=True),
            f"{sum(not card.used.slices and card.card.usable for node in alike for card in node.cards):,}",
            *_people(alike),
        ]
        for (offers, policy, hardware), alike in sorted(kinds.items(), key=lambda kind: (-len(kind[1]), kind[0]))
    ]
    return table(head, rows, right=frozenset({0, 4, 5, 6, 7, 8, 9}))


def _policy(node: NodeStanding) -> str:
    return "-" if node.node is None else node.node.isolation.value


def _hardware(node: NodeStanding) -> str:
    """Such as "8 x A30, 22 GiB"."""
    sizes = sorted({card.card.memory_mib for card in node.cards})
    models = sorted({card.card.model for card in node.cards if card.card.model})
    if not sizes:
        return "-"
    size = " to ".join(memory(size) for size in (sizes[:1] if len(sizes) == 1 else (sizes[0], sizes[-1])))
    return f"{len(node.cards)} x {'/'.join(models)}{', ' * bool(models)}{size}"


def _sums(nodes: Sequence[NodeStanding]) -> tuple[int, int, int, int]:
    """Memory booked and there, thousandths of compute booked, and the number of cards."""
    cards = [card for node in nodes for card in node.cards]
    used, total = sum(card.used.memory_mib for card in cards), sum(card.card.memory_mib for card in cards)
    return used, total, sum(card.used.booked_milli for card in cards), len(cards)


def _used(nodes: Sequence[NodeStanding], *, in_cards: bool = False) -> list[str]:
    """Memory and compute, used of what there is; compute in percent of a card, or in cards."""
    used, total, core, cards = _sums(nodes)
    of_all = f"{in_units(core, 1000):,}/{cards:,}" if in_cards else f"{in_units(core, 10)}/{100 * cards}%"
    return [f"{in_units(used, 1024):,}/{in_units(total, 1024):,}", of_all]


def _pool(node: NodeStanding) -> str:
    """Host memory for what does not fit on the cards: booked, of what there is."""
    return f"{in_units(node.beyond_mib, 1024):,}/{in_units(node.pool_mib, 1024):,}" if node.pool_mib else "-"


def _people(nodes: Sequence[NodeStanding]) -> list[str]:
    from aliquot.model.claim import AppClass

    classes = [sum(node.count(kind) for node in nodes) for kind in (AppClass.ONLINE, AppClass.OFFLINE)]
    return [f"{number:,}" for number in (sum(len(node.pods) for node in nodes), *classes)]


def _card(standing: CardStanding) -> str:
    used, total = (in_units(mib, 1024) for mib in (standing.used.memory_mib, standing.card.memory_mib))
    marks = "!" * (not standing.card.usable) + "*" * bool(standing.used.exclusive)
    return f"{standing.card.index}:{used}/{total}{marks}"


def _state(node: NodeStanding) -> list[str]:
    # While the agent is away, no card of the node takes Pods: that says nothing about their health.
    sick = [] if node.agent_away else [str(card.card.index) for card in node.cards if not card.card.healthy]
    withheld = [str(card.card.index) for card in node.cards if card.card.withheld]
    states = (("unhealthy", sick), ("not offered", withheld))
    return [*node.trouble, *(f"{state}: GPU {', '.join(cards)}" for state, cards in states if cards)]


def _why_out(card: Card) -> str:
    """Empty where the card takes Pods."""
    if card.withheld is not None:
        return withheld_words(card.withheld)
    return "" if card.healthy else "unhealthy"


def _in_all(nodes: Sequence[NodeStanding]) -> str:
    used, total, core, cards = _sums(nodes)
    pods, online, offline = _people(nodes)
    return (
        f"{count(len(nodes), 'node')}, {count(cards, 'GPU')}: memory {memory_of(used, total)},"
        f" core {in_units(core, 1000):,} of {cards:,} GPUs,"
        f" {pods} Pod{'s' * (pods != '1')} ({online} online, {offline} offline)"
    )


def _troubled(nodes: Sequence[NodeStanding]) -> Iterator[str]:
    troubled = [(node.name, _state(node)) for node in nodes if _state(node)]
    if not troubled:
        return
    yield f"{len(troubled):,} node{'s' * (len(troubled) > 1)} with trouble:"
    yield from (f"  {name}  {', '.join(state)}" for name, state in troubled[:_MOST_TROUBLED])
    if len(troubled) > _MOST_TROUBLED:
        yield f"  and {len(troubled) - _MOST_TROUBLED:,} more"


def details(nodes: Sequence[NodeStanding]) -> Iterator[str]:
    """A block per node: its cards, then its Pods."""
    for number, node in enumerate(nodes):
        if number:
            yield ""
        offers = ", ".join(node.offers) or "offers nothing"
        elastic = (
            [f"books {node.factor:g}x its memory, pool {memory_of(node.beyond_mib, node.pool_mib)}"]
            if node.factor > 1
            else []
        )
        yield "  ".join([node.name, offers, _policy(node), *elastic, *_state(node)])
        yield from (f"  note: {note}" for note in node.notes)
        cards = [
            [
                str(card.card.index),
                card.card.model or "-",
                f"{in_units(card.used.memory_mib, 1024)}/{in_units(card.card.memory_mib, 1024)}",
                "whole" if card.used.exclusive else f"{in_units(card.used.core_milli, 10)}/100%",
                f"{in_units(card.used.greedy_milli, 10)}%" if card.used.greedy_milli else "-",
                str(card.used.slices) + (f"/{card.card.max_slices}" if card.card.max_slices is not None else ""),
                _why_out(card.card) or "ok",
            ]
            for card in node.cards
        ]
        head = ["GPU", "MODEL", "MEMORY (GiB)", "CORE", "GREEDY", "SHARED BY", "STATE"]
        if cards:
            yield from _indented(table(head, cards, right=frozenset({2, 3, 4, 5})))
        if node.pods:
            yield ""
            rows = [_pod_row(pod) for pod in sorted(node.pods, key=lambda pod: (sorted(pod.grant.usage()), pod.key))]
            yield from _indented(table(["POD", "CLASS", "DIALECT", "GPU", "MEMORY (GiB)", "CORE", ""], rows))
        if node.claims:
            yield ""
            rows = [_claim_row(claim) for claim in node.claims]
            yield from _indented(table(["CLAIM", "CLASS", "GPU", "MEMORY (GiB)", "CORE", "USED BY"], rows))


def _indented(text: str) -> Iterator[str]:
    yield from (f"  {line}" for line in text.splitlines())


def _claim_row(claim: ClaimStanding) -> list[str]:
    key, app_class, _, *amounts, _ = _pod_row(claim)
    return [key, app_class, *amounts, ", ".join(claim.users) or "-"]


def _pod_row(pod: PodStanding) -> list[str]:
    usage = pod.grant.usage()
    remarks = ["the whole node"] * pod.grant.whole_node + ["a guess: no annotation names its cards"] * pod.guessed
    remarks += [f"parkable after {pod.claim.park_after:g}s"] if pod.claim.park_after is not None else []
    remarks += [f"accepts {duration(pod.claim.latency)} of latency"] if pod.claim.latency is not None else []
    return [
        pod.key,
        pod.claim.app_class.value,
        pod.claim.dialect,
        ",".join(map(str, usage)) or "-",
        _each([_gib(use) for use in usage.values()]),
        _each([_core(use) for use in usage.values()]),
        ", ".join(remarks),
    ]


def _gib(use: Usage) -> str:
    return str(in_units(use.memory_mib, 1024))


def _core(use: Usage) -> str:
    if use.exclusive:
        return "whole"
    if use.greedy_milli:
        return f"greedy {in_units(use.greedy_milli, 10)}%"
    return f"{in_units(use.core_milli, 10)}%" if use.core_milli else "-"


def _each(amounts: list[str]) -> str:
    """The amounts on each card; once, where they are all the same."""
    if not amounts:
        return "-"
    if len(set(amounts)) == 1:
        return amounts[0] if len(amounts) == 1 or amounts[0] in ("whole", "-") else f"{len(amounts)} x {amounts[0]}"
    return " + ".join(amounts)


def waiting_lines(seen: Overview, most: int | None) -> Iterator[str]:
    """The Pods that wait, oldest first, those with the same reason together."""
    if not seen.waiting:
        yield "no Pod waits for a GPU that Aliquot shares"
        return
    total = len(seen.waiting)
    yield f"{total:,} Pod{'s wait' if total > 1 else ' waits'}:"
    alike: dict[str, list[str]] = {}
    asked = 0
    for pod in seen.waiting:
        alike.setdefault(seen.why_waits(pod), []).append(pod.key)
        asked += 1
        if most is not None and len(alike) >= most:
            break
    for sentence, keys in alike.items():
        more = f" ... {keys[-1]} ({len(keys):,} Pods)" if len(keys) > 1 else ""
        yield f"  {keys[0]}{more}"
        yield f"    {sentence}"
    if asked < total:
        yield f"  and {total - asked:,} more: --pending shows them all"
