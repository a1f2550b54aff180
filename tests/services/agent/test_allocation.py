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
from aliquot.adapters.storage.podstore import PodStore, StoreError
from aliquot.dialects import QgpuRules, Rules
from aliquot.model.claim import AppClass
from aliquot.services.agent import allocation
from aliquot.services.agent.deviceplugins import Refused
from kit.agentnode import NODE, House, Json, NotMade, a_qgpu_pod, grant_of, play
from kit.manifests import COUNT, MEM, QGPU_CORE, QGPU_MEMORY, a_container, a_pod

NOTHING: dict[str, set[str]] = {
    place: set() for place in ("database", "memory", "arbiter", "folders", "specs", "drafts", "links")
}


def uid(pod: Json) -> str:
    found: str = pod["metadata"]["uid"]
    return found


def refusal(house: House, pod: Json, container: str = "main") -> str:
    """What the user reads when the container may not start."""
    with pytest.raises(Refused) as error:
        house.started(pod, container)
    return str(error.value)


class TestTheRightPod:
    def test_a_container_finds_its_cards_its_folder_and_the_shim(self, house: House) -> None:
        seen = house.run(pod := a_qgpu_pod(card=1))["main"]
        assert seen.cards == "GPU-1"
        assert seen.mounts["/run/aliquot/tenant"] == str(house.folder / "t" / uid(pod))
        assert "/usr/local/lib/aliquot/libaliquot.so" in seen.mounts
        assert seen.env["ALIQUOT_TENANT"] == "/run/aliquot/tenant"

    def test_before_it_is_prepared_there_is_nothing_to_start_it_with(self, house: House) -> None:
        house.admitted(house.bound(pod := a_qgpu_pod()))
        with pytest.raises(NotMade):
            house.made(pod)

    def test_equal_pods_that_start_in_another_order_get_their_own(self, house: House) -> None:
        pods = [a_qgpu_pod(f"equal-{at}", card=at % 2, core=10, gib=2) for at in range(8)]
        for pod in pods:
            house.admitted(house.bound(pod))
        for at in (5, 0, 7, 2, 1, 6, 3, 4):
            seen = house.started(pods[at])
            assert (seen.tenant, seen.cards) == (uid(pods[at]), f"GPU-{at % 2}")

    def test_both_resources_lead_to_the_same_place_whichever_comes_first(self, house: House) -> None:
        for at, reverse in enumerate((False, True)):
            house.admitted(house.bound(pod := a_qgpu_pod(f"p{at}", card=1)))
            house.started(pod, reverse=reverse)
            specs = [spec for spec in house.specs() if spec.pod_uid == uid(pod)]
            assert len(specs) == 2
            assert specs[0].edits == specs[1].edits

    def test_both_resources_prepared_at_once_make_one_tenant(self, house: House) -> None:
        house.admitted(house.bound(pod := a_qgpu_pod()))

        async def at_once() -> None:
            held = house.kubelet.held[uid(pod)]
            await asyncio.gather(*(house.allocator.prepare(of, ids) for (_, of), ids in held.items()))

        play(at_once())
        assert house.made(pod).tenant == uid(pod)
        assert house.steps.count("PodStore.add") == 1

    def test_two_containers_of_a_pod_get_each_its_own_card_and_one_folder(self, house: House) -> None:
        pod = a_qgpu_pod(containers={"a": (20, 4), "b": (20, 4)}, card={"a": 0, "b": 1})
        seen = house.run(pod)
        assert {name: each.cards for name, each in seen.items()} == {"a": "GPU-0", "b": "GPU-1"}
        assert {each.tenant for each in seen.values()} == {uid(pod)}

    def test_a_container_that_restarts_finds_what_it_had(self, house: House) -> None:
        first = house.run(pod := a_qgpu_pod(card=1))["main"]
        assert house.started(pod) == first

    def test_it_restarts_though_nobody_prepares_it_while_the_kubelet_does_not_know_us(self, house: House) -> None:
        first = house.run(pod := a_qgpu_pod(card=1))["main"]
        assert house.made(pod) == first

    def test_the_devices_of_a_pod_that_ended_lead_the_next_one_to_its_own_cards(self, house: House) -> None:
        house.run(old := a_qgpu_pod("old", card=0))
        held = set(house.kubelet.held[uid(old)].values())
        house.deleted(old, quietly=True)  # we have not heard of it
        house.admitted(house.bound(new := a_qgpu_pod("new", card=1), quietly=True))
        assert set(house.kubelet.held[uid(new)].values()) == held
        with pytest.raises(NotMade):  # never the former one's
            house.made(new)
        seen = house.started(new)
        assert (seen.tenant, seen.cards) == (uid(new), "GPU-1")
        house.watch()
        house.tenants.sweep()
        assert house.made(new) == seen

    def test_what_the_pod_may_use_is_the_most_it_was_granted_at_once(self, house: House) -> None:
        house.run(pod := a_qgpu_pod(containers={"a": (20, 4), "b": (10, 2)}, init={"warm": (50, 3)}))
        (share,) = house.tenants.tenancies[uid(pod)].shares
        assert (share.core_milli, share.memory_mib, share.uuid) == (500, 6 * 1024, "GPU-0")

    def test_its_class_is_that_of_its_annotation(self, house: House) -> None:
        pod = a_qgpu_pod(core=0, granted=False)
        pod["metadata"]["annotations"] = {"tke.cloud.tencent.com/app-class": "online"}
        pod["metadata"]["annotations"] |= grant_of(pod, 0)
        house.run(pod)
        assert house.arbiter.tenants[uid(pod)].app_class is AppClass.ONLINE

    @pytest.mark.parametrize("file", [True, False])
    def test_devices_that_the_kubelet_tells_of_two_pods_are_nobodys(self, house: House, file: bool) -> None:
        """Its list is no snapshot: they may change hands between two of its lines."""
        house.kubelet.private_file = file
        house.run(old := a_qgpu_pod("old", card=0))
        house.admitted(house.bound(new := a_qgpu_pod("new", card=1)))
        house.kubelet.held[uid(new)] = dict(house.kubelet.held[uid(old)])
        before = house.specs()
        assert "two Pods" in refusal(house, new)
        assert house.specs() == before


