"""What a tenant's processes find in their environment."""

from __future__ import annotations

from aliquot.model.containers.environment import with_granted


def test_environment_fixed_entries_come_first_and_unchanged() -> None:
    """Of a very long environment only the beginning is looked at, and whose a process is must be found there."""
    found = with_granted({"A": "1", "MARK": "mine"}, fixed={"MARK": "yours"}, front={})
    assert list(found.items()) == [("MARK", "yours"), ("A", "1")]


def test_environment_prefix_is_added_once_before_existing_entries() -> None:
    found = with_granted({"LD_PRELOAD": "a b:shim"}, fixed={}, front={"LD_PRELOAD": ["shim"]})
    assert found == {"LD_PRELOAD": "shim:a:b"}
