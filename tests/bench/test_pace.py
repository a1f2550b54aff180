"""The speed of the machine, which every bench states."""

from __future__ import annotations

from bench import pace


def test_python_start_is_what_python_takes_beyond_another_program() -> None:
    assert 1 < pace.python_start_ms(3) < 5_000


def test_sentence_says_how_much_slower_this_machine_is() -> None:
    assert pace.sentence(22.0).endswith("expect 2.0 times its milliseconds")
