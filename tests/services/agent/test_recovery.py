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
from aliquot.services.agent.devices.plugins import Refused
from kit.agents.agentnode import AgentNode, Killed, NotMade, play
from kit.agents.allocations import uid
from kit.agents.grantedpods import Json, a_qgpu_pod

EVERYWHERE = ("database", "memory", "arbiter", "folders", "specs")


def holds(agent_node: AgentNode, *pods: Json) -> bool:
    """Whether these Pods, and no others, are in each place where Pods are kept."""
    remains, wanted = agent_node.remains(), {uid(pod) for pod in pods}
    return all(remains[place] == wanted for place in EVERYWHERE) and not remains["drafts"] and not remains["links"]


def lose_everything(agent_node: AgentNode) -> None:
    """The database, and all that is on the node of Pods."""
    agent_node.store.close()
    for path in agent_node.folder.glob("state.db*"):
        path.unlink()
    for name in ("t", "cdi"):
        shutil.rmtree(agent_node.folder / name)
        (agent_node.folder / name).mkdir()


def killed_at_each_write(agent_node: AgentNode, scene: Callable[[], None]) -> Iterator[str]:
    """The scene is played until the first write, and the agent killed there and restarted; then until the second."""
    for at in range(100):
        agent_node.steps.clear()
        agent_node.kill_at = at
        try:
            scene()
        except Killed as step:
            agent_node.restart()
            yield str(step)
        else:
            agent_node.kill_at = None
            return
    raise AssertionError("the scene has no end")


