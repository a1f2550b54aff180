"""What a Pod or a run wants of cards, in as few words as fit on a line: "10 GiB, 30%", "2 whole cards"."""

from __future__ import annotations

from aliquot.model.claim import Claim, ContainerClaim

_MOST_TOLD = 3  # different containers


def wants(claim: Claim) -> str:
    """Of each container that asks; those that ask for the same are told once."""
    if claim.whole_node:
        return "a whole node"
    said = [_of_container(container) for container in claim.containers]
    return " + ".join(dict.fromkeys(said)) if len(set(said)) <= _MOST_TOLD else f"{len(said)} containers' cards"


def _of_container(container: ContainerClaim) -> str:
    part = container.slice
    if part.exclusive:
        return on_cards([], container.count)
    memory = [f"{part.memory_percent}% of memory"] if part.memory_percent else []
    memory += [gib(part.memory_mib)] if part.memory_mib else []
    core = part.core_milli if part.greedy_milli is None else part.greedy_milli
    offline = " offline" * (part.greedy_milli is not None)
    return on_cards(memory + ([] if core is None else [f"{core / 10:g}%{offline}"]) or ["a part"], container.count)


def on_cards(parts: list[str], count: int | None) -> str:
    """These amounts of so many cards; no count: of every card of a node, no parts: of whole ones."""
    if not parts:
        return "a whole card" if count == 1 else "every card of a node" if count is None else f"{count} whole cards"
    cards = "" if count == 1 else " on every card" if count is None else f" on each of {count} cards"
    return ", ".join(parts) + cards


def gib(mib: int) -> str:
    """In GiB, or in MiB where that is not whole."""
    return f"{mib // 1024} GiB" if mib % 1024 == 0 else f"{mib} MiB"
