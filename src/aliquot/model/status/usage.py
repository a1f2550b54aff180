"""Who used the cards, as it goes over a socket."""

from __future__ import annotations

from msgspec import Struct, field


class UsageEntry(Struct):
    """One payer on one card. `kind` is empty for a tenant, otherwise idle, unknown or unmeasured."""

    uuid: str
    kind: str
    namespace: str  # of a Pod
    name: str
    container: str
    app_class: str = field(name="class")
    user: int | None
    gpu_seconds: float
    preempted_seconds: float
    waiting_seconds: float
    memory_booked_byte_seconds: float
    memory_used_byte_seconds: float


class UsageReport(Struct):
    """Since the beginning of an hour. The seconds of all entries add up to the time of the cards."""

    since: float  # seconds since 1970
    until: float
    entries: list[UsageEntry]
