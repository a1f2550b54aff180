"""The record of an installation: written, read, rolled back to."""

from __future__ import annotations

import json

import pytest

from aliquot.cli.install.options import packaged_objects
from aliquot.dialects.wire.install.deployment import Options
from aliquot.dialects.wire.install.record import (
    Record,
    new_record,
    parse_record,
    previous_record,
    render_record,
    render_replaced,
    replaced_labels,
    rollback_target,
    settled_record,
    unpack,
)
from aliquot.model.refusal import Invalid

FILE = packaged_objects()
OPTIONS = Options(image="here/aliquot:9", kube_scheduler_image="kube-scheduler:9")


def test_record_parses_back_with_previous_record() -> None:
    first = new_record("1", OPTIONS, FILE, labelled={"n1": {"a": "b"}}, settled=True)
    then = new_record("2", OPTIONS, FILE[:3], before=rollback_target(first))
    assert parse_record(render_record(then)) == then
    before = previous_record(then)
    assert before == first
    assert before is not None
    assert unpack(before.packed) == FILE


def test_rollback_target_skips_unsettled_upgrade() -> None:
    first = new_record("1", OPTIONS, FILE, settled=True)
    half = new_record("2", OPTIONS, FILE, before=rollback_target(first))
    again = new_record("3", OPTIONS, FILE, before=rollback_target(half))
    assert previous_record(again) == first


def test_settled_record_takes_over_replaced_objects() -> None:
    first = new_record("1", OPTIONS, FILE, settled=True)
    unseen = new_record("2", OPTIONS, FILE[:3], applied=True, before=rollback_target(first))
    then = new_record("3", OPTIONS, FILE[:2], before=rollback_target(settled_record(unseen)))
    before = previous_record(then)
    assert before is not None
    assert before.version == "2"
    assert unpack(before.packed) == FILE[:3]
    assert set(before.objects) == set(first.objects)


def test_record_of_older_release_is_read() -> None:
    old = render_record(new_record("1", OPTIONS, FILE[:1]))
    record = json.loads(old["data"]["record"])
    new = ("pull_secrets", "runtime_class", "memory_unit", "driver_folder", "node_selector", "webhook_failure")
    for name in new:
        record["options"].pop(name, None)
    record_read = parse_record({"data": {"record": json.dumps(record)}})
    assert isinstance(record_read, Record)
    assert record_read.options == OPTIONS


@pytest.mark.parametrize("data", [None, {}, {"record": 7}, {"record": "{"}, {"record": '{"v":1}'}, {"record": "[]"}])
def test_invalid_record_is_refused(data: object) -> None:
    assert isinstance(parse_record({"data": data}), Invalid)


def test_record_of_later_version_is_refused() -> None:
    text = render_record(new_record("1", OPTIONS, FILE[:1]))["data"]["record"]
    record_read = parse_record({"data": {"record": text.replace('"v":1', '"v":2')}})
    assert isinstance(record_read, Invalid)
    assert "version 1" in record_read.sentence()


def test_replaced_labels_are_read_in_both_forms() -> None:
    kept = {"a": ("theirs", "ours"), "b": ("theirs", None)}
    assert replaced_labels({"metadata": render_replaced(kept)}) == kept
    for note, found in [('{"a":"theirs"}', {"a": ("theirs", None)}), ('{"a":[1]}', {}), ("[", {})]:
        assert replaced_labels({"metadata": {"annotations": {"aliquot.dev/replaced-labels": note}}}) == found
