"""The right Pod gets the right card, always; what cannot be known is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.kubelet.podresources import Holder
from aliquot.dialects import QgpuRules, Rules
from aliquot.model.claim import AppClass
from kit.agents.agentnode import AgentNode, NotMade, play
from kit.agents.allocations import NOTHING, refusal, uid
from kit.agents.grantedpods import NODE, Json, a_qgpu_pod, grant_of
from kit.values.manifests import COUNT, MEM, QGPU_CORE, a_container, a_pod


class TestOwner:
    def test_prepare_injects_cards_folder_and_shim(self, agent_node: AgentNode) -> None:
        seen = agent_node.run(pod := a_qgpu_pod(card=1))["main"]
        assert seen.cards == "GPU-1"
        assert seen.mounts["/run/aliquot/tenant"] == str(agent_node.folder / "t" / uid(pod))
        assert "/usr/local/lib/aliquot/libaliquot.so" in seen.mounts
        assert seen.env["ALIQUOT_TENANT"] == "/run/aliquot/tenant"

    def test_allocate_alone_injects_nothing(self, agent_node: AgentNode) -> None:
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod()))
        with pytest.raises(NotMade):
            agent_node.made(pod)

    def test_prepare_distinguishes_equal_pods_in_any_order(self, agent_node: AgentNode) -> None:
        pods = [a_qgpu_pod(f"equal-{at}", card=at % 2, core=10, gib=2) for at in range(8)]
        for pod in pods:
            agent_node.admitted(agent_node.bound(pod))
        for at in (5, 0, 7, 2, 1, 6, 3, 4):
            seen = agent_node.started(pods[at])
            assert (seen.tenant, seen.cards) == (uid(pods[at]), f"GPU-{at % 2}")

    def test_prepare_finds_the_owner_by_the_checkpoint_alone(
        self, agent_node: AgentNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a container without the folder of PodResources, as gpushare's."""

        async def none() -> list[Holder]:
            return []

        monkeypatch.setattr(agent_node.kubelet, "holders", none)
        pods = [a_qgpu_pod(f"equal-{at}", card=at % 2, core=10, gib=2) for at in range(4)]
        for pod in pods:
            agent_node.admitted(agent_node.bound(pod))
        for at in (3, 0, 2, 1):
            seen = agent_node.started(pods[at])
            assert (seen.tenant, seen.cards) == (uid(pods[at]), f"GPU-{at % 2}")

    def test_prepare_injects_the_same_for_both_resources_in_any_order(self, agent_node: AgentNode) -> None:
        for at, reverse in enumerate((False, True)):
            agent_node.admitted(agent_node.bound(pod := a_qgpu_pod(f"p{at}", card=1)))
            agent_node.started(pod, reverse=reverse)
            specs = [spec for spec in agent_node.specs() if spec.pod_uid == uid(pod)]
            assert len(specs) == 2
            assert specs[0].edits == specs[1].edits

    def test_prepare_of_both_resources_at_once_makes_one_tenant(self, agent_node: AgentNode) -> None:
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod()))

        async def at_once() -> None:
            held = agent_node.kubelet.held[uid(pod)]
            await asyncio.gather(*(agent_node.allocator.prepare(of, ids) for (_, of), ids in held.items()))

        play(at_once())
        assert agent_node.made(pod).tenant == uid(pod)
        assert agent_node.steps.count("PodStore.add") == 1

    def test_prepare_gives_two_containers_their_own_cards_and_one_folder(self, agent_node: AgentNode) -> None:
        pod = a_qgpu_pod(containers={"a": (20, 4), "b": (20, 4)}, card={"a": 0, "b": 1})
        seen = agent_node.run(pod)
        assert {name: seen_by.cards for name, seen_by in seen.items()} == {"a": "GPU-0", "b": "GPU-1"}
        assert {seen_by.tenant for seen_by in seen.values()} == {uid(pod)}

    def test_prepare_again_for_a_restarted_container_injects_the_same(self, agent_node: AgentNode) -> None:
        first = agent_node.run(pod := a_qgpu_pod(card=1))["main"]
        assert agent_node.started(pod) == first

    def test_container_restarts_without_prepare_while_plugins_are_not_registered(self, agent_node: AgentNode) -> None:
        first = agent_node.run(pod := a_qgpu_pod(card=1))["main"]
        assert agent_node.made(pod) == first

    def test_allocate_of_reused_devices_injects_the_cards_of_the_new_pod(self, agent_node: AgentNode) -> None:
        agent_node.run(old := a_qgpu_pod("old", card=0))
        held = set(agent_node.kubelet.held[uid(old)].values())
        agent_node.deleted(old, quietly=True)  # we have not heard of it
        agent_node.admitted(agent_node.bound(new := a_qgpu_pod("new", card=1), quietly=True))
        assert set(agent_node.kubelet.held[uid(new)].values()) == held
        with pytest.raises(NotMade):  # never the former one's
            agent_node.made(new)
        seen = agent_node.started(new)
        assert (seen.tenant, seen.cards) == (uid(new), "GPU-1")
        agent_node.watch()
        agent_node.tenants.sweep()
        assert agent_node.made(new) == seen

    def test_tenant_gets_the_most_that_containers_were_granted_at_once(self, agent_node: AgentNode) -> None:
        agent_node.run(pod := a_qgpu_pod(containers={"a": (20, 4), "b": (10, 2)}, init={"warm": (50, 3)}))
        (share,) = agent_node.tenants.tenancies[uid(pod)].shares
        assert (share.core_milli, share.memory_mib, share.uuid) == (500, 6 * 1024, "GPU-0")

    def test_tenant_has_the_class_of_the_pods_annotation(self, agent_node: AgentNode) -> None:
        pod = a_qgpu_pod(core=0, granted=False)
        pod["metadata"]["annotations"] = {"tke.cloud.tencent.com/app-class": "online"}
        pod["metadata"]["annotations"] |= grant_of(pod, 0)
        agent_node.run(pod)
        assert agent_node.arbiter.tenants[uid(pod)].app_class is AppClass.ONLINE

    @pytest.mark.parametrize("file", [True, False])
    def test_prepare_refuses_devices_that_two_pods_hold(self, agent_node: AgentNode, file: bool) -> None:
        """Its list is no snapshot: they may change hands between two of its lines."""
        agent_node.kubelet.private_file = file
        agent_node.run(old := a_qgpu_pod("old", card=0))
        agent_node.admitted(agent_node.bound(new := a_qgpu_pod("new", card=1)))
        agent_node.kubelet.held[uid(new)] = dict(agent_node.kubelet.held[uid(old)])
        before = agent_node.specs()
        assert "two Pods" in refusal(agent_node, new)
        assert agent_node.specs() == before