class TestInitContainers:
    def test_one_of_equal_size_has_the_devices_of_the_application_and_gets_what_it_gets(self, house: House) -> None:
        seen = house.run(pod := a_qgpu_pod(init={"warm": (20, 4)}, card=1))
        assert seen["warm"] == seen["main"]
        assert seen["main"].tenant == uid(pod)

    @pytest.mark.parametrize("size", [(10, 2), (40, 8)], ids=["smaller", "larger"])
    def test_one_of_another_size_is_known_by_the_kubelets_own_file(self, house: House, size: tuple[int, int]) -> None:
        seen = house.run(pod := a_qgpu_pod(init={"warm": size}, card=1))
        assert {each.tenant for each in seen.values()} == {uid(pod)}
        assert {each.cards for each in seen.values()} == {"GPU-1"}

    @pytest.mark.parametrize("size", [(10, 2), (40, 8)], ids=["smaller", "larger"])
    def test_and_gets_the_card_that_it_was_given_itself(self, house: House, size: tuple[int, int]) -> None:
        seen = house.run(a_qgpu_pod(init={"warm": size}, card={"warm": 1, "main": 0}))
        assert (seen["warm"].cards, seen["main"].cards) == ("GPU-1", "GPU-0")

    def test_one_that_shares_devices_with_two_containers_is_still_of_one_pod(self, house: House) -> None:
        pod = a_qgpu_pod(containers={"a": (20, 2), "b": (20, 2)}, init={"warm": (40, 4)})
        assert {each.tenant for each in house.run(pod).values()} == {uid(pod)}

    def test_sidecars_have_devices_and_cards_of_their_own(self, house: House) -> None:
        pod = a_qgpu_pod(sidecars={"side": (20, 4)}, card={"side": 1, "main": 0})
        seen = house.run(pod)
        assert (seen["side"].cards, seen["main"].cards) == ("GPU-1", "GPU-0")

    def test_without_the_file_a_larger_one_is_known_by_the_devices_that_the_application_got_of_it(
        self, house: House
    ) -> None:
        house.kubelet.private_file = False
        house.admitted(house.bound(pod := a_qgpu_pod(init={"warm": (40, 8)}, card=1)))
        assert house.started(pod, "warm").tenant == uid(pod)

    def test_one_that_nobody_lists_is_found_though_the_watch_lags(self, house: House) -> None:
        house.admitted(house.bound(pod := a_pod_whose_application_asks_for_no_core(), quietly=True))
        assert house.started(pod, "warm").tenant == uid(pod)

    def test_without_the_file_one_that_nobody_lists_is_refused_until_it_is_there(self, house: House) -> None:
        house.kubelet.private_file = False
        house.admitted(house.bound(pod := a_pod_whose_application_asks_for_no_core()))
        assert "does not say which Pod holds these 40 devices" in refusal(house, pod, "warm")
        house.kubelet.private_file = True
        assert house.started(pod, "warm").tenant == uid(pod)


