"""What the driver tells, and how its errors become ours."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from aliquot.adapters.nvml import Nvml, NvmlError


class PlayedError(Exception):
    pass


class PlayedNotFoundError(PlayedError):
    pass


class PlayedNotSupportedError(PlayedError):
    pass


class PlayedNvml:
    """As much of pynvml as is used. A test puts answers, or errors to raise, into `answers`."""

    NVMLError = PlayedError
    NVMLError_NotFound = PlayedNotFoundError
    NVMLError_NotSupported = PlayedNotSupportedError

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetHandleByUUID": "handle",
            "nvmlDeviceGetUUID": "GPU-0",
            "nvmlDeviceGetName": b"H200",
            "nvmlDeviceGetNumaNodeId": PlayedNotSupportedError(),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=141 << 30, used=1 << 30),
            **answers,
        }

    def __getattr__(self, name: str) -> Any:
        def call(*_: object) -> Any:
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedNvml:
    there = PlayedNvml()
    monkeypatch.setitem(sys.modules, "pynvml", there)
    return there


def test_a_card_is_told_with_its_memory_and_who_it_is(played: PlayedNvml) -> None:
    (card,) = Nvml().cards()
    assert (card.index, card.uuid, card.model, card.memory_mib, card.numa) == (0, "GPU-0", "H200", 141 * 1024, None)
    played.answers["nvmlDeviceGetNumaNodeId"] = 1
    assert Nvml().cards()[0].numa == 1


def test_processes_are_told_with_their_memory(played: PlayedNvml) -> None:
    played.answers["nvmlDeviceGetComputeRunningProcesses"] = [
        SimpleNamespace(pid=7, usedGpuMemory=100),
        SimpleNamespace(pid=8, usedGpuMemory=None),
        SimpleNamespace(pid=9, usedGpuMemory=(1 << 64) - 1),
    ]
    assert Nvml().processes("GPU-0") == {7: 100, 8: 0, 9: 0}


def test_a_card_that_does_not_tell_how_busy_it_is(played: PlayedNvml) -> None:
    played.answers["nvmlDeviceGetUtilizationRates"] = PlayedNotSupportedError()
    assert Nvml().utilisation("GPU-0") is None
    played.answers["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=37)
    assert Nvml().utilisation("GPU-0") == 0.37


def test_other_errors_are_ours_with_the_cause(played: PlayedNvml) -> None:
    nvml = Nvml()
    played.answers["nvmlDeviceGetMemoryInfo"] = PlayedError("GPU is lost")
    with pytest.raises(NvmlError, match="GPU-0: nvmlDeviceGetMemoryInfo: GPU is lost") as found:
        nvml.memory("GPU-0")
    assert isinstance(found.value.__cause__, PlayedError)
    played.answers["nvmlInit"] = PlayedError("Driver Not Loaded")
    with pytest.raises(NvmlError, match="NVML: Driver Not Loaded"):
        Nvml()


def test_without_the_package_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlError, match="nvidia-ml-py is not installed"):
        Nvml()
