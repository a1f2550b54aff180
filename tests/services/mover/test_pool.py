"""The parts of the pool: nothing is given twice, nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.services.mover.pool import UNIT, Part, Pool, PoolFullError

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