class TestInitContainers:
    def test_init_container_with_the_app_containers_devices_gets_its_cards(self, agent_node: AgentNode) -> None:
        seen = agent_node.run(pod := a_qgpu_pod(init={"warm": (20, 4)}, card=1))
        assert seen["warm"] == seen["main"]
        assert seen["main"].tenant == uid(pod)

    @pytest.mark.parametrize("size", [(10, 2), (40, 8)], ids=["smaller", "larger"])
    def test_init_container_of_another_size_is_found_in_the_checkpoint(
        self, agent_node: AgentNode, size: tuple[int, int]
    ) -> None:
        seen = agent_node.run(pod := a_qgpu_pod(init={"warm": size}, card=1))
        assert {seen_by.tenant for seen_by in seen.values()} == {uid(pod)}
        assert {seen_by.cards for seen_by in seen.values()} == {"GPU-1"}

    @pytest.mark.parametrize("size", [(10, 2), (40, 8)], ids=["smaller", "larger"])
    def test_init_container_of_another_size_gets_its_own_card(
        self, agent_node: AgentNode, size: tuple[int, int]
    ) -> None:
        seen = agent_node.run(a_qgpu_pod(init={"warm": size}, card={"warm": 1, "main": 0}))
        assert (seen["warm"].cards, seen["main"].cards) == ("GPU-1", "GPU-0")

    def test_init_container_that_shares_devices_with_two_containers_is_found(self, agent_node: AgentNode) -> None:
        pod = a_qgpu_pod(containers={"a": (20, 2), "b": (20, 2)}, init={"warm": (40, 4)})
        assert {seen_by.tenant for seen_by in agent_node.run(pod).values()} == {uid(pod)}

    def test_sidecar_gets_its_own_devices_and_cards(self, agent_node: AgentNode) -> None:
        pod = a_qgpu_pod(sidecars={"side": (20, 4)}, card={"side": 1, "main": 0})
        seen = agent_node.run(pod)
        assert (seen["side"].cards, seen["main"].cards) == ("GPU-1", "GPU-0")

    def test_init_container_is_found_without_checkpoint_by_devices_it_passed_on(self, agent_node: AgentNode) -> None:
        agent_node.kubelet.private_file = False
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod(init={"warm": (40, 8)}, card=1)))
        assert agent_node.started(pod, "warm").tenant == uid(pod)

    def test_init_container_is_found_in_the_checkpoint_though_the_watch_lags(self, agent_node: AgentNode) -> None:
        agent_node.admitted(agent_node.bound(pod := a_pod_whose_application_asks_for_no_core(), quietly=True))
        assert agent_node.started(pod, "warm").tenant == uid(pod)

    def test_init_container_is_refused_until_the_checkpoint_is_readable(self, agent_node: AgentNode) -> None:
        agent_node.kubelet.private_file = False
        agent_node.admitted(agent_node.bound(pod := a_pod_whose_application_asks_for_no_core()))
        assert "does not say which Pod holds these 40 devices" in refusal(agent_node, pod, "warm")
        agent_node.kubelet.private_file = True
        assert agent_node.started(pod, "warm").tenant == uid(pod)


