"""Pods that another device plugin let in run on under us: counted on the cards they have, never refused, never held."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from aliquot.dialects import gpushare, native
from aliquot.model.tenant import Finding, FindingKind
from aliquot.services.agent.deviceplugins import Allocation, Refused
from kit.agentnode import NODE, House, Json, play
from kit.manifests import MEM, a_container, a_pod

NUMBERS = itertools.count()


def a_peers_pod(name: str = "theirs", *, card: int = 0, gib: int = 4, assigned: str = "true") -> Json:
    """As gpushare's extender leaves it, with the old annotations alone."""
    said = {gpushare.INDEX: str(card), gpushare.POD_TOTAL: str(gib), gpushare.ASSIGNED: assigned}
    annotations = {**said, gpushare.ASSUME_TIME: "1700000000000000000"}
    pod = a_pod(name, a_container("main", {MEM: gib}), annotations=annotations, on=NODE)
    pod["metadata"].update({"namespace": "default", "uid": f"peer-{next(NUMBERS)}"})
    pod["status"] = {}
    return pod


def live(house: House, pod: Json, *, visible: str = "GPU-0") -> Json:
    """It runs, and the kubelet keeps what their plugin answered."""
    env = {"NVIDIA_VISIBLE_DEVICES": visible, gpushare.INDEX: "0"}
    house.kubelet.admit(house.bound(pod), lambda resource, ids: Allocation(env=env))
    house.processes.add(uid(pod))
    return pod


def uid(pod: Json) -> str:
    found: str = pod["metadata"]["uid"]
    return found


