"""An agent killed at any line leaves running Pods as they are, and the next one finds the rest and finishes.

And whatever happens in whatever order: each spec leads to the folder and the cards of a Pod that is there; a Pod that
is gone has left nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aliquot.adapters.storage.podstore import PodStore, StoreError
from aliquot.model.tenant import SharingRules
from aliquot.services.agent.deviceplugins import Refused
from kit.agentnode import House, Json, Killed, NotMade, a_qgpu_pod, play

EVERYWHERE = ("database", "memory", "arbiter", "folders", "specs")


def uid(pod: Json) -> str:
    found: str = pod["metadata"]["uid"]
    return found


def holds(house: House, *pods: Json) -> bool:
    """Whether these Pods, and no others, are in each place where Pods are kept."""
    remains, wanted = house.remains(), {uid(pod) for pod in pods}
    return all(remains[place] == wanted for place in EVERYWHERE) and not remains["drafts"] and not remains["links"]


def lose_everything(house: House) -> None:
    """The database, and all that is on the node of Pods."""
    house.store.close()
    for path in house.folder.glob("state.db*"):
        path.unlink()
    for name in ("t", "cdi"):
        shutil.rmtree(house.folder / name)
        (house.folder / name).mkdir()


def killed_at_each_write(house: House, scene: Callable[[], None]) -> Iterator[str]:
    """The scene is played until the first write, and the agent killed there and restarted; then until the second."""
    for at in range(100):
        house.steps.clear()
        house.kill_at = at
        try:
            scene()
        except Killed as step:
            house.restart()
            yield str(step)
        else:
            house.kill_at = None
            return
    raise AssertionError("the scene has no end")


class TestKilledAtAnyWrite:
    def test_while_a_pod_starts_the_kubelets_next_try_succeeds(self, house: House) -> None:
        house.run(other := a_qgpu_pod("other", card=0))
        pods: list[Json] = []

        def starts() -> None:
            pods.append(pod := a_qgpu_pod(f"p{len(pods)}", card=1, gib=1, core=1))
            house.admitted(house.bound(pod))
            house.started(pod)

        killed = 0
        for _ in killed_at_each_write(house, starts):
            killed += 1
            pod = pods[-1]
            if len([answer for answer in house.kubelet.answers if answer[0] == uid(pod)]) < 2:
                house.deleted(pod)  # refused at its admission: it never ran
                pods.pop()
                continue
            seen = house.started(pod)
            assert (seen.tenant, seen.cards) == (uid(pod), "GPU-1")
        assert killed == 7  # two names cleared; database, folder, spec; folder again, the second spec
        assert holds(house, other, *pods)

    def test_while_a_pod_ends_the_next_agent_lets_it_go(self, house: House) -> None:
        house.run(other := a_qgpu_pod("other", card=0))
        killed: list[str] = []

        def ends() -> None:
            house.kill_at, at = None, house.kill_at
            house.run(pod := a_qgpu_pod(f"p{len(killed)}", card=1))
            house.steps.clear()
            house.kill_at = at
            house.deleted(pod)

        for step in killed_at_each_write(house, ends):
            killed.append(step)
            assert holds(house, other), step
        assert killed == ["CdiFolder.remove", "CdiFolder.remove", "arbiter.remove", "PodStore.remove"]

    def test_a_pod_that_runs_does_not_notice(self, house: House) -> None:
        first = house.run(pod := a_qgpu_pod(card=1))["main"]
        page = house.folder / "t" / uid(pod) / "page"
        before = page.stat().st_ino
        house.restart()
        assert house.made(pod) == first
        assert page.stat().st_ino == before
        assert house.started(pod) == first

    def test_the_next_one_holds_it_as_it_was_told_to_before_it_asks_anybody(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house.run(pod := a_qgpu_pod())
        house.store.close()
        house.start()
        steps: list[object] = []
        monkeypatch.setattr(house.arbiter, "configure", lambda rules: steps.append(rules.release_delay))
        monkeypatch.setattr(house.arbiter, "start", lambda: steps.append("begins"))
        monkeypatch.setattr(house.arbiter, "add", lambda tenant, folder: steps.append(tenant.id))
        monkeypatch.setattr(house.arbiter, "stop", lambda: steps.append("ends"))
        monkeypatch.setattr("aliquot.services.agent.service.termination_signal", _at_once)
        monkeypatch.setattr(house.agent, "kube", contextlib.nullcontext())  # nobody answers
        house.agent._rules = SharingRules(release_delay=0.5)
        play(house.agent.run())
        assert steps == [0.5, "begins", uid(pod), "ends"]


def _at_once() -> asyncio.Event:
    told = asyncio.Event()
    told.set()
    return told


class TestWhatTheNextAgentFinds:
    def test_a_database_of_a_later_release_is_kept_aside_and_every_pod_is_found_again(self, house: House) -> None:
        """The agent went back to an earlier release: it must come up, and lose nobody."""
        house.run(one := a_qgpu_pod("one", card=0))
        house.run(other := a_qgpu_pod("other", card=1))
        with contextlib.closing(sqlite3.connect(house.folder / "state.db")) as database:
            database.execute("PRAGMA user_version = 9")
        house.restart()
        assert holds(house, one, other)
        assert len(list(house.folder.glob("state.db.later-*[0-9]"))) == 1
        assert house.started(one).tenant == uid(one)

    def test_a_pod_that_ended_while_nobody_watched_is_let_go(self, house: House) -> None:
        house.run(pod := a_qgpu_pod())
        house.deleted(pod, quietly=True)
        house.restart()
        assert holds(house)

    def test_a_pod_that_finished_while_nobody_watched_is_let_go(self, house: House) -> None:
        house.run(pod := a_qgpu_pod())
        house.processes.clear()
        house.api.put({**pod, "status": {"phase": "Succeeded"}})
        house.restart()
        assert holds(house)

    def test_its_name_may_be_anothers_by_now(self, house: House) -> None:
        house.run(old := a_qgpu_pod("web-0", card=0))
        house.deleted(old, quietly=True)
        house.bound(new := a_qgpu_pod("web-0", card=1), quietly=True)
        house.restart()
        assert holds(house)
        house.admitted(new)
        assert house.started(new).cards == "GPU-1"
        assert holds(house, new)

    def test_one_whose_processes_still_run_is_kept_until_they_end(self, house: House) -> None:
        house.run(pod := a_qgpu_pod())
        house.api.delete(pod)
        house.restart()
        assert uid(pod) in house.remains()["database"]
        assert uid(pod) in house.tenants.ended
        house.processes.clear()
        house.tenants.sweep()
        assert holds(house)

    def test_without_its_database_it_knows_them_by_their_folders_and_grants(self, house: House) -> None:
        house.run(pod := a_qgpu_pod(card=1))
        house.run(ended := a_qgpu_pod("ended"))
        house.deleted(ended, quietly=True)
        before = house.tenants.tenancies[uid(pod)].shares
        house.store.close()
        for path in house.folder.glob("state.db*"):
            path.unlink()
        house.restart()
        assert holds(house, pod)
        assert house.tenants.tenancies[uid(pod)].shares == before

    def test_without_its_database_and_all_folders_it_knows_them_by_the_kubelets_notes_and_their_grants(
        self, house: House
    ) -> None:
        for each in (pod := a_qgpu_pod(card=1), ended := a_qgpu_pod("ended")):
            house.run(each)
            house.api.put({**each, "status": {"phase": "Running"}})
        house.api.delete(ended)  # the kubelet has not noticed yet
        before = house.tenants.tenancies[uid(pod)].shares
        lose_everything(house)
        house.restart()
        assert house.remains()["database"] == {uid(pod)}
        assert house.tenants.tenancies[uid(pod)].shares == before
        assert house.started(pod).cards == "GPU-1"
        assert holds(house, pod)

    def test_one_that_was_refused_is_not_taken_in_for_that_the_kubelet_gave_it_devices(self, house: House) -> None:
        """Two schedulers gave the card away twice: who runs there must not find it taken when it restarts."""
        house.run(runs := a_qgpu_pod("runs", card=1, gib=12))
        house.api.put({**runs, "status": {"phase": "Running"}})
        house.admitted(house.bound(late := a_qgpu_pod("late", card=1, gib=12)))
        lose_everything(house)
        house.restart()
        with pytest.raises(Refused, match="two schedulers"):
            house.started(late)
        assert house.started(runs).cards == "GPU-1"
        assert holds(house, runs)

    def test_without_the_folders_it_makes_them_anew(self, house: House) -> None:
        house.run(pod := a_qgpu_pod(card=1))
        shutil.rmtree(house.folder / "t")
        shutil.rmtree(house.folder / "cdi")  # /run is empty after a reboot
        (house.folder / "t").mkdir()
        (house.folder / "cdi").mkdir()
        house.processes.clear()
        house.restart()
        with pytest.raises(NotMade):
            house.made(pod)
        assert house.started(pod).cards == "GPU-1"
        assert holds(house, pod)

    def test_a_folder_of_a_pod_whose_grant_cannot_be_read_does_not_stop_it_and_goes_with_the_pod(
        self, house: House
    ) -> None:
        house.run(pod := a_qgpu_pod())
        house.store.remove(uid(pod))
        pod["metadata"]["annotations"] = {}
        house.api.put(pod)
        house.restart()
        assert house.agent.restored.is_set()
        assert (house.folder / "t" / uid(pod)).is_dir()
        house.deleted(pod)
        assert holds(house)

    def test_a_pod_that_cannot_be_taken_in_again_does_not_stop_it(
        self, house: House, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house.run(pod := a_qgpu_pod())
        house.store.remove(uid(pod))

        def full(*_: object) -> None:
            raise StoreError("database or disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(PodStore, "add", full)
            house.restart()
        assert house.agent.restored.is_set()


class Node(RuleBasedStateMachine):
    """Pods come and go, containers start and restart, the watch lags, agents are killed, names come again."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.folder = tempfile.TemporaryDirectory(prefix="house-")
        self.house = House(Path(self.folder.name), self.patch)
        self.house.sync()
        self.there: list[Json] = []
        self.cards: dict[str, dict[str, str]] = {}

    def teardown(self) -> None:
        for pod in self.there:
            self.house.deleted(pod, quietly=True)
        self.processes_end()
        self.house.watch()
        self.house.tenants.sweep()
        assert holds(self.house)
        self.house.store.close()
        self.patch.undo()
        self.folder.cleanup()

    @rule(
        name=st.sampled_from(["web-0", "web-1", "web-2", "web-3"]),
        card=st.integers(0, 1),
        other=st.integers(0, 1),
        init=st.sampled_from([None, (10, 2), (20, 3)]),
        two=st.booleans(),
        quietly=st.booleans(),
    )
    def is_bound_and_admitted(
        self, name: str, card: int, other: int, init: tuple[int, int] | None, two: bool, quietly: bool
    ) -> None:
        if any(pod["metadata"]["name"] == name for pod in self.there):
            return
        containers = {"main": (10, 2), "beside": (10, 2)} if two else {"main": (10, 2)}
        cards = {"warm": card, "main": card, "beside": other}
        pod = a_qgpu_pod(name, containers=containers, init={"warm": init} if init else None, card=cards)
        self.there.append(self.house.admitted(self.house.bound(pod, quietly=quietly)))
        self.cards[uid(pod)] = {container: f"GPU-{cards[container]}" for container in containers}

    @precondition(lambda self: self.there)
    @rule(at=st.integers(0, 9), without_file=st.booleans())
    def a_container_starts(self, at: int, without_file: bool) -> None:
        pod = self.there[at % len(self.there)]
        self.house.kubelet.private_file = not without_file
        for name, card in self.cards[uid(pod)].items():
            seen = self.house.started(pod, name)
            assert (seen.tenant, seen.cards) == (uid(pod), card)
        self.house.kubelet.private_file = True

    @precondition(lambda self: any(pod["spec"].get("initContainers") for pod in self.there))
    @rule(at=st.integers(0, 9))
    def an_init_container_starts(self, at: int) -> None:
        pods = [pod for pod in self.there if pod["spec"].get("initContainers")]
        pod = pods[at % len(pods)]
        assert self.house.started(pod, "warm").tenant == uid(pod)

    @precondition(lambda self: self.there)
    @rule(at=st.integers(0, 9), quietly=st.booleans(), lingers=st.booleans())
    def is_deleted(self, at: int, quietly: bool, lingers: bool) -> None:
        pod = self.there.pop(at % len(self.there))
        ran = uid(pod) in self.house.processes
        self.house.deleted(pod, quietly=True)
        if lingers and ran:
            self.house.processes.add(uid(pod))
        if not quietly:
            self.house.watch()

    @precondition(lambda self: self.there)
    @rule(at=st.integers(0, 9))
    def finishes(self, at: int) -> None:
        pod = self.there.pop(at % len(self.there))
        self.house.finished(pod)
        self.house.api.delete(pod)

    @rule()
    def processes_end(self) -> None:
        self.house.processes &= {uid(pod) for pod in self.there}
        self.house.arbiter.processes = self.house.processes

    @rule()
    def the_watch_tells(self) -> None:
        self.house.watch()
        self.house.tenants.sweep()
        assert self.house.remains()["database"] <= {uid(pod) for pod in self.there} | self.house.processes

    @rule()
    def the_agent_is_killed_and_started(self) -> None:
        self.house.restart()
        assert self.house.remains()["database"] <= {uid(pod) for pod in self.there} | self.house.processes

    @precondition(lambda self: self.there)
    @rule(at=st.integers(0, 9), step=st.integers(0, 6))
    def it_is_killed_in_the_middle_of_a_start(self, at: int, step: int) -> None:
        self.house.steps.clear()
        self.house.kill_at = step
        try:
            self.a_container_starts(at, False)
        except Killed:
            self.house.restart()
        self.house.kill_at = None

    @invariant()
    def each_spec_leads_to_the_folder_and_the_cards_of_its_pod(self) -> None:
        for spec in self.house.specs():
            assert spec.pod_uid in self.cards
            folder = next(mount.host for mount in spec.edits.mounts if mount.container == "/run/aliquot/tenant")
            assert folder == str(self.house.folder / "t" / spec.pod_uid)
            theirs = self.cards[spec.pod_uid]
            assert spec.edits.env["NVIDIA_VISIBLE_DEVICES"] == theirs.get(spec.container, theirs["main"])

    @invariant()
    def whoever_runs_is_in_the_database_with_a_folder(self) -> None:
        remains = self.house.remains()
        running = self.house.processes & {uid(pod) for pod in self.there}
        assert running <= remains["database"] == remains["memory"] == remains["arbiter"]
        assert remains["database"] <= remains["folders"]
        assert remains["specs"] <= remains["database"]


TestAnything = Node.TestCase
TestAnything.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
