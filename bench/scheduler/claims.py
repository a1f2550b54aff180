"""Pods whose cards kube-scheduler allocates by ResourceClaims, from slices as our agent publishes them.

Each Pod asks for the memory of one that asks by the extended resource, in a claim of its own. Compared with
kube-scheduler alone and that resource, and not with an example driver: kube-scheduler allocates any driver's slices by
the same code, so what its owner wants to know is what claims cost in place of a resource.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from bench.scheduler.ground import Ground
from bench.scheduler.kube import PODS_PATH, Follower, config_for
from bench.scheduler.trials import Numbers

from aliquot.dialects.dra import CLAIMS, DRIVER, GROUP, SLICES
from aliquot.dialects.dra.slices import render_devices, render_slices
from aliquot.model.device import Card
from aliquot.model.node import Isolation
from aliquot.model.numbers.quantity import parse_quantity
from testbed import objects
from testbed.objects import Object

_CLASSES = f"{GROUP}/deviceclasses"
_IN_NAMESPACE = CLAIMS.replace("/resourceclaims", "/namespaces/default/resourceclaims")
_CLASS: Object = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": DRIVER},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}


def through_claims(ground: Ground, *, pods: int, seconds: float, resource: str, count_resource: str) -> Numbers:
    """Pods a second, with their creation and that of their claims in it."""
    plane, api = ground.plane, ground.api
    assert plane is not None, "a control plane of our own"
    cards = {name: cards_of(node, resource, count_resource) for name, node in ground.nodes.items()}
    api("POST", _CLASSES, _CLASS)
    slices = [item for name, found in cards.items() for item in slices_of(name, found)]
    objects.bulk(slices, lambda item: api("POST", SLICES, item) and None)
    scheduler = plane.start_scheduler(config_for(None, resource))
    try:
        with Follower(ground, pods) as follower:
            began = time.monotonic()
            pairs = [by_claim(pod, resource) for pod in ground.drafts(pods)]
            objects.bulk(pairs, lambda pair: _create(ground, *pair))
            follower.wait(began + seconds)
        wrongs = overbooked(api("GET", _IN_NAMESPACE)["items"], cards)
        for wrong in wrongs[:5]:
            ground.say(f"claims: {wrong}")
    finally:
        scheduler.stop(patience=3)
        ground.clear()
        for path in (_IN_NAMESPACE, SLICES, _CLASSES):
            api("DELETE", path)
    lost = pods - len(follower.names)
    return {"claims_pods_per_s": follower.rate(began), "claims_unbound": lost, "kube_wrongs": len(wrongs)}


def _create(ground: Ground, claim: Object, pod: Object) -> None:
    ground.api("POST", _IN_NAMESPACE, claim)
    ground.api("POST", PODS_PATH, pod)


def cards_of(node: Object, resource: str, count_resource: str) -> tuple[Card, ...]:
    """The cards of a node of the bench, by what it advertises."""
    amounts, name = node["status"]["capacity"], node["metadata"]["name"]
    count = int(amounts[count_resource])
    return tuple(Card(at, int(amounts[resource]) // count * 1024, f"GPU-{name}-{at}") for at in range(count))


def slices_of(node: str, cards: Iterable[Card]) -> list[Object]:
    """As our agent publishes them."""
    devices = render_devices(cards, driver="580.0", policy=Isolation.BEST_EFFORT, control={}, simulated=True)
    return render_slices(node, "", devices, 1)


def by_claim(pod: Object, resource: str) -> tuple[Object, Object]:
    """The claim and the Pod that ask for what the Pod asks for by the extended resource."""
    name, (container, *_) = pod["metadata"]["name"], pod["spec"]["containers"]
    resources = container["resources"]
    memory = f"{resources['limits'][resource]}Gi"
    exactly = {"deviceClassName": DRIVER, "capacity": {"requests": {"memory": memory}}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "card", "exactly": exactly}]}},
    }
    claims = {"limits": {}, "claims": [{"name": "card"}]}
    spec = {
        **pod["spec"],
        "containers": [{**container, "resources": {**resources, **claims}}],
        "resourceClaims": [{"name": "card", "resourceClaimName": name}],
    }
    return claim, {**pod, "spec": spec}


def overbooked(claims: Iterable[dict[str, Any]], cards: dict[str, tuple[Card, ...]]) -> list[str]:
    """The cards of which claims hold more than there is."""
    used: Counter[tuple[str, str]] = Counter()
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for result in (allocation.get("devices") or {}).get("results") or ():
            used[result["pool"], result["device"]] += int(parse_quantity(result["consumedCapacity"]["memory"]) / 2**20)
    most = {name: max(card.memory_mib for card in found) for name, found in cards.items()}
    return [f"{node}/{card} holds {mib} MiB" for (node, card), mib in used.items() if mib > most[node]]
