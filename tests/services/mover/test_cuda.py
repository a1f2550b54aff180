"""Streams of services/mover/cuda.py on a card that has hardly any memory left: the driver is played by a list."""

from __future__ import annotations

from ctypes import c_void_p
from typing import Any, cast

import pytest

from aliquot.services.mover.cuda import Card, CudaError


def full_card(monkeypatch: pytest.MonkeyPatch, streams: int, calls: list[str]) -> Card:
    """A card with memory for so many streams; `calls` are those that are made."""

    def call(_: Card, name: str, *arguments: object) -> None:
        calls.append(name)
        if name == "cuStreamCreate":
            made = calls.count(name)
            if made > streams:
                raise CudaError(f"{name}: error 2")
            cast(Any, arguments[0])._obj.value = made

    monkeypatch.setattr(Card, "_call", call)
    monkeypatch.setattr(Card, "_find", lambda *_: 0)
    monkeypatch.setattr("ctypes.CDLL", lambda *_: None)
    return Card(b"0" * 16)


def test_moves_share_a_stream_where_the_card_has_memory_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    card = full_card(monkeypatch, 3, calls)
    made = calls.count("cuStreamCreate")
    moves: list[c_void_p] = [card.stream() for _ in range(4)]
    assert [move.value for move in moves] == [3, 2, 1, 1]
    for move in moves:
        card.end(move)
    assert sorted(card.stream().value or 0 for _ in range(4)) == [1, 1, 2, 3]
    assert calls.count("cuStreamCreate") == made  # none is made while memory moves


def test_card_without_memory_for_one_stream_gives_its_context_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    with pytest.raises(CudaError):
        full_card(monkeypatch, 0, calls)
    assert calls[-1] == "cuDevicePrimaryCtxRelease_v2"
