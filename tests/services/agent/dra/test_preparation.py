"""Claims that the kubelet prepares become tenants, whatever is killed in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from aliquot.adapters.kubelet import dra_pb2 as wire
from aliquot.adapters.kubelet.channel import dial
from aliquot.adapters.kubelet.draplugin import ClaimRef, DraPlugin, PreparedDevice
from aliquot.adapters.kubernetes.kube import ApiError
from aliquot.model.claim import AppClass
from aliquot.model.tenancy import Tenancy
from aliquot.services.agent.devices.plugins import Refused
from aliquot.services.agent.dra.worlds import World
from kit.agents.agentnode import AgentNode, Killed, play
from kit.agents.draclaims import a_claim, a_config, a_result, parameters
from kit.agents.dranode import DraNode
from kit.agents.grantedpods import CARDS, a_qgpu_pod
from kit.agents.kubelet import a_folder

Json = dict[str, Any]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DraNode:
    found = DraNode(tmp_path, monkeypatch)
    found.sync()
    return found


def cdi(devices: list[PreparedDevice], request: str = "") -> list[str]:
    """The CDI devices of a container with that request, as the kubelet chooses them; "": the whole claim."""
    return [name for device in devices if not request or request in device.requests for name in device.cdi]


def test_prepared_claim_is_a_tenant_with_its_limits(node: DraNode) -> None:
    config = a_config(parameters(class_="offline"), source="FromClass")
    devices = node.prepare(node.allocated(a_claim(a_result(CARDS[1], 4096, 30), config=[config])))
    tenancy = node.tenants.tenancies["claim-uid"]
    assert (tenancy.claim, tenancy.key, tenancy.app_class) == (True, "ml/claim", AppClass.OFFLINE)
    assert [(share.uuid, share.memory_mib, share.greedy_milli) for share in tenancy.shares] == [("GPU-1", 4096, 300)]
    assert [(device.requests, device.pool, device.name) for device in devices] == [(("gpu",), "n1", "gpu-1")]
    env = node.environment(*cdi(devices))
    assert env["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
    assert {mount.host for spec in node.specs() for mount in spec.edits.mounts} >= {str(node.folder / "t/claim-uid")}


def test_latency_of_an_online_claim_reaches_the_arbiter(node: DraNode) -> None:
    config = a_config(parameters(class_="online", latency="2ms"))
    node.prepare(node.allocated(a_claim(a_result(CARDS[1], 4096), config=[config])))
    assert node.tenants.tenancies["claim-uid"].tenant.latency == pytest.approx(0.002)


def test_preparing_again_changes_nothing(node: DraNode) -> None:
    ref = node.allocated(a_claim(a_result(CARDS[0], 4096)))
    first, before = node.prepare(ref), node.remains()
    assert node.prepare(ref) == first
    assert node.remains() == before


def test_unprepared_claim_leaves_nothing_and_may_be_unprepared_again(node: DraNode) -> None:
    ref = node.allocated(a_claim(a_result(CARDS[0], 4096)))
    node.prepare(ref)
    node.unprepare(ref)
    assert not any(node.remains().values())
    node.unprepare(ref)


def test_claim_stays_a_tenant_while_its_processes_are_on_the_card(node: DraNode) -> None:
    ref = node.allocated(a_claim(a_result(CARDS[0], 4096)))
    node.prepare(ref)
    node.processes.add(ref.uid)
    with pytest.raises(Refused, match="still on its cards"):
        node.unprepare(ref)
    node.processes.clear()
    node.unprepare(ref)
    assert not any(node.remains().values())


def test_container_with_one_request_sees_its_cards_and_with_the_claim_all(node: DraNode) -> None:
    claim = a_claim(a_result(CARDS[0], 1024, request="a"), a_result(CARDS[1], 1024, request="b"))
    devices = node.prepare(node.allocated(claim))
    assert node.environment(*cdi(devices, "a"))["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
    assert node.environment(*cdi(devices, "b"))["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
    assert node.environment(*cdi(devices))["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"


def test_wrong_configuration_is_refused_with_its_field(node: DraNode) -> None:
    claim = a_claim(a_result(CARDS[0], 1024), config=[a_config(parameters(class_="best"))])
    with pytest.raises(Refused, match=r'ResourceClaim ml/claim: .*parameters.class: "best" is not allowed: one of'):
        node.prepare(node.allocated(claim))
    assert not any(node.remains().values())


def test_claim_for_another_policy_is_refused(node: DraNode) -> None:
    claim = a_claim(a_result(CARDS[0], 1024), config=[a_config(parameters(policy="fixed-share"))])
    with pytest.raises(Refused, match="needs policy fixed-share, but node n1 has best-effort"):
        node.prepare(node.allocated(claim))


def test_prepared_claim_outlives_a_change_of_the_nodes_policy(node: DraNode) -> None:
    claim = a_claim(a_result(CARDS[0], 1024), config=[a_config(parameters(policy="best-effort"))])
    ref = node.allocated(claim)
    devices = node.prepare(ref)
    node.labels = {**node.labels, "tke.cloud.tencent.com/qgpu-schedule-policy": "fixed-share"}
    node.sync()
    assert node.prepare(ref) == devices


def test_memory_beyond_the_card_is_refused(node: DraNode) -> None:
    node.prepare(node.allocated(a_claim(a_result(CARDS[0], 10000), name="a", uid="a")))
    with pytest.raises(Refused, match="card 0 has"):
        node.prepare(node.allocated(a_claim(a_result(CARDS[0], 10000), name="b", uid="b")))


def test_claim_on_a_node_of_device_plugins_is_refused(node: DraNode) -> None:
    node.store.set("world", World.PLUGINS)
    ref = node.allocated(a_claim(a_result(CARDS[0], 1024)))
    with pytest.raises(Refused, match="node n1 does not serve claims now"):
        node.prepare(ref)


def test_unhealthy_card_is_refused_to_new_claims_only(node: DraNode) -> None:
    old = node.allocated(a_claim(a_result(CARDS[0], 1024), name="old", uid="old"))
    node.prepare(old)
    node.health.why["GPU-0"] = "Xid 79"
    node.prepare(old)
    with pytest.raises(Refused, match="Xid 79"):
        node.prepare(node.allocated(a_claim(a_result(CARDS[0], 1024), name="new", uid="new")))


def test_claim_of_the_same_name_is_not_taken_for_the_old_one(node: DraNode) -> None:
    ref = node.allocated(a_claim(a_result(CARDS[0], 1024)))
    node.allocated(a_claim(a_result(CARDS[0], 1024), uid="other"))
    with pytest.raises(Refused, match="was replaced by another of the same name"):
        node.prepare(ref)


def _user(name: str, *claims: str) -> Json:
    """A Pod whose one container uses these claims."""
    spec = {
        "nodeName": "n1",
        "resourceClaims": [{"name": f"its-{claim}", "resourceClaimName": claim} for claim in claims],
        "containers": [{"name": "main", "resources": {"claims": [{"name": f"its-{claim}"} for claim in claims]}}],
    }
    return {"metadata": {"name": name, "namespace": "ml", "uid": f"{name}-uid"}, "spec": spec, "status": {}}


def test_container_with_two_claims_is_refused(node: DraNode) -> None:
    node.bound(_user("p", "a", "b"))
    pods = {"p-uid": "p"}
    a = node.allocated(a_claim(a_result(CARDS[0], 1024), name="a", uid="a", pods=pods))
    b = node.allocated(a_claim(a_result(CARDS[1], 1024), name="b", uid="b", pods=pods))
    with pytest.raises(Refused, match=r"container main of Pod ml/p uses two claims of aliquot.dev: put both requests"):
        node.prepare(a, b)


def test_claims_of_a_pod_are_those_it_names(node: DraNode) -> None:
    for name in ("a", "b"):
        node.prepare(node.allocated(a_claim(a_result(CARDS[0], 1024), name=name, uid=f"{name}-claim")))
    for pod in (_user("one", "a"), _user("two", "a"), _user("none")):
        node.bound(pod)
    of = node.agent.claims.claims_of
    assert (of("one-uid"), of("two-uid"), of("none-uid")) == (["a-claim"], ["a-claim"], [])
    *possible, charged = of("not-known-yet")
    assert (set(possible), charged) == ({"a-claim", "b-claim"}, "not-known-yet")


# --- kills and restarts ----------------------------------------------------------------------------------------------


def _killed_at_every_write(node: DraNode, deed: Callable[[], object], then: Callable[[], None]) -> int:
    """Kill the agent before its first write, its second and so on; how often."""
    for at in range(100):
        node.kill_at = len(node.steps) + at
        try:
            deed()
        except Killed:
            node.restart()
            then()
            continue
        node.kill_at = None
        return at
    raise AssertionError("it never ends")


def test_agent_killed_at_any_write_of_a_preparation_prepares_it_later(node: DraNode) -> None:
    ref = node.allocated(a_claim(a_result(CARDS[0], 4096, request="a"), a_result(CARDS[1], 1024, request="b")))
    whole = node.prepare(ref)
    there = node.remains()
    node.unprepare(ref)

    def prepared_later() -> None:
        assert node.prepare(ref) == whole
        assert node.remains() == there
        node.unprepare(ref)
        assert not any(node.remains().values())

    assert _killed_at_every_write(node, lambda: node.prepare(ref), prepared_later) >= 5


def test_agent_killed_at_any_write_of_an_end_ends_it_later(node: DraNode) -> None:
    ref = node.allocated(a_claim(a_result(CARDS[0], 4096)))
    node.prepare(ref)

    def ended_later() -> None:
        node.unprepare(ref)
        assert not any(node.remains().values())
        node.prepare(ref)

    assert _killed_at_every_write(node, lambda: node.unprepare(ref), ended_later) >= 3


def test_restarted_agent_keeps_prepared_claims(node: DraNode) -> None:
    ref = node.allocated(a_claim(a_result(CARDS[0], 4096)))
    node.prepare(ref)
    before = node.remains()
    node.restart()
    assert node.remains() == before
    assert node.agent.dra.world is World.CLAIMS


def test_claims_survive_the_loss_of_the_database(node: DraNode) -> None:
    ref = node.allocated(a_claim(a_result(CARDS[0], 4096)))
    node.prepare(ref)
    before = node.remains()
    node.store.close()
    for path in node.folder.glob("state.db*"):
        path.unlink()
    AgentNode.start(node)
    node.sync()
    play(node.agent._restore())
    assert node.remains() == before
    assert node.agent.dra.world is World.CLAIMS  # a tenant says it, too


def test_what_is_left_of_a_deleted_claim_is_removed(node: DraNode) -> None:
    ref = node.allocated(a_claim(a_result(CARDS[0], 4096)))
    node.prepare(ref)
    node.api.claims.clear()
    node.restart()
    play(node.agent.claims.release_gone())
    node.tenants.sweep()
    assert not any(node.remains().values())


def test_unreachable_api_server_removes_no_claim(node: DraNode) -> None:
    node.prepare(node.allocated(a_claim(a_result(CARDS[0], 4096))))
    before = node.remains()
    node.api.away = True
    play(node.agent.claims.release_gone())
    node.tenants.sweep()
    assert node.remains() == before


def test_api_server_without_the_group_removes_no_claim(node: DraNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a rollback of the control plane: the answer is 404, but not about the claim."""
    node.prepare(node.allocated(a_claim(a_result(CARDS[0], 4096))))
    before = node.remains()

    async def missing(*words: Any, **more: Any) -> None:
        raise ApiError(404, "NotFound", "the server could not find the requested resource")

    monkeypatch.setattr(node.api, "get", missing)
    play(node.agent.claims.release_gone())
    node.tenants.sweep()
    assert node.remains() == before


