"""What is spelled twice agrees: the headers that the C parts share, and the adapters that speak with them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from aliquot.adapters.gpu import link, page, rm
from aliquot.arbiter import slices
from aliquot.services.runtime.cards import heartbeat

ROOT = Path(__file__).parents[2]
_USE = [
    *("memory", "overhead", "launches", "waiting", "gate", "paused", "wake", "refused", "rescued"),
    *("busy_ns", "busy_since_ns"),
]
_MOVE = ["order", "state", "wanted", "why", "movable", "parked", "moves", "stays", "out_ns", "in_ns", "room"]
_NUMBERS = [
    *("ALQ_MAGIC", "ALQ_VERSION", "ALQ_CARDS", "ALQ_SLOTS", "ALQ_CHANNELS", "ALQ_UNLIMITED", "ALQ_STALE_NS"),
    *("ALQ_GAPS", "ALQ_GAP_NS"),
    *("ALQ_SHORTEST_LASTING", "ALQ_LONGEST_LASTING", "ALQ_LASTING_NS"),
    *("ALQ_HELLO", "ALQ_GROUP", "ALQ_DONE", "ALQ_WAKE", "ALQ_KEPT_SHIFT", "ALQ_KEPT_UNIT"),
    *("RM_IOC_CONTROL", "RM_SET_TIMESLICE", "RM_GET_TIMESLICE", "RM_DISABLE_CHANNELS", "RM_GET_GID_INFO"),
    *("RM_DISABLE_MAX", "RM_INVALID_CLIENT", "RM_INVALID_OBJECT", "RM_INSUFFICIENT_PERMISSIONS", "RM_NOT_SUPPORTED"),
]
_OFFSETS = {
    "struct alq_page": ["magic", "version", "cards", "slots", "top", "card", "slot", "move"],
    "struct alq_card": ["uuid", "memory_limit", "heartbeat_ns", "parkable", "room_ms", "reserve", "gaps"],
    "struct alq_slot": ["pid", "serial", "ended", "exported", "use"],
    "struct alq_use": _USE,
    "struct alq_move": _MOVE,
    "struct alq_head": ["magic", "version", "type"],
    "struct alq_hello": ["head", "pid", "slot"],
    "struct alq_group": ["client", "group", "device", "subdevice", "engine", "compute", "channels", "pad", "channel"],
    "struct alq_done": ["groups"],
    "struct alq_wake": ["card"],
    "struct rm_control": ["client", "object", "command", "flags", "params", "params_size", "status"],
    "struct rm_disable": ["disable", "channels", "only_scheduling", "rewind", "preempt_event", "client", "channel"],
    "struct rm_gid": ["index", "flags", "length", "data"],
}
C = dict[str, int]


@pytest.fixture(scope="module")
def c(tmp_path_factory: pytest.TempPathFactory) -> C:
    """What a C compiler makes of the headers."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    lines = [f'printf("\\"{name}\\": %llu,\\n", (unsigned long long)({name}));' for name in _NUMBERS]
    for struct, fields in _OFFSETS.items():
        lines.append(f'printf("\\"{struct}\\": %zu,\\n", sizeof({struct}));')
        lines += [f'printf("\\"{struct}.{field}\\": %zu,\\n", offsetof({struct}, {field}));' for field in fields]
    first = ["#include <stdio.h>", '#include "abi.h"', '#include "rm.h"', 'int main(void) { puts("{");']
    program = "\n".join([*first, *lines, 'puts("\\"end\\": 0}"); return 0; }', ""])
    folder = tmp_path_factory.mktemp("abi")
    (folder / "abi.c").write_text(program)
    subprocess.run([compiler, "-std=gnu11", "-I", ROOT / "shim", "-o", folder / "abi", folder / "abi.c"], check=True)
    answer = subprocess.run([folder / "abi"], check=True, capture_output=True).stdout
    found: C = json.loads(answer)
    return found


def test_the_numbers_are_the_same(c: C) -> None:
    ours = {
        "ALQ_MAGIC": page.MAGIC,
        "ALQ_VERSION": page.VERSION,
        "ALQ_CARDS": page.CARDS,
        "ALQ_SLOTS": page.SLOTS,
        "ALQ_CHANNELS": link.CHANNELS,
        "ALQ_UNLIMITED": page.UNLIMITED,
        "ALQ_GAPS": page.GAPS,
        "ALQ_GAP_NS": page.GAP_NS,
        "ALQ_SHORTEST_LASTING": slices.SHORTEST,
        "ALQ_LONGEST_LASTING": slices.LONGEST,
        "ALQ_HELLO": link.HELLO,
        "ALQ_GROUP": link.GROUP,
        "ALQ_DONE": link.DONE,
        "ALQ_WAKE": link.WAKE,
        "RM_IOC_CONTROL": rm.CONTROL_IOC,
        "RM_SET_TIMESLICE": rm.SET_TIMESLICE,
        "RM_GET_TIMESLICE": rm.GET_TIMESLICE,
        "RM_DISABLE_CHANNELS": rm.DISABLE_CHANNELS,
        "RM_GET_GID_INFO": rm.GET_GID_INFO,
        "RM_DISABLE_MAX": rm.DISABLE_MAX,
    }
    assert ours == {name: c[name] for name in ours}


