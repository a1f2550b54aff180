"""Which cards the channel groups of a process are on, and whether the driver lets us control them there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aliquot.adapters.gpu import link, rm
from aliquot.adapters.gpu.link import GroupSeen
from aliquot.model.tenant import Level

_NOWHERE = (None, Level.NONE)  # no file of the driver's, or no object of that file
_MOST_PROBED = 256  # answers of the driver that are remembered of one process; it has 64 groups at most


class ChannelGroups:
    """The groups of one process, and what the driver said of them.

    `complain` is told what goes wrong: a process can have as much of that as it likes, by telling of ever other groups.
    """

    __slots__ = ("_complain", "_probed", "_simulated")

    def __init__(self, *, simulated: bool, complain: Callable[[str], None]) -> None:
        self._simulated, self._complain = simulated, complain
        self._probed: dict[tuple[int, int, int], tuple[str | None, Level]] = {}

    def sort(self, came: Sequence[GroupSeen], mine: set[str]) -> tuple[dict[str, list[rm.Group]], set[str]]:
        """The groups that came, by the tenant's card (`mine`) they are on; the cards where only the gate holds it.

        Files that are not in the answer are closed.
        """
        # It uses CUDA, but its groups were not seen (under MPS they are the server's): only the gate holds it.
        gated = set() if came else set(mine)
        by_card: dict[str, list[rm.Group]] = {}
        told: set[tuple[int, int]] = set()
        for seen in came:
            group = rm.Group(seen.fd, seen.client, seen.group, seen.subdevice, seen.channels)
            twice = (seen.client, seen.group) in told
            uuid, level = self._place(group) if seen.compute and not twice else _NOWHERE
            if level is Level.GATE:
                gated |= mine if uuid is None else mine & {uuid}
            if uuid is None or uuid not in mine:
                link.discard(seen.fd)  # copies are not divided; cards that are not the tenant's the patrol tells of
                continue
            told.add((seen.client, seen.group))
            by_card.setdefault(uuid, []).append(group)
        return {uuid: [] for uuid in gated} | by_card, gated

    def _place(self, group: rm.Group) -> tuple[str | None, Level]:
        """As `_probe`, asked once of each group: a context registers dozens of times while it is made.

        The file is looked at each time: with known handles another one may come.
        """
        key = (group.client, group.group, group.subdevice)
        if not self._is_drivers(group.fd):
            return _NOWHERE
        if key not in self._probed:
            found = self._probe(group)
            if found == _NOWHERE:
                return found
            if len(self._probed) >= _MOST_PROBED:  # of groups that are long gone, or never were
                self._probed.clear()
            self._probed[key] = found
        return self._probed[key]

    def _probe(self, group: rm.Group) -> tuple[str | None, Level]:
        """Which card it is on (None: the driver does not tell), and whether the driver lets us control it."""
        uuid = None
        try:
            uuid = rm.uuid_of(group)
            rm.set_slice(group, rm.get_slice(group))
        except rm.RmError as error:
            if error.gone:
                return _NOWHERE
            self._complain(f"card {uuid or 'unknown'}: {error}: it is held at the gate")
            return uuid, Level.GATE
        return uuid, Level.HARDWARE

    def _is_drivers(self, fd: int) -> bool:
        try:
            return rm.is_rm_file(fd, simulated=self._simulated)
        except OSError:
            return False
