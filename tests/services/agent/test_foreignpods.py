"""Pods that another device plugin let in run on under us: counted on the cards they have, never refused, never held."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from aliquot.dialects import Rules, gpushare, hami, native
from aliquot.model.tenant import Finding, FindingKind
from aliquot.services.agent.devices.plugins import Allocation, Refused
from aliquot.wording.withheld import withheld_words
from kit.agents.agentnode import AgentNode, play
from kit.agents.allocations import uid
from kit.agents.grantedpods import NODE, Json
from kit.values.manifests import MEM, a_container, a_pod

NUMBERS = itertools.count()


def a_peers_pod(name: str = "theirs", *, card: int = 0, gib: int = 4, assigned: str = "true") -> Json:
    """As gpushare's extender leaves it, with the old annotations alone."""
    said = {gpushare.INDEX: str(card), gpushare.POD_TOTAL: str(gib), gpushare.ASSIGNED: assigned}
    annotations = {**said, gpushare.ASSUME_TIME: "1700000000000000000"}
    pod = a_pod(name, a_container("main", {MEM: gib}), annotations=annotations, on=NODE)
    pod["metadata"].update({"namespace": "default", "uid": f"peer-{next(NUMBERS)}"})
    pod["status"] = {}
    return pod


def live(agent_node: AgentNode, pod: Json, *, visible: str = "GPU-0") -> Json:
    """It runs, and the kubelet keeps what their plugin answered."""
    env = {"NVIDIA_VISIBLE_DEVICES": visible, gpushare.INDEX: "0"}
    agent_node.kubelet.admit(agent_node.bound(pod), lambda resource, ids: Allocation(env=env))
    agent_node.processes.add(uid(pod))
    return pod


