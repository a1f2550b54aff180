"""The parts of the pool: nothing is given twice, nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.services.mover.pool import CHUNK, UNIT, Part, Pool, PoolFullError, copies, without

SIZE = 64 * UNIT


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30 * UNIT), st.integers(0, 10)), max_size=40))
def test_parts_are_given_once_and_come_back(steps: list[tuple[bool, int, int]]) -> None:
    pool, held = Pool([Part(0, SIZE)]), list[tuple[Part, ...]]()
    for take, size, which in steps:
        if take:
            try:
                parts = pool.take(size)
            except PoolFullError:
                assert -(-size // UNIT) * UNIT > pool.free
                continue
            assert sum(part.size for part in parts) == -(-size // UNIT) * UNIT
            held.append(parts)
        elif held:
            pool.give_back(held.pop(which % len(held)))
        units = [at for parts in held for part in parts for at in range(part.offset, part.offset + part.size, UNIT)]
        assert len(units) == len(set(units))
        assert all(0 <= unit < SIZE for unit in units)
        assert pool.free == SIZE - len(units) * UNIT
    for parts in held:
        pool.give_back(parts)
    assert pool.take(SIZE) == (Part(0, SIZE),)


def test_part_that_is_free_cannot_be_given_back() -> None:
    pool = Pool([Part(0, SIZE)])
    parts = pool.take(UNIT)
    pool.give_back(parts)
    with pytest.raises(ValueError, match="free already"):
        pool.give_back(parts)


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 1200)), max_size=5), st.integers(0, 3000))
def test_copies_cover_the_bytes_and_cross_no_border(parts: list[tuple[int, int]], units: int) -> None:
    """Memory of two chunks is registered apart, and the driver refuses to copy across."""
    given_parts = [Part(offset * UNIT, size * UNIT) for offset, size in parts]
    found = list(copies(given_parts, units * UNIT))
    assert sum(part.size for part in found) == min(units * UNIT, sum(part.size for part in given_parts))
    assert all(part.offset // CHUNK == (part.offset + part.size - 1) // CHUNK for part in found)


@given(st.sets(st.integers(0, 20)))
def test_what_is_left_of_a_part_is_what_is_not_taken(taken: set[int]) -> None:
    left = without(Part(0, 16 * UNIT), [Part(at * UNIT, UNIT) for at in taken])
    units = {at // UNIT for part in left for at in range(part.offset, part.offset + part.size, UNIT)}
    assert units == set(range(16)) - taken
