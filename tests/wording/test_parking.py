"""What is said of memory that leaves by the driver's checkpoint, or cannot."""

from __future__ import annotations

import pytest

from aliquot.model.residency import Arrival, ParkReason, Way, Where
from aliquot.wording.parking import arrival_words, residency_words


@pytest.mark.parametrize(
    ("where", "why", "way", "detail", "words"),
    [
        (Where.RESIDENT, None, Way.CHECKPOINT, None, ""),
        (Where.PARKED, ParkReason.ASKED, Way.COPY, None, "parked: by `aliquot park`"),
        (Where.PARKED, ParkReason.ASKED, Way.CHECKPOINT, None, "parked by the driver's checkpoint: by `aliquot park`"),
        (Where.RETURNING, ParkReason.ASKED, Way.COPY, None, "returning"),
        (Where.RETURNING, ParkReason.NO_ROOM, Way.COPY, None, "returning: what is on the card may not leave it"),
        (Where.LEAVING, None, Way.CHECKPOINT, None, "leaving by the driver's checkpoint"),
        (
            Where.RESIDENT, ParkReason.SHARED_MEMORY, None, "the driver refuses",
            "cannot be parked: it shares memory with other processes (IPC), and the driver refuses",
        ),
    ],
)  # fmt: skip
def test_residency(where: Where, why: ParkReason | None, way: Way | None, detail: str | None, words: str) -> None:
    assert residency_words(where, why, way, detail) == words


def test_arrivals_say_whose_host_memory_it_is() -> None:
    out = Arrival("a", "GPU-0", Where.PARKED, 16 << 30, 8.0, ParkReason.ASKED, way=Way.CHECKPOINT)
    assert (
        arrival_words(out, "card 0", 0)
        == "16 GiB of its memory left card 0 for its own host memory in 8s: by `aliquot park`"
    )
    back = Arrival("a", "GPU-0", Where.RESIDENT, 16 << 30, 3.0, away=60.0, way=Way.CHECKPOINT)
    assert (
        arrival_words(back, "card 0", 0)
        == "16 GiB of its memory came back to card 0 in 3s after 1m00s in its own host memory"
    )
