"""What a program of a parkable tenant is answered about its pointers and handles: as for plain memory."""

from __future__ import annotations

import textwrap

import pytest

from aliquot.adapters.gpu.page import Stays
from shim.harness import Tenant

HELPERS = """
from ctypes import addressof
def attribute(which, p, kind=c_uint64, fill=0):
    value = kind(fill)
    assert cuda.cuPointerGetAttribute(byref(value), which, c_uint64(p)) == 0
    return value.value
def range_(p):
    base, size = c_uint64(), c_size_t()
    assert cuda.cuMemGetAddressRange_v2(byref(base), byref(size), c_uint64(p)) == 0
    return base.value, size.value
def asked(name): return cuda.fake_calls(name)
made = context()
"""


def run(tenant: Tenant, code: str) -> dict[str, object]:
    return tenant.run(HELPERS + textwrap.dedent(code))


def test_address_range_is_the_allocation_and_not_the_piece_behind_it(parkable: Tenant) -> None:
    """Small ones share a piece, large ones have several."""
    seen = run(
        parkable,
        """
        small = [alloc(1000)[1] for _ in range(3)]
        large = alloc(600 * MIB)[1]
        say(small=[range_(p + 999) == (p, 1000) for p in small], large=range_(large + 599 * MIB) == (large, 600 * MIB),
            asked=asked(b"cuMemGetAddressRange_v2"),
            other=cuda.cuMemGetAddressRange_v2(byref(c_uint64()), byref(c_size_t()), c_uint64(5)))
        """,
    )
    assert seen == {"small": [True] * 3, "large": True, "asked": 0, "other": 500}


def test_attributes_are_those_of_plain_memory(parkable: Tenant) -> None:
    seen = run(
        parkable,
        """
        p, q = alloc(1000)[1], alloc(1000)[1]
        say(context=attribute(1, p) == made.value, type=attribute(2, p, c_uint), pointer=attribute(3, p + 8) == p + 8,
            ids=len({attribute(7, p), attribute(7, p + 999), attribute(7, q)}), ordinal=attribute(9, p, c_int, 5),
            start=attribute(11, p + 1) == p, size=attribute(12, p + 1), types=attribute(14, p, c_uint64, 9),
            pool=attribute(17, p, c_uint64, 9), asked=asked(b"cuPointerGetAttribute"))
        """,
    )
    assert seen == {
        "context": True, "type": 2, "pointer": True, "ids": 2, "ordinal": 0, "start": True, "size": 1000,
        "types": 0, "pool": 0, "asked": 0,
    }  # fmt: skip


def test_yes_or_no_is_as_wide_as_the_driver_writes_it(parkable: Tenant) -> None:
    """The driver of straw writes four bytes; it is asked until that is known."""
    seen = run(
        parkable,
        """
        p = alloc(1000)[1]
        first = attribute(8, p, c_uint64, 2**64 - 1)
        before = asked(b"cuPointerGetAttribute")
        later = [attribute(which, p, c_uint64, 2**64 - 1) for which in (8, 10, 13)]
        say(first=first, later=later, more=asked(b"cuPointerGetAttribute") - before)
        """,
    )
    high = (2**32 - 1) << 32
    assert seen == {"first": high, "later": [high, high, high + 1], "more": 0}


def test_several_attributes_ask_the_driver_only_for_what_is_not_known(parkable: Tenant) -> None:
    seen = run(
        parkable,
        """
        p = alloc(1000)[1]
        attribute(8, p)
        def several(*which):
            values = [c_uint64(5) for _ in which]
            into = (c_void_p * len(which))(*(addressof(value) for value in values))
            assert cuda.cuPointerGetAttributes(len(which), (c_int * len(which))(*which), into, c_uint64(p)) == 0
            return [value.value for value in values], asked(b"cuPointerGetAttributes")
        known, unknown = several(2, 4, 8, 12), several(12, 15)
        plain = (c_void_p * 1)(addressof(value := c_uint64()))
        assert cuda.cuPointerGetAttributes(1, (c_int * 1)(2), plain, c_uint64(0x1234)) == 0
        say(known=known, unknown=unknown, plain=value.value)
        """,
    )
    assert seen == {"known": [[2, 0, 0, 1000], 0], "unknown": [[1000, 77], 1], "plain": 77}


def test_properties_of_a_handle_are_what_the_program_asked_for(parkable: Tenant) -> None:
    """Not with the file that the mover needs; and the driver never sees a number of ours."""
    seen = run(
        parkable,
        """
        _, h = piece(2 * MIB)
        about = (c_int * 8)()
        result = cuda.cuMemGetAllocationPropertiesFromHandle(byref(about), c_uint64(h))
        say(result=result, about=list(about)[:4], asked=asked(b"cuMemGetAllocationPropertiesFromHandle"))
        """,
    )
    assert seen == {"result": 0, "about": [1, 0, 1, 0], "asked": 0}


@pytest.mark.parametrize(
    "call",
    [
        "cuda.cuMulticastBindMem(n(1), n(0), n(h), n(0), n(2 * MIB), n(0))",
        "cuda.cuMulticastBindMem_v2(n(1), 0, n(0), n(h), n(0), n(2 * MIB), n(0))",
        "cuda.cuLogicalEndpointBindMem(1, 0, n(0), n(h), n(0), n(2 * MIB), n(0))",
    ],
)
def test_piece_that_is_bound_is_the_drivers_own_and_stays(parkable: Tenant, call: str) -> None:
    program = parkable.start(
        HELPERS
        + f"""
n = c_uint64
_, h = piece(2 * MIB)
cuda.fake_last_handle.restype = c_uint64
result = {call}
say(result=result, same=cuda.fake_last_handle() == h)
heard()
"""
    )
    assert program.answer() == {"result": 0, "same": False}
    move = parkable.page.move(0, 0)
    assert (move.movable, Stays(move.stays)) == (0, Stays.SHARED)
    program.proceed()
    assert program.end() == 0


def test_memory_that_is_bound_by_its_address_stays(parkable: Tenant) -> None:
    program = parkable.start(
        HELPERS
        + """
_, p = alloc(4 * MIB)
say(result=cuda.cuMulticastBindAddr(c_uint64(1), c_size_t(0), c_uint64(p), c_size_t(2 * MIB), c_ulonglong(0)))
heard()
"""
    )
    assert program.answer() == {"result": 0}
    move = parkable.page.move(0, 0)
    assert (move.movable, Stays(move.stays)) == (0, Stays.SHARED)
    program.proceed()
    assert program.end() == 0


def test_other_tenants_are_answered_by_the_driver(tenant: Tenant) -> None:
    seen = tenant.run(HELPERS + "p = alloc(1000)[1]; say(type=attribute(2, p), asked=asked(b'cuPointerGetAttribute'))")
    assert seen == {"type": 0, "asked": 1}