def cards(house: House, pod: Json) -> dict[str, int]:
    """What it holds here, in GiB by card."""
    return {share.uuid: share.memory_mib // 1024 for share in house.tenants.tenancies[uid(pod)].shares}


def told(house: House, pod: Json) -> list[str]:
    return [text for name, reason, text in house.told if (name, reason) == (pod["metadata"]["name"], "GPUNotHeld")]


class TestTakingOver:
    def test_it_is_counted_on_its_card_and_said_not_to_be_held(self, house: House) -> None:
        live(house, pod := a_peers_pod(gib=4))
        house.restart()
        assert cards(house, pod) == {"GPU-0": 4}
        (text,) = told(house, pod)
        assert "until the Pod is created again" in text

    def test_that_is_said_once_however_often_we_start(self, house: House) -> None:
        live(house, pod := a_peers_pod())
        house.restart()
        house.restart()
        assert len(told(house, pod)) == 1
        assert house.agent.foreign_pods.uids == {uid(pod)}

    def test_it_is_led_nowhere_since_no_container_of_it_would_look(self, house: House) -> None:
        live(house, a_peers_pod())
        house.restart()
        assert house.specs() == []

    def test_our_own_pods_are_no_guests(self, house: House) -> None:
        house.run(a_peers_pod(assigned="false"))
        house.restart()
        assert house.agent.foreign_pods.uids == frozenset()

    def test_nor_are_those_that_got_something_else_from_another_plugin(self, house: House) -> None:
        house.run(pod := a_peers_pod(assigned="false"))
        house.kubelet.held[uid(pod)]["main", "rdma/hca"] = frozenset({"mlx5_0"})
        house.kubelet.answers[uid(pod), "main", "rdma/hca"] = Allocation(env={"RDMA": "mlx5_0"})
        house.restart()
        assert house.agent.foreign_pods.uids == frozenset()

    def test_one_that_has_ended_is_not_taken_in(self, house: House) -> None:
        live(house, pod := a_peers_pod())
        house.api.put({**pod, "status": {"phase": "Succeeded"}})
        house.restart()
        assert house.tenants.tenancies == {}

    def test_one_that_is_deleted_frees_its_card(self, house: House) -> None:
        live(house, pod := a_peers_pod())
        house.restart()
        house.deleted(pod)
        assert house.tenants.tenancies == {}
        assert house.agent.foreign_pods.uids == frozenset()

    def test_those_who_have_left_are_forgotten_when_the_next_one_comes(self, house: House) -> None:
        pods = [live(house, a_peers_pod(f"theirs-{at}", gib=1)) for at in range(3)]
        house.restart()
        assert house.agent.foreign_pods._uids == set(map(uid, pods))
        for pod in pods[:2]:
            house.deleted(pod)
        resource, ids = next((of, ids) for (_, of), ids in house.kubelet.held[uid(pods[2])].items())
        play(house.allocator.prepare(resource, ids))
        assert house.agent.foreign_pods._uids == {uid(pods[2])}

    def test_a_kubelet_whose_notes_cannot_be_read_leaves_them_to_the_scheduler(self, house: House) -> None:
        live(house, a_peers_pod())
        house.kubelet.private_file = False
        house.restart()
        assert house.tenants.tenancies == {}

    def test_what_they_have_nobody_else_is_given(self, house: House) -> None:
        live(house, a_peers_pod(gib=14))
        house.restart()
        house.admitted(house.bound(pod := a_peers_pod("ours", gib=4, assigned="false")))
        with pytest.raises(Refused, match=r"card 0 has .* free, needs"):
            house.started(pod)

    def test_their_processes_are_no_findings_and_other_things_still_are(self, house: House) -> None:
        live(house, pod := a_peers_pod())
        house.restart()
        loud = Finding("GPU-0", 7, FindingKind.TRESPASSER, "is elsewhere", uid(pod))
        stranger = Finding("GPU-0", 8, FindingKind.UNREGISTERED, "of another Pod", "somebody")
        unheld = Finding("GPU-0", 7, FindingKind.UNREGISTERED, "has not registered", uid(pod))
        assert house.agent.foreign_pods.drop_expected([loud, unheld, stranger]) == [loud, stranger]


class TestTheirContainersStartAgain:
    def test_with_what_their_plugin_gave_them(self, house: House) -> None:
        live(house, pod := a_peers_pod())
        house.restart()
        seen = house.started(pod)
        assert seen.env["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
        assert seen.mounts == {}

    def test_also_before_we_had_heard_of_the_pod(self, house: House) -> None:
        live(house, pod := a_peers_pod())
        house.started(pod)
        assert cards(house, pod) == {"GPU-0": 4}

    def test_also_on_a_runtime_without_cdi(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        house = House(tmp_path, monkeypatch, cdi=False)
        house.sync()
        live(house, pod := a_peers_pod())
        assert house.started(pod).env["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
        house.store.close()

    def test_also_on_a_card_that_was_given_away_twice_before_us(self, house: House) -> None:
        pods = [live(house, a_peers_pod(f"theirs-{at}", gib=10)) for at in range(2)]
        house.restart()
        for pod in pods:
            assert house.started(pod).env["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"

    def test_also_with_a_full_disk(self, house: House) -> None:
        live(house, pod := a_peers_pod())
        house.arbiter.broken.add(uid(pod))
        assert house.started(pod).env["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"


class TestInFlight:
    def test_a_pod_that_they_placed_and_we_admit_is_ours(self, house: House) -> None:
        """Assumed by their extender, bound, and not assigned when their plugin ended."""
        seen = house.run(pod := a_peers_pod(card=1, assigned="false"))["main"]
        assert (seen.cards, seen.tenant) == ("GPU-1", uid(pod))
        assert house.agent.foreign_pods.uids == frozenset()

    def test_and_carries_our_annotation_from_then_on(self, house: House) -> None:
        """Whoever takes us away looks for that: a container of it needs what we made."""
        house.run(a_peers_pod(card=1, assigned="false"))
        ((_, marks),) = house.agent.reporter._annotations.values()
        assert marks[gpushare.ASSIGNED] == "true"
        assert '"uuid":"GPU-1"' in marks[native.GRANT]

    def test_but_not_one_that_would_not_be_read_back(self, house: House) -> None:
        pod = a_peers_pod(gib=4, assigned="false")
        allocation = json.dumps({"0": {"0": 1, "1": 3}})
        pod["metadata"]["annotations"].update({gpushare.ALLOCATION: allocation, gpushare.COUNT: "2"})
        house.run(pod)
        ((_, marks),) = house.agent.reporter._annotations.values()
        assert native.GRANT not in marks


class TestWhichCard:
    def test_the_answer_is_believed_where_the_annotation_names_another_card(self, house: House) -> None:
        """Their plugin mixed up two Pods of one size, or the cards were renumbered over a reboot."""
        live(house, pod := a_peers_pod(card=0), visible="GPU-1")
        house.restart()
        assert cards(house, pod) == {"GPU-1": 4}
        (text,) = told(house, pod)
        assert "its annotation said card 0, but the plugin gave it card 1" in text

    def test_and_the_scheduler_is_told_by_our_annotation(self, house: House) -> None:
        live(house, pod := a_peers_pod(card=0), visible="GPU-1")
        house.restart()
        ((_, marks),) = house.agent.reporter._annotations.values()
        grant = json.loads(marks[native.GRANT])
        assert [card["uuid"] for container in grant["containers"] for card in container["cards"]] == ["GPU-1"]
        assert grant["node"] == NODE
        pod["metadata"]["annotations"].update(marks)
        house.api.put(pod)
        house.restart()
        assert cards(house, pod) == {"GPU-1": 4}
        assert house.agent.reporter._annotations == {}

    @pytest.mark.parametrize("visible", ["0", "all", "GPU-7", "no-gpu-has-4GiB-to-run", ""])
    def test_where_the_answer_names_no_card_of_ours_the_annotation_counts_and_that_is_said(
        self, house: House, visible: str
    ) -> None:
        live(house, pod := a_peers_pod(card=1), visible=visible)
        house.restart()
        assert cards(house, pod) == {"GPU-1": 4}
        assert "only its annotation says" in told(house, pod)[0]

    def test_a_pod_without_any_annotation_is_left_to_the_scheduler(self, house: House) -> None:
        pod = a_peers_pod()
        pod["metadata"]["annotations"] = {}
        live(house, pod)
        house.restart()
        assert house.tenants.tenancies == {}
        play(house.allocator.prepare(MEM, house.kubelet.held[uid(pod)]["main", MEM]))
