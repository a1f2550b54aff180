"""Which account of the node has a number."""

from __future__ import annotations

import pwd

from aliquot.adapters.host.users import node_account


def test_account_of_the_node_is_known_by_its_number() -> None:
    assert node_account(0) == "root"
    free = next(uid for uid in range(70000, 80000) if uid not in {entry.pw_uid for entry in pwd.getpwall()})
    assert node_account(free) is None
