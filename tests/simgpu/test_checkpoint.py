"""Checkpoints of the simulated driver: a process leaves the card as a whole, and comes back."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from simgpu.rig import PATIENCE, Player, Tenant, wait_until

RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
NOT_READY, ILLEGAL_STATE, OUT_OF_MEMORY, UNKNOWN = 600, 401, 2, 999
CALLER = """
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
pid, answers, state = int(sys.argv[1]), [], ctypes.c_int(-1)
lock = (ctypes.c_uint * 16)(int(sys.argv[2]))
for name in sys.argv[3:]:
    arguments = ctypes.byref(lock) if name == "Lock" else None
    answers.append(getattr(cuda, "cuCheckpointProcess" + name)(pid, arguments))
assert cuda.cuCheckpointProcessGetState(pid, ctypes.byref(state)) == 0
print(json.dumps([answers, state.value]))
"""


def checkpoint(player: Player, tenant: Tenant, *steps: str, timeout_ms: int = 50) -> Any:
    """What each step answered, and the state afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", CALLER, str(tenant.pid), str(timeout_ms), *steps], env=player.environment(),
        capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_process_leaves_the_card_with_its_context_and_its_calls_wait_until_it_is_back() -> None:
    with Player("--memory", "8192") as player:
        tenant = player.start("serve")
        assert tenant.hear() == "ready"
        assert tenant.ask({"do": "allocate", "mib": 512}) == 0
        before = player.card().used
        assert checkpoint(player, tenant, "Lock", "Checkpoint") == [[0, 0], CHECKPOINTED]
        assert player.card().used == 0
        assert before >= 512 << 20

        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(tenant.ask({"do": "launch", "us": 10})))
        thread.start()
        thread.join(0.3)
        assert answers == []
        assert checkpoint(player, tenant, "Restore", "Unlock") == [[0, 0], RUNNING]
        thread.join(PATIENCE)
        assert answers == [True]
        assert player.card().used == before


def test_work_keeps_a_process_from_being_locked() -> None:
    with Player("--memory", "8192") as player:
        tenant = player.start("serve")
        assert tenant.hear() == "ready"
        assert tenant.ask({"do": "launch", "us": 2_000_000})
        assert checkpoint(player, tenant, "Lock") == [[NOT_READY], RUNNING]
        assert checkpoint(player, tenant, "Lock", timeout_ms=15_000) == [[0], LOCKED]
        assert checkpoint(player, tenant, "Restore", "Unlock") == [[ILLEGAL_STATE, 0], RUNNING]


def test_process_does_not_come_back_to_a_card_that_is_full_and_a_dead_one_leaves_nothing() -> None:
    with Player("--memory", "1024") as player:
        tenant = player.start("serve")
        assert tenant.hear() == "ready"
        assert tenant.ask({"do": "allocate", "mib": 512}) == 0
        assert checkpoint(player, tenant, "Lock", "Checkpoint") == [[0, 0], CHECKPOINTED]
        other = player.start("serve")
        assert other.hear() == "ready"
        assert other.ask({"do": "allocate", "mib": 600}) == 0
        assert checkpoint(player, tenant, "Restore") == [[OUT_OF_MEMORY], CHECKPOINTED]
        used = player.card().used
        tenant.kill()
        other.kill()
        wait_until(lambda: player.card().used == 0, f"the card is empty, of {used} bytes")


@pytest.mark.parametrize(
    ("fault", "expected"), [("checkpoint 801", [[0, 801], LOCKED]), ("checkpoint 1000", [[0, UNKNOWN], FAILED])]
)
def test_faults(fault: str, expected: Any) -> None:
    with Player("--memory", "1024") as player:
        tenant = player.start("serve")
        assert tenant.hear() == "ready"
        Path(player.socket + ".checkpoint").write_text(fault)
        assert checkpoint(player, tenant, "Lock", "Checkpoint") == expected
