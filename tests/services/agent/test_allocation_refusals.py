"""Containers that may not start: each is refused with a reason its user can act on, and leaves nothing."""

from __future__ import annotations

import re
import shutil

import pytest
from msgspec.structs import replace

from aliquot.adapters.gpu.driverfile import DriverFileError
from aliquot.adapters.storage.podstore import PodStore, StoreError
from aliquot.services.agent import allocation
from aliquot.services.agent.devices.plugins import Refused
from kit.agents.agentnode import AgentNode, play
from kit.agents.allocations import NOTHING, refusal, uid
from kit.agents.grantedpods import a_qgpu_pod, grant_of
from kit.values.manifests import QGPU_CORE, QGPU_MEMORY, a_container


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

    def test_pod_that_was_placed_starts_however_many_models_it_lists(self, agent_node: AgentNode) -> None:
        """As for the scheduler, which keeps it booked: the list decides about new Pods only."""
        pod = a_qgpu_pod(card=1)
        pod["metadata"]["annotations"]["aliquot.dev/card-models"] = ",".join(f"m{at}" for at in range(300))
        agent_node.admitted(agent_node.bound(pod))
        assert agent_node.started(pod).cards == "GPU-1"

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


def _full(*_: object) -> None:
    raise StoreError("state.db: database or disk is full: free some space")