def test_pod_is_not_released_as_a_claim(node: DraNode) -> None:
    pod = node.admitted(node.bound(a_qgpu_pod()))
    node.started(pod)
    node.processes.clear()  # none has registered yet
    uid, before = pod["metadata"]["uid"], node.remains()
    with pytest.raises(Refused, match="is a Pod"):
        node.unprepare(ClaimRef("ml", "claim", uid))
    node.tenants.sweep()
    assert node.remains() == before
    assert uid in node.tenants.tenancies


def test_odd_calls_of_the_kubelet_prepare_and_release_only_what_they_name(
    node: DraNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown, repeated, replaced and far too many claims, and names that are paths."""
    ref = node.allocated(a_claim(a_result(CARDS[0], 4096)))
    writes: list[str] = []
    odd = [
        ("ml", "claim", "other"),
        ("", "", ""),
        ("ml", "../../pods/x", "u"),
        ("ml", "claim", ".."),
        ("ml", "a", "../t"),
    ]

    def claims(*found: tuple[str, str, str]) -> list[wire.Claim]:
        return [wire.Claim(namespace=namespace, name=name, uid=uid) for namespace, name, uid in found]

    async def scene(folder: Path) -> None:
        plugin = DraPlugin("aliquot.dev", folder, node.agent.claims, lambda: None)
        await plugin.start()
        (socket,) = (folder / "plugins/aliquot.dev").glob("*.sock")
        channel = dial(socket)
        service = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
        prepare: Any = channel.unary_unary(
            f"{service}/NodePrepareResources",
            request_serializer=wire.NodePrepareResourcesRequest.SerializeToString,
            response_deserializer=wire.NodePrepareResourcesResponse.FromString,
        )
        unprepare: Any = channel.unary_unary(
            f"{service}/NodeUnprepareResources",
            request_serializer=wire.NodeUnprepareResourcesRequest.SerializeToString,
            response_deserializer=wire.NodeUnprepareResourcesResponse.FromString,
        )
        ours = (ref.namespace, ref.name, ref.uid)
        answers = (await prepare(wire.NodePrepareResourcesRequest(claims=claims(*odd, *[ours] * 500)))).claims
        assert not answers[ref.uid].error
        assert len(writes) == 1, "prepared once"
        assert all(answers[uid].error for _, _, uid in odd)
        before = node.remains()
        await unprepare(wire.NodeUnprepareResourcesRequest(claims=claims(*odd, ("ml", "b", "x" * 5000))))
        assert node.remains() == before
        for call, request in (
            (prepare, wire.NodePrepareResourcesRequest),
            (unprepare, wire.NodeUnprepareResourcesRequest),
        ):
            with pytest.raises(aio.AioRpcError) as refused:
                await call(request(claims=claims(ours) * 20_000))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await unprepare(wire.NodeUnprepareResourcesRequest(claims=claims(ours)))
        assert not any(node.remains().values())
        await channel.close()
        await plugin.stop()

    admit = node.tenants.admit

    def noted(tenancy: Tenancy) -> None:
        writes.append(tenancy.id)
        admit(tenancy)

    monkeypatch.setattr(node.tenants, "admit", noted)
    with a_folder() as folder:
        play(scene(folder))


def test_pods_hold_cards_until_they_end(node: DraNode) -> None:
    pod = node.bound(a_qgpu_pod())
    site = node.agent.dra._site
    assert site.pods_hold_cards()
    node.api.delete(pod)
    node.watch()
    assert not site.pods_hold_cards()


def test_node_says_what_it_waits_for_and_stays_ready(node: DraNode) -> None:
    driver = node.agent.dra
    node.store.set("world", World.PLUGINS)
    assert driver.ready() is None
    assert node.agent.status().agent.notes == [  # type: ignore[union-attr]
        "the cards go to claims (aliquot.dev/dra=true) once no Pod of a device plugin holds one"
    ]
    node.store.set("world", World.CLAIMS)
    assert "has not accepted the DRA driver" in (driver.ready() or "")
    assert not driver.notes
