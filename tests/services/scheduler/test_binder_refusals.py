"""Which binds are refused before anything is written, and which are accepted without cards."""

from __future__ import annotations

import asyncio

import pytest

from aliquot.adapters.kubernetes.kube import Unreachable
from aliquot.services.scheduler.binder import Refused
from kit.clusters.binding import ON_CARD_0, Rig
from kit.clusters.watchobjects import as_node, live_node, node_json, pod_json
from kit.running.virtualclock import play
from kit.values.manifests import MEM, Json


@pytest.mark.parametrize("uid", ["uid-p", ""], ids=["", "no uid was said"])
def test_bind_reads_pod_that_watch_has_not_reported(uid: str) -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod(watched=False)
        await rig.bind(uid=uid)
        assert rig.api.pods["p"]["spec"]["nodeName"] == "n1"
        assert rig.free == 12

    play(scene())


def test_bind_does_not_bind_recreated_pod() -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod(watched=False)
        binding = asyncio.create_task(rig.bind(uid=""))
        await asyncio.sleep(1.5 * rig.api.slow)  # looked up, and the write is on its way
        rig.pod(watched=False, uid="another")
        with pytest.raises(Refused, match="409"):
            await binding
        assert "nodeName" not in rig.api.pods["p"]["spec"]
        assert rig.free == 16

    play(scene())


def test_bind_frees_cards_if_grant_cannot_be_rendered() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod()

        def broken(placed: object) -> dict[str, str]:
            raise RuntimeError("broken")

        rig.binder._extra_annotations = broken
        with pytest.raises(RuntimeError, match="broken"):
            await rig.bind()
        assert (rig.binds, rig.free, rig.cluster.assumed) == (0, 16, {})

    play(scene())


@pytest.mark.parametrize(("uid", "there"), [("uid-p", False), ("another", True)], ids=["not there", "made anew"])
def test_bind_refuses_deleted_pod(uid: str, there: bool) -> None:
    async def scene() -> None:
        rig = Rig()
        if there:
            rig.pod()
        with pytest.raises(Refused, match="ns/p is gone"):
            await rig.bind(uid=uid)
        assert (rig.binds, rig.free) == (0, 16)

    play(scene())


def test_bind_refuses_pod_bound_elsewhere() -> None:
    async def scene() -> None:
        rig = Rig(live_node(), live_node("n2"), watch=False)
        rig.pod(watched=False, on="n1", annotations=ON_CARD_0)
        await rig.bind()
        with pytest.raises(Refused, match="ns/p is already bound to n1"):
            await rig.bind(node="n2")
        assert (rig.binds, rig.free) == (0, 12)

    play(scene())


def test_bind_refuses_invalid_pod() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod(limits={MEM: "5Gi"})
        with pytest.raises(Refused, match="whole GiB"):
            await rig.bind()
        assert rig.binds == 0

    play(scene())


def test_bind_refuses_pod_of_others_and_node_that_does_not_exist() -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod(limits={"cpu": "1"})
        with pytest.raises(Refused, match="asks for no resource of aliquot"):
            await rig.bind()
        rig.pod("zero", {MEM: "0"})
        with pytest.raises(Refused, match='no node "nowhere"'):
            await rig.bind("zero", node="nowhere")
        assert rig.binds == 0

    play(scene())


TAINT = {"key": "gpu", "value": "a", "effect": "NoSchedule"}


UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


TAINTED = [
    ({"taints": [TAINT]}, [], "gpu=a:NoSchedule"),
    ({"taints": [TAINT]}, [{"key": "gpu", "value": "b"}], "gpu=a:NoSchedule"),
    ({"taints": [{**TAINT, "effect": "NoExecute"}]}, [{**TAINT}], "gpu=a:NoExecute"),
    ({"taints": [TAINT]}, [{"key": "gpu", "operator": "Exists"}], None),
    ({"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}, [], None),
    ({"unschedulable": True}, [], f"{UNSCHEDULABLE}=:NoSchedule"),
    ({"unschedulable": True}, [{"operator": "Exists"}], None),
]


@pytest.mark.parametrize("amount", ["4", "0"])
@pytest.mark.parametrize("watched", [True, False], ids=["watched", "not watched yet"])
@pytest.mark.parametrize(("spec", "tolerations", "refusal"), TAINTED)
def test_bind_refuses_node_whose_taint_the_pod_does_not_tolerate(
    spec: Json, tolerations: list[Json], refusal: str | None, watched: bool, amount: str
) -> None:
    async def scene() -> None:
        node = as_node({**node_json("n1"), "spec": spec})
        rig = Rig(node, watch=watched)
        rig.api.nodes["n1"] = node
        pod = pod_json("p", {MEM: amount})
        pod["spec"]["tolerations"] = tolerations
        rig.api.put(pod)
        if refusal is None:
            await rig.bind()
        else:
            with pytest.raises(Refused, match=f"ns/p does not tolerate {refusal} of n1"):
                await rig.bind()
        assert rig.binds == (refusal is None)

    play(scene())


def test_bind_accepts_pod_that_asks_for_no_card() -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod(limits={MEM: "0"})
        await rig.bind()
        assert rig.api.pods["p"]["metadata"]["annotations"] == {}
        await rig.bind()
        with pytest.raises(Refused):
            await rig.bind(node="n2")
        rig.pod("q", {MEM: "0"})
        rig.api.writes.append(403)
        with pytest.raises(Refused, match="403"):
            await rig.bind("q")

    play(scene())


def test_bind_holds_nothing_if_pod_cannot_be_read() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod(watched=False)
        rig.api.looks.append(Unreachable("refused"))
        rig.cluster.drop_pod("ns/p")
        with pytest.raises(Unreachable):
            await rig.bind()
        assert (rig.free, rig.binder.busy) == (16, 0)

    play(scene())


def test_bind_on_follower_writes_and_holds_nothing() -> None:
    async def scene() -> None:
        rig = Rig(leading=False)
        rig.pod()
        with pytest.raises(Refused, match="is no longer the leader"):
            await rig.bind()
        assert (rig.binds, rig.free) == (0, 16)

    play(scene())


@pytest.mark.parametrize("node", ["n2", "gone"])
def test_bind_refuses_unknown_node(node: str) -> None:
    async def scene() -> None:
        rig = Rig(live_node(), live_node("gone"))
        rig.cluster.drop_node("gone")
        rig.pod()
        with pytest.raises(Refused, match=f"ns/p no longer fits on {node}"):
            await rig.bind(node=node)
        assert rig.binds == 0

    play(scene())
