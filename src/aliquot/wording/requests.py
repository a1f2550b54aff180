"""What a Pod or a run asks for, in as few words as fit on a line: "10 GiB, 30%", "2 whole cards"."""

from __future__ import annotations

from aliquot.model.claim import Claim, ContainerClaim
from aliquot.wording.amounts import memory, percent

_MOST_NAMED = 3  # different containers


def wants(claim: Claim) -> str:
    """The amounts of each container; equal ones once."""
    if claim.whole_node:
        return "a whole node"
    parts = [_of_container(container) for container in claim.containers]
    return " + ".join(dict.fromkeys(parts)) if len(set(parts)) <= _MOST_NAMED else f"{len(parts)} containers' cards"


def requests(wanted: str, dialect: str) -> str:
    """A sentence without its subject: "requests 10 GiB, 30% (qgpu)"."""
    return f"requests {wanted} ({dialect})"


def _of_container(container: ContainerClaim) -> str:
    part = container.slice
    if part.exclusive:
        return on_cards([], container.count)
    parts = [f"{part.memory_percent:g}% of memory"] if part.memory_percent else []
    parts += [memory(part.memory_mib)] if part.memory_mib else []
    core = part.core_milli if part.greedy_milli is None else part.greedy_milli
    offline = " offline" * (part.greedy_milli is not None)
    return on_cards(parts + ([] if core is None else [percent(core) + offline]) or ["a part"], container.count)


def on_cards(parts: list[str], count: int | None) -> str:
    """These amounts of so many cards; no count: of every card of a node, no parts: of whole ones."""
    if not parts:
        return "a whole card" if count == 1 else "every card of a node" if count is None else f"{count} whole cards"
    cards = "" if count == 1 else " on every card" if count is None else f" on each of {count} cards"
    return ", ".join(parts) + cards
