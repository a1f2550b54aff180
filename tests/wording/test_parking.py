"""What is said of memory that leaves a card, or cannot."""

from __future__ import annotations

import pytest

from aliquot.model.residency import Arrival, ParkReason, Where
from aliquot.wording.parking import arrival_words, residency_words


@pytest.mark.parametrize(
    ("where", "why", "words"),
    [
        (Where.RESIDENT, None, ""),
        (Where.PARKED, ParkReason.ASKED, "parked: by `aliquot park`"),
        (Where.RETURNING, ParkReason.ASKED, "returning"),
        (Where.RETURNING, ParkReason.NO_ROOM, "returning: what is on the card may not leave it"),
        (Where.LEAVING, None, "leaving"),
        (
            Where.RESIDENT,
            ParkReason.SHARED_MEMORY,
            "cannot be parked: it shares memory with other processes (IPC)",
        ),
    ],
)
def test_residency(where: Where, why: ParkReason | None, words: str) -> None:
    assert residency_words(where, why) == words


def test_arrivals_say_what_it_took() -> None:
    out = Arrival("a", "GPU-0", Where.PARKED, 16 << 30, 8.0, ParkReason.ASKED)
    assert (
        arrival_words(out, "card 0", 0) == "16 GiB of its memory left card 0 for the host pool in 8s: by `aliquot park`"
    )
    back = Arrival("a", "GPU-0", Where.RESIDENT, 16 << 30, 3.0, away=60.0)
    assert (
        arrival_words(back, "card 0", 0)
        == "16 GiB of its memory came back to card 0 in 3s after 1m00s in the host pool"
    )