class TestAPodMadeAnewUnderItsName:
    """As a StatefulSet does: same name, another UID, perhaps another card."""

    def test_the_new_one_gets_its_own_though_the_watch_still_tells_of_the_old(self, house: House) -> None:
        house.run(old := a_qgpu_pod("web-0", card=0))
        house.deleted(old, quietly=True)
        house.admitted(house.bound(new := a_qgpu_pod("web-0", card=1), quietly=True))
        seen = house.started(new)
        assert (seen.tenant, seen.cards) == (uid(new), "GPU-1")
        house.watch()
        house.tenants.sweep()
        assert house.remains() == {place: set() if place in ("drafts", "links") else {uid(new)} for place in NOTHING}

    def test_and_without_the_kubelets_file_too(self, house: House) -> None:
        house.kubelet.private_file = False
        house.run(old := a_qgpu_pod("web-0", card=0))
        house.deleted(old, quietly=True)
        house.admitted(house.bound(new := a_qgpu_pod("web-0", card=1), quietly=True))
        assert house.started(new).cards == "GPU-1"

    def test_a_container_of_the_old_one_does_not_get_what_the_new_one_was_given(self, house: House) -> None:
        house.run(old := a_qgpu_pod("web-0", card=0))
        house.api.delete(old)  # by force: the kubelet still has it
        house.bound(a_qgpu_pod("web-0", card=1), quietly=True)
        house.watch()
        assert "was replaced" in refusal(house, old)

    def test_nor_does_it_where_the_new_one_is_on_another_node(self, house: House) -> None:
        house.kubelet.private_file = False
        house.run(old := a_qgpu_pod("web-0", card=0))
        house.api.delete(old)
        house.api.put(a_qgpu_pod("web-0", card=1, node="n2"))
        house.api.untold.pop()  # our watch is of our own Pods
        house.watch()
        assert refusal(house, old) == f"the Pod is bound to n2, but this is node {NODE}"


