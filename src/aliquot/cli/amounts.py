"""Amounts as people type them. Imported by `aliquot run`: nothing heavy."""

from __future__ import annotations

import re
from typing import NamedTuple

MEMORY_ALLOWED = "GiB, or with a unit, as in 10, 1.5GiB or 512MiB; G, Gi and GB mean GiB too; at least 1MiB"
MEMORY_OF_RUN = f"{MEMORY_ALLOWED}; or a percentage of each card, as in 25%"
DURATION_ALLOWED = "seconds, or with a unit, as in 90, 100ms, 10s, 5m or 2h"
SIMULATED = "2x24GiB"  # the cards of --simulate without a value
SIMULATE_ALLOWED = (
    "how many cards of how much memory, as in 2x24GiB, or nodes of as many, as in 2x8x24GiB; "
    "at most 64 cards in all, of 1GiB to 1024GiB"
)

_MEMORY = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(?:([MGT])i?B?)?", re.IGNORECASE)
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%")
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|)")
_CARDS = re.compile(r"(?:([0-9]{1,4})x)?([0-9]{1,4})x([^x]+)")
_MOST_CARDS = 64
# "10G" and "10GB" are GiB, as for docker and Slurm, and as in the name of an "80GB" card.
_PER_MIB = {"M": 1, "G": 1024, "T": 1 << 20}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


class AmountError(ValueError):
    """Not an amount; the message says what is allowed."""


def parse_memory(text: str) -> int:
    """MiB."""
    match = _MEMORY.fullmatch(text.strip())
    amount = int(float(match[1]) * _PER_MIB[(match[2] or "G").upper()]) if match else 0
    if not 1 <= amount <= 1 << 30:
        raise AmountError(MEMORY_ALLOWED)
    return amount


def parse_percent(text: str) -> float | None:
    """A percentage; None: it is written as another amount."""
    if not text.endswith("%"):
        return None
    match = _PERCENT.fullmatch(text.strip())
    amount = float(match[1]) if match else 0.0
    if not 0 < amount <= 100:
        raise AmountError(MEMORY_OF_RUN)
    return amount


def parse_duration(text: str) -> float:
    """Seconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise AmountError(DURATION_ALLOWED)
    return float(match[1]) * _SECONDS[match[2]]


class Cards(NamedTuple):
    """Cards to simulate: how many in all, MiB of each, and over how many nodes they are dealt out."""

    cards: int
    memory_mib: int
    nodes: int = 1


def parse_cards(text: str) -> Cards:
    """Read cards, as in 2x24GiB or, nodes first, 2x8x24GiB."""
    match = _CARDS.fullmatch(text.strip())
    try:
        nodes, cards, memory = (int(match[1] or 1), int(match[2]), parse_memory(match[3])) if match else (0, 0, 0)
    except AmountError:
        nodes = cards = memory = 0
    if not (1 <= nodes * cards <= _MOST_CARDS and 1024 <= memory <= 1 << 20):
        raise AmountError(SIMULATE_ALLOWED)
    return Cards(nodes * cards, memory, nodes)


def looks_like_cards(text: str) -> bool:
    """Whether the word after --simulate is meant for it."""
    return re.match(r"[0-9]+(x|$|[MGT]i?B?$)", text, re.IGNORECASE) is not None
