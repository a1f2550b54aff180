"""What the driver tells of the cards, through NVIDIA's own binding (nvidia-ml-py, imported as pynvml).

Every method may be called from any thread. Errors become NvmlError at this door, with the cause.
"""

from __future__ import annotations

import threading
from typing import Any

from aliquot.model.device import Card

_MIB = 1 << 20
_UNKNOWN_MEMORY = (1 << 64) - 1  # what NVML says where the driver model does not tell


class NvmlError(Exception):
    """NVML cannot be used, or a card does not answer."""


class Nvml:
    """The cards of this machine."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NvmlError("the Python package nvidia-ml-py is not installed") from error
        self._nvml: Any = pynvml
        self._handles: dict[str, Any] = {}
        self._lock = threading.Lock()
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlError(f"NVML: {error}") from error

    def close(self) -> None:
        """Let go of NVML."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError as error:
            raise NvmlError(f"NVML: {error}") from error

    def cards(self) -> tuple[Card, ...]:
        """Every card, in NVML's order. A card that does not answer is there, and not healthy."""
        nvml = self._nvml
        try:
            return tuple(self._card(index) for index in range(nvml.nvmlDeviceGetCount()))
        except nvml.NVMLError as error:
            raise NvmlError(f"NVML: {error}") from error

    def _card(self, index: int) -> Card:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        self._handles[uuid] = handle
        try:
            numa: int | None = int(nvml.nvmlDeviceGetNumaNodeId(handle))
        except (nvml.NVMLError, AttributeError):
            numa = None
        memory = nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB
        return Card(index, memory, uuid=uuid, model=_text(nvml.nvmlDeviceGetName(handle)), numa=numa)

    def driver(self) -> str:
        """The driver's version."""
        try:
            return _text(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError as error:
            raise NvmlError(f"NVML: {error}") from error

    def processes(self, uuid: str) -> dict[int, int]:
        """The compute processes on the card, with the bytes they take; 0 where the driver does not tell."""
        found = self._ask("nvmlDeviceGetComputeRunningProcesses", uuid)
        return {int(each.pid): _bytes(each.usedGpuMemory) for each in found or ()}

    def utilisation(self, uuid: str) -> float | None:
        """The part of its time in which the card did anything, 0 to 1; None where it does not tell."""
        found = self._ask("nvmlDeviceGetUtilizationRates", uuid)
        return None if found is None else min(int(found.gpu), 100) / 100

    def memory(self, uuid: str) -> tuple[int, int]:
        """Bytes used and in all."""
        found = self._ask("nvmlDeviceGetMemoryInfo", uuid)
        return (0, 0) if found is None else (int(found.used), int(found.total))

    def _ask(self, function: str, uuid: str, *more: object) -> Any:
        """What NVML answers; None where it has nothing to say on that."""
        nvml = self._nvml
        try:
            return getattr(nvml, function)(self._handle(uuid), *more)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_NotSupported):
            return None
        except nvml.NVMLError as error:
            raise NvmlError(f"{uuid}: {function}: {error}") from error

    def _handle(self, uuid: str) -> Any:
        with self._lock:
            if uuid not in self._handles:
                self._handles[uuid] = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            return self._handles[uuid]


def _text(value: str | bytes) -> str:
    """Old bindings answer bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _bytes(value: int | None) -> int:
    return 0 if value is None or value == _UNKNOWN_MEMORY else int(value)
