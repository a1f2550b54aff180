"""Engines find their cards by habits of their own. Each program here does it as the engine of its name does, and prints
the UUIDs of the cards on which it would work."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.gpu import player
from kit.machines.machine import ALIQUOT, Machine

_START = """
import ctypes, os, subprocess, sys
import pynvml
from simgpu.driver import Cuda
pynvml.nvmlInit()

def by_nvml(number):
    return pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(number))

def by_cuda():
    cuda = Cuda()
    cuda.call("cuInit", 0)
    found = []
    for ordinal in range(cuda.get("cuDeviceGetCount")):
        text = (ctypes.c_ubyte * 16)()
        cuda.call("cuDeviceGetUuid_v2", text, ordinal)
        name = bytes(text).hex()
        found.append("GPU-" + "-".join((name[:8], name[8:12], name[12:16], name[16:20], name[20:])))
    return found

def child(environment):
    code = open("/proc/self/cmdline").read().split("\\0")[2].rpartition("visible =")[0] + "print(*by_cuda())"
    return subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
        ).stdout.split()

visible = os.environ["CUDA_VISIBLE_DEVICES"]
"""
PROGRAMS = {
    "plain CUDA": "print(*by_cuda())",
    "vLLM, physical numbers by NVML": "print(*[by_nvml(int(word)) for word in visible.split(',')])",
    "vLLM, one worker per card": """
for number in visible.split(","):
    print(*child({**os.environ, "CUDA_VISIBLE_DEVICES": str(int(number))}))
""",
    "Ray, a worker per card with a part of the list": """
print(*[uuid for word in visible.split(",") for uuid in child({**os.environ, "CUDA_VISIBLE_DEVICES": word})])
""",
    "torchrun, a rank per visible card": """
count = len(by_cuda())
print(*[child({**os.environ, "LOCAL_RANK": str(rank)})[rank] for rank in range(count)])
""",
    "PyTorch, count without a context": """
words = [int(word) for word in visible.split(",")]
assert len(words) == len(by_cuda()) and max(words) < pynvml.nvmlDeviceGetCount()
print(*[by_nvml(word) for word in words])
""",
    "CUDA_DEVICE_ORDER is NVML's": """
assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
print(*[by_nvml(int(word)) for word in visible.split(",")])
""",
}
QUIET = (sys.executable, "-c", "import time; time.sleep(600)")
PLACES = {
    "second card": ("--memory", "1"),
    "second and third card": ("--gpus", "2", "--memory", "1"),
    "group on the second card": ("--memory", "1", "--together", "team"),
}


@pytest.fixture(scope="module")
def three_cards() -> Iterator[Machine]:
    """The first is somebody's."""
    if not os.path.exists(player.shim()):
        pytest.skip("the libraries are not built")
    machine = Machine([*ALIQUOT, "up", "--simulate", "3x8GiB", "--listen", "0"])
    machine.environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    machine.up()
    machine.detach("--name", "first", "--", *QUIET)
    yield machine
    machine.aliquot("down", "--force")
    machine.close()


def works_on(machine: Machine, place: str, program: str) -> tuple[list[str], list[str]]:
    """The cards that the program found, and those that it was given."""
    told = "print(os.environ['NVIDIA_VISIBLE_DEVICES'], file=sys.stderr)\n"
    result = machine.aliquot("run", *PLACES[place], "--", sys.executable, "-c", _START + program + "\n" + told)
    assert result.returncode == 0, result.stderr
    return result.stdout.split(), result.stderr.split()[-1].split(",")


# A client of MPS counts the cards of its server, and NVML those of the machine: there the two cannot agree.
CASES = [
    (habit, place) for habit in PROGRAMS for place in PLACES if "group" not in place or "by_nvml" not in PROGRAMS[habit]
]


@pytest.mark.parametrize(("habit", "place"), CASES)
def test_engine_works_on_the_cards_that_it_was_given(three_cards: Machine, habit: str, place: str) -> None:
    found, given = works_on(three_cards, place, PROGRAMS[habit])
    assert found == given
    assert len(given) == (2 if "third" in place else 1)


def test_engine_works_on_the_right_card_after_the_daemon_restarts(three_cards: Machine) -> None:
    three_cards.kill()
    three_cards.up()
    found, given = works_on(three_cards, "second card", PROGRAMS["vLLM, physical numbers by NVML"])
    assert found == given


def test_memory_of_another_card_is_refused_to_a_child_that_resets_the_list(three_cards: Machine) -> None:
    program = """
from simgpu.driver import Session
session = Session()
status = session.cuda.status("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), 1 << 20)
print(status)
"""
    reset = ("env", "-u", "CUDA_VISIBLE_DEVICES", "-u", "NVIDIA_VISIBLE_DEVICES", sys.executable, "-c")
    result = three_cards.aliquot("run", "--memory", "1", "--", *reset, "import ctypes" + program)
    assert "is not one of this tenant's: its memory is refused" in result.stderr
    assert result.stdout.split() == ["2"]  # CUDA_ERROR_OUT_OF_MEMORY
