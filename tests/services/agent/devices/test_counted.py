"""gpu-mem in MiB on a node with more of it than the kubelet handles as devices: the agent counts it in the Node's
status, and the kubelet calls the agent for the places of containers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from aliquot import dialects
from aliquot.adapters.kubernetes.kube import ApiError
from aliquot.dialects import MemoryUnit, PodReader, Rules
from aliquot.dialects.gpushare import COUNT, MEMORY
from aliquot.dialects.native import COUNTED, PLACE
from aliquot.dialects.wire.objects import NodeObject, PodObject
from aliquot.model.claim import Claim
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from kit.agents.agentnode import AgentNode, play
from kit.agents.grantedpods import NODE, Json, a_qgpu_pod
from kit.values.manifests import QGPU, a_container, a_pod

MIB = Rules(gpushare_unit=MemoryUnit.MIB)
CARDS = tuple(Card(at, 81_920, f"GPU-{at}") for at in range(8))
ALL = 8 * 81_920


class Node:
    """The Node's object at the API server, and what a kubelet does to it. Every write is seen at once."""

    def __init__(self, agent_node: AgentNode) -> None:
        self.agent_node = agent_node
        self.object: Json = {"metadata": {"name": NODE, "uid": "node", "labels": {"gpushare": "true"}}, "status": {}}
        self.patches: list[Json] = []
        agent_node.api.patch = self.patch  # type: ignore[attr-defined]
        self.seen()

    @property
    def amounts(self) -> tuple[object, object]:
        """Capacity and allocatable."""
        status = self.object["status"]
        return tuple(status.get(side, {}).get(MEMORY) for side in ("capacity", "allocatable"))

    @property
    def mark(self) -> object:
        return self.object["metadata"].get("annotations", {}).get(COUNTED)

    async def patch(self, path: str, body: Json, **more: Any) -> Any:
        self.patches.append(body)
        self.object = _merged(self.object, body)
        return msgspec.convert(self.object, NodeObject)

    def seen(self) -> None:
        """The watch reports the Node."""
        self.agent_node.agent.reporter.changed(msgspec.convert(json.loads(json.dumps(self.object)), NodeObject))

    def labelled(self, labels: dict[str, str]) -> None:
        self.object["metadata"]["labels"] = labels
        self.seen()

    def round(self) -> None:
        """The agent looks around once, and writes what it has to."""
        agent = self.agent_node.agent
        agent.restored.set()

        async def act() -> None:
            await agent.upkeep.advertise()
            agent.reporter.publish(
                agent.cards, here=True, counted=agent.counted.amounts(agent.advertiser.counted, agent.cards)
            )
            agent.counted.report()
            await agent.reporter._write()

        play(act())


def _merged(whole: Any, change: Any) -> Any:
    if not isinstance(whole, dict) or not isinstance(change, dict):
        return change
    merged = {**whole, **{key: _merged(whole.get(key, {}), value) for key, value in change.items()}}
    return {key: value for key, value in merged.items() if value is not None}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    agent_node = AgentNode(tmp_path, monkeypatch)
    agent_node.health.cards, agent_node.rules = CARDS, MIB
    agent_node.store.close()
    agent_node.start()
    agent_node.agent.pods.synced.set()
    yield Node(agent_node)
    agent_node.store.close()


def devices(node: Node) -> dict[str, int]:
    return {resource: len(tokens) for resource, tokens in node.agent_node.agent.advertiser.offered.items()}


def falls_sick(node: Node, card: int) -> None:
    health = node.agent_node.health
    health.cards = tuple(replace(known, healthy=known.index != card) for known in CARDS)
    health.why = {f"GPU-{card}": "Xid 79"}


# --- what the node offers --------------------------------------------------------------------------------------------


def test_agent_counts_gpu_mem_in_the_status_and_offers_the_rest_as_devices(node: Node) -> None:
    node.round()
    assert devices(node) == {COUNT: 8, PLACE: 8000}
    assert (node.amounts, node.mark) == ((str(ALL), str(ALL)), MEMORY)
    assert node.agent_node.emitted == []


def test_mark_is_there_before_the_amount(node: Node) -> None:
    """A reader of the amount must know that it is no devices."""
    node.round()
    marked = next(
        at for at, body in enumerate(node.patches) if COUNTED in body.get("metadata", {}).get("annotations", {})
    )
    counted = next(at for at, body in enumerate(node.patches) if "status" in body)
    assert marked < counted


def test_nothing_is_written_while_the_amount_is_there(node: Node) -> None:
    node.round()
    before = len(node.patches)
    node.round()
    assert len(node.patches) == before


def test_amount_may_be_written_as_the_api_server_does(node: Node) -> None:
    node.agent_node.health.cards = tuple(replace(card, memory_mib=80_000) for card in CARDS)
    node.round()
    node.object["status"] = {side: {MEMORY: "640k"} for side in ("capacity", "allocatable")}
    node.seen()
    before = len(node.patches)
    node.round()
    assert len(node.patches) == before


