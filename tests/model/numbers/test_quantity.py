"""Kubernetes quantities, exactly."""

from __future__ import annotations

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.numbers.quantity import QuantityError, parse_count, parse_quantity


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (3, Fraction(3)),
        ("3", Fraction(3)),
        ("500m", Fraction(1, 2)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("8Gi", Fraction(8 * 2**30)),
        ("1e3", Fraction(1000)),
        ("1E3", Fraction(1000)),
        ("1E", Fraction(10**18)),
        ("12k", Fraction(12000)),
        ("-2", Fraction(-2)),
        ("100n", Fraction(1, 10**7)),
        (0.1, Fraction(1, 10)),
        (1e22, Fraction(10**22)),
    ],
)
def test_a_quantity_is_read_exactly(written: object, meant: Fraction) -> None:
    assert parse_quantity(written) == meant


@pytest.mark.parametrize(
    "written",
    [
        "",
        " ",
        "x",
        "1x",
        "1 Gi",
        "1ki",
        "--1",
        "1e",
        "1e9999",
        "٣",
        "1" * 65,
        None,
        True,
        [],
        {},
        float("nan"),
        float("inf"),
    ],
)
def test_quantity_of_any_other_form_is_an_error(written: object) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(written)


def test_a_count_may_come_back_from_the_api_server_with_a_decimal_suffix() -> None:
    assert parse_count("16k") == 16000
    assert parse_count("1e3") == 1000
    assert parse_count("2000m") == 2


@pytest.mark.parametrize("written", ["1.5", "5Gi", "1Ki", "1500m", 0.5])
def test_a_count_is_a_whole_number_without_a_binary_unit(written: object) -> None:
    with pytest.raises(QuantityError):
        parse_count(written)


@given(st.one_of(st.text(), st.floats(), st.integers(), st.booleans(), st.none(), st.lists(st.integers())))
def test_any_value_is_a_quantity_or_a_quantity_error(value: object) -> None:
    with contextlib.suppress(QuantityError):
        assert isinstance(parse_quantity(value), Fraction)


def test_an_enormous_number_is_refused_and_not_computed() -> None:
    with pytest.raises(QuantityError):
        parse_count(10**5000)
