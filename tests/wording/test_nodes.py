from __future__ import annotations

import pytest

from aliquot.model.node import Closed, NodeNote, NoteKind
from aliquot.wording import nodes


@pytest.mark.parametrize("kind", NoteKind)
def test_every_note_has_a_sentence_with_its_values(kind: NoteKind) -> None:
    sentence = nodes.note(NodeNote(kind, "example.com/source", 2048, "example.com/other", 3072))
    assert "{" not in sentence
    assert "example.com/source" in sentence or kind is NoteKind.NO_MEMORY


def test_notes_give_amounts_as_all_others_do() -> None:
    assert "says 10 GiB a card" in nodes.note(NodeNote(NoteKind.MEMORIES_DIFFER, "a", 10240, "b", 512))
    assert "b says 512 MiB" in nodes.note(NodeNote(NoteKind.MEMORIES_DIFFER, "a", 10240, "b", 512))
    assert "1.5 GiB each is assumed" in nodes.note(NodeNote(NoteKind.NO_MEMORY, number=1536))


def test_notes_on_amounts_that_differ_by_a_little_show_the_difference() -> None:
    sentence = nodes.note(NodeNote(NoteKind.MEMORIES_DIFFER, "a", 10240, "b", 10241))
    assert sentence == "a says 10240 MiB a card, b says 10241 MiB: the first counts"


def test_every_reason_of_a_closed_node_has_words() -> None:
    assert [nodes.closed(why) for why in Closed] == ["cordoned", "not ready", "agent away"]
