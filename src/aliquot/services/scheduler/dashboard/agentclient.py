"""Asks a node's agent for its live view of the cards, while a viewer has that node open; an agent that does not answer
at once is left out."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Mapping

import aiohttp
import msgspec

from aliquot.model.status.dashboard import Card, Node, Pod, Tenant
from aliquot.wording import messages

_PATIENCE = 1.0  # seconds: the rest of the page does not wait for longer
_FRESH = 0.8  # seconds that an answer is good for other visitors
_LARGEST = 4 << 20
_MOST_KEPT = 64


class AgentClient:
    """`addresses` by the node's name."""

    def __init__(self, addresses: Mapping[str, str], port: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._addresses, self._port, self._clock = addresses, port, clock
        self._asked: dict[str, tuple[float, asyncio.Task[Node | None]]] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, name: str) -> Node | None:
        """None: no agent answers there."""
        address = _address(self._addresses.get(name, ""))
        if address is None:
            return None
        now = self._clock()
        self._asked = {key: kept for key, kept in self._asked.items() if now - kept[0] < _FRESH}
        if name not in self._asked:
            if len(self._asked) >= _MOST_KEPT:
                return None
            self._asked[name] = (now, asyncio.create_task(self._ask(address)))
        return await asyncio.shield(self._asked[name][1])

    async def _ask(self, address: str) -> Node | None:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PATIENCE))
        try:
            url = f"http://{address}:{self._port}/api/v1/node"
            async with self._session.get(url, allow_redirects=False) as answer:
                body = await answer.content.read(_LARGEST) if answer.status == 200 else b"null"
                while len(body) < _LARGEST and (more := await answer.content.read(_LARGEST - len(body))):
                    body += more
                return msgspec.json.decode(body, type=Node | None)
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError, RecursionError):
            return None  # no agent, or of another version, or another program at that port

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


def _address(text: str) -> str | None:
    """As it stands in a URL. A node may report anything: what is not a plain address would lead us elsewhere."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return None if found.scope_id else f"[{found}]"


def merged(node: Node, live: Node | None) -> Node:
    """The node with what its agent sees on its cards; as it is where no agent answers."""
    if live is None:
        return node
    cards = {card.uuid: card for card in live.cards}
    return msgspec.structs.replace(
        node,
        release_delay_seconds=live.release_delay_seconds,
        notes=[*node.notes, *live.notes],
        timeline=live.timeline,
        cards=[_merged_card(card, cards[card.uuid]) if card.uuid in cards else card for card in node.cards],
    )


def with_pauses(pod: Pod, live: Node | None) -> Pod:
    """The Pod with why it is paused and by whom, which only its node's agent knows."""
    namespace = pod.key.partition("/")[0]
    keys = {f"{namespace}/{claim}" for claim in pod.claims} or {pod.key}  # a claim is the tenant, not its Pods
    pauses = [
        messages.paused(card.index, tenant.paused_by, tenant.paused_seconds or 0.0)
        for card in (() if live is None else live.cards)
        for tenant in card.tenants
        if tenant.key in keys and tenant.paused_by
    ]
    return msgspec.structs.replace(pod, why=[*pauses, *pod.why])


def _merged_card(card: Card, live: Card) -> Card:
    tenants = {tenant.key: tenant for tenant in live.tenants}
    return msgspec.structs.replace(
        card,
        memory_used_mib=live.memory_used_mib,
        memory_unregistered_mib=live.memory_unregistered_mib,
        control=live.control,
        busy=live.busy,
        why_out=live.why_out or card.why_out,
        tenants=[
            _merged_tenant(tenant, tenants[tenant.key]) if tenant.key in tenants else tenant for tenant in card.tenants
        ],
    )


def _merged_tenant(tenant: Tenant, live: Tenant) -> Tenant:
    return msgspec.structs.replace(
        tenant,
        memory_used_mib=live.memory_used_mib,
        share=live.share,
        state=live.state,
        preemptions=live.preemptions,
        paused_seconds=live.paused_seconds,
        paused_by=live.paused_by,
        latency_seconds=live.latency_seconds,
        latency_missed_seconds=live.latency_missed_seconds,
        where=live.where,
        parked_mib=live.parked_mib,
        moves=live.moves,
        why_parked=live.why_parked,
    )