class TestReplacedPod:
    """As a StatefulSet does: same name, another UID, perhaps another card."""

    def test_replaced_pod_gets_its_own_cards_though_the_watch_lags(self, agent_node: AgentNode) -> None:
        agent_node.run(old := a_qgpu_pod("web-0", card=0))
        agent_node.deleted(old, quietly=True)
        agent_node.admitted(agent_node.bound(new := a_qgpu_pod("web-0", card=1), quietly=True))
        seen = agent_node.started(new)
        assert (seen.tenant, seen.cards) == (uid(new), "GPU-1")
        agent_node.watch()
        agent_node.tenants.sweep()
        assert agent_node.remains() == {
            place: set() if place in ("drafts", "links") else {uid(new)} for place in NOTHING
        }

    def test_replaced_pod_gets_its_own_cards_without_checkpoint(self, agent_node: AgentNode) -> None:
        agent_node.kubelet.private_file = False
        agent_node.run(old := a_qgpu_pod("web-0", card=0))
        agent_node.deleted(old, quietly=True)
        agent_node.admitted(agent_node.bound(new := a_qgpu_pod("web-0", card=1), quietly=True))
        assert agent_node.started(new).cards == "GPU-1"

    def test_container_of_the_former_pod_is_refused_the_new_pods_cards(self, agent_node: AgentNode) -> None:
        agent_node.run(old := a_qgpu_pod("web-0", card=0))
        agent_node.api.delete(old)  # by force: the kubelet still has it
        agent_node.bound(a_qgpu_pod("web-0", card=1), quietly=True)
        agent_node.watch()
        assert "was replaced" in refusal(agent_node, old)

    def test_container_of_the_former_pod_is_refused_when_the_new_pod_is_elsewhere(self, agent_node: AgentNode) -> None:
        agent_node.kubelet.private_file = False
        agent_node.run(old := a_qgpu_pod("web-0", card=0))
        agent_node.api.delete(old)
        agent_node.api.put(a_qgpu_pod("web-0", card=1, node="n2"))
        agent_node.api.unsent.pop()  # our watch is of our own Pods
        agent_node.watch()
        assert refusal(agent_node, old) == f"the Pod is bound to n2, but this is node {NODE}"


class TestApiServer:
    def test_prepare_uses_the_cached_pod(self, agent_node: AgentNode) -> None:
        agent_node.run(a_qgpu_pod())
        assert agent_node.api.gets == 0

    def test_prepare_fetches_a_pod_that_is_not_cached(self, agent_node: AgentNode) -> None:
        agent_node.bound(pod := a_qgpu_pod(card=1), quietly=True)
        agent_node.admitted(pod)
        assert agent_node.started(pod).cards == "GPU-1"

    def test_prepare_without_api_server_admits_cached_pods_only(self, agent_node: AgentNode) -> None:
        agent_node.admitted(agent_node.bound(known := a_qgpu_pod("known")))
        agent_node.admitted(agent_node.bound(unknown := a_qgpu_pod("unknown"), quietly=True))
        agent_node.api.away = True
        assert agent_node.started(known).tenant == uid(known)
        assert refusal(agent_node, unknown) == "cannot read Pod ml/unknown from the API server: connection refused"
        agent_node.api.away = False
        assert agent_node.started(unknown).tenant == uid(unknown)

    def test_prepare_refuses_a_deleted_pod(self, agent_node: AgentNode) -> None:
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod()))
        agent_node.api.delete(pod)
        agent_node.watch()
        assert 'pods "train-0" not found' in refusal(agent_node, pod)

    def test_pod_deleted_during_fetch_leaves_nothing(self, agent_node: AgentNode) -> None:
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod(), quietly=True))

        def gone() -> None:
            agent_node.api.delete(pod)
            agent_node.watch()

        agent_node.api.late = gone
        assert "was deleted" in refusal(agent_node, pod)
        assert agent_node.remains() == NOTHING

    def test_pod_deleted_during_the_kubelets_answer_leaves_nothing(self, agent_node: AgentNode) -> None:
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod()))

        def gone() -> None:
            agent_node.kubelet.on_call = lambda: None
            agent_node.api.delete(pod)
            agent_node.watch()

        agent_node.kubelet.on_call = gone
        refusal(agent_node, pod)
        assert agent_node.remains() == NOTHING

    def test_prepare_refuses_a_finished_pod(self, agent_node: AgentNode) -> None:
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod()))
        agent_node.api.put({**pod, "status": {"phase": "Failed"}})
        agent_node.watch()
        assert "the Pod has ended" in refusal(agent_node, pod)
        assert agent_node.remains() == NOTHING