class TestWhatTheApiServerTells:
    def test_a_pod_that_the_watch_told_is_not_asked_for_again(self, house: House) -> None:
        house.run(a_qgpu_pod())
        assert house.api.gets == 0

    def test_one_that_it_has_not_told_yet_is_asked_for(self, house: House) -> None:
        house.bound(pod := a_qgpu_pod(card=1), quietly=True)
        house.admitted(pod)
        assert house.started(pod).cards == "GPU-1"

    def test_while_nobody_answers_known_pods_start_and_others_are_refused(self, house: House) -> None:
        house.admitted(house.bound(known := a_qgpu_pod("known")))
        house.admitted(house.bound(unknown := a_qgpu_pod("unknown"), quietly=True))
        house.api.away = True
        assert house.started(known).tenant == uid(known)
        assert refusal(house, unknown) == "cannot read Pod ml/unknown from the API server: connection refused"
        house.api.away = False
        assert house.started(unknown).tenant == uid(unknown)

    def test_a_pod_that_is_gone_is_refused(self, house: House) -> None:
        house.admitted(house.bound(pod := a_qgpu_pod()))
        house.api.delete(pod)
        house.watch()
        assert 'pods "train-0" not found' in refusal(house, pod)

    def test_one_that_goes_while_it_is_asked_for_leaves_nothing(self, house: House) -> None:
        house.admitted(house.bound(pod := a_qgpu_pod(), quietly=True))

        def gone() -> None:
            house.api.delete(pod)
            house.watch()

        house.api.late = gone
        assert "was deleted" in refusal(house, pod)
        assert house.remains() == NOTHING

    def test_one_that_goes_while_the_kubelet_is_asked_leaves_nothing(self, house: House) -> None:
        house.admitted(house.bound(pod := a_qgpu_pod()))

        def gone() -> None:
            house.kubelet.whisper = lambda: None
            house.api.delete(pod)
            house.watch()

        house.kubelet.whisper = gone
        refusal(house, pod)
        assert house.remains() == NOTHING

    def test_one_that_has_run_to_its_end_gets_no_cards_any_more(self, house: House) -> None:
        house.admitted(house.bound(pod := a_qgpu_pod()))
        house.api.put({**pod, "status": {"phase": "Failed"}})
        house.watch()
        assert "the Pod has ended" in refusal(house, pod)
        assert house.remains() == NOTHING


