"""One card."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.device import nominal_gib


@pytest.mark.parametrize(
    ("seen_mib", "sold_gib"),
    [
        (7_611, 8),  # P4
        (11_264, 11),  # GeForce GTX 1080 Ti
        (11_441, 12),  # K80
        (15_109, 16),  # T4, older drivers
        (15_360, 16),  # T4
        (16_160, 16),  # V100 of 16 GB
        (16_384, 16),
        (20_470, 20),  # RTX A4500
        (22_731, 24),  # A10
        (23_028, 24),  # A10
        (23_034, 24),  # L4
        (24_576, 24),  # A30
        (30_712, 32),  # RTX 5000 Ada with ECC
        (32_510, 32),  # V100 of 32 GB
        (40_536, 40),  # A100 of 40 GB
        (45_634, 48),  # A40
        (46_068, 48),  # L40, L40S
        (49_140, 48),  # RTX A6000
        (81_251, 80),  # A100 of 80 GB
        (81_559, 80),  # H100
        (81_920, 80),  # A100 of 80 GB
        (95_830, 94),  # H100 NVL
        (97_871, 96),  # GH200
        (143_771, 141),  # H200
        (183_359, 180),  # B200
    ],
)
def test_nominal_size_of_a_card(seen_mib: int, sold_gib: int) -> None:
    assert nominal_gib(seen_mib) == sold_gib


@pytest.mark.parametrize(("advertised_gib", "sold_gib"), [(15, 16), (22, 24), (31, 32), (44, 48), (79, 80), (140, 141)])
def test_nominal_size_of_a_card_that_a_node_advertises_in_whole_gib(advertised_gib: int, sold_gib: int) -> None:
    assert nominal_gib(advertised_gib * 1024) == sold_gib


@pytest.mark.parametrize("gib", [0, 3, 5, 14, 21, 28, 36, 60, 100, 512, 2048])
def test_nominal_size_of_a_card_of_no_known_size(gib: int) -> None:
    assert nominal_gib(gib * 1024) == gib


@given(st.integers(0, 400 * 1024), st.integers(0, 400 * 1024))
def test_nominal_size_grows_with_the_card(first: int, second: int) -> None:
    assert nominal_gib(min(first, second)) <= nominal_gib(max(first, second))