class TestWithoutCdi:
    @pytest.fixture
    def agent_node(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentNode]:
        made = AgentNode(tmp_path, monkeypatch, cdi=False)
        made.sync()
        yield made
        made.store.close()

    def test_prepare_without_cdi_injects_folder_and_shim(self, agent_node: AgentNode) -> None:
        seen = agent_node.run(pod := a_qgpu_pod(by_annotation=True))["main"]
        assert seen.tenant == uid(pod)
        assert "/usr/local/lib/aliquot/libaliquot.so" in seen.mounts
        assert agent_node.specs() == []
        agent_node.deleted(pod)
        assert agent_node.remains() == NOTHING

    def test_prepare_without_cdi_refuses_a_pod_without_environment(self, agent_node: AgentNode) -> None:
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod()))
        assert "--env-by-annotation" in refusal(agent_node, pod)
        assert [reason for _, reason, _ in agent_node.emitted] == ["GPURefused"]

    def test_allocate_without_cdi_of_reused_devices_links_the_new_pod(self, agent_node: AgentNode) -> None:
        agent_node.run(old := a_qgpu_pod("old", by_annotation=True))
        agent_node.deleted(old, quietly=True)
        assert agent_node.run(new := a_qgpu_pod("new", by_annotation=True))["main"].tenant == uid(new)
        agent_node.watch()
        agent_node.tenants.sweep()
        assert agent_node.made(new).tenant == uid(new)


class TestPeers:
    def test_grant_is_read_by_the_qgpu_rules_of_its_scheduler(self, agent_node: AgentNode) -> None:
        pod = a_qgpu_pod(core=100, granted=False)
        pod["metadata"]["annotations"] = grant_of(pod, 1, rules=Rules(qgpu=QgpuRules.Y2026))
        assert agent_node.run(pod)["main"].cards == "GPU-1"

    def test_gpushare_pod_gets_the_environment_of_its_dialect(self, agent_node: AgentNode) -> None:
        pod = a_pod("bin-0", a_container("main", {MEM: 4}), on=NODE)
        pod["metadata"] |= {"uid": "uid-bin", "namespace": "ml"}
        pod["metadata"]["annotations"] = grant_of(pod, 1)
        env = agent_node.run(pod)["main"].env
        assert (env["NVIDIA_VISIBLE_DEVICES"], env["ALIYUN_COM_GPU_MEM_IDX"]) == ("GPU-1", "1")
        assert (env["ALIYUN_COM_GPU_MEM_CONTAINER"], env["ALIYUN_COM_GPU_MEM_DEV"]) == ("4", "16")

    def test_gpushare_pod_of_its_own_scheduler_gets_the_card_of_that_number(self, agent_node: AgentNode) -> None:
        pod = a_pod("bin-0", a_container("main", {MEM: 4}), on=NODE)
        pod["metadata"] |= {"uid": "uid-bin", "namespace": "ml"}
        pod["metadata"]["annotations"] = {
            "ALIYUN_COM_GPU_MEM_IDX": "1",
            "ALIYUN_COM_GPU_MEM_POD": "4",
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        }
        assert agent_node.run(pod)["main"].cards == "GPU-1"
        assert agent_node.tenants.tenancies["uid-bin"].shares[0].uuid == "GPU-1"

    def test_both_gpushare_resources_are_one_tenant(self, agent_node: AgentNode) -> None:
        pod = a_pod("bin-0", a_container("main", {MEM: 4, COUNT: 1}), on=NODE)
        pod["metadata"] |= {"uid": "uid-bin", "namespace": "ml"}
        pod["metadata"]["annotations"] = grant_of(pod, 1)
        assert agent_node.run(pod)["main"].cards == "GPU-1"


def a_pod_whose_application_asks_for_no_core() -> Json:
    """Only the init container has devices of that resource then."""
    pod = a_qgpu_pod(init={"warm": (40, 8)}, containers={"main": (20, 0)}, granted=False)
    del pod["spec"]["containers"][0]["resources"]["limits"][QGPU_CORE]
    pod["metadata"]["annotations"] = grant_of(pod, 0)
    return pod