class TestKilledAtAnyWrite:
    def test_agent_killed_during_admission_succeeds_on_the_next_try(self, agent_node: AgentNode) -> None:
        agent_node.run(other := a_qgpu_pod("other", card=0))
        pods: list[Json] = []

        def starts() -> None:
            pods.append(pod := a_qgpu_pod(f"p{len(pods)}", card=1, gib=1, core=1))
            agent_node.admitted(agent_node.bound(pod))
            agent_node.started(pod)

        killed = 0
        for _ in killed_at_each_write(agent_node, starts):
            killed += 1
            pod = pods[-1]
            if len([answer for answer in agent_node.kubelet.answers if answer[0] == uid(pod)]) < 2:
                agent_node.deleted(pod)  # refused at its admission: it never ran
                pods.pop()
                continue
            seen = agent_node.started(pod)
            assert (seen.tenant, seen.cards) == (uid(pod), "GPU-1")
        assert killed == 7  # two names cleared; database, folder, spec; folder again, the second spec
        assert holds(agent_node, other, *pods)

    def test_agent_killed_during_release_is_finished_by_the_next(self, agent_node: AgentNode) -> None:
        agent_node.run(other := a_qgpu_pod("other", card=0))
        killed: list[str] = []

        def ends() -> None:
            agent_node.kill_at, at = None, agent_node.kill_at
            agent_node.run(pod := a_qgpu_pod(f"p{len(killed)}", card=1))
            agent_node.steps.clear()
            agent_node.kill_at = at
            agent_node.deleted(pod)

        for step in killed_at_each_write(agent_node, ends):
            killed.append(step)
            assert holds(agent_node, other), step
        assert killed == ["CdiFolder.remove", "CdiFolder.remove", "arbiter.remove", "PodStore.remove"]

    def test_agent_killed_while_a_pod_runs_changes_nothing(self, agent_node: AgentNode) -> None:
        first = agent_node.run(pod := a_qgpu_pod(card=1))["main"]
        page = agent_node.folder / "t" / uid(pod) / "page"
        before = page.stat().st_ino
        agent_node.restart()
        assert agent_node.made(pod) == first
        assert page.stat().st_ino == before
        assert agent_node.started(pod) == first

    def test_next_agent_restores_tenants_and_rules_before_any_request(
        self, agent_node: AgentNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        agent_node.run(pod := a_qgpu_pod())
        agent_node.store.close()
        agent_node.start()
        steps: list[object] = []
        monkeypatch.setattr(agent_node.arbiter, "configure", lambda rules: steps.append(rules.release_delay))
        monkeypatch.setattr(agent_node.arbiter, "start", lambda: steps.append("begins"))
        monkeypatch.setattr(agent_node.arbiter, "add", lambda tenant, folder: steps.append(tenant.id))
        monkeypatch.setattr(agent_node.arbiter, "stop", lambda: steps.append("ends"))
        monkeypatch.setattr("aliquot.services.agent.service.termination_signal", _at_once)
        monkeypatch.setattr(agent_node.agent, "kube", contextlib.nullcontext())  # nobody answers
        agent_node.agent._rules = SharingRules(release_delay=0.5)
        play(agent_node.agent.run())
        assert steps == [0.5, "begins", uid(pod), "ends"]


def _at_once() -> asyncio.Event:
    reported = asyncio.Event()
    reported.set()
    return reported


class TestRestore:
    def test_restore_with_a_database_of_a_later_release(self, agent_node: AgentNode) -> None:
        """The agent went back to an earlier release: it must come up, and lose nobody."""
        agent_node.run(one := a_qgpu_pod("one", card=0))
        agent_node.run(other := a_qgpu_pod("other", card=1))
        with contextlib.closing(sqlite3.connect(agent_node.folder / "state.db")) as database:
            database.execute("PRAGMA user_version = 9")
        agent_node.restart()
        assert holds(agent_node, one, other)
        assert len(list(agent_node.folder.glob("state.db.later-*[0-9]"))) == 1
        assert agent_node.started(one).tenant == uid(one)

    def test_restore_releases_a_pod_deleted_while_no_agent_ran(self, agent_node: AgentNode) -> None:
        agent_node.run(pod := a_qgpu_pod())
        agent_node.deleted(pod, quietly=True)
        agent_node.restart()
        assert holds(agent_node)

    def test_restore_releases_a_pod_finished_while_no_agent_ran(self, agent_node: AgentNode) -> None:
        agent_node.run(pod := a_qgpu_pod())
        agent_node.processes.clear()
        agent_node.api.put({**pod, "status": {"phase": "Succeeded"}})
        agent_node.restart()
        assert holds(agent_node)

    def test_restore_releases_a_pod_whose_name_was_reused(self, agent_node: AgentNode) -> None:
        agent_node.run(old := a_qgpu_pod("web-0", card=0))
        agent_node.deleted(old, quietly=True)
        agent_node.bound(new := a_qgpu_pod("web-0", card=1), quietly=True)
        agent_node.restart()
        assert holds(agent_node)
        agent_node.admitted(new)
        assert agent_node.started(new).cards == "GPU-1"
        assert holds(agent_node, new)

    def test_restore_keeps_an_ended_pod_until_its_processes_end(self, agent_node: AgentNode) -> None:
        agent_node.run(pod := a_qgpu_pod())
        agent_node.api.delete(pod)
        agent_node.restart()
        assert uid(pod) in agent_node.remains()["database"]
        assert uid(pod) in agent_node.tenants.ended
        agent_node.processes.clear()
        agent_node.tenants.sweep()
        assert holds(agent_node)

    def test_restore_without_database_reads_folders_and_grants(self, agent_node: AgentNode) -> None:
        agent_node.run(pod := a_qgpu_pod(card=1))
        agent_node.run(ended := a_qgpu_pod("ended"))
        agent_node.deleted(ended, quietly=True)
        before = agent_node.tenants.tenancies[uid(pod)].shares
        agent_node.store.close()
        for path in agent_node.folder.glob("state.db*"):
            path.unlink()
        agent_node.restart()
        assert holds(agent_node, pod)
        assert agent_node.tenants.tenancies[uid(pod)].shares == before

    def test_restore_without_database_and_folders_reads_checkpoint_and_grants(self, agent_node: AgentNode) -> None:
        for started in (pod := a_qgpu_pod(card=1), ended := a_qgpu_pod("ended")):
            agent_node.run(started)
            agent_node.api.put({**started, "status": {"phase": "Running"}})
        agent_node.api.delete(ended)  # the kubelet has not noticed yet
        before = agent_node.tenants.tenancies[uid(pod)].shares
        lose_everything(agent_node)
        agent_node.restart()
        assert agent_node.remains()["database"] == {uid(pod)}
        assert agent_node.tenants.tenancies[uid(pod)].shares == before
        assert agent_node.started(pod).cards == "GPU-1"
        assert holds(agent_node, pod)

    def test_restore_does_not_admit_a_refused_pod_with_devices(self, agent_node: AgentNode) -> None:
        """Two schedulers gave the card away twice: who runs there must not find it taken when it restarts."""
        agent_node.run(runs := a_qgpu_pod("runs", card=1, gib=12))
        agent_node.api.put({**runs, "status": {"phase": "Running"}})
        agent_node.admitted(agent_node.bound(late := a_qgpu_pod("late", card=1, gib=12)))
        lose_everything(agent_node)
        agent_node.restart()
        with pytest.raises(Refused, match="two schedulers"):
            agent_node.started(late)
        assert agent_node.started(runs).cards == "GPU-1"
        assert holds(agent_node, runs)

    def test_restore_creates_missing_folders(self, agent_node: AgentNode) -> None:
        agent_node.run(pod := a_qgpu_pod(card=1))
        shutil.rmtree(agent_node.folder / "t")
        shutil.rmtree(agent_node.folder / "cdi")  # /run is empty after a reboot
        (agent_node.folder / "t").mkdir()
        (agent_node.folder / "cdi").mkdir()
        agent_node.processes.clear()
        agent_node.restart()
        with pytest.raises(NotMade):
            agent_node.made(pod)
        assert agent_node.started(pod).cards == "GPU-1"
        assert holds(agent_node, pod)

    def test_restore_keeps_the_folder_of_an_unreadable_grant_until_the_pod_ends(self, agent_node: AgentNode) -> None:
        agent_node.run(pod := a_qgpu_pod())
        agent_node.store.remove(uid(pod))
        pod["metadata"]["annotations"] = {}
        agent_node.api.put(pod)
        agent_node.restart()
        assert agent_node.agent.restored.is_set()
        assert (agent_node.folder / "t" / uid(pod)).is_dir()
        agent_node.deleted(pod)
        assert holds(agent_node)

    def test_restore_continues_after_a_pod_that_cannot_be_admitted(
        self, agent_node: AgentNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        agent_node.run(pod := a_qgpu_pod())
        agent_node.store.remove(uid(pod))

        def full(*_: object) -> None:
            raise StoreError("database or disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(PodStore, "add", full)
            agent_node.restart()
        assert agent_node.agent.restored.is_set()


class Node(RuleBasedStateMachine):
    """Pods come and go, containers start and restart, the watch lags, agents are killed, names come again."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.folder = tempfile.TemporaryDirectory(prefix="agent_node-")
        self.agent_node = AgentNode(Path(self.folder.name), self.patch)
        self.agent_node.sync()
        self.there: list[Json] = []
        self.cards: dict[str, dict[str, str]] = {}

    def teardown(self) -> None:
        for pod in self.there:
            self.agent_node.deleted(pod, quietly=True)
        self.processes_end()
        self.agent_node.watch()
        self.agent_node.tenants.sweep()
        assert holds(self.agent_node)
        self.agent_node.store.close()
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
        self.there.append(self.agent_node.admitted(self.agent_node.bound(pod, quietly=quietly)))
        self.cards[uid(pod)] = {container: f"GPU-{cards[container]}" for container in containers}

    @precondition(lambda self: self.there)
    @rule(at=st.integers(0, 9), without_file=st.booleans())
    def a_container_starts(self, at: int, without_file: bool) -> None:
        pod = self.there[at % len(self.there)]
        self.agent_node.kubelet.private_file = not without_file
        for name, card in self.cards[uid(pod)].items():
            seen = self.agent_node.started(pod, name)
            assert (seen.tenant, seen.cards) == (uid(pod), card)
        self.agent_node.kubelet.private_file = True

    @precondition(lambda self: any(pod["spec"].get("initContainers") for pod in self.there))
    @rule(at=st.integers(0, 9))
    def an_init_container_starts(self, at: int) -> None:
        pods = [pod for pod in self.there if pod["spec"].get("initContainers")]
        pod = pods[at % len(pods)]
        assert self.agent_node.started(pod, "warm").tenant == uid(pod)

    @precondition(lambda self: self.there)
    @rule(at=st.integers(0, 9), quietly=st.booleans(), lingers=st.booleans())
    def is_deleted(self, at: int, quietly: bool, lingers: bool) -> None:
        pod = self.there.pop(at % len(self.there))
        ran = uid(pod) in self.agent_node.processes
        self.agent_node.deleted(pod, quietly=True)
        if lingers and ran:
            self.agent_node.processes.add(uid(pod))
        if not quietly:
            self.agent_node.watch()

    @precondition(lambda self: self.there)
    @rule(at=st.integers(0, 9))
    def finishes(self, at: int) -> None:
        pod = self.there.pop(at % len(self.there))
        self.agent_node.finished(pod)
        self.agent_node.api.delete(pod)

    @rule()
    def processes_end(self) -> None:
        self.agent_node.processes &= {uid(pod) for pod in self.there}
        self.agent_node.arbiter.processes = self.agent_node.processes

    @rule()
    def the_watch_tells(self) -> None:
        self.agent_node.watch()
        self.agent_node.tenants.sweep()
        assert self.agent_node.remains()["database"] <= {uid(pod) for pod in self.there} | self.agent_node.processes

    @rule()
    def the_agent_is_killed_and_started(self) -> None:
        self.agent_node.restart()
        assert self.agent_node.remains()["database"] <= {uid(pod) for pod in self.there} | self.agent_node.processes

    @precondition(lambda self: self.there)
    @rule(at=st.integers(0, 9), step=st.integers(0, 6))
    def it_is_killed_in_the_middle_of_a_start(self, at: int, step: int) -> None:
        self.agent_node.steps.clear()
        self.agent_node.kill_at = step
        try:
            self.a_container_starts(at, False)
        except Killed:
            self.agent_node.restart()
        self.agent_node.kill_at = None

    @invariant()
    def each_spec_leads_to_the_folder_and_the_cards_of_its_pod(self) -> None:
        for spec in self.agent_node.specs():
            assert spec.pod_uid in self.cards
            folder = next(mount.host for mount in spec.edits.mounts if mount.container == "/run/aliquot/tenant")
            assert folder == str(self.agent_node.folder / "t" / spec.pod_uid)
            theirs = self.cards[spec.pod_uid]
            assert spec.edits.env["NVIDIA_VISIBLE_DEVICES"] == theirs.get(spec.container, theirs["main"])

    @invariant()
    def whoever_runs_is_in_the_database_with_a_folder(self) -> None:
        remains = self.agent_node.remains()
        running = self.agent_node.processes & {uid(pod) for pod in self.there}
        assert running <= remains["database"] == remains["memory"] == remains["arbiter"]
        assert remains["database"] <= remains["folders"]
        assert remains["specs"] <= remains["database"]


TestAnything = Node.TestCase
TestAnything.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
