"""What a tenant's page says of its memory."""

from __future__ import annotations

import struct
from pathlib import Path

from aliquot.adapters.gpu.page import Page
from aliquot.arbiter.roster import Member
from aliquot.model.claim import AppClass
from aliquot.model.tenant import Allotment
from aliquot.services.runtime.processes.contexts import TenantTotals


def test_memory_that_no_card_has_is_not_put_on_the_bill(tmp_path: Path) -> None:
    page = Page(tmp_path / "page", (Allotment("GPU-0", 1 << 30, None),))
    page._write(64 + 16 * 128, struct.pack("<I", 4711))  # slot 0 has an owner
    page._write(page._at(0, 0), struct.pack("<Q", 2**64 - 1))
    totals = TenantTotals(Member("a", AppClass.NORMAL, None), page, 0, 1 << 30, most=96 << 30)
    assert totals.measure([], 10.0)[0] == 96 << 30
    page.close()
