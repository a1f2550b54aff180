"""Programs of the tests that ask NVML."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pynvml

from aliquot.adapters.gpu.nvml import Nvml, NvmlError
from aliquot.services.runtime.cards import health
from aliquot.wording.withheld import withheld_words


def nvml_memory_limit(cgroup: str, limit: int) -> list[str | None]:
    """Limits a cgroup twice, then one that has no such controller: what the adapter says."""
    nvml = Nvml()
    uuid = nvml.cards()[0].uuid
    return [
        nvml.limit_memory(uuid, cgroup, limit),
        nvml.limit_memory(uuid, cgroup, limit + 1),
        nvml.limit_memory(uuid, f"{cgroup}/none", limit),
    ]


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


def nvml_lost() -> list[str]:
    """What pynvml says of the first card, which is off the bus; of the second it says the same things as ever."""
    pynvml.nvmlInit()
    answers = []
    for call in (pynvml.nvmlDeviceGetHandleByIndex, _uuid_of_second):
        try:
            answers.append(str(call(0)))
        except pynvml.NVMLError_GpuIsLost:
            answers.append("lost")
    nvml = Nvml()
    listed = [card.uuid for card in nvml.cards()]
    try:
        nvml.memory("GPU-5106f000-51b6-4a11-9000-000000000000")
    except NvmlError as error:
        answers.append("lost" if error.lost else str(error))
    return [*answers, *listed]


def _uuid_of_second(_: int) -> str:
    return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(1)))


def nvml_events(link: socket.socket) -> None:
    """Hears of both cards, and tells."""
    pynvml.nvmlInit()
    nvml = Nvml()
    watch = nvml.watch([card.uuid for card in nvml.cards()])
    link.send(json.dumps(sorted(watch.watched)).encode())
    while link.recv(1 << 16):
        link.send(json.dumps(watch.wait(0.3)).encode())
    watch.close()


def nvml_health(link: socket.socket) -> None:
    """Keeps the health of the cards as an agent does, only faster; tells how they are whenever it is asked."""
    health._EVERY = 0.02
    kept = health.CardHealth(Nvml())
    kept.start()
    while link.recv(1 << 16):
        link.send(json.dumps([[card.healthy for card in kept.cards], list(kept.why.values())]).encode())
    kept.stop()


def nvml_withheld() -> list[str]:
    """Why each card is not offered."""
    nvml = Nvml()
    assert nvml.minors() == {card.uuid: card.index for card in nvml.cards()}
    return [withheld_words(card.withheld) if card.withheld else "" for card in nvml.cards()]
