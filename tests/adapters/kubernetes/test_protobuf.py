"""Lists as protobuf: the same structs as from JSON; what is not well-formed is an error and never a default."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.adapters.kubernetes import protobuf as module
from aliquot.adapters.kubernetes.paging import next_page
from aliquot.adapters.kubernetes.protobuf import ProtobufError, as_json, is_protobuf, status_of
from aliquot.dialects.wire.objects import Condition, HeldByContainer, Resources
from kit.clusters import gowriting
from kit.clusters.gowriting import Go, Nodes, Pods, blank, forget_unwritten, page, values, varint


@pytest.fixture(scope="module", autouse=True)
def another_build() -> Iterator[None]:
    """ALIQUOT_TEST_LISTS names another build of the library, as with sanitizers."""
    with pytest.MonkeyPatch.context() as patch:
        if path := os.environ.get("ALIQUOT_TEST_LISTS"):
            patch.setattr(module, "_LIBRARY", Path(path))
        yield


FORMS: dict[str, Any] = {"NodeList": Nodes, "PodList": Pods}


def two_pods() -> Go:
    labels = {"app": "x", "größe": 'a "b"\\\n\x00'}
    container = blank("Container", name="main", resources=blank("Resources", limits={"aliyun.com/gpu-mem": "4"}))
    spec = blank("PodSpec", containers=[container], priority=-5, tolerations=[blank("Toleration", tolerationSeconds=0)])
    pods = [blank("Pod", metadata=blank("ObjectMeta", name=name, labels=labels), spec=spec) for name in ("p", "q")]
    return blank("PodList", metadata=blank("ListMeta", resourceVersion="9", **{"continue": "next"}), items=pods)


@pytest.mark.parametrize("kind", FORMS)
@given(data=st.data())
def test_both_forms_of_any_list_are_read_alike(kind: str, data: st.DataObject) -> None:
    value = data.draw(values(kind))
    from_json = msgspec.json.decode(msgspec.json.encode(gowriting.as_json(kind, value)), type=FORMS[kind])
    raw = page(kind, value)
    assert is_protobuf(raw)
    for item in from_json.items:
        forget_unwritten(item)
    assert msgspec.json.decode(as_json(raw), type=FORMS[kind]) == from_json


def test_tolerations_are_written_of_pods_without_a_node() -> None:
    """They decide where a Pod goes, and most Pods are there."""
    tolerations = [blank("Toleration", key="a")]
    pods = [blank("Pod", spec=blank("PodSpec", nodeName=node, tolerations=tolerations)) for node in ("", "n")]
    found = msgspec.json.decode(as_json(page("PodList", blank("PodList", items=pods))), type=Pods).items
    assert [pod.spec.tolerations for pod in found] == [[{"key": "a"}], None]


def test_conditions_without_a_reason_are_left_out() -> None:
    """Each Pod that runs has five that say so."""
    waits = blank("Condition", type="PodScheduled", status="False", reason="Unschedulable", message="m")
    conditions = [blank("Condition", type="Initialized", status="True"), waits, blank("Condition", type="Ready")]
    raw = page("PodList", blank("PodList", items=[blank("Pod", status=blank("PodStatus", conditions=conditions))]))
    (pod,) = msgspec.json.decode(as_json(raw), type=Pods).items
    assert pod.status is not None
    assert pod.status.conditions == [Condition("PodScheduled", "False", "Unschedulable", "m")]
    assert pod.refused


@pytest.mark.parametrize(("about", "written"), [("PodResizePending", True), ("PodScheduled", False)])
def test_what_containers_have_is_written_only_for_pods_whose_resize_is_pending(about: str, written: bool) -> None:
    """All others have what their spec says."""
    one = blank("ContainerStatus", name="main", image="i", resources=blank("Resources", requests={"cpu": "1"}))
    conditions = [blank("Condition", type="Ready"), blank("Condition", type=about)]
    status = blank("PodStatus", conditions=conditions, containerStatuses=[one, one], initContainerStatuses=[one])
    raw = page("PodList", blank("PodList", items=[blank("Pod", status=status)]))
    (pod,) = msgspec.json.decode(as_json(raw), type=Pods).items
    held = HeldByContainer("main", Resources(requests={"cpu": "1"}))
    assert pod.status is not None
    assert pod.status.container_statuses == ([held, held] if written else None)
    assert pod.status.init_container_statuses == ([held] if written else None)


def _unwritten(of: msgspec.inspect.Type, name: str) -> Iterator[str]:
    """The fields of a struct, and of those in it, that `gowriting` does not write."""
    match of:
        case msgspec.inspect.UnionType(types):
            for one in types:
                yield from _unwritten(one, name)
        case msgspec.inspect.ListType(item_type):
            yield from _unwritten(item_type, name)
        case msgspec.inspect.StructType(fields=fields):
            for field in fields:
                if field.encode_name in gowriting.TYPES[name]:
                    yield from _unwritten(field.type, gowriting.TYPES[name][field.encode_name].kind)
                else:
                    yield f"{name}.{field.encode_name}"


@pytest.mark.parametrize("kind", FORMS)
def test_every_field_that_is_read_is_in_the_lists_that_are_compared(kind: str) -> None:
    """A field that is new in dialects/wire/objects.py also belongs into shim/lists/lists.c and into gowriting.TYPES."""
    unwritten = set(_unwritten(msgspec.inspect.type_info(FORMS[kind]), kind))
    assert unwritten <= {"ExtendedStatus.name"}  # read as a claim's status, but Kubernetes has no name there


def test_the_next_page_is_known_from_the_beginning() -> None:
    assert next_page(as_json(page("PodList", two_pods()))) == "next"


def test_an_empty_list_has_items() -> None:
    assert msgspec.json.decode(as_json(page("NodeList", blank("NodeList"))), type=Nodes).items == []


def test_unknown_fields_are_skipped_in_every_form() -> None:
    more = varint(99 << 3) + varint(2**64 - 1) + varint(98 << 3 | 1) + b"12345678" + varint(97 << 3 | 5) + b"1234"
    value = two_pods()
    assert as_json(page("PodList", value, more=more)) == as_json(page("PodList", value))


def test_items_that_do_not_follow_each_other_are_all_read() -> None:
    first, second = two_pods()["items"]
    apart = blank("PodList", items=[first])
    last = gowriting.protobuf("PodList", blank("PodList", items=[second]))[
        len(gowriting.protobuf("PodList", blank("PodList"))) :
    ]
    found = msgspec.json.decode(as_json(page("PodList", apart, more=varint(99 << 3) + b"\1" + last)), type=Pods)
    assert [pod.metadata.name for pod in found.items] == ["p", "q"]


def test_a_list_whose_json_is_longer_than_the_protobuf_is_whole() -> None:
    labels = {f"{number}": "\x01" * 50 for number in range(200)}
    value = blank("NodeList", items=[blank("Node", metadata=blank("ObjectMeta", labels=labels))])
    assert msgspec.json.decode(as_json(page("NodeList", value)), type=Nodes).items[0].metadata.labels == labels


def test_text_that_is_not_utf_8_is_read_as_the_api_server_shows_it() -> None:
    """Who writes a Pod as protobuf may store any bytes; one such Pod must not spoil the list of all."""
    raw = _with(b"\x12\x05\x0a\x03\x0a\x01\xff")
    assert [pod.metadata.name for pod in msgspec.json.decode(as_json(raw), type=Pods).items] == ["p", "q", "\ufffd"]


def test_quotes_and_line_ends_take_two_bytes_each() -> None:
    """Annotations are mostly JSON."""
    label = '"\\\n\t\r' * 1000
    value = blank("NodeList", items=[blank("Node", metadata=blank("ObjectMeta", labels={"a": label}))])
    made = as_json(page("NodeList", value))
    assert len(made) < 2 * len(label) + 500
    assert msgspec.json.decode(made, type=Nodes).items[0].metadata.labels == {"a": label}


def test_a_list_that_is_cut_off_anywhere_is_refused() -> None:
    raw = page("PodList", two_pods())
    whole = len(raw) - 4  # the two empty fields at the end say nothing
    for end in range(whole):
        with pytest.raises(ProtobufError, match=r"byte \d+: |does not begin"):
            as_json(raw[:end])


def is_refused_or_json(raw: bytes) -> None:
    with suppress(ProtobufError):
        msgspec.json.decode(as_json(raw))


@given(st.data())
def test_a_damaged_list_is_refused_or_is_json(data: st.DataObject) -> None:
    raw = bytearray(page("PodList", two_pods()))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    is_refused_or_json(bytes(raw))


@given(st.binary(max_size=60))
def test_anything_is_refused_or_is_json(rest: bytes) -> None:
    about = b"\x0a\x0d\x0a\x02v1\x12\x07PodList"
    for raw in (rest, b"k8s\0" + rest, b"k8s\0" + about + b"\x12" + varint(len(rest)) + rest):
        is_refused_or_json(raw)


def _with(field: bytes) -> bytes:
    return page("PodList", two_pods(), more=field)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "does not begin as Kubernetes' protobuf does"),
        (b'{"items":[]}', "does not begin as Kubernetes' protobuf does"),
        (b"k8s\0", "lacks its kind or its list"),
        (page("ListMeta", blank("ListMeta")), "no list of Nodes or Pods of v1"),
        (page("PodList", two_pods()).replace(b"\x02v1", b"\x02v2"), "no list of Nodes or Pods of v1"),
        (page("PodList", two_pods())[:-4] + b"\x1a\x04gzip", "the envelope has an unknown form"),
        (_with(b"\x0a\x00"), "PodList.metadata is there twice"),
        (_with(b"\x12\x00"), "Pod.metadata is missing"),
        (_with(b"\x10\x01"), "PodList.items is not written as its kind is"),
        (_with(b"\x12\x02\x08\x01"), "Pod.metadata is not written as its kind is"),
        (_with(b"\x12\x06\x0a\x04\x42\x02\x0a\x00"), "a Time is not written as one"),
        (_with(b"\x12\x0d\x0a\x0b\x42\x09\x08" + varint(2**55)), "no year has a second 36028797018963968"),
        (_with(b"\x12\x07\x0a\x05\x5a\x03\x0a\x05x"), "field 1 is longer than what is around it"),
        (_with(b"\x12\x06\x0a\x04\x5a\x02\x08\x01"), "an entry of a map is not written as one"),
        (_with(b"\x1b"), "no value is written in form 3"),
        (_with(b"\x00"), "no field has the number 0"),
        (_with(b"\xff" * 10 + b"\x01"), "a number has more than 64 bits"),
    ],
)  # fmt: skip
def test_the_error_names_what_is_wrong(raw: bytes, why: str) -> None:
    with pytest.raises(ProtobufError) as caught:
        as_json(raw)
    assert why in str(caught.value)


def test_status_has_its_reason_and_message() -> None:
    details = blank("StatusDetails", name="p", kind="pods", retryAfterSeconds=5)
    said = blank("Status", metadata=blank("ListMeta"), message="größe", reason="Timeout", details=details, code=504)
    assert status_of(page("Status", said)) == ("Timeout", "größe")
    assert status_of(page("Status", blank("Status"))) == ("", "")
    assert status_of(page("PodList", two_pods())) == ("", "")
    assert len(status_of(page("Status", blank("Status", message="x" * 100_000)))[1]) == 4096


@given(st.binary(max_size=40), st.integers(0, 60))
def test_status_that_cannot_be_read_has_none(more: bytes, size: int) -> None:
    raw = page("Status", blank("Status", message="refused", reason="Forbidden"))
    for odd in (raw[:size] + more, b"k8s\0" + more, b"k8s\0" + b"\x0a\x00" * 1000, b"k8s\0" + b"\xff" * 1000):
        assert len(status_of(odd)) == 2
    assert status_of(raw[:-20]) == ("", "")


def test_a_library_that_cannot_be_loaded_is_an_error_of_the_list(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "liblists.so").write_bytes(b"no library")
    monkeypatch.setattr(module, "_LIBRARY", tmp_path / "liblists.so")
    module._load.cache_clear()
    try:
        with pytest.raises(ProtobufError, match="cannot load the library"):
            as_json(page("PodList", two_pods()))
    finally:
        module._load.cache_clear()
