from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET, structs

from aliquot.model.cardstate.control import ControlLevel, ControlReason
from aliquot.model.node import Closed, NodeNote, NoteKind
from aliquot.model.status.machine import CardStatus, ControlStatus, FindingStatus
from aliquot.model.status.messages import Message, MessageCode
from aliquot.model.tenant import FindingKind
from aliquot.model.withheld import CardHolder, WithheldCode
from aliquot.wording import messages

CARD = CardStatus(0, "GPU-a", "T4", 16 << 30, None, 0, 0.0, 0, None)


def why_out(**about: Any) -> tuple[str, int | None] | None:
    message = messages.why_out(structs.replace(CARD, **about))
    return None if message is None else (message.code.value, message.number)


def test_card_that_is_out_is_explained_by_its_xid_and_not_by_its_words() -> None:
    assert why_out(healthy=False, why_out="taken out by an error", xid=79) == ("xid", 79)
    assert why_out(healthy=False, why_out="Xid 79", xid=UNSET) == ("driver-silent", None)
    assert why_out(healthy=True) is None


@pytest.mark.parametrize(
    ("code", "holder", "text", "names", "more", "detail"),
    [
        ("mig", UNSET, "MIG mode is on", None, None, None),
        ("held", CardHolder("a/b", "nvidia.com/gpu"), "Pod a/b holds it by nvidia.com/gpu", ["a/b", "nvidia.com/gpu"],
         None, None),
        ("held", CardHolder("a/b", "r", 2), "Pod a/b holds it by r, and 2 more", ["a/b", "r"], 2, None),
        ("held", UNSET, "a Pod of another device plugin holds it", None, None, None),
        ("unknown-holders", UNSET, "the kubelet does not say which cards Pods of other device plugins hold", None, None,
         None),
        ("of-a-newer-release", UNSET, "of-a-newer-release", None, None, "of-a-newer-release"),
    ],
)  # fmt: skip
def test_withheld_card_is_explained_by_a_code_with_its_values(
    code: str, holder: Any, text: str, names: list[str] | None, more: int | None, detail: str | None
) -> None:
    card = structs.replace(CARD, healthy=True, withheld=WithheldCode(code), held_by=holder)
    message = Message(MessageCode.WITHHELD, f"not offered: {text}", name=code, names=names, more=more, detail=detail)
    assert messages.why_out(card) == message


def test_control_and_findings_of_a_newer_release_keep_their_words() -> None:
    card = structs.replace(CARD, control=ControlStatus(ControlLevel("wish"), ControlReason("full_moon")))
    assert messages.control(card) == Message(MessageCode("control-wish"), "wish: full_moon", name="full_moon")
    found = FindingStatus("GPU-a", 7, "it smokes", FindingKind("smoke"))
    assert messages.finding(found) == Message(MessageCode.FINDINGS, "it smokes", number=7, detail="it smokes")


def test_closed_node_is_explained_by_a_code() -> None:
    codes = [messages.closed(why).code for why in Closed]
    assert codes == [MessageCode.CORDONED, MessageCode.NOT_READY, MessageCode.AGENT_AWAY]


def test_note_on_a_node_comes_with_its_kind_and_values() -> None:
    (message,) = messages.assumed([NodeNote(NoteKind.CARD_COUNTS_DIFFER, "a", 2, "b", 3)])
    assert (message.name, message.names, message.number, message.count) == ("card-counts-differ", ["a", "b"], 2, 3)
    assert message.text == "a says 2 cards, b says 3: the first counts"
