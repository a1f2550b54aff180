"""What commands show of a daemon of a newer release."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from aliquot.cli.main import cli
from kit.machines.fakedaemon import FakeDaemon, a_card, a_queue_entry, a_share, a_status, a_tenant

NEW = "of-a-newer-release"


@pytest.mark.parametrize("command", [["ps"], ["top"], ["ps", "-o", "json"]])
def test_codes_of_a_newer_daemon_are_shown_as_they_are(daemon: FakeDaemon, command: list[str]) -> None:
    moved = {"resident_bytes": 0, "parked_bytes": 1 << 20, "moves": 1, "moved_bytes": 1 << 20}
    residency = {**moved, "where": NEW, "why": NEW, "way": NEW, "last_out_seconds": 1.0, "last_in_seconds": None}
    share = a_share(0, state=NEW, level=NEW, residency=residency)
    lack = {"card": 0, "reason": NEW, "wanted": 2, "had": 1}
    daemon.answers["status"] = a_status(
        tenants=[a_tenant("run", cards=[share], **{"class": NEW})],
        queue=[a_queue_entry("later", refusals=[lack], **{"class": NEW})],
        cards=[a_card("box", 0, control={"level": NEW, "reason": NEW}, withheld=NEW)],
        findings=[{"uuid": "GPU-0", "pid": 7, "text": "it smokes", "kind": NEW}],
    )
    result = CliRunner().invoke(cli, command)
    assert (result.exit_code, result.stderr) == (0, "")
    assert NEW in result.stdout