class TestWhoIsRefused:
    def test_a_pod_that_was_scheduled_past_us_with_an_event_that_says_what_to_do(self, house: House) -> None:
        house.admitted(house.bound(pod := a_qgpu_pod(granted=False)))
        why = refusal(house, pod)
        assert "aliquot granted no card to this Pod" in why
        assert "aliquot manifests scheduler-config" in why
        assert house.told == [("train-0", "GPURefused", why)]
        assert house.remains() == NOTHING

    def test_it_starts_as_soon_as_the_reason_is_gone(self, house: House) -> None:
        house.admitted(house.bound(pod := a_qgpu_pod(granted=False)))
        refusal(house, pod)
        pod["metadata"]["annotations"] = grant_of(pod, 1)
        house.bound(pod)
        assert house.started(pod).cards == "GPU-1"

    def test_a_grant_of_another_node(self, house: House) -> None:
        pod = a_qgpu_pod(granted=False)
        pod["metadata"]["annotations"] = grant_of(pod, 0, node="n2")
        house.admitted(house.bound(pod))
        assert "a grant for the Pod's node, n1; this one is stale" in refusal(house, pod)

    def test_a_grant_that_is_not_what_the_pod_asks_for(self, house: House) -> None:
        pod = a_qgpu_pod(gib=4)
        pod["spec"]["containers"][0]["resources"]["limits"][QGPU_MEMORY] = 8
        house.admitted(house.bound(pod))
        assert "as much memory as main requests" in refusal(house, pod)

    def test_a_grant_of_a_card_that_is_gone(self, house: House) -> None:
        house.admitted(house.bound(pod := a_qgpu_pod(card=1)))
        house.health.cards = house.health.cards[:1]
        assert refusal(house, pod) == "the Pod was granted card GPU-1, which this node does not have"

    def test_a_grant_of_a_card_that_is_gone_whose_number_another_card_of_the_pod_has_now(self, house: House) -> None:
        pod = a_qgpu_pod(containers={"a": (20, 4), "b": (20, 4)}, card={"a": 0, "b": 1})
        house.admitted(house.bound(pod))
        house.health.cards = (replace(house.health.cards[1], index=0),)
        for container in ("a", "b"):
            assert refusal(house, pod, container) == "the Pod was granted card GPU-0, which this node does not have"

    def test_a_grant_of_a_card_that_is_out_until_it_is_back(self, house: House) -> None:
        house.admitted(house.bound(pod := a_qgpu_pod(card=1)))
        house.health.why["GPU-1"] = "Xid 79, it fell off the bus"
        assert refusal(house, pod) == "card 1 (GPU-1) is out: Xid 79, it fell off the bus"
        house.health.why.clear()
        assert house.started(pod).cards == "GPU-1"

    def test_a_pod_on_a_well_card_is_not_touched_by_a_sick_one(self, house: House) -> None:
        house.health.why["GPU-1"] = "out"
        assert house.run(a_qgpu_pod(card=0))["main"].cards == "GPU-0"

    def test_whoever_the_kubelet_does_not_tell_of(self, house: House) -> None:
        house.admitted(house.bound(pod := a_qgpu_pod()))
        house.kubelet.deaf = True
        assert "listing PodResources: no answer" in refusal(house, pod)
        house.kubelet.deaf = False
        assert house.started(pod).tenant == uid(pod)

    def test_devices_that_nobody_holds(self, house: House) -> None:
        with pytest.raises(Refused, match="does not say which Pod holds these 1 devices of tke"):
            play(house.allocator.prepare(QGPU_CORE, frozenset({"GPU-0-_-1"})))

    def test_a_pod_that_asks_for_no_card(self, house: House) -> None:
        pod = a_qgpu_pod()
        house.admitted(pod)
        pod["spec"]["containers"] = [a_container("main", {})]
        house.bound(pod)
        assert refusal(house, pod) == "the Pod requests no GPU"

    def test_a_request_that_breaks_a_rule_by_that_rule(self, house: House) -> None:
        pod = a_qgpu_pod()
        pod["spec"]["containers"][0]["resources"]["limits"] = {QGPU_CORE: 20}
        house.admitted(house.bound(pod))
        assert "qgpu-memory" in refusal(house, pod)

    def test_a_refusal_is_logged_once_however_often_the_kubelet_tries(
        self, house: House, caplog: pytest.LogCaptureFixture
    ) -> None:
        house.admitted(house.bound(first := a_qgpu_pod("first", granted=False)))
        house.admitted(house.bound(second := a_qgpu_pod("second", granted=False)))
        for pod in (first, first, second, first, second):
            refusal(house, pod)
        said = [record for record in caplog.records if record.message == "container_refused"]
        assert [each.__dict__["data"]["pod"] for each in said] == ["ml/first", "ml/second"]

    def test_of_refusals_that_were_logged_only_so_many_are_remembered(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(allocation, "_MOST_LOGGED", 2)
        for name in ("a", "b", "c"):
            house.admitted(house.bound(pod := a_qgpu_pod(name, granted=False)))
            refusal(house, pod)
        assert len(house.allocator._logged) == 2


class TestRoomOnTheCard:
    def test_one_too_many_is_refused_though_two_schedulers_put_it_there(self, house: House) -> None:
        house.run(a_qgpu_pod("first", gib=12))
        house.admitted(house.bound(pod := a_qgpu_pod("second", gib=12)))
        why = refusal(house, pod)
        assert "card 0 has 4 GiB free, needs 12 GiB" in why
        assert "two schedulers" in why
        assert uid(pod) not in house.remains()["database"]

    def test_whose_end_we_have_not_heard_of_does_not_stand_in_the_way(self, house: House) -> None:
        house.run(first := a_qgpu_pod("first", gib=12))
        house.deleted(first, quietly=True)
        house.admitted(house.bound(second := a_qgpu_pod("second", gib=12), quietly=True))
        assert house.started(second).tenant == uid(second)

    def test_whose_processes_still_run_does(self, house: House) -> None:
        house.run(first := a_qgpu_pod("first", gib=12))
        house.api.delete(first)  # by force
        house.watch()
        house.tenants.sweep()
        house.admitted(house.bound(second := a_qgpu_pod("second", gib=12)))
        why = refusal(house, second)
        assert "needs 12 GiB; Pod ml/first has ended, but its processes are still on the card" in why
        house.processes.clear()
        assert house.started(second).tenant == uid(second)

    def test_an_api_server_that_is_away_delays_the_refusal_only_a_little(self, house: House) -> None:
        house.agent.pod_cache._patience = 0.01
        house.run(a_qgpu_pod("first", gib=12))
        house.admitted(house.bound(pod := a_qgpu_pod("second", gib=12)))
        house.api.away = True
        assert "needs 12 GiB" in refusal(house, pod)

    def test_a_pod_is_not_in_its_own_way_when_it_restarts(self, house: House) -> None:
        house.run(pod := a_qgpu_pod(gib=12, core=60))
        assert house.started(pod).tenant == uid(pod)


class TestWhenWritingFails:
    def test_a_full_disk_refuses_the_pod_and_the_next_try_succeeds(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house.admitted(house.bound(pod := a_qgpu_pod()))
        with monkeypatch.context() as patch:
            patch.setattr(PodStore, "add", _full)
            assert "database or disk is full" in refusal(house, pod)
        assert house.remains() == NOTHING
        assert house.started(pod).tenant == uid(pod)

    def test_a_tenants_folder_that_cannot_be_made_is_named(self, house: House) -> None:
        house.admitted(house.bound(pod := a_qgpu_pod()))
        house.arbiter.broken.add(uid(pod))
        assert re.search(rf"{uid(pod)}: .*No space left on device", refusal(house, pod))
        house.arbiter.broken.clear()
        assert house.started(pod).tenant == uid(pod)

    def test_a_cdi_folder_that_is_gone_is_named_with_what_to_do(self, house: House) -> None:
        house.admitted(house.bound(pod := a_qgpu_pod()))
        shutil.rmtree(house.folder / "cdi")
        assert "cdi_spec_dirs" in refusal(house, pod)
        (house.folder / "cdi").mkdir()
        assert house.started(pod).tenant == uid(pod)

    def test_a_driver_file_that_does_not_tell_refuses(self, house: House) -> None:
        def fails(uuids: object) -> object:
            raise DriverFileError("run `nvidia-ctk cdi generate`")

        house.driver = fails  # type: ignore[assignment]  # it never answers
        house.admitted(house.bound(pod := a_qgpu_pod()))
        assert (
            refusal(house, pod)
            == "the aliquot agent of this node cannot prepare the container: run `nvidia-ctk cdi generate`"
        )

    def test_a_name_that_cannot_be_cleared_is_not_given_away(self, house: House) -> None:
        house.run(pod := a_qgpu_pod())
        spec = house.specs()[0]
        path = house.folder / "cdi" / spec.name.file
        path.unlink()
        path.mkdir()  # what nobody can unlink
        held = next(ids for (_, of), ids in house.kubelet.held[uid(pod)].items() if of.endswith("core"))
        with pytest.raises(Refused, match=str(house.folder / "cdi")):
            house.allocator.allocate(QGPU_CORE, held)


class TestWithoutCdi:
    @pytest.fixture
    def house(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
        made = House(tmp_path, monkeypatch, cdi=False)
        made.sync()
        yield made
        made.store.close()

    def test_a_container_finds_its_folder_and_the_shim_and_brings_its_environment(self, house: House) -> None:
        seen = house.run(pod := a_qgpu_pod(by_annotation=True))["main"]
        assert seen.tenant == uid(pod)
        assert "/usr/local/lib/aliquot/libaliquot.so" in seen.mounts
        assert house.specs() == []
        house.deleted(pod)
        assert house.remains() == NOTHING

    def test_one_that_brings_none_is_refused_with_an_event_that_says_what_to_switch_on(self, house: House) -> None:
        house.admitted(house.bound(pod := a_qgpu_pod()))
        assert "--env-by-annotation" in refusal(house, pod)
        assert [reason for _, reason, _ in house.told] == ["GPURefused"]

    def test_devices_that_come_again_lead_to_their_new_pod(self, house: House) -> None:
        house.run(old := a_qgpu_pod("old", by_annotation=True))
        house.deleted(old, quietly=True)
        assert house.run(new := a_qgpu_pod("new", by_annotation=True))["main"].tenant == uid(new)
        house.watch()
        house.tenants.sweep()
        assert house.made(new).tenant == uid(new)


class TestAGrantThatWasChanged:
    def test_while_the_pod_runs_is_refused_for_what_runs_is_still_on_its_card(self, house: House) -> None:
        house.run(pod := a_qgpu_pod(card=0))
        pod["metadata"]["annotations"] = grant_of(pod, 1)
        house.bound(pod)
        assert "the grant changed while the Pod runs" in refusal(house, pod)
        assert house.arbiter.tenants[uid(pod)].allotments[0].uuid == "GPU-0"

    def test_before_any_process_of_it_ran_is_followed(self, house: House) -> None:
        house.run(pod := a_qgpu_pod(card=0))
        house.processes.clear()
        pod["metadata"]["annotations"] = grant_of(pod, 1)
        house.bound(pod)
        assert house.started(pod).cards == "GPU-1"
        assert house.arbiter.tenants[uid(pod)].allotments[0].uuid == "GPU-1"

    def test_another_number_of_the_same_card_is_no_change(self, house: House) -> None:
        house.run(pod := a_qgpu_pod(card=1))
        first, second = house.health.cards
        house.health.cards = (replace(second, index=0), replace(first, index=1))
        assert house.started(pod).cards == "GPU-1"
        assert house.steps.count("arbiter.remove") == 0


class TestPeers:
    def test_a_grant_is_read_by_the_rules_it_was_given_by(self, house: House) -> None:
        pod = a_qgpu_pod(core=100, granted=False)
        pod["metadata"]["annotations"] = grant_of(pod, 1, rules=Rules(qgpu=QgpuRules.Y2026))
        assert house.run(pod)["main"].cards == "GPU-1"

    def test_a_gpushare_pod_gets_the_environment_that_its_dialect_promises(self, house: House) -> None:
        pod = a_pod("bin-0", a_container("main", {MEM: 4}), on=NODE)
        pod["metadata"] |= {"uid": "uid-bin", "namespace": "ml"}
        pod["metadata"]["annotations"] = grant_of(pod, 1)
        env = house.run(pod)["main"].env
        assert (env["NVIDIA_VISIBLE_DEVICES"], env["ALIYUN_COM_GPU_MEM_IDX"]) == ("GPU-1", "1")
        assert (env["ALIYUN_COM_GPU_MEM_CONTAINER"], env["ALIYUN_COM_GPU_MEM_DEV"]) == ("4", "16")

    def test_one_that_their_own_scheduler_placed_is_led_to_the_card_of_that_number(self, house: House) -> None:
        pod = a_pod("bin-0", a_container("main", {MEM: 4}), on=NODE)
        pod["metadata"] |= {"uid": "uid-bin", "namespace": "ml"}
        pod["metadata"]["annotations"] = {
            "ALIYUN_COM_GPU_MEM_IDX": "1",
            "ALIYUN_COM_GPU_MEM_POD": "4",
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        }
        assert house.run(pod)["main"].cards == "GPU-1"
        assert house.tenants.tenancies["uid-bin"].shares[0].uuid == "GPU-1"

    def test_two_resources_of_gpushare_are_one_place(self, house: House) -> None:
        pod = a_pod("bin-0", a_container("main", {MEM: 4, COUNT: 1}), on=NODE)
        pod["metadata"] |= {"uid": "uid-bin", "namespace": "ml"}
        pod["metadata"]["annotations"] = grant_of(pod, 1)
        assert house.run(pod)["main"].cards == "GPU-1"


def a_pod_whose_application_asks_for_no_core() -> Json:
    """So that nobody but the init container has devices of that resource."""
    pod = a_qgpu_pod(init={"warm": (40, 8)}, containers={"main": (20, 0)}, granted=False)
    del pod["spec"]["containers"][0]["resources"]["limits"][QGPU_CORE]
    pod["metadata"]["annotations"] = grant_of(pod, 0)
    return pod


def _full(*_: object) -> None:
    raise StoreError("state.db: database or disk is full: free some space")
