"""The members of a group as one context: what they do is added up, and what the group had is divided among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.adapters.gpu.page import BUSY, LAUNCHES, WAITING, Page
from aliquot.model.tenant import Allotment, Level
from aliquot.services.runtime.processes import contextcontrol
from aliquot.services.runtime.processes.contexts import Context
from aliquot.services.runtime.together import members

PARTS = st.floats(0.0, 1.0, allow_subnormal=False)


def context(name: str, page: Any = None, *, member: str = "") -> Context:
    return Context(name, "group", 1, cast(Page, page), 0, 0, (), Level.HARDWARE, member=member)


@given(st.dictionaries(st.sampled_from("abcdef"), PARTS, min_size=1), PARTS, PARTS)
def test_what_a_server_had_is_divided_among_its_members_without_a_rest(
    busy: dict[str, float], had: float, other: float
) -> None:
    server = context("server")
    server.parts = [context(name, member=name) for name in busy]
    parts, left = members.spread(
        [server, context("x")], {"server": had, "x": other}, {**busy, "server": 1.0, "x": other}
    )
    assert sum(parts.values()) == pytest.approx(had + other)
    assert parts.keys() == {*busy, "x"}
    assert left.keys() == {*busy, "x"}
    if total := sum(busy.values()):
        assert {name: parts[name] for name in busy} == pytest.approx(
            {name: had * (part / total) for name, part in busy.items()}
        )


@pytest.fixture
def pages(tmp_path: Path) -> list[Page]:
    return [Page(tmp_path / name, [Allotment("GPU-0")]) for name in "abc"]


def test_server_does_what_its_members_do(pages: list[Page]) -> None:
    server, *parts = (context(f"c{at}", page, member="ab"[at - 1] if at else "") for at, page in enumerate(pages))
    server.parts = parts
    for one in (server, *parts):
        one.last = one.page.use(0, 0)
    for member, launches, busy in zip(parts, (3, 4), (500_000, 500_000), strict=True):
        member.page._write(member.page._at(0, 0) + LAUNCHES, launches.to_bytes(8, "little"))
        member.page._write(member.page._at(0, 0) + BUSY, busy.to_bytes(8, "little"))
    use, waits = members.read(server, 1.0, 2_000_000, 1_000_000)
    assert (use.launches, use.busy_ns, use.busy_since_ns, waits) == (7, 750_000, 0, False)
    parts[0].page.set_word(0, 0, WAITING, 1)
    assert members.read(server, 1.0, 2_000_000, 1_000_000)[1]


def test_gate_and_wake_of_a_server_are_those_of_its_members(pages: list[Page]) -> None:
    server, *parts = (context(f"c{at}", page, member="ab"[at - 1] if at else "") for at, page in enumerate(pages))
    server.parts = parts
    for one in (server, *parts):
        one.last = one.page.use(0, 0)
    contextcontrol.pause(server)
    assert [member.page.use(0, 0).gate for member in parts] == [1, 1]
    contextcontrol.resume(server)
    assert [member.page.use(0, 0).gate for member in parts] == [0, 0]
    assert contextcontrol.arm(server)
    assert [member.page.use(0, 0).wake for member in parts] == [1, 1]
