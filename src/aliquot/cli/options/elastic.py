"""Options about memory that may leave the cards: of the machine's daemon and of a node's agent."""

from __future__ import annotations

from typing import Any

import click

from aliquot.adapters.host.home import POOLS
from aliquot.adapters.host.hostmemory import host_memory_mib, pool_room_mib
from aliquot.cli.amounts import MEMORY_ALLOWED, AmountError, parse_memory
from aliquot.cli.errors import InputError
from aliquot.model.device import LEAST_FACTOR, MOST_FACTOR
from aliquot.wording.amounts import needed_and_had


class HostPool(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """MiB of host memory; 0: none."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else 0 if value.strip() == "0" else parse_memory(value)
        except AmountError:
            self.fail(f"{value} is not allowed: {MEMORY_ALLOWED}; 0: nothing is parked", param, ctx)


class Factor(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """Times a card's memory."""

    name = "factor"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            factor = float(value)
        except ValueError:
            factor = 0.0
        if not LEAST_FACTOR <= factor <= MOST_FACTOR:  # as the daemon would refuse it
            self.fail(f"{value} is not allowed: {LEAST_FACTOR} to {MOST_FACTOR}, for example 1.5", param, ctx)
        return factor


def check_host_pool(pool_mib: int | None, *, simulated: bool = False) -> None:
    """Raises InputError for a pool larger than the memory there is. That of simulated cards takes none."""
    if not pool_mib or simulated:
        return
    there, room = host_memory_mib(), pool_room_mib()
    why = "the memory of this machine or container"
    if room < there:
        there, why = (
            room,
            (f"the size of {POOLS}: as root, `mount -o remount,size=90% {POOLS}`; in a container, mount the host's"),
        )
    if pool_mib > there:
        wanted, most = needed_and_had(pool_mib, there)
        raise InputError(f"--host-pool: {wanted} is not allowed: at most {most}, {why}")
