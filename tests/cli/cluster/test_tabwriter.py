"""Go's columns, in the cases that decide."""

from __future__ import annotations

from aliquot.cli.cluster.tabwriter import tabulated


def test_a_cell_is_as_wide_as_the_widest_of_its_block_and_two_more() -> None:
    assert tabulated("a\tb\tc\nlonger\tb\tc\n") == "a       b  c\nlonger  b  c\n"


def test_what_stands_after_the_last_tab_is_not_padded_and_makes_nothing_wider() -> None:
    assert tabulated("a\tvery long\nb\tx\ty\n") == "a  very long\nb  x  y\n"


def test_a_line_that_ends_with_a_tab_ends_with_spaces() -> None:
    assert tabulated("0/184 (0%)\t\n") == "0/184 (0%)  \n"


def test_a_line_without_the_column_ends_the_block() -> None:
    assert tabulated("aaaa\tb\n\na\tb\n") == "aaaa  b\n\na  b\n"


def test_blocks_of_a_column_stand_inside_those_to_the_left() -> None:
    """The second column of the last line is not aligned with that of the first: a line between has none."""
    assert tabulated("a\tbbbb\tc\na\tb\na\tb\tc\n") == "a  bbbb  c\na  b\na  b  c\n"


def test_an_empty_cell_takes_its_room() -> None:
    assert tabulated("a\t\tc\nb\txx\tc\n") == "a      c\nb  xx  c\n"


def test_width_is_counted_in_characters_not_bytes() -> None:
    assert tabulated("é\tb\nee\tb\n") == "é   b\nee  b\n"
