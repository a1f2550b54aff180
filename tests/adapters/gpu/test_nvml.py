"""What the driver tells, and how its errors become ours."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from aliquot.adapters.gpu.nvml import Nvml, NvmlError, Xid
from aliquot.model.status.machine import HardwareStatus
from aliquot.model.withheld import MIG_MODE, Withheld


class PlayedError(Exception):
    pass


class PlayedNotFoundError(PlayedError):
    pass


class PlayedNotSupportedError(PlayedError):
    pass


class PlayedNoFunctionError(PlayedError):
    pass


class PlayedLostError(PlayedError):
    pass


class PlayedResetError(PlayedError):
    pass


class PlayedTimeoutError(PlayedError):
    pass


class PlayedNvml:
    """As much of pynvml as is used. A test puts answers, or errors to raise, into `answers`."""

    NVMLError = PlayedError
    NVMLError_NotFound = PlayedNotFoundError
    NVMLError_NotSupported = PlayedNotSupportedError
    NVMLError_FunctionNotFound = PlayedNoFunctionError
    NVMLError_GpuIsLost = PlayedLostError
    NVMLError_ResetRequired = PlayedResetError
    NVMLError_Timeout = PlayedTimeoutError

    def __init__(self, **answers: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlEventSetCreate": "set",
            "nvmlEventSetFree": None,
            "nvmlDeviceRegisterEvents": None,
            "nvmlDeviceGetSupportedEventTypes": 8 | 2 | 1,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetHandleByUUID": "handle",
            "nvmlDeviceGetUUID": "GPU-0",
            "nvmlDeviceGetName": b"H200",
            "nvmlDeviceGetNumaNodeId": PlayedNotSupportedError(),
            "nvmlDeviceGetMigMode": PlayedNotSupportedError(),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=141 << 30, used=1 << 30),
            **answers,
        }

    def __getattr__(self, name: str) -> Any:
        constants = {"nvmlEventTypeXidCriticalError": 8, "nvmlEventTypeDoubleBitEccError": 2}
        if name in constants:
            return constants[name]

        def call(*arguments: object) -> Any:
            self.calls.append((name, *arguments))
            answer = self.answers[name]
            if callable(answer):
                answer = answer(*arguments)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedNvml:
    there = PlayedNvml()
    monkeypatch.setitem(sys.modules, "pynvml", there)
    return there


def test_nvml_lists_cards_with_memory_uuid_and_model(played: PlayedNvml) -> None:
    (card,) = Nvml().cards()
    assert (card.index, card.uuid, card.model, card.memory_mib, card.numa) == (0, "GPU-0", "H200", 141 * 1024, None)
    played.answers["nvmlDeviceGetNumaNodeId"] = 1
    assert Nvml().cards()[0].numa == 1


def test_nvml_lists_processes_with_their_memory(played: PlayedNvml) -> None:
    played.answers["nvmlDeviceGetComputeRunningProcesses"] = [
        SimpleNamespace(pid=7, usedGpuMemory=100),
        SimpleNamespace(pid=8, usedGpuMemory=None),
        SimpleNamespace(pid=9, usedGpuMemory=(1 << 64) - 1),
    ]
    assert Nvml().processes("GPU-0") == {7: 100, 8: 0, 9: 0}


def test_nvml_utilisation_is_none_where_it_is_not_supported(played: PlayedNvml) -> None:
    played.answers["nvmlDeviceGetUtilizationRates"] = PlayedNotSupportedError()
    assert Nvml().utilisation("GPU-0") is None
    played.answers["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=37)
    assert Nvml().utilisation("GPU-0") == 0.37


def test_nvml_hardware_has_only_the_figures_that_the_driver_knows(played: PlayedNvml) -> None:
    functions = ("Temperature", "PowerUsage", "ClockInfo", "EncoderUtilization", "DecoderUtilization")
    played.answers |= {f"nvmlDeviceGet{name}": PlayedNotSupportedError() for name in functions}
    assert Nvml().hardware("GPU-0") is None
    played.answers |= {"nvmlDeviceGetPowerUsage": 120_500, "nvmlDeviceGetEncoderUtilization": [50, 166_000]}
    assert Nvml().hardware("GPU-0") == HardwareStatus(power_watts=120.5, encoder_utilisation=0.5)


def test_nvml_errors_become_nvmlerror_with_the_cause(played: PlayedNvml) -> None:
    nvml = Nvml()
    played.answers["nvmlDeviceGetMemoryInfo"] = PlayedError("GPU is lost")
    with pytest.raises(NvmlError, match="GPU-0: nvmlDeviceGetMemoryInfo: GPU is lost") as found:
        nvml.memory("GPU-0")
    assert isinstance(found.value.__cause__, PlayedError)
    played.answers["nvmlInit"] = PlayedError("Driver Not Loaded")
    with pytest.raises(NvmlError, match="NVML: Driver Not Loaded"):
        Nvml()


def test_nvml_without_the_python_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlError, match="nvidia-ml-py is not installed"):
        Nvml()


class TestSilentCards:
    def test_nvmlerror_knows_a_lost_card_from_other_errors(self, played: PlayedNvml) -> None:
        for error, lost in ((PlayedLostError(), True), (PlayedResetError(), True), (PlayedError("Unknown"), False)):
            played.answers["nvmlDeviceGetMemoryInfo"] = error
            with pytest.raises(NvmlError) as found:
                Nvml().memory("GPU-0")
            assert found.value.lost is lost
        assert found.value.reason == "Unknown"

    def test_a_card_that_is_not_listed_is_lost(self, played: PlayedNvml) -> None:
        played.answers["nvmlDeviceGetHandleByUUID"] = PlayedNotFoundError()
        with pytest.raises(NvmlError, match="GPU-9: NVML lists no such card") as found:
            Nvml().memory("GPU-9")
        assert found.value.lost

    def test_a_silent_card_is_listed_as_unhealthy(self, played: PlayedNvml) -> None:
        def memory(handle: int) -> object:
            return PlayedLostError() if handle == 0 else SimpleNamespace(total=1 << 30)

        played.answers |= {
            "nvmlDeviceGetCount": 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetMemoryInfo": memory,
        }
        assert [(card.uuid, card.memory_mib, card.healthy) for card in Nvml().cards()] == [
            ("GPU-0", 0, False),
            ("GPU-1", 1024, True),
        ]

    @pytest.mark.parametrize("silent", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo"])
    def test_a_silent_card_keeps_what_it_last_answered(self, played: PlayedNvml, silent: str) -> None:
        nvml = Nvml()
        (before,) = nvml.cards()
        played.answers[silent] = PlayedLostError()
        assert nvml.cards() == (replace(before, healthy=False),)

    def test_a_card_without_a_known_uuid_is_not_listed(self, played: PlayedNvml) -> None:
        played.answers["nvmlDeviceGetHandleByIndex"] = PlayedLostError()
        assert Nvml().cards() == ()


class TestWatch:
    def watched(self, played: PlayedNvml, event_type: int, data: int) -> Xid | None:
        played.answers["nvmlEventSetWait_v2"] = SimpleNamespace(device="handle", eventType=event_type, eventData=data)
        return Nvml().watch(["GPU-0"]).wait(0.5)

    def test_watch_returns_an_xid_with_its_card(self, played: PlayedNvml) -> None:
        assert self.watched(played, 8, 79) == Xid("GPU-0", 79)
        assert ("nvmlEventSetWait_v2", "set", 500) in played.calls

    def test_watch_returns_a_double_bit_error_as_an_xid(self, played: PlayedNvml) -> None:
        assert self.watched(played, 2, 0) == Xid("GPU-0", 48)

    def test_watch_returns_none_on_a_timeout(self, played: PlayedNvml) -> None:
        played.answers["nvmlEventSetWait_v2"] = PlayedTimeoutError()
        assert Nvml().watch(["GPU-0"]).wait(0.1) is None

    def test_watch_registers_only_supported_events(self, played: PlayedNvml) -> None:
        played.answers["nvmlDeviceGetSupportedEventTypes"] = 8 | 4
        assert Nvml().watch(["GPU-0"]).watched == {"GPU-0"}
        assert ("nvmlDeviceRegisterEvents", "handle", 8, "set") in played.calls

    @pytest.mark.parametrize(
        ("call", "answer"),
        [
            ("nvmlDeviceGetHandleByUUID", PlayedLostError()),
            ("nvmlDeviceRegisterEvents", PlayedNotSupportedError()),
            ("nvmlDeviceGetSupportedEventTypes", 4),
        ],
    )
    def test_watch_leaves_out_a_card_without_events(self, played: PlayedNvml, call: str, answer: object) -> None:
        played.answers[call] = answer
        assert Nvml().watch(["GPU-0"]).watched == set()

    def test_watch_raises_on_other_errors(self, played: PlayedNvml) -> None:
        played.answers["nvmlEventSetWait_v2"] = PlayedLostError()
        watch = Nvml().watch(["GPU-0"])
        with pytest.raises(NvmlError):
            watch.wait(0.1)
        played.answers["nvmlEventSetFree"] = PlayedError("Uninitialized")
        watch.close()


class TestReopen:
    def test_reopen_looks_handles_up_again(self, played: PlayedNvml) -> None:
        nvml = Nvml()
        nvml.memory("GPU-0")
        nvml.memory("GPU-0")
        nvml.reopen()
        nvml.memory("GPU-0")
        names = [call[0] for call in played.calls]
        assert names.count("nvmlDeviceGetHandleByUUID") == 2
        assert names.index("nvmlShutdown") < len(names) - 1 - names[::-1].index("nvmlInit")

    def test_reopen_after_a_failed_one_does_not_close_twice(self, played: PlayedNvml) -> None:
        nvml = Nvml()
        played.answers["nvmlInit"] = PlayedError("Driver Not Loaded")
        for _ in range(2):
            with pytest.raises(NvmlError, match="Driver Not Loaded"):
                nvml.reopen()
        played.answers["nvmlInit"] = None
        nvml.reopen()
        assert [call[0] for call in played.calls].count("nvmlShutdown") == 1

    def test_reopen_waits_for_pending_calls(self, played: PlayedNvml, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("aliquot.adapters.gpu.nvml._PATIENCE", 0.01)
        nvml, inside, go_on = Nvml(), threading.Event(), threading.Event()

        def hangs(_: object) -> object:
            inside.set()
            go_on.wait(10)
            return SimpleNamespace(total=1, used=0)

        played.answers["nvmlDeviceGetMemoryInfo"] = hangs
        asker = threading.Thread(target=nvml.memory, args=("GPU-0",))
        asker.start()
        inside.wait(10)
        with pytest.raises(NvmlError, match="cannot be reopened"):
            nvml.reopen()
        go_on.set()
        asker.join()
        nvml.reopen()

    def test_reopen_gets_its_turn_under_constant_calls(self, played: PlayedNvml) -> None:
        nvml, over = Nvml(), threading.Event()
        answers: list[tuple[int, int]] = []

        def ask() -> None:
            while not over.is_set():
                answers.append(nvml.memory("GPU-0"))

        def slow(_: object) -> object:
            over.wait(0.001)
            return SimpleNamespace(total=1, used=0)

        played.answers["nvmlDeviceGetMemoryInfo"] = slow
        askers = [threading.Thread(target=ask) for _ in range(3)]
        for asker in askers:
            asker.start()
        try:
            nvml.reopen()
        finally:
            over.set()
            for asker in askers:
                asker.join()
        assert set(answers) <= {(0, 1)}


@pytest.mark.parametrize(("modes", "why"), [([1, 1], MIG_MODE), ([1, 0], MIG_MODE), ([0, 1], None)])
def test_card_in_mig_mode_is_withheld(played: PlayedNvml, modes: list[int], why: Withheld | None) -> None:
    """A mode that is only pending comes with the next reset."""
    played.answers["nvmlDeviceGetMigMode"] = modes
    (card,) = Nvml().cards()
    assert card.withheld == why


def test_mps_clients_are_none_where_nvml_does_not_know_them(played: PlayedNvml) -> None:
    played.answers["nvmlDeviceGetMPSComputeRunningProcesses"] = PlayedNoFunctionError()
    assert Nvml().mps_clients("GPU-0") == set()


class TestMemoryLimits:
    """r615 and newer; the real binding's structures are used in tests/simgpu/test_nvml.py."""

    def limited(self, played: PlayedNvml, *, says: int = 5, **answers: Any) -> str | None:
        played.answers |= {
            "c_nvmlSetMemoryLimits_v1_t": lambda cgroup, soft, hard: SimpleNamespace(hardLimit=hard),
            "c_nvmlGetMemoryLimits_v1_t": lambda cgroup: SimpleNamespace(hardLimit=says),
            "nvmlDeviceSetMemoryLimits_v1": None,
            "nvmlDeviceGetMemoryLimits_v1": None,
            **answers,
        }
        return Nvml().limit_memory("GPU-0", "/sys/fs/cgroup/pod", 5)

    def test_limit_is_set_and_read_back(self, played: PlayedNvml) -> None:
        assert self.limited(played) is None
        assert self.limited(played, says=6) == "the driver says 6 bytes, not 5"

    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (PlayedNoFunctionError(), "the driver is older than r615"),
            (PlayedNotFoundError(), "the cgroup of the Pod has no dmem controller"),
            (PlayedError("Insufficient Permissions"), "NVML: Insufficient Permissions"),
        ],
    )
    def test_driver_that_does_not_limit_says_why(self, played: PlayedNvml, error: Exception, said: str) -> None:
        assert self.limited(played, nvmlDeviceSetMemoryLimits_v1=error) == said