@pytest.mark.parametrize("side", ["capacity", "allocatable"])
@pytest.mark.parametrize("amount", ["0", "655361", "many", None])
def test_amount_is_written_again_when_the_kubelet_resets_it(node: Node, side: str, amount: str | None) -> None:
    node.round()
    node.object["status"][side] = {} if amount is None else {MEMORY: amount}
    node.seen()
    node.round()
    assert node.amounts == (str(ALL), str(ALL))


def test_agent_is_not_ready_until_the_amount_is_there(node: Node) -> None:
    agent = node.agent_node.agent
    node.round()
    node.object["status"] = {}
    node.seen()
    agent.advertiser.offered = {}  # no kubelet accepts them here
    assert agent.ready() == "aliyun.com/gpu-mem is not in the Node's status yet"


def test_amount_and_mark_go_with_the_label(node: Node) -> None:
    node.round()
    node.labelled(QGPU)
    node.round()
    assert (node.amounts, node.mark) == ((None, None), None)


def test_amount_goes_when_the_agent_stops_and_the_mark_stays(node: Node) -> None:
    """A kubelet that restarts now must not find 0: it would refuse the Pods that run."""
    node.round()
    play(node.agent_node.agent.reporter.announce_departure())
    node.round()
    assert (node.amounts, node.mark) == ((None, None), MEMORY)
    before = len(node.patches)
    node.round()
    assert len(node.patches) == before
    node.agent_node.store.close()
    node.agent_node.start()
    node.agent_node.agent.pods.synced.set()
    node.seen()
    node.round()
    assert node.amounts == (str(ALL), str(ALL))


def test_amount_is_gone_once_the_departure_is_announced(node: Node) -> None:
    """The agent may be killed soon after, and no other program removes it."""
    node.round()
    assert play(node.agent_node.agent.reporter.announce_departure())
    assert (node.amounts, node.mark) == ((None, None), MEMORY)


def test_departure_counts_as_announced_even_if_the_amount_cannot_be_removed(node: Node) -> None:
    node.round()

    async def patch(path: str, body: Json, **more: Any) -> Any:
        if "status" in body:
            raise ApiError(500, "InternalError", path)
        return await node.patch(path, body, **more)

    node.agent_node.api.patch = patch  # type: ignore[attr-defined]
    assert play(node.agent_node.agent.reporter.announce_departure())
    assert node.amounts == (str(ALL), str(ALL))


def test_mark_stays_when_an_agent_stops_before_it_has_published(node: Node) -> None:
    node.round()
    node.agent_node.store.close()
    node.agent_node.start()
    node.seen()
    reporter = node.agent_node.agent.reporter
    play(reporter.announce_departure())
    play(reporter._write())
    assert (node.amounts, node.mark) == ((None, None), MEMORY)


def test_amount_of_another_plugin_is_left_alone(node: Node) -> None:
    node.labelled(QGPU)
    node.object["status"] = {side: {MEMORY: "4096"} for side in ("capacity", "allocatable")}
    node.seen()
    node.round()
    assert node.amounts == ("4096", "4096")


def test_small_node_offers_devices_and_places_and_no_amount(node: Node) -> None:
    node.agent_node.health.cards = (replace(CARDS[0], memory_mib=16_384),)
    node.round()
    assert devices(node) == {MEMORY: 16_384, COUNT: 1, PLACE: 1000}
    assert (node.amounts, node.mark) == ((None, None), None)


def test_node_that_loses_cards_stays_counted(node: Node) -> None:
    """With devices of gpu-mem the kubelet would have to forget them before the cards may come back."""
    node.round()
    node.agent_node.health.cards = (replace(CARDS[0], memory_mib=16_384),)
    for _ in range(2):
        node.round()
        assert devices(node) == {COUNT: 1, PLACE: 1000}
        assert (node.amounts, node.mark) == (("16384", "16384"), MEMORY)
        node.agent_node.store.close()
        node.agent_node.start()  # the next agent knows it by the mark
        node.agent_node.agent.pods.synced.set()
        node.seen()
    node.agent_node.health.cards = CARDS
    node.round()
    assert node.amounts == (str(ALL), str(ALL))


def test_nothing_is_counted_while_the_kubelet_has_devices_of_it(node: Node) -> None:
    """It would refuse every new Pod: there are no such devices any more."""
    kubelet = node.agent_node.kubelet
    kubelet.registered = frozenset({MEMORY})
    node.round()
    assert (node.amounts, node.mark) == ((None, None), None)
    ((about, reason, text),) = node.agent_node.emitted
    assert (about, reason) == (NODE, "CannotAdvertise")
    assert "655360 is not allowed: at most 50,000 while the kubelet has devices of it" in text
    agent = node.agent_node.agent
    agent.advertiser.offered = {}  # no kubelet accepts them here
    assert str(agent.ready()).startswith("gpu-mem cannot be offered: status.capacity")
    kubelet.registered = frozenset()
    node.round()
    assert (node.amounts, node.mark) == ((str(ALL), str(ALL)), MEMORY)


