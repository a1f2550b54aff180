"""Which devices the agent offers to the kubelet: what the node's labels enable, less what another plugin serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from aliquot.dialects import Rules, hami
from aliquot.dialects.wire.advertising import Advert, Token, adverts, tokens
from aliquot.dialects.wire.otherplugins import TAKEN
from aliquot.model.node import Node, Offer
from aliquot.model.refusal import Invalid
from aliquot.services.agent.devices.holders import DeviceHolders
from aliquot.services.agent.devices.plugins import Plugins
from aliquot.services.agent.report.node import NodeReporter

_PLUGIN_RETURNS = 60.0  # seconds in which a device plugin is back after its own restart or the kubelet's


class Advertiser:
    """Keeps what the device plugins offer up to date."""

    def __init__(
        self,
        plugins: Plugins,
        reporter: NodeReporter,
        holders: DeviceHolders,
        *,
        adopt_foreign: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._plugins, self._reporter, self._holders = plugins, reporter, holders
        self._adopt_foreign, self._clock = adopt_foreign, clock
        self.offered: Mapping[str, tuple[Token, ...]] = {}  # by resource
        self.counted: tuple[Advert, ...] = ()  # amounts instead of devices (counted.py)
        self.refused: Invalid | None = None  # why no resource can be advertised
        self._nvidia_gpu_free_at = float("-inf")
        self._built_from: tuple[Node, Mapping[str, Mapping[str, frozenset[str]]], bool, bool] | None = None

    @property
    def missing(self) -> frozenset[str]:
        """The resources that the kubelet has not accepted yet."""
        return frozenset(self.offered.keys() - self._plugins.registered)

    async def refresh(self, node: Node, rules: Rules) -> None:
        """Offer the devices to the kubelet, with those that unhealthy cards take out."""
        if any(not card.usable for card in node.cards):
            await self._holders.refresh()
        held = self._holders.cards
        taken = Offer.HAMI in node.offers and self._nvidia_gpu_is_taken(hami.TOKENS * len(node.cards), self._clock())
        key = (node, held, taken, self._reporter.marked)
        if key == self._built_from:  # building up to 50,000 devices each second would cost too much
            return
        self._built_from = key
        offering = replace(node, offers=node.offers - hami.OFFERS) if taken else node
        wanted = adverts(offering, rules, marked=self._reporter.marked)
        self.refused = wanted if isinstance(wanted, Invalid) else None
        if taken:
            self._reporter.events.report_refused(TAKEN)
        if isinstance(wanted, Invalid):
            self._reporter.events.report_refused(wanted)
            wanted = ()
        self.counted = tuple(advert for advert in wanted if advert.counted)
        offered = {
            advert.resource: tokens(advert, node.cards, held.get(advert.resource, {}))
            for advert in wanted
            if not advert.counted
        }
        if hami.CARDS in offered and hami.CARDS not in self.offered:  # the label has come: HAMi's Pods are ours now
            self._adopt_foreign()
        if offered != self.offered:
            self.offered = offered
            self._plugins.offer(offered)

    def _nvidia_gpu_is_taken(self, own: int, now: float) -> bool:
        """Whether another plugin serves nvidia.com/gpu, or did just now.

        It registers again after the kubelet restarted, and the last to register has the name.
        """
        if self._reporter.nvidia_gpu_is_taken(own):
            self._nvidia_gpu_free_at = now + _PLUGIN_RETURNS
            return True
        return hami.CARDS not in self.offered and now < self._nvidia_gpu_free_at
