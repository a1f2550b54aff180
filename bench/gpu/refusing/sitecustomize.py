"""First on PYTHONPATH of a daemon: the driver seems to refuse time slices, so that all tenants are held at the gate."""

from __future__ import annotations

from typing import NoReturn

from aliquot.adapters.gpu import rm


def _refuse(_group: rm.Group, _microseconds: int) -> NoReturn:
    raise rm.RmError("set time slice (refused for the benchmark)", 0x1B)  # insufficient permissions


rm.set_slice = _refuse  # type: ignore[assignment]