# --- what Pods get ---------------------------------------------------------------------------------------------------


def a_mib_pod(name: str, card: int, mib: int, *, place: bool = True) -> Json:
    """A bound Pod; the kubelet hands out devices of places only."""
    pod = a_pod(name, a_container("main", {MEMORY: mib, **({PLACE: 1} if place else {})}), on=NODE)
    pod["metadata"] |= {"uid": f"uid-{name}", "namespace": "ml"}
    claim = dialects.parse_pod(pod, MIB)
    assert isinstance(claim, Claim)
    (part,) = claim.containers
    share = Share(card, mib, uuid=f"GPU-{card}")
    grant = Grant(claim.uid, NODE, (ContainerGrant(part.name, part.index, part.role, (share,)),))
    of_node = dialects.parse_node({"metadata": {"name": NODE, "annotations": dialects.render_inventory(CARDS)}}, MIB)
    assert not isinstance(of_node, tuple)
    pod["metadata"]["annotations"] = dialects.render_grant(claim, grant, of_node, 1, MIB)
    return pod


def admitted(node: Node, pod: Json) -> None:
    """The kubelet knows no devices of gpu-mem, so it allocates none and calls no plugin for them."""
    node.agent_node.bound(pod)
    kept = json.loads(json.dumps(pod))
    del kept["spec"]["containers"][0]["resources"]["limits"][MEMORY]
    node.agent_node.admitted(kept)


def test_container_gets_exactly_the_card_and_memory_that_were_granted(node: Node) -> None:
    node.round()
    for name, card, mib in (("a", 5, 70_001), ("b", 2, 1), ("c", 5, 11_919)):
        pod = a_mib_pod(name, card, mib)
        admitted(node, pod)
        seen = node.agent_node.started(pod)
        assert (seen.cards, seen.tenant) == (f"GPU-{card}", f"uid-{name}")
        assert (seen.env["ALIYUN_COM_GPU_MEM_CONTAINER"], seen.env["ALIYUN_COM_GPU_MEM_DEV"]) == (str(mib), "81920")
        (share,) = node.agent_node.tenants.tenancies[f"uid-{name}"].shares
        assert (share.uuid, share.memory_mib) == (f"GPU-{card}", mib)


def test_pod_without_a_grant_is_refused(node: Node) -> None:
    node.round()
    pod = a_mib_pod("a", 0, 4096)
    pod["metadata"]["annotations"] = {}
    admitted(node, pod)
    with pytest.raises(Exception, match="aliquot granted no card to this Pod"):
        node.agent_node.started(pod)


def test_pod_that_was_bound_past_the_webhook_gets_one_event_that_it_has_no_card(node: Node) -> None:
    """The kubelet calls no plugin for it."""
    node.round()
    for pod in (a_mib_pod("past", 0, 4096, place=False), a_mib_pod("right", 0, 4096), a_qgpu_pod("other")):
        node.agent_node.bound(pod)
    for _ in range(2):
        node.round()
        node.round()
    ((about, reason, text),) = node.agent_node.emitted
    assert (about, reason) == ("past", "GPUMissing")
    assert "create the Pod again" in text


def test_only_pods_that_may_lack_a_card_are_read(node: Node) -> None:
    """Every look reads them, and a node may have hundreds of Pods."""
    node.round()
    served, ended = a_mib_pod("served", 0, 4096), a_mib_pod("ended", 0, 4096, place=False)
    admitted(node, served)
    node.agent_node.started(served)
    ended["status"] = {"phase": "Succeeded"}
    for pod in (ended, a_qgpu_pod("other"), a_mib_pod("past", 0, 4096, place=False)):
        node.agent_node.bound(pod)
    read: list[str] = []

    class Reader(PodReader):
        def read(self, pod: PodObject, *more: Any) -> Any:
            read.append(pod.metadata.name)
            return super().read(pod, *more)

    counted = node.agent_node.agent.counted
    counted._reader = Reader(MIB)
    counted.report()
    assert read == ["past"]


def test_of_a_sick_card_only_what_pods_hold_by_gpu_mem_is_counted(node: Node) -> None:
    node.round()
    for pod in (a_mib_pod("a", 0, 30_000), a_mib_pod("b", 0, 1000), a_mib_pod("c", 1, 500)):
        admitted(node, pod)
        node.agent_node.started(pod)
    other = a_qgpu_pod("other", card=0, gib=4)
    node.agent_node.run(other)
    falls_sick(node, 0)
    node.round()
    assert node.amounts == (str(ALL - 81_920 + 31_000),) * 2
    node.agent_node.health.cards, node.agent_node.health.why = CARDS, {}
    node.round()
    assert node.amounts == (str(ALL),) * 2
