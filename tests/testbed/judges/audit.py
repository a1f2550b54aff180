"""What the API server alone knows of cards: who holds how much of each, and whether any is given out twice.

Nothing of the product is used: the annotation is read here once more, from its description.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from testbed.client import Refused
from testbed.plane import ControlPlane

GRANT = "aliquot.dev/grant"
Object = dict[str, Any]
Card = tuple[str, int]  # node, number
_WHOLE_CARD = 1000  # of compute


def shares(pod: Object) -> list[tuple[Card, int, int]]:
    """(card, MiB, thousandths of its compute) of a Pod that is on a node and not finished; it must tell them."""
    if not pod["spec"].get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return []
    grant = json.loads(pod["metadata"]["annotations"][GRANT])
    assert grant["node"] == pod["spec"]["nodeName"], f"{pod['metadata']['name']}: a grant of another node: {grant}"
    return [
        ((grant["node"], card["index"]), card["memory_mib"], card.get("core_milli") or 0)
        for container in grant["containers"]
        for card in container["cards"]
    ]


def booked(pods: Iterable[Object]) -> dict[Card, int]:
    """MiB that are given out, by card."""
    memory: Counter[Card] = Counter()
    for pod in pods:
        for card, mib, _ in shares(pod):
            memory[card] += mib
    return {card: mib for card, mib in memory.items() if mib}


def overbooked(pods: Iterable[Object], card_mib: int) -> list[str]:
    """The cards of which more is given out than there is; nothing when all is well."""
    return _too_much((shares(pod) for pod in pods), card_mib)


def _too_much(held: Iterable[Iterable[tuple[Card, int, int]]], card_mib: int) -> list[str]:
    memory: Counter[Card] = Counter()
    core: Counter[Card] = Counter()
    for shares in held:
        for card, mib, milli in shares:
            memory[card] += mib
            core[card] += milli
    return [f"{card}: {mib} MiB of {card_mib}" for card, mib in memory.items() if mib > card_mib] + [
        f"{card}: compute {milli} of {_WHOLE_CARD}" for card, milli in core.items() if milli > _WHOLE_CARD
    ]


class Auditor:
    """Follows every Pod of the cluster, and looks at all cards after each change. What it found is in `wrong`.

    Also that a Pod which is on a node never comes to another, nor loses or changes its grant.
    """

    def __init__(self, plane: ControlPlane, card_mib: int) -> None:
        self._plane, self._card_mib = plane, card_mib
        self.wrong: list[str] = []
        self.looks = 0
        self._bound: dict[str, tuple[str, str]] = {}  # uid -> node, grant
        self._held: dict[str, list[tuple[Card, int, int]]] = {}  # uid -> shares
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="auditor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except (OSError, Refused, http.client.HTTPException, json.JSONDecodeError):  # restarted, or compacted
                self._stop.wait(0.2)
            except Exception as error:  # a grant that cannot be read, say
                self.wrong.append(repr(error))
                return

    def _follow(self) -> None:
        listed = self._plane.api("GET", "/api/v1/pods")
        self._held.clear()
        for pod in listed["items"]:
            self._note(pod)
        self._look()
        version = listed["metadata"]["resourceVersion"]
        with self._plane.api.watch("/api/v1/pods", resourceVersion=version, timeout=1.0) as events:
            for event in events:
                if event["type"] == "ERROR":
                    return
                pod = event["object"]
                if event["type"] == "DELETED":
                    self._held.pop(pod["metadata"]["uid"], None)
                else:
                    self._note(pod)
                    self._look()
                if self._stop.is_set():
                    return

    def _note(self, pod: Object) -> None:
        node, uid = pod["spec"].get("nodeName"), pod["metadata"]["uid"]
        if not node:
            return
        now = (node, pod["metadata"]["annotations"].get(GRANT, ""))
        self._held[uid] = shares(pod)
        if self._bound.setdefault(uid, now) != now:
            self.wrong.append(f"{pod['metadata']['name']} was bound twice: {self._bound[uid]}, then {now}")

    def _look(self) -> None:
        self.looks += 1
        self.wrong += _too_much(self._held.values(), self._card_mib)
