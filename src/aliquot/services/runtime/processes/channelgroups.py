"""Maps a process's RM channel groups to cards, and finds out whether the driver lets us control them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from aliquot.adapters.gpu import rm
from aliquot.adapters.gpu.link import GroupSeen
from aliquot.adapters.host.handedfiles import Owner, discard
from aliquot.model.tenant import Level

_NOWHERE = (None, Level.NONE)  # not a file of the driver, or no such object in that file
_MOST_PROBED = 256  # answers of the driver to remember per process; it has 64 groups at most


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a process is. `proven` are the cards on which the driver let us control a compute group of it, `refused`
    those where it may have one; on others it is held only because it may be there."""

    by_card: Mapping[str, Sequence[rm.Group]]
    gated: Set[str]  # cards where only the gate can hold it
    proven: Set[str]
    refused: Set[str]


class ChannelGroups:
    """The groups of one process, and what the driver answered about them.

    `log_fault` must limit its rate: a process can provoke as many faults as it likes, with ever other groups.
    """

    __slots__ = ("_log_fault", "_owner", "_probed", "_simulated")

    def __init__(self, *, simulated: bool, log_fault: Callable[..., None], owner: Owner) -> None:
        self._simulated, self._log_fault, self._owner = simulated, log_fault, owner
        self._probed: dict[tuple[int, int, int], tuple[str | None, Level]] = {}

    def place(self, sent: Sequence[GroupSeen], mine: set[str]) -> Placement:
        """Where the process is, by the groups that it sent.

        `mine` are the tenant's cards. Files that are not in the answer are closed.
        """
        gated: set[str] = set()
        proven: set[str] = set()
        refused: set[str] = set()
        found = False  # a compute group that the driver knows
        by_card: dict[str, list[rm.Group]] = {}
        known: set[tuple[int, int]] = set()
        for seen in sent:
            group = rm.Group(seen.fd, seen.client, seen.group, seen.subdevice, seen.channels)
            twice = (seen.client, seen.group) in known
            uuid, level = self._place(group) if seen.compute and not twice else _NOWHERE
            found |= level is not Level.NONE
            if level is Level.GATE:
                refused |= mine if uuid is None else mine & {uuid}
            elif uuid is not None:
                proven |= mine & {uuid}
            if uuid is None or uuid not in mine:
                discard(
                    seen.fd, self._owner
                )  # copy engines are not shared out; the audit reports cards that are not the tenant's
                continue
            known.add((seen.client, seen.group))
            by_card.setdefault(uuid, []).append(group)
        gated |= refused
        if not found:
            # It uses CUDA, but no group of it that computes is known: under MPS they are the server's; or what it sent
            # is not the driver's. Only the gate can hold it.
            gated |= mine
        for uuid in gated:
            by_card.setdefault(uuid, [])
        return Placement(by_card, gated, proven, refused)

    def _place(self, group: rm.Group) -> tuple[str | None, Level]:
        """As `_probe`, but asks the driver once per group: a context registers dozens of times while it is made.

        The file is checked each time: another file may come with known handles.
        """
        key = (group.client, group.group, group.subdevice)
        if not self._is_drivers(group.fd):
            return _NOWHERE
        if key not in self._probed:
            found = self._probe(group)
            if found == _NOWHERE:
                return found
            if len(self._probed) >= _MOST_PROBED:  # of groups that are gone, or never existed
                self._probed.clear()
            self._probed[key] = found
        return self._probed[key]

    def _probe(self, group: rm.Group) -> tuple[str | None, Level]:
        """Which card it is on (None: the driver does not say), and whether the driver lets us control it."""
        uuid = None
        try:
            uuid = rm.uuid_of(group)
            rm.set_slice(group, rm.get_slice(group))
        except rm.RmError as error:
            if error.gone:
                return _NOWHERE
            self._log_fault("channel_group_not_controllable", card=uuid or "unknown", why=str(error), held_at="gate")
            return uuid, Level.GATE
        return uuid, Level.HARDWARE

    def _is_drivers(self, fd: int) -> bool:
        try:
            return rm.is_rm_file(fd, simulated=self._simulated)
        except OSError:
            return False
