"""The shim that a container was started with meets the agent of another release: by the page's version alone."""

from __future__ import annotations

import os
import struct

from aliquot.adapters.gpu.page import MAGIC, VERSION
from shim.harness import MIB, Tenant

TAKE = f"""
context()
say(result=alloc({MIB})[0])
"""
OUT_OF_MEMORY = 2


def _write(tenant: Tenant, at: int, data: bytes) -> None:
    with (tenant.folder / "page").open("r+b") as page:
        os.pwrite(page.fileno(), data, at)


def test_on_a_page_of_another_version_memory_is_refused_and_nothing_is_written(tenant: Tenant) -> None:
    """It cannot know where its limit stands there: better none than without bounds."""
    _write(tenant, 0, struct.pack("<2I", MAGIC, VERSION + 1))
    before = (tenant.folder / "page").read_bytes()
    assert tenant.run(TAKE)["result"] == OUT_OF_MEMORY
    assert (tenant.folder / "page").read_bytes() == before


def test_what_a_later_agent_of_the_same_version_writes_between_the_fields_is_passed_over(tenant: Tenant) -> None:
    _write(tenant, 16, b"\xff" * 48)  # after the head
    _write(tenant, 64 + 80, b"\xff" * 48)  # after the fields of the first card
    assert tenant.run(TAKE)["result"] == 0


def test_a_program_that_runs_goes_on_when_the_page_gets_another_version(tenant: Tenant) -> None:
    """It has mapped it: what it knows of its limit stays as it was."""
    program = tenant.start(f"""
        context()
        say(result=alloc({MIB})[0])
        heard()
        say(result=alloc({MIB})[0])
    """)
    assert program.answer()["result"] == 0
    _write(tenant, 4, struct.pack("<I", VERSION + 1))
    program.proceed()
    assert program.answer()["result"] == 0
