"""NVML through NVIDIA's own binding (nvidia-ml-py, imported as pynvml).

Every method may be called from any thread. NVML's errors become NvmlError here, with the cause.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from aliquot.model.cardstate.health import DOUBLE_BIT_ECC
from aliquot.model.device import Card
from aliquot.model.status.machine import HardwareStatus
from aliquot.model.withheld import MIG_MODE

_MIB = 1 << 20
_UNKNOWN_MEMORY = (1 << 64) - 1  # NVML's answer where the driver model does not know
_PATIENCE = 5.0  # seconds in which pending calls must return


class NvmlError(Exception):
    """NVML cannot be used, or a card does not answer. `reason` is the driver's; `lost`: it says the card is gone."""

    def __init__(self, text: str, *, reason: str = "", lost: bool = False) -> None:
        super().__init__(text)
        self.reason = reason or text
        self.lost = lost


class Xid(NamedTuple):
    """An error of a card, as the driver reports it."""

    uuid: str
    number: int


class Nvml:
    """The cards of this machine."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NvmlError("the Python package nvidia-ml-py is not installed") from error
        self._nvml: Any = pynvml
        self._handles: dict[str, Any] = {}
        self._cards: dict[str, Card] = {}  # as they last answered
        self._lock = threading.Lock()
        self._turn = threading.Condition()  # guards the next three
        self._asking = 0
        self._reopening = False
        self._open = False
        self._init()

    def _init(self) -> None:
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise NvmlError(f"NVML: {error}") from error
        self._open = True

    def close(self) -> None:
        """Shut NVML down."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError as error:
            raise NvmlError(f"NVML: {error}") from error
        self._open = False

    def reopen(self) -> None:
        """Initialise NVML again: after a reset of a card, an NVML that was opened before reports it as lost for ever.

        Waits for pending calls; no watch may be open. Raises NvmlError.
        """
        with self._turn:
            self._reopening = True  # new calls wait, or our turn would never come
            try:
                if not self._turn.wait_for(lambda: not self._asking, _PATIENCE):
                    raise NvmlError("NVML does not answer: it cannot be reopened")
                if self._open:
                    self.close()
                with self._lock:
                    self._handles.clear()
                self._init()
            finally:
                self._reopening = False
                self._turn.notify_all()

    def cards(self) -> tuple[Card, ...]:
        """Every card, in NVML's order. A card that does not answer is listed as unhealthy; one that never answered is
        left out, since its UUID is not known."""
        with self._using():
            try:
                found = [self._card(index) for index in range(self._nvml.nvmlDeviceGetCount())]
            except self._nvml.NVMLError as error:
                raise NvmlError(f"NVML: {error}") from error
        return tuple(card for card in found if card is not None)

    def _card(self, index: int) -> Card | None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError:
            known = next((card for card in self._cards.values() if card.index == index), None)
            return None if known is None else replace(known, healthy=False)
        with self._lock:
            self._handles[uuid] = handle
        try:
            numa: int | None = int(nvml.nvmlDeviceGetNumaNodeId(handle))
        except (nvml.NVMLError, AttributeError):
            numa = None
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB
            model, withheld = _text(nvml.nvmlDeviceGetName(handle)), MIG_MODE if self._mig(handle) else None
            card = Card(index, memory, uuid=uuid, model=model, numa=numa, withheld=withheld)
        except nvml.NVMLError:
            return replace(self._cards.get(uuid, Card(index, 0, uuid=uuid, numa=numa)), index=index, healthy=False)
        self._cards[uuid] = card
        return card

    def _mig(self, handle: Any) -> bool:
        """Whether the card is in MIG mode: then whole-card contexts are impossible, and its parts are others'."""
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(handle)[0])
        except (self._nvml.NVMLError, AttributeError):  # most cards cannot
            return False

    def minors(self) -> dict[str, int]:
        """The numbers of the cards' device files (/dev/nvidia0), by UUID, where NVML says."""
        found: dict[str, int] = {}
        for card in self.cards():
            with contextlib.suppress(NvmlError):
                minor = self._ask("nvmlDeviceGetMinorNumber", card.uuid)
                found |= {} if minor is None else {card.uuid: int(minor)}
        return found

    def driver(self) -> str:
        """The driver's version."""
        try:
            return _text(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError as error:
            raise NvmlError(f"NVML: {error}") from error

    def processes(self, uuid: str) -> dict[int, int]:
        """The compute processes on the card, with the bytes they use; 0 where the driver does not know."""
        found = self._ask("nvmlDeviceGetComputeRunningProcesses", uuid)
        return {int(process.pid): _bytes(process.usedGpuMemory) for process in found or ()}

    def mps_clients(self, uuid: str) -> set[int]:
        """The processes on the card whose context is that of an MPS server."""
        found = self._ask("nvmlDeviceGetMPSComputeRunningProcesses", uuid)
        return {int(process.pid) for process in found or ()}

    def is_exclusive(self, uuid: str) -> bool:
        """Whether the card's compute mode keeps a second process off it (EXCLUSIVE_PROCESS), or every one."""
        return self._ask("nvmlDeviceGetComputeMode", uuid) not in (None, self._nvml.NVML_COMPUTEMODE_DEFAULT)

    def utilisation(self, uuid: str) -> float | None:
        """The part of the time in which the card did anything, 0 to 1; None where the driver does not know."""
        found = self._ask("nvmlDeviceGetUtilizationRates", uuid)
        return None if found is None else min(int(found.gpu), 100) / 100

    def hardware(self, uuid: str) -> HardwareStatus | None:
        """Temperature, power, clocks and video engines, where the driver knows them; None: it knows none."""
        nvml = self._nvml
        asked = {
            "temperature_celsius": ("nvmlDeviceGetTemperature", (nvml.NVML_TEMPERATURE_GPU,), 1),
            "power_watts": ("nvmlDeviceGetPowerUsage", (), 1000),
            "sm_clock_hertz": ("nvmlDeviceGetClockInfo", (nvml.NVML_CLOCK_SM,), 1e-6),
            "memory_clock_hertz": ("nvmlDeviceGetClockInfo", (nvml.NVML_CLOCK_MEM,), 1e-6),
            "encoder_utilisation": ("nvmlDeviceGetEncoderUtilization", (), 100),
            "decoder_utilisation": ("nvmlDeviceGetDecoderUtilization", (), 100),
        }
        found: dict[str, float] = {}
        for name, (function, more, divisor) in asked.items():
            answer = None
            with contextlib.suppress(NvmlError):  # a card that is lost is found by the questions about its memory
                answer = self._ask(function, uuid, *more)
            if answer is not None:  # of a video engine with the time that it was measured over
                found[name] = float(answer[0] if isinstance(answer, list | tuple) else answer) / divisor
        return HardwareStatus(**found) if found else None

    def memory(self, uuid: str) -> tuple[int, int]:
        """Bytes used, and the total."""
        found = self._ask("nvmlDeviceGetMemoryInfo", uuid)
        return (0, 0) if found is None else (int(found.used), int(found.total))

    def limit_memory(self, uuid: str, cgroup: str, limit: int) -> str | None:
        """Have the driver limit what the processes of a cgroup have on the card, in bytes: r615 and newer. Returns why
        it does not; None: it does, and says so when asked. Raises NvmlError."""
        nvml = self._nvml
        if not hasattr(nvml, "nvmlDeviceSetMemoryLimits_v1"):
            return "the Python package nvidia-ml-py is older than 13.615"
        wanted = nvml.c_nvmlSetMemoryLimits_v1_t(os.fsencode(cgroup), 0, limit)
        found = nvml.c_nvmlGetMemoryLimits_v1_t(os.fsencode(cgroup))
        with self._using():
            handle = self._handle(uuid)
            try:
                nvml.nvmlDeviceSetMemoryLimits_v1(handle, wanted)
                nvml.nvmlDeviceGetMemoryLimits_v1(handle, found)
            except nvml.NVMLError_FunctionNotFound:
                return "the driver is older than r615"
            except nvml.NVMLError_NotFound:
                return "the cgroup of the Pod has no dmem controller"
            except nvml.NVMLError as error:
                return f"NVML: {error}"
        return None if found.hardLimit == limit else f"the driver says {found.hardLimit} bytes, not {limit}"

    def watch(self, uuids: Iterable[str]) -> Watch:
        """Watch the errors of these cards; those that support no events, or do not answer now, are left out."""
        handles = {}
        for uuid in uuids:
            with contextlib.suppress(NvmlError), self._using():
                handles[uuid] = self._handle(uuid)
        return Watch(self._nvml, handles)

    def _ask(self, function: str, uuid: str, *more: object) -> Any:
        """NVML's answer; None where it does not support the question."""
        nvml = self._nvml
        with self._using():
            handle = self._handle(uuid)
            try:
                return getattr(nvml, function)(handle, *more)
            except (nvml.NVMLError_NotFound, nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
                return None
            except nvml.NVMLError as error:
                raise self._error(f"{uuid}: {function}", error) from error

    def _handle(self, uuid: str) -> Any:
        nvml = self._nvml
        with self._lock:
            try:
                if uuid not in self._handles:
                    self._handles[uuid] = nvml.nvmlDeviceGetHandleByUUID(uuid)
                return self._handles[uuid]
            except nvml.NVMLError_NotFound as error:
                raise NvmlError(f"{uuid}: NVML lists no such card", reason="it is not listed", lost=True) from error
            except nvml.NVMLError as error:
                raise self._error(f"{uuid}: nvmlDeviceGetHandleByUUID", error) from error

    def _error(self, what: str, error: Exception) -> NvmlError:
        lost = isinstance(error, self._nvml.NVMLError_GpuIsLost | self._nvml.NVMLError_ResetRequired)
        return NvmlError(f"{what}: {error}", reason=str(error), lost=lost)

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        with self._turn:
            self._turn.wait_for(lambda: not self._reopening)
            self._asking += 1
        try:
            yield
        finally:
            with self._turn:
                self._asking -= 1
                self._turn.notify_all()


class Watch:
    """The errors of some cards, as they happen. For one thread."""

    def __init__(self, nvml: Any, handles: dict[str, Any]) -> None:
        self._nvml = nvml
        self.watched: set[str] = set()  # the cards that support events
        try:
            self._set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            raise NvmlError(f"NVML: {error}") from error
        wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
        for uuid, handle in handles.items():
            with contextlib.suppress(nvml.NVMLError):
                types = wanted & nvml.nvmlDeviceGetSupportedEventTypes(handle)
                nvml.nvmlDeviceRegisterEvents(handle, types, self._set)
                self.watched |= {uuid} if types else set()

    def wait(self, seconds: float) -> Xid | None:
        """The next error; None when there was none in that time. Raises NvmlError: then close it."""
        nvml = self._nvml
        try:
            event = nvml.nvmlEventSetWait_v2(self._set, int(seconds * 1000))
            uuid = _text(nvml.nvmlDeviceGetUUID(event.device))
        except nvml.NVMLError_Timeout:
            return None
        except nvml.NVMLError as error:
            raise NvmlError(f"NVML: {error}") from error
        is_ecc = event.eventType == nvml.nvmlEventTypeDoubleBitEccError
        return Xid(uuid, DOUBLE_BIT_ECC if is_ecc else int(event.eventData))

    def close(self) -> None:
        """Free the event set."""
        with contextlib.suppress(self._nvml.NVMLError):  # nothing can be done about it
            self._nvml.nvmlEventSetFree(self._set)


def _text(value: str | bytes) -> str:
    """Old bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _bytes(value: int | None) -> int:
    return 0 if value is None or value == _UNKNOWN_MEMORY else int(value)
