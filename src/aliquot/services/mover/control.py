"""Messages between the daemon and the mover: one JSON object per packet. Each is answered by a `PoolState`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

LONGEST = 1 << 20
_AT_A_TIME = 1000  # processes in one packet: the kernel refuses packets of more than about 200 KiB


class Serve(msgspec.Struct, frozen=True, tag="serve"):
    """A connection of a shim, whose file comes with the packet."""

    tenant: str
    slot: int
    serial: int
    card: str
    limit: int | None  # bytes that the tenant may have on that card
    owner: int | str | None = None  # the user with whose other connections it counts; None: the tenant


class Living(msgspec.Struct, frozen=True, tag="living"):
    """The processes that there are: tenant, slot, serial. What was kept for others is forgotten: for others of these
    tenants, or, if the list of tenants is `complete`, for all others."""

    processes: list[tuple[str, int, int]]
    tenants: list[str]
    complete: bool
    cards: list[str]  # with memory that may leave: the mover makes itself ready for them
    wanted: int = 0  # bytes that may leave, or are away: the pool gets as much memory in the background

    def parts(self) -> Iterator[Living | Tenants]:
        """The same in packets that can be sent: a tenant can have hundreds of processes, or claim so."""
        if len(self.processes) <= _AT_A_TIME:
            yield self
            return
        by_tenant: dict[str, list[tuple[str, int, int]]] = {tenant: [] for tenant in self.tenants}
        for process in self.processes:
            by_tenant.setdefault(process[0], []).append(process)
        processes: list[tuple[str, int, int]] = []
        tenants: list[str] = []
        for tenant, its in by_tenant.items():
            if processes and len(processes) + len(its) > _AT_A_TIME:
                yield Living(processes, tenants, complete=False, cards=self.cards, wanted=self.wanted)
                processes, tenants = [], []
            processes += its
            tenants.append(tenant)
        yield Living(processes, tenants, complete=False, cards=self.cards, wanted=self.wanted)
        if self.complete:
            yield Tenants(list(by_tenant))


class Tenants(msgspec.Struct, frozen=True, tag="tenants"):
    """All tenants that there are. What was kept for others is forgotten."""

    tenants: list[str]


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """The daemon orders memory of that tenant off that card, or no longer does: the mover takes what was ordered. What
    was permitted stays so while there is no daemon."""

    tenant: str
    card: str
    permitted: bool


class Look(msgspec.Struct, frozen=True, tag="look"):
    """Nothing but the answer."""


class Quit(msgspec.Struct, frozen=True, tag="quit"):
    """End. What is kept stays, for the next mover; where nothing is, the pool's memory goes."""


class PoolState(msgspec.Struct, frozen=True):
    """The pool, in bytes."""

    version: str
    pid: int
    size: int
    warm: int  # has been given memory
    free: int  # can be taken, now or once it has been given memory
    parked: int
    trouble: str | None = None  # why it did not get all of its memory


Request = Serve | Living | Tenants | Leave | Look | Quit
encode = msgspec.json.encode
decode_request = msgspec.json.Decoder(Request).decode
decode_state = msgspec.json.Decoder(PoolState).decode