def cards(agent_node: AgentNode, pod: Json) -> dict[str, int]:
    """What it holds here, in GiB by card."""
    return {share.uuid: share.memory_mib // 1024 for share in agent_node.tenants.tenancies[uid(pod)].shares}


def messages(agent_node: AgentNode, pod: Json) -> list[str]:
    return [
        text for name, reason, text in agent_node.emitted if (name, reason) == (pod["metadata"]["name"], "GPUNotHeld")
    ]


class TestAdopt:
    def test_foreign_pod_is_counted_with_an_event_that_it_is_not_enforced(self, agent_node: AgentNode) -> None:
        live(agent_node, pod := a_peers_pod(gib=4))
        agent_node.restart()
        assert cards(agent_node, pod) == {"GPU-0": 4}
        (text,) = messages(agent_node, pod)
        assert "until the Pod is created again" in text

    def test_foreign_pod_event_is_emitted_once_over_restarts(self, agent_node: AgentNode) -> None:
        live(agent_node, pod := a_peers_pod())
        agent_node.restart()
        agent_node.restart()
        assert len(messages(agent_node, pod)) == 1
        assert agent_node.agent.foreign_pods.uids == {uid(pod)}

    def test_foreign_pod_gets_no_injection(self, agent_node: AgentNode) -> None:
        live(agent_node, a_peers_pod())
        agent_node.restart()
        assert agent_node.specs() == []

    def test_own_pods_are_not_foreign(self, agent_node: AgentNode) -> None:
        agent_node.run(a_peers_pod(assigned="false"))
        agent_node.restart()
        assert agent_node.agent.foreign_pods.uids == frozenset()

    def test_pods_with_other_resources_of_another_plugin_are_not_foreign(self, agent_node: AgentNode) -> None:
        agent_node.run(pod := a_peers_pod(assigned="false"))
        agent_node.kubelet.held[uid(pod)]["main", "rdma/hca"] = frozenset({"mlx5_0"})
        agent_node.kubelet.answers[uid(pod), "main", "rdma/hca"] = Allocation(env={"RDMA": "mlx5_0"})
        agent_node.restart()
        assert agent_node.agent.foreign_pods.uids == frozenset()

    def test_ended_foreign_pod_is_not_adopted(self, agent_node: AgentNode) -> None:
        live(agent_node, pod := a_peers_pod())
        agent_node.api.put({**pod, "status": {"phase": "Succeeded"}})
        agent_node.restart()
        assert agent_node.tenants.tenancies == {}

    def test_deleted_foreign_pod_frees_its_card(self, agent_node: AgentNode) -> None:
        live(agent_node, pod := a_peers_pod())
        agent_node.restart()
        agent_node.deleted(pod)
        assert agent_node.tenants.tenancies == {}
        assert agent_node.agent.foreign_pods.uids == frozenset()

    def test_gone_foreign_pods_are_forgotten(self, agent_node: AgentNode) -> None:
        pods = [live(agent_node, a_peers_pod(f"theirs-{at}", gib=1)) for at in range(3)]
        agent_node.restart()
        assert agent_node.agent.foreign_pods._uids == set(map(uid, pods))
        for pod in pods[:2]:
            agent_node.deleted(pod)
        resource, ids = next((of, ids) for (_, of), ids in agent_node.kubelet.held[uid(pods[2])].items())
        play(agent_node.allocator.prepare(resource, ids))
        assert agent_node.agent.foreign_pods._uids == {uid(pods[2])}

    def test_foreign_pods_are_left_to_the_scheduler_without_checkpoint(self, agent_node: AgentNode) -> None:
        live(agent_node, a_peers_pod())
        agent_node.kubelet.private_file = False
        agent_node.restart()
        assert agent_node.tenants.tenancies == {}

    def test_card_of_a_foreign_pod_is_not_given_twice(self, agent_node: AgentNode) -> None:
        live(agent_node, a_peers_pod(gib=14))
        agent_node.restart()
        agent_node.admitted(agent_node.bound(pod := a_peers_pod("ours", gib=4, assigned="false")))
        with pytest.raises(Refused, match=r"card 0 has .* free, needs"):
            agent_node.started(pod)

    def test_unregistered_processes_of_foreign_pods_are_no_findings(self, agent_node: AgentNode) -> None:
        live(agent_node, pod := a_peers_pod())
        agent_node.restart()
        loud = Finding("GPU-0", 7, FindingKind.TRESPASSER, "is elsewhere", uid(pod))
        stranger = Finding("GPU-0", 8, FindingKind.UNREGISTERED, "of another Pod", "somebody")
        unheld = Finding("GPU-0", 7, FindingKind.UNREGISTERED, "has not registered", uid(pod))
        assert agent_node.agent.foreign_pods.drop_expected([loud, unheld, stranger]) == [loud, stranger]


class TestContainerRestart:
    def test_foreign_container_restarts_with_its_plugins_response(self, agent_node: AgentNode) -> None:
        live(agent_node, pod := a_peers_pod())
        agent_node.restart()
        seen = agent_node.started(pod)
        assert seen.env["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
        assert seen.mounts == {}

    def test_foreign_container_restarts_before_the_pod_is_cached(self, agent_node: AgentNode) -> None:
        live(agent_node, pod := a_peers_pod())
        agent_node.started(pod)
        assert cards(agent_node, pod) == {"GPU-0": 4}

    def test_foreign_container_restarts_without_cdi(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        agent_node = AgentNode(tmp_path, monkeypatch, cdi=False)
        agent_node.sync()
        live(agent_node, pod := a_peers_pod())
        assert agent_node.started(pod).env["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
        agent_node.store.close()

    def test_foreign_container_restarts_on_an_overbooked_card(self, agent_node: AgentNode) -> None:
        pods = [live(agent_node, a_peers_pod(f"theirs-{at}", gib=10)) for at in range(2)]
        agent_node.restart()
        for pod in pods:
            assert agent_node.started(pod).env["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"

    def test_foreign_container_restarts_with_a_full_disk(self, agent_node: AgentNode) -> None:
        live(agent_node, pod := a_peers_pod())
        agent_node.arbiter.broken.add(uid(pod))
        assert agent_node.started(pod).env["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"


class TestPodOfAPeersScheduler:
    def test_pod_placed_by_a_peer_and_admitted_by_us_is_ours(self, agent_node: AgentNode) -> None:
        """Assumed by their extender, bound, and not assigned when their plugin ended."""
        seen = agent_node.run(pod := a_peers_pod(card=1, assigned="false"))["main"]
        assert (seen.cards, seen.tenant) == ("GPU-1", uid(pod))
        assert agent_node.agent.foreign_pods.uids == frozenset()

    def test_pod_placed_by_a_peer_gets_our_annotation(self, agent_node: AgentNode) -> None:
        """`aliquot uninstall` looks for that: a container of it needs what we made."""
        agent_node.run(a_peers_pod(card=1, assigned="false"))
        ((_, marks),) = agent_node.agent.reporter._annotations.values()
        assert marks[gpushare.ASSIGNED] == "true"
        assert '"uuid":"GPU-1"' in marks[native.GRANT]

    def test_pod_placed_by_a_peer_gets_no_unreadable_annotation(self, agent_node: AgentNode) -> None:
        pod = a_peers_pod(gib=4, assigned="false")
        allocation = json.dumps({"0": {"0": 1, "1": 3}})
        pod["metadata"]["annotations"].update({gpushare.ALLOCATION: allocation, gpushare.COUNT: "2"})
        agent_node.run(pod)
        ((_, marks),) = agent_node.agent.reporter._annotations.values()
        assert native.GRANT not in marks


class TestWhichCard:
    def test_response_wins_over_the_annotations_card(self, agent_node: AgentNode) -> None:
        """Their plugin mixed up two Pods of one size, or the cards were renumbered over a reboot."""
        live(agent_node, pod := a_peers_pod(card=0), visible="GPU-1")
        agent_node.restart()
        assert cards(agent_node, pod) == {"GPU-1": 4}
        (text,) = messages(agent_node, pod)
        assert "its annotation said card 0, but the plugin gave it card 1" in text

    def test_actual_card_is_written_to_our_annotation(self, agent_node: AgentNode) -> None:
        live(agent_node, pod := a_peers_pod(card=0), visible="GPU-1")
        agent_node.restart()
        ((_, marks),) = agent_node.agent.reporter._annotations.values()
        grant = json.loads(marks[native.GRANT])
        assert [card["uuid"] for container in grant["containers"] for card in container["cards"]] == ["GPU-1"]
        assert grant["node"] == NODE
        pod["metadata"]["annotations"].update(marks)
        agent_node.api.put(pod)
        agent_node.restart()
        assert cards(agent_node, pod) == {"GPU-1": 4}
        assert agent_node.agent.reporter._annotations == {}

    @pytest.mark.parametrize("visible", ["0", "all", "GPU-7", "no-gpu-has-4GiB-to-run", ""])
    def test_annotation_counts_when_the_response_names_no_card(self, agent_node: AgentNode, visible: str) -> None:
        live(agent_node, pod := a_peers_pod(card=1), visible=visible)
        agent_node.restart()
        assert cards(agent_node, pod) == {"GPU-1": 4}
        assert "only its annotation says" in messages(agent_node, pod)[0]

    def test_foreign_pod_without_annotation_is_left_to_the_scheduler(self, agent_node: AgentNode) -> None:
        pod = a_peers_pod()
        pod["metadata"]["annotations"] = {}
        live(agent_node, pod)
        agent_node.restart()
        assert agent_node.tenants.tenancies == {}
        play(agent_node.allocator.prepare(MEM, agent_node.kubelet.held[uid(pod)]["main", MEM]))


class TestHami:
    """Pods of HAMi's plugin, on a node whose nvidia.com/gpu is ours now."""

    def live(self, agent_node: AgentNode, name: str, assigned: str = "") -> Json:
        """A Pod to which HAMi's plugin gave card 1."""
        annotations = {hami.ALLOCATED: assigned} if assigned else {}
        pod = a_pod(name, a_container("main", {hami.CARDS: 1}), annotations=annotations, on=NODE)
        pod["metadata"].update({"namespace": "default", "uid": f"peer-{next(NUMBERS)}"})
        pod["status"] = {}
        live(agent_node, pod, visible="GPU-1")
        agent_node.kubelet.held[uid(pod)] = {("main", hami.CARDS): frozenset({"GPU-1-3"})}
        return pod

    def restarted(self, agent_node: AgentNode) -> dict[str, str]:
        """The cards that are withheld once an agent that serves HAMi's dialect has started."""
        agent_node.rules = Rules(served=frozenset({"qgpu", "hami"}))
        agent_node.labels = {hami.LABEL: "true"}
        agent_node.restart()
        play(agent_node.agent.held_cards.refresh())
        return {uuid: withheld_words(why) for uuid, why in agent_node.agent.held_cards.why.items()}

    def test_pod_that_hami_placed_is_adopted_and_withholds_no_card(self, agent_node: AgentNode) -> None:
        pod = self.live(agent_node, "theirs", "GPU-1,NVIDIA,16384,100:;")
        assert self.restarted(agent_node) == {}
        assert cards(agent_node, pod) == {"GPU-1": 16}
        assert len(messages(agent_node, pod)) == 1

    def test_pod_is_adopted_when_the_label_comes_to_a_running_agent(self, agent_node: AgentNode) -> None:
        pod = self.live(agent_node, "theirs", "GPU-1,NVIDIA,16384,100:;")
        agent_node.rules = Rules(served=frozenset({"qgpu", "hami"}))
        agent_node.restart()
        play(agent_node.agent.upkeep.advertise())
        assert uid(pod) not in agent_node.tenants.tenancies
        agent_node.labels = {hami.LABEL: "true"}
        agent_node.sync()
        play(agent_node.agent.upkeep.advertise())
        assert cards(agent_node, pod) == {"GPU-1": 16}
        play(agent_node.agent.held_cards.refresh())
        assert dict(agent_node.agent.held_cards.why) == {}

    def test_card_of_a_pod_without_a_placement_is_withheld(self, agent_node: AgentNode) -> None:
        pod = self.live(agent_node, "of-nvidias-plugin")
        assert self.restarted(agent_node) == {"GPU-1": "Pod default/of-nvidias-plugin holds it by nvidia.com/gpu"}
        assert uid(pod) not in agent_node.tenants.tenancies

    def test_pod_of_nvidia_gpu_is_left_alone_where_it_is_not_ours(self, agent_node: AgentNode) -> None:
        pod = self.live(agent_node, "theirs", "GPU-1,NVIDIA,16384,100:;")
        agent_node.restart()
        play(agent_node.agent.held_cards.refresh())
        assert uid(pod) not in agent_node.tenants.tenancies
        assert list(agent_node.agent.held_cards.why) == ["GPU-1"]
