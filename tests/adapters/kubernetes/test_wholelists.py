"""A list that comes in any pieces is cut into pages that have all of it; what is not well-formed is an error."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.adapters.kubernetes.connections import AnswerError, Head
from aliquot.adapters.kubernetes.paging import next_page
from aliquot.adapters.kubernetes.protobuf import as_json
from aliquot.adapters.kubernetes.wholelists import Body, ListCutter, is_made_here, writes_object_by_object
from kit.clusters.gowriting import Nodes, Pods, blank, page, values

FORMS: dict[str, Any] = {"NodeList": Nodes, "PodList": Pods}
PIECES = st.lists(st.integers(1, 400), min_size=1, max_size=8)


def in_pieces(whole: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Of those sizes, again and again."""
    found: list[bytes] = []
    at = 0
    while at < len(whole):
        size = sizes[len(found) % len(sizes)]
        found.append(whole[at : at + size])
        at += size
    return found


def cut(pieces: Sequence[bytes], size: int = 200) -> list[bytes]:
    cutter = ListCutter(size)
    found: list[bytes] = []
    for piece in pieces:
        cutter.held += piece
        found += cutter.pages()
        if cutter.ended:  # what follows says nothing of the list
            break
    assert cutter.ended
    return found


@pytest.mark.parametrize("kind", FORMS)
@given(data=st.data(), sizes=PIECES)
def test_the_pages_have_the_list(kind: str, data: st.DataObject, sizes: list[int]) -> None:
    value = data.draw(values(kind))
    if value["metadata"]["continue"]:  # nobody asked for a part of it; if one comes, it goes on from there
        assert not is_made_here(value["metadata"]["continue"])
    whole = page(kind, value)
    pages = [msgspec.json.decode(as_json(one), type=FORMS[kind]) for one in cut(in_pieces(whole, sizes))]
    right = msgspec.json.decode(as_json(whole), type=FORMS[kind])
    assert [item for one in pages for item in one.items] == right.items
    assert {one.metadata.resource_version for one in pages} == {right.metadata.resource_version}
    tokens = [one.metadata.continue_ for one in pages]
    assert all(is_made_here(token) for token in tokens[:-1])
    assert tokens[-1] == right.metadata.continue_
    assert len(set(tokens)) == len(tokens)


def some_nodes(count: int) -> bytes:
    nodes = [blank("Node", metadata=blank("ObjectMeta", name=f"node-{at}")) for at in range(count)]
    return page("NodeList", blank("NodeList", metadata=blank("ListMeta", resourceVersion="7"), items=nodes))


def test_pages_are_as_large_as_wanted_and_name_the_next_one() -> None:
    pages = cut([some_nodes(100)], 1000)
    assert all(1000 <= len(one) < 1300 for one in pages[:-1])
    tokens = [next_page(as_json(one)) for one in pages]
    assert all(first != second for first, second in pairwise(tokens))
    assert tokens[-1] == ""


def test_a_list_without_objects_is_one_page() -> None:
    (only,) = cut([some_nodes(0)])
    assert as_json(only) == as_json(some_nodes(0))


@pytest.mark.parametrize(
    "broken",
    [
        b'{"kind":"NodeList","items":[]}',
        some_nodes(3).replace(b"k8s\0\x0a", b"k8s\0\x0b", 1),
        some_nodes(2).replace(b"\x12", b"\x13"),
        b"k8s\0\x0a" + b"\xff" * 10,
    ],
)
def test_what_is_no_such_list_is_an_error(broken: bytes) -> None:
    with pytest.raises(AnswerError):
        as_json(b"".join(cut([broken], 1)))


def test_a_list_that_ends_within_an_object_is_an_error() -> None:
    whole = bytearray(some_nodes(2))
    size = whole.index(b"\x12", whole.index(b"NodeList")) + 1
    whole[size] -= 1  # the list is said to be one byte shorter than its objects
    with pytest.raises(AnswerError, match="middle of an object"):
        cut([bytes(whole)])


def moved(head: Head, received: Sequence[bytes]) -> bytes:
    """The body, of what was received at a time; what was not understood comes again with more."""
    body, found, left = Body(head), bytearray(), b""
    for piece in received:
        buffer = bytearray(left + piece)
        at = body.move(buffer, 0, len(buffer), found)
        left = bytes(buffer[at:])
    assert body.ended
    return bytes(found)


@given(st.binary(max_size=3000), PIECES, PIECES, st.sampled_from([b"", b";x=y", b" "]))
def test_a_body_in_chunks_is_put_together(whole: bytes, chunks: list[int], sizes: list[int], extension: bytes) -> None:
    said = b"".join(b"\r\n%x%s\r\n%s" % (len(one), extension, one) for one in in_pieces(whole, chunks))
    assert moved(Head(200, 2, None, True), in_pieces(said + b"\r\n0\r\n\r\n", sizes)) == whole


@given(st.binary(min_size=1, max_size=3000), PIECES)
def test_a_body_with_a_length_is_put_together(whole: bytes, sizes: list[int]) -> None:
    assert moved(Head(200, 0, len(whole), True), in_pieces(whole, sizes)) == whole


@pytest.mark.parametrize("broken", [b"\r\nxyz\r\n", b"\r\n3\r\nabcd\r\n", b"\r\n-1\r\n", b"\r\n" + b"0" * 5000])
def test_a_chunk_without_a_right_size_is_an_error(broken: bytes) -> None:
    with pytest.raises(AnswerError, match="chunk"):
        moved(Head(200, 2, None, True), [broken])


@pytest.mark.parametrize(
    ("version", "by_object"),
    [
        (b'{"major":"1","minor":"33"}', True),
        (b'{"major":"1","minor":"36+"}', True),
        (b'{"major":"2","minor":"0"}', True),
        (b'{"major":"1","minor":"32"}', False),
        (b'{"major":"1","minor":""}', False),
        (b'{"major":"","minor":""}', False),
        (b'{"kind":"Status","code":403}', False),
        (b"[]", False),
        (b"<html>", False),
        (b"\xff", False),
    ],
)
def test_only_newer_api_servers_are_asked_for_whole_lists(version: bytes, by_object: bool) -> None:
    assert writes_object_by_object(version) is by_object