def test_the_page_is_laid_out_the_same(c: C) -> None:
    assert c["struct alq_page"] == page.SIZE
    assert (c["struct alq_page.card"], c["struct alq_card"]) == (page._CARD_AT, page._CARD_SIZE)
    assert (c["struct alq_page.slot"], c["struct alq_slot"]) == (page._SLOT_AT, page._SLOT_SIZE)
    card = ("memory_limit", "heartbeat_ns", "parkable", "room_ms", "reserve", "gaps")
    ours = [page.LIMIT, page.HEARTBEAT, page.PARKABLE, page.ROOM_MS, page.RESERVE, page.GAPS_AT]
    assert ours == [c[f"struct alq_card.{field}"] for field in card]
    assert (c["struct alq_page.move"], c["struct alq_move"]) == (page._MOVE_AT, page._MOVE_SIZE)
    assert page.Page._move_at(3, 2) == page._MOVE_AT + (3 * page.CARDS + 2) * page._MOVE_SIZE
    assert page.Page._at(3, 2) == page._SLOT_AT + 3 * page._SLOT_SIZE + c["struct alq_slot.use"] + 2 * page._USE_SIZE
    assert (page._USE_SIZE, page._USE.size) == (c["struct alq_use"],) * 2
    assert [c[f"struct alq_page.{field}"] for field in ("magic", "version", "cards", "slots")] == [0, 4, 8, 12]
    assert c["struct alq_slot.pid"] == 0
    assert c["struct alq_slot.exported"] + 3 * 8 == c["struct alq_slot.use"] == 64


def test_a_line_of_the_page_is_read_field_by_field_as_it_is_written(c: C) -> None:
    fields = [page.MEMORY, page.OVERHEAD, page.LAUNCHES, page.WAITING, page.GATE, page.PAUSED, page.WAKE, page.REFUSED]
    fields += [page.RESCUED, page.BUSY, page.BUSY_SINCE]
    assert fields == [c[f"struct alq_use.{field}"] for field in _USE]
    assert list(page.Use._fields) == _USE
    for at, field in enumerate(fields):  # the format's own idea of where each field is
        line = bytearray(page._USE_SIZE)
        line[field] = 7
        assert page._USE.unpack(line)[at] == 7


def test_a_move_of_the_page_is_read_field_by_field_as_it_is_written(c: C) -> None:
    assert list(page.Move.__dataclass_fields__) == [*_MOVE, "kept"]  # the last is a part of `stays`
    assert (c["ALQ_KEPT_SHIFT"], c["ALQ_KEPT_UNIT"]) == (page.KEPT_SHIFT, page.KEPT_UNIT)
    assert (c["struct alq_move.order"], c["struct alq_move.why"]) == (page.ORDER, page.WHY)
    for at, field in enumerate(_MOVE):
        line = bytearray(page._MOVE_SIZE)
        line[c[f"struct alq_move.{field}"]] = 7
        assert page._MOVE.unpack(line)[at] == 7


def test_messages_are_laid_out_the_same(c: C) -> None:
    assert link._HEAD.size == c["struct alq_head"]
    assert link._HEAD.size + link._HELLO.size == c["struct alq_hello"]
    assert link._HEAD.size + link._GROUP.size == c["struct alq_group.channel"]
    assert link._HEAD.size + link._WORD.size == c["struct alq_done"] == c["struct alq_wake"]
    assert c["struct alq_group"] == link._LONGEST
    words = [c[f"struct alq_group.{offset}"] for offset in _OFFSETS["struct alq_group"][:-1]]
    assert words == list(range(link._HEAD.size, link._HEAD.size + link._GROUP.size, 4))


def test_controls_are_laid_out_the_same(c: C) -> None:
    assert rm._CONTROL.size == c["struct rm_control"]
    assert c["struct rm_control.status"] == rm._STATUS_AT
    params = rm.disable_params(True, 0xC1, [0xA0, 0xA1])
    assert len(params) == c["struct rm_disable"]
    assert params[c["struct rm_disable.disable"]] == 1
    assert params[c["struct rm_disable.channels"]] == 2
    at = c["struct rm_disable.client"]
    assert params[at : at + 12] == bytes.fromhex("c1000000c100000000000000")
    at = c["struct rm_disable.channel"]
    assert params[at : at + 12] == bytes.fromhex("a0000000a100000000000000")
    assert c["struct rm_gid"] == 268
    assert (c["struct rm_gid.length"], c["struct rm_gid.data"]) == (8, 12)


def test_a_refused_control_is_no_object_that_is_gone(c: C) -> None:
    assert {c["RM_INVALID_CLIENT"], c["RM_INVALID_OBJECT"]} <= rm.GONE
    assert not {c["RM_INSUFFICIENT_PERMISSIONS"], c["RM_NOT_SUPPORTED"]} & rm.GONE


def test_the_daemon_looks_before_a_tenant_gives_it_up(c: C) -> None:
    """And what it does when it was late itself it does before a tenant could have."""
    assert heartbeat.BEAT < heartbeat.CALM < heartbeat.STALLED < c["ALQ_STALE_NS"] / 1e9
