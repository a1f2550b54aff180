"""What waiting Pods cost: CPU of the API server with twelve Pods that no card fits, while others come and go."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench.scheduler.contestants import Running
from bench.scheduler.ground import WITNESS_GIB, Ground
from bench.scheduler.kube import config_for
from bench.scheduler.shapes import Shape
from bench.scheduler.trials import Numbers

from aliquot.dialects import gpushare

WAITING = 12
_TICKS = os.sysconf("SC_CLK_TCK")
_SETTLE = 5.0  # seconds until kube-scheduler has given all of them up


def waiting(running: Running, ground: Ground, *, seconds: float, resource: str) -> Numbers:
    """Percent of a core that the API server needs more with the Pods than without: at rest, and with a Pod a second."""
    plane = ground.plane
    assert plane is not None, "a control plane of our own"
    config = config_for(running, resource)
    name = config["profiles"][0]["schedulerName"] if config.get("profiles") else None
    pid = _api_server(plane.kubeconfig.parent)
    scheduler = plane.start_scheduler(config)
    try:
        rest, busy = _share(pid, ground, seconds, None), _share(pid, ground, seconds, name or "default-scheduler")
        too_large = Shape((((gpushare.MEMORY, WITNESS_GIB + 1),),))  # fits the sum of a node, and no card
        ground.pods(WAITING, [too_large] * WAITING, scheduler=name)
        time.sleep(_SETTLE)
        return {
            "waiting_rest_percent": _share(pid, ground, seconds, None) - rest,
            "waiting_busy_percent": _share(pid, ground, seconds, name or "default-scheduler") - busy,
            "waiting_own_percent": busy,
        }
    finally:
        scheduler.stop(patience=3)
        ground.clear()


def _share(pid: int, ground: Ground, seconds: float, coming: str | None) -> float:
    """Percent of a core; with `coming`, a Pod for that scheduler comes and goes every second."""
    used, began = _cpu_seconds(pid), time.monotonic()
    while time.monotonic() < began + seconds:
        if coming is not None:
            (pod,) = ground.pods(1, scheduler=coming)
            time.sleep(0.5)
            name = pod["metadata"]["name"]
            ground.api("DELETE", f"/api/v1/namespaces/default/pods/{name}", {"gracePeriodSeconds": 0})
        time.sleep(0.5)
    return 100 * (_cpu_seconds(pid) - used) / (time.monotonic() - began)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _api_server(folder: Path) -> int:
    """The API server of the control plane in that folder."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if b"kube-apiserver" in words.split(b"\0")[0] and str(folder).encode() in words:
                return int(process.name)
    raise RuntimeError("no API server of this bench is running")
