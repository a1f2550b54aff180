"""The answer to a claim: which cards, how much of each, for which container."""

from __future__ import annotations

import msgspec

from aliquot.model.claim import Role, Usage, peak


class Share(msgspec.Struct, frozen=True, gc=False):
    """A part of one card, with percentages already turned into MiB."""

    card: int
    memory_mib: int
    core_milli: int | None = None
    greedy_milli: int | None = None
    exclusive: bool = False
    uuid: str = ""

    def usage(self) -> Usage:
        """What it takes of the card."""
        return Usage(self.memory_mib, self.core_milli or 0, self.greedy_milli or 0, 1, int(self.exclusive))


class ContainerGrant(msgspec.Struct, frozen=True, gc=False):
    """What one container got."""

    name: str
    index: int
    role: Role
    shares: tuple[Share, ...]


class Grant(msgspec.Struct, frozen=True, gc=False):
    """What one Pod got. `containers` in the Pod's order, init containers and sidecars first."""

    uid: str
    node: str
    containers: tuple[ContainerGrant, ...]
    whole_node: bool = False

    def usage(self) -> dict[int, Usage]:
        """Per card, the most that the Pod's containers use at once."""
        if len(self.containers) == 1 and len(self.containers[0].shares) == 1:  # nearly all Pods
            (share,) = self.containers[0].shares
            return {share.card: share.usage()}
        parts: dict[int, list[tuple[Role, Usage]]] = {}
        for container in self.containers:
            for share in container.shares:
                parts.setdefault(share.card, []).append((container.role, share.usage()))
        return {card: peak(usages) for card, usages in sorted(parts.items())}
