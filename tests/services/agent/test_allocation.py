"""The right Pod gets the right card, always; what cannot be known is refused, with a reason its user can act on."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aliquot.adapters.gpu.driverfile import DriverFileError
from aliquot.adapters.kubelet.podresources import Holder
from aliquot.adapters.storage.podstore import PodStore, StoreError
from aliquot.dialects import QgpuRules, Rules
from aliquot.model.claim import AppClass
from aliquot.services.agent import allocation
from aliquot.services.agent.devices.plugins import Refused
from kit.agentnode import AgentNode, NotMade, play
from kit.grantedpods import NODE, Json, a_qgpu_pod, grant_of
from kit.manifests import COUNT, MEM, QGPU_CORE, QGPU_MEMORY, a_container, a_pod

NOTHING: dict[str, set[str]] = {
    place: set() for place in ("database", "memory", "arbiter", "folders", "specs", "drafts", "links")
}


def uid(pod: Json) -> str:
    found: str = pod["metadata"]["uid"]
    return found


def refusal(agent_node: AgentNode, pod: Json, container: str = "main") -> str:
    """What the user reads when the container may not start."""
    with pytest.raises(Refused) as error:
        agent_node.started(pod, container)
    return str(error.value)


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

    def test_prepare_tells_equal_pods_apart_in_any_order(self, agent_node: AgentNode) -> None:
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


class TestRefusals:
    def test_prepare_refuses_a_pod_without_grant_and_says_what_to_do(self, agent_node: AgentNode) -> None:
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod(granted=False)))
        why = refusal(agent_node, pod)
        assert "aliquot granted no card to this Pod" in why
        assert "aliquot manifests scheduler-config" in why
        assert agent_node.emitted == [("train-0", "GPURefused", why)]
        assert agent_node.remains() == NOTHING

    def test_refused_pod_starts_when_the_reason_is_gone(self, agent_node: AgentNode) -> None:
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod(granted=False)))
        refusal(agent_node, pod)
        pod["metadata"]["annotations"] = grant_of(pod, 1)
        agent_node.bound(pod)
        assert agent_node.started(pod).cards == "GPU-1"

    def test_prepare_refuses_a_grant_of_another_node(self, agent_node: AgentNode) -> None:
        pod = a_qgpu_pod(granted=False)
        pod["metadata"]["annotations"] = grant_of(pod, 0, node="n2")
        agent_node.admitted(agent_node.bound(pod))
        assert "a grant for the Pod's node, n1; this one is stale" in refusal(agent_node, pod)

    def test_prepare_refuses_a_grant_that_differs_from_the_request(self, agent_node: AgentNode) -> None:
        pod = a_qgpu_pod(gib=4)
        pod["spec"]["containers"][0]["resources"]["limits"][QGPU_MEMORY] = 8
        agent_node.admitted(agent_node.bound(pod))
        assert "as much memory as main requests" in refusal(agent_node, pod)

    def test_prepare_refuses_a_missing_card(self, agent_node: AgentNode) -> None:
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod(card=1)))
        agent_node.health.cards = agent_node.health.cards[:1]
        assert refusal(agent_node, pod) == "the Pod was granted card GPU-1, which this node does not have"

    def test_prepare_refuses_a_missing_card_whose_number_was_reused(self, agent_node: AgentNode) -> None:
        pod = a_qgpu_pod(containers={"a": (20, 4), "b": (20, 4)}, card={"a": 0, "b": 1})
        agent_node.admitted(agent_node.bound(pod))
        agent_node.health.cards = (replace(agent_node.health.cards[1], index=0),)
        for container in ("a", "b"):
            assert (
                refusal(agent_node, pod, container) == "the Pod was granted card GPU-0, which this node does not have"
            )

    def test_prepare_refuses_an_unhealthy_card_until_it_is_healthy(self, agent_node: AgentNode) -> None:
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod(card=1)))
        agent_node.health.why["GPU-1"] = "Xid 79, it fell off the bus"
        assert refusal(agent_node, pod) == "card 1 (GPU-1) is out: Xid 79, it fell off the bus"
        agent_node.health.why.clear()
        assert agent_node.started(pod).cards == "GPU-1"

    def test_prepare_admits_a_pod_on_a_healthy_card_beside_an_unhealthy_one(self, agent_node: AgentNode) -> None:
        agent_node.health.why["GPU-1"] = "out"
        assert agent_node.run(a_qgpu_pod(card=0))["main"].cards == "GPU-0"

    def test_prepare_refuses_when_the_kubelet_does_not_answer(self, agent_node: AgentNode) -> None:
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod()))
        agent_node.kubelet.unreachable = True
        assert "listing PodResources: no answer" in refusal(agent_node, pod)
        agent_node.kubelet.unreachable = False
        assert agent_node.started(pod).tenant == uid(pod)

    def test_prepare_refuses_devices_that_no_pod_holds(self, agent_node: AgentNode) -> None:
        with pytest.raises(Refused, match="does not say which Pod holds these 1 devices of tke"):
            play(agent_node.allocator.prepare(QGPU_CORE, frozenset({"GPU-0-_-1"})))

    def test_prepare_refuses_a_pod_that_requests_no_gpu(self, agent_node: AgentNode) -> None:
        pod = a_qgpu_pod()
        agent_node.admitted(pod)
        pod["spec"]["containers"] = [a_container("main", {})]
        agent_node.bound(pod)
        assert refusal(agent_node, pod) == "the Pod requests no GPU"

    def test_prepare_refuses_an_invalid_request_with_its_rule(self, agent_node: AgentNode) -> None:
        pod = a_qgpu_pod()
        pod["spec"]["containers"][0]["resources"]["limits"] = {QGPU_CORE: 20}
        agent_node.admitted(agent_node.bound(pod))
        assert "qgpu-memory" in refusal(agent_node, pod)

    def test_refusal_is_logged_once(self, agent_node: AgentNode, caplog: pytest.LogCaptureFixture) -> None:
        agent_node.admitted(agent_node.bound(first := a_qgpu_pod("first", granted=False)))
        agent_node.admitted(agent_node.bound(second := a_qgpu_pod("second", granted=False)))
        for pod in (first, first, second, first, second):
            refusal(agent_node, pod)
        said = [record for record in caplog.records if record.message == "container_refused"]
        assert [record.__dict__["data"]["pod"] for record in said] == ["ml/first", "ml/second"]

    def test_memory_of_logged_refusals_is_bounded(self, agent_node: AgentNode, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(allocation, "_MOST_LOGGED", 2)
        for name in ("a", "b", "c"):
            agent_node.admitted(agent_node.bound(pod := a_qgpu_pod(name, granted=False)))
            refusal(agent_node, pod)
        assert len(agent_node.allocator._logged) == 2


class TestFullCard:
    def test_prepare_refuses_an_overbooked_card(self, agent_node: AgentNode) -> None:
        agent_node.run(a_qgpu_pod("first", gib=12))
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod("second", gib=12)))
        why = refusal(agent_node, pod)
        assert "card 0 has 4 GiB free, needs 12 GiB" in why
        assert "two schedulers" in why
        assert uid(pod) not in agent_node.remains()["database"]

    def test_full_card_is_freed_of_pods_whose_end_the_watch_missed(self, agent_node: AgentNode) -> None:
        agent_node.run(first := a_qgpu_pod("first", gib=12))
        agent_node.deleted(first, quietly=True)
        agent_node.admitted(agent_node.bound(second := a_qgpu_pod("second", gib=12), quietly=True))
        assert agent_node.started(second).tenant == uid(second)

    def test_full_card_counts_ended_pods_with_running_processes(self, agent_node: AgentNode) -> None:
        agent_node.run(first := a_qgpu_pod("first", gib=12))
        agent_node.api.delete(first)  # by force
        agent_node.watch()
        agent_node.tenants.sweep()
        agent_node.admitted(agent_node.bound(second := a_qgpu_pod("second", gib=12)))
        why = refusal(agent_node, second)
        assert "needs 12 GiB; Pod ml/first has ended, but its processes are still on the card" in why
        agent_node.processes.clear()
        assert agent_node.started(second).tenant == uid(second)

    def test_full_card_is_refused_soon_without_api_server(self, agent_node: AgentNode) -> None:
        agent_node.agent.pod_cache._patience = 0.01
        agent_node.run(a_qgpu_pod("first", gib=12))
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod("second", gib=12)))
        agent_node.api.away = True
        assert "needs 12 GiB" in refusal(agent_node, pod)

    def test_full_card_does_not_count_the_pod_itself(self, agent_node: AgentNode) -> None:
        agent_node.run(pod := a_qgpu_pod(gib=12, core=60))
        assert agent_node.started(pod).tenant == uid(pod)


class TestWhenWritingFails:
    def test_prepare_refuses_on_a_full_disk_and_succeeds_later(
        self, agent_node: AgentNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod()))
        with monkeypatch.context() as patch:
            patch.setattr(PodStore, "add", _full)
            assert "database or disk is full" in refusal(agent_node, pod)
        assert agent_node.remains() == NOTHING
        assert agent_node.started(pod).tenant == uid(pod)

    def test_prepare_names_a_tenant_folder_that_cannot_be_created(self, agent_node: AgentNode) -> None:
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod()))
        agent_node.arbiter.broken.add(uid(pod))
        assert re.search(rf"{uid(pod)}: .*No space left on device", refusal(agent_node, pod))
        agent_node.arbiter.broken.clear()
        assert agent_node.started(pod).tenant == uid(pod)

    def test_prepare_names_a_missing_cdi_folder_and_what_to_do(self, agent_node: AgentNode) -> None:
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod()))
        shutil.rmtree(agent_node.folder / "cdi")
        assert "cdi_spec_dirs" in refusal(agent_node, pod)
        (agent_node.folder / "cdi").mkdir()
        assert agent_node.started(pod).tenant == uid(pod)

    def test_prepare_refuses_when_the_driver_file_lacks_the_card(self, agent_node: AgentNode) -> None:
        def fails(uuids: object) -> object:
            raise DriverFileError("run `nvidia-ctk cdi generate`")

        agent_node.driver = fails  # type: ignore[assignment]  # it never answers
        agent_node.admitted(agent_node.bound(pod := a_qgpu_pod()))
        assert (
            refusal(agent_node, pod)
            == "the aliquot agent of this node cannot prepare the container: run `nvidia-ctk cdi generate`"
        )

    def test_allocate_refuses_a_name_that_cannot_be_cleared(self, agent_node: AgentNode) -> None:
        agent_node.run(pod := a_qgpu_pod())
        spec = agent_node.specs()[0]
        path = agent_node.folder / "cdi" / spec.name.file
        path.unlink()
        path.mkdir()  # what nobody can unlink
        held = next(ids for (_, of), ids in agent_node.kubelet.held[uid(pod)].items() if of.endswith("core"))
        with pytest.raises(Refused, match=str(agent_node.folder / "cdi")):
            agent_node.allocator.allocate(QGPU_CORE, held)


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


class TestChangedGrant:
    def test_changed_grant_is_refused_while_the_pod_runs(self, agent_node: AgentNode) -> None:
        agent_node.run(pod := a_qgpu_pod(card=0))
        pod["metadata"]["annotations"] = grant_of(pod, 1)
        agent_node.bound(pod)
        assert "the grant changed while the Pod runs" in refusal(agent_node, pod)
        assert agent_node.arbiter.tenants[uid(pod)].allotments[0].uuid == "GPU-0"

    def test_changed_grant_is_applied_before_the_pod_runs(self, agent_node: AgentNode) -> None:
        agent_node.run(pod := a_qgpu_pod(card=0))
        agent_node.processes.clear()
        pod["metadata"]["annotations"] = grant_of(pod, 1)
        agent_node.bound(pod)
        assert agent_node.started(pod).cards == "GPU-1"
        assert agent_node.arbiter.tenants[uid(pod)].allotments[0].uuid == "GPU-1"

    def test_renumbered_card_is_no_changed_grant(self, agent_node: AgentNode) -> None:
        agent_node.run(pod := a_qgpu_pod(card=1))
        first, second = agent_node.health.cards
        agent_node.health.cards = (replace(second, index=0), replace(first, index=1))
        assert agent_node.started(pod).cards == "GPU-1"
        assert agent_node.steps.count("arbiter.remove") == 0


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
    """So that nobody but the init container has devices of that resource."""
    pod = a_qgpu_pod(init={"warm": (40, 8)}, containers={"main": (20, 0)}, granted=False)
    del pod["spec"]["containers"][0]["resources"]["limits"][QGPU_CORE]
    pod["metadata"]["annotations"] = grant_of(pod, 0)
    return pod


def _full(*_: object) -> None:
    raise StoreError("state.db: database or disk is full: free some space")
