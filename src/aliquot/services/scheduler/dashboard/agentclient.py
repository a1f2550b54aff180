"""What a node's own agent sees on its cards, asked while somebody looks at it: within a moment, or not at all."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Mapping

import aiohttp
import msgspec

from aliquot.services.dashboard.contract import Json

_PATIENCE = 1.0  # seconds: the rest of the page does not wait for longer
_FRESH = 0.8  # seconds that an answer is good for others who look
_LARGEST = 4 << 20
_MOST_KEPT = 64


class AgentAsking:
    """By the node's name; `addresses` is where each is."""

    def __init__(self, addresses: Mapping[str, str], port: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._addresses, self._port, self._clock = addresses, port, clock
        self._asked: dict[str, tuple[float, asyncio.Task[Json | None]]] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, name: str) -> Json | None:
        """None: nobody answers there."""
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

    async def _ask(self, address: str) -> Json | None:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PATIENCE))
        try:
            url = f"http://{address}:{self._port}/api/v1/node"
            async with self._session.get(url, allow_redirects=False) as answer:
                body = await answer.content.read(_LARGEST) if answer.status == 200 else b"null"
                while len(body) < _LARGEST and (more := await answer.content.read(_LARGEST - len(body))):
                    body += more
                found = msgspec.json.decode(body)
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    async def close(self) -> None:
        """No more questions."""
        if self._session is not None:
            await self._session.close()


def _address(told: str) -> str | None:
    """As it stands in a URL. A node says of itself what it likes: what is no plain address would lead us elsewhere."""
    try:
        found = ipaddress.ip_address(told)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return None if found.scope_id else f"[{found}]"


# --- beside what the scheduler knows --------------------------------------------------------------------------------

_OF_CARD = ("memory_used_mib", "busy", "why_out")
_OF_TENANT = ("memory_used_mib", "share", "state", "preemptions", "paused_seconds")


def _merged_card(card: Json, live: Json | None) -> Json:
    if live is None:
        return card
    tenants = {tenant["key"]: tenant for tenant in live["tenants"]}
    return {
        **card,
        **{field: live[field] for field in _OF_CARD if live[field] is not None},
        "tenants": [
            {**tenant, **{field: tenants[tenant["key"]][field] for field in _OF_TENANT}}
            if tenant["key"] in tenants
            else tenant
            for tenant in card["tenants"]
        ],
    }


def merged(node: Json, live: Json | None) -> Json:
    """The node with what its agent sees on its cards; as it is where nobody answers, or not as an agent would."""
    if live is None:
        return node
    try:
        cards = {card["uuid"]: card for card in live["cards"]}
        return {
            **node,
            "release_delay_seconds": live["release_delay_seconds"],
            "notes": [*node["notes"], *live["notes"]],
            "timeline": live["timeline"],
            "cards": [_merged_card(card, cards.get(card["uuid"])) for card in node["cards"]],
        }
    except (KeyError, TypeError):  # another version, or somebody else at that port
        return node
