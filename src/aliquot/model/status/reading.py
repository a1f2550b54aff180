"""What NVML reported last of one card."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.model.status.machine import HardwareStatus


@dataclass(frozen=True, slots=True)
class CardReading:
    """None where the card did not answer, or the driver does not know."""

    memory_used_bytes: int | None = None
    utilisation: float | None = None  # 0 to 1
    hardware: HardwareStatus | None = None


NOT_READ = CardReading()
