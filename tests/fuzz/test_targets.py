"""Each parser that a stranger reaches, fuzzed for a moment. `make fuzz SECONDS=60` takes as long as it is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.every import TARGETS
from fuzz.target import MOST_MEMORY, Target, hunt, resident

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_fuzz_target_returns_data_or_a_refusal(target: Target) -> None:
    before = resident()
    with target.place() as check:
        hunt(target, check, examples=target.examples)
    assert resident() - before < MOST_MEMORY


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_repr_of_a_fuzz_targets_inputs_is_short(target: Target) -> None:
    """Hypothesis warns of one with more than 30,000 characters, which fails a test whenever it happens to need it."""
    assert len(repr(target.inputs)) < 30_000


def test_every_fuzz_target_has_its_row_in_security_md() -> None:
    review = (ROOT / "docs/security.md").read_text()
    assert [target.name for target in TARGETS if f"| `{target.name}` |" not in review] == []
