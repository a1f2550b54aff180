"""Programs of the tests that ask NVML."""

from __future__ import annotations

import time
from typing import Any

import pynvml


def nvml(seconds: float) -> dict[str, Any]:
    """What pynvml sees of the cards and of the processes on the first one."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    seen: dict[str, Any] = {
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "count": pynvml.nvmlDeviceGetCount(),
        "uuid": pynvml.nvmlDeviceGetUUID(handle),
        "name": pynvml.nvmlDeviceGetName(handle),
        "bus": pynvml.nvmlDeviceGetPciInfo(handle).busId,
        "index": pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(handle))),
    }
    newest = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    plain = pynvml.nvmlDeviceGetMemoryInfo(handle)
    seen["memory"] = [plain.total, plain.used, newest.used, newest.free]
    seen["processes"] = {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    seen["graphics"] = len(pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle))
    for name in ("nvmlDeviceGetNumaNodeId", "nvmlDeviceGetMigMode"):
        try:
            getattr(pynvml, name)(handle)
        except pynvml.NVMLError_NotSupported:
            seen[name] = "not supported"
    time.sleep(seconds)
    seen["busy"] = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, 0)
    except pynvml.NVMLError_NotFound:
        samples = []
    seen["shares"] = {s.pid: s.smUtil for s in samples}
    seen["stamps"] = [abs(s.timeStamp / 1e6 - time.time()) < 5 for s in samples]
    newest_stamp = max((s.timeStamp for s in samples), default=0)
    try:
        seen["later"] = [
            s.timeStamp > newest_stamp for s in pynvml.nvmlDeviceGetProcessUtilization(handle, newest_stamp)
        ]
    except pynvml.NVMLError_NotFound:
        seen["later"] = []
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(handle, 0, events)
    try:
        pynvml.nvmlEventSetWait_v2(events, 10)
    except pynvml.NVMLError_Timeout:
        seen["event"] = "timeout"
    pynvml.nvmlEventSetFree(events)
    pynvml.nvmlShutdown()
    return seen


def nvml_without_driver() -> str:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_DriverNotLoaded:
        return "driver not loaded"
    return "initialised"
