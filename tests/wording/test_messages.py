from __future__ import annotations

from typing import Any

from msgspec import UNSET, structs

from aliquot.model.device import MIG_MODE
from aliquot.model.node import Closed, NodeNote, NoteKind
from aliquot.model.status.dashboard import MessageCode
from aliquot.model.status.machine import CardStatus
from aliquot.wording import messages

CARD = CardStatus(0, "GPU-a", "T4", 16 << 30, None, 0, 0.0, 0, None)


def why_out(**about: Any) -> tuple[str, int | None] | None:
    message = messages.why_out(structs.replace(CARD, **about))
    return None if message is None else (message.code.value, message.number)


def test_card_that_is_out_is_explained_by_its_xid_and_not_by_its_words() -> None:
    assert why_out(healthy=False, why_out="taken out by an error", xid=79) == ("xid", 79)
    assert why_out(healthy=False, why_out="Xid 79", xid=UNSET) == ("driver-silent", None)
    assert why_out(healthy=True) is None


def test_card_in_mig_mode_has_a_code_of_its_own() -> None:
    assert why_out(healthy=True, withheld=MIG_MODE) == ("withheld-mig", None)
    assert why_out(healthy=True, withheld="Pod MIG/mode holds it by nvidia.com/gpu") == ("withheld", None)


def test_closed_node_is_explained_by_a_code() -> None:
    codes = [messages.closed(why).code for why in Closed]
    assert codes == [MessageCode.CORDONED, MessageCode.NOT_READY, MessageCode.AGENT_AWAY]


def test_note_on_a_node_comes_with_its_kind_and_values() -> None:
    (message,) = messages.assumed([NodeNote(NoteKind.CARD_COUNTS_DIFFER, "a", 2, "b", 3)])
    assert (message.name, message.names, message.number, message.count) == ("card-counts-differ", ["a", "b"], 2, 3)
    assert message.text == "a says 2 cards, b says 3: the first counts"
