"""`aliquot run`: a tenant's processes share what it was given."""

from __future__ import annotations

import sys

import pytest

from kit.machines.machine import ALIQUOT, Machine

BLOCK = 8 << 20
# As many processes as told take blocks until they are refused, all at once, and keep them; what each got is printed.
GREEDY = f"""
import ctypes, os, sys
from simgpu.driver import Session
hold, let_go = os.pipe()
outs = []
for _ in range(int(sys.argv[1])):
    out, result = os.pipe()
    outs.append(out)
    if os.fork() == 0:
        os.close(let_go)
        session, blocks = Session(), 0
        while session.cuda.status("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), {BLOCK}) == 0:
            blocks += 1
        os.write(result, b"%d" % blocks)
        os.read(hold, 1)
        os._exit(0)
print(*[int(os.read(out, 64)) for out in outs])
"""
GIB = 1 << 30


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_the_processes_of_a_tenant_share_one_memory_quota(machine: Machine, processes: int) -> None:
    result = machine.aliquot("run", "--memory", "2", "--", sys.executable, "-c", GREEDY, str(processes))
    assert result.returncode == 0, result.stderr
    got = [int(word) for word in result.stdout.split()]
    assert len(got) == processes
    beside = processes * (64 << 20)  # what the contexts take is the tenant's, too
    assert 2 * GIB - beside - processes * BLOCK <= sum(got) * BLOCK <= 2 * GIB


def test_what_a_tenant_took_is_there_for_the_next(machine: Machine) -> None:
    load = (*ALIQUOT, "burn", "load", "--memory", "6GiB", "--seconds", "0.1", "--iterations-per-us", "1000", "--check")
    for _ in range(2):
        result = machine.aliquot("run", "--memory", "7", "--", *load)
        assert result.returncode == 0, result.stderr
        assert "results: all correct" in result.stdout
