"""Pods as tenants: written down before they are let in, let go only when nothing of them lives, and then without a
trace."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from aliquot.adapters.storage.cdifolder import CdiError
from aliquot.adapters.storage.podstore import PodStore, StoreError
from aliquot.model.claim import AppClass, Role, Usage
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.tenancy import Tenancy, shares_of
from aliquot.model.tenant import Allotment, SharingRules, Tenant
from aliquot.services.agent.tenants import AdmissionError, PodTenants
from aliquot.services.runtime.arbiterd import Arbiterd
from kit.cards.arbiterd import Nvml
from kit.clusters.fakeapi import Clock
from kit.values.builders import GIB

SHARE = Share(0, 4 * GIB, 200, uuid="GPU-0")


def a_tenancy(uid: str = "u1", *shares: Share, **more: Any) -> Tenancy:
    return Tenancy(uid, "ml", f"pod-{uid}", more.get("app_class", AppClass.NORMAL), shares or (SHARE,), 5.0)


@dataclass
class Noted:
    """An arbiter that only notes; `events` is shared with the other parts, so that the order shows."""

    events: list[str]
    living: set[str] = field(default_factory=set)
    tenants: dict[str, Tenant] = field(default_factory=dict)
    fails: Exception | None = None

    def add(self, tenant: Tenant, directory: Path) -> None:
        self.events.append(f"add {tenant.id}")
        if self.fails is not None:
            raise self.fails
        directory.mkdir(parents=True, exist_ok=True)
        self.tenants.setdefault(tenant.id, tenant)

    def remove(self, tenant_id: str) -> None:
        self.events.append(f"remove {tenant_id}")
        self.tenants.pop(tenant_id, None)

    def alive(self, tenant_id: str) -> bool:
        return tenant_id in self.living


class Scene:
    """Tenants on a real database."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.events = folder, Clock(), list[str]()
        self.arbiter = Noted(self.events)
        self.withdrawing: Exception | None = None
        self.store = PodStore(folder / "state.db", boot="b")
        self.tenants = self.another()
        (folder / "t").mkdir()

    def another(self) -> PodTenants:
        """As after a restart."""
        self.tenants = PodTenants(
            self.store,
            self.arbiter,
            self.folder / "t",
            clock=self.clock,
            remove_injections=self._remove_injections,
        )
        return self.tenants

    def _remove_injections(self, uid: str) -> None:
        self.events.append(f"remove injections of {uid}")
        if self.withdrawing is not None:
            raise self.withdrawing


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path)
    for name in ("add", "remove"):
        done = getattr(PodStore, name)

        def noted(this: PodStore, what: Any, _done: Any = done, _name: str = name) -> None:
            _done(this, what)
            made.events.append(f"{_name} in the database")

        monkeypatch.setattr(PodStore, name, noted)
    yield made
    made.store.close()


class TestAdmit:
    def test_admit_writes_the_database_before_the_folder(self, scene: Scene) -> None:
        scene.tenants.admit(a_tenancy())
        assert scene.events == ["add in the database", "add u1"]

    def test_admit_passes_the_grant_to_the_arbiter_for_any_user(self, scene: Scene) -> None:
        scene.tenants.admit(a_tenancy(app_class=AppClass.ONLINE))
        allotment = Allotment("GPU-0", 4 << 30, 200)
        assert scene.arbiter.tenants["u1"] == Tenant("u1", "ml/pod-u1", AppClass.ONLINE, (allotment,), uid=None)

    def test_admit_twice_writes_nothing_and_checks_the_folder(self, scene: Scene) -> None:
        scene.tenants.admit(a_tenancy())
        scene.events.clear()
        scene.tenants.admit(replace(a_tenancy(), created=6.0))
        assert scene.events == ["add u1"]
        assert scene.tenants.tenancies["u1"].created == 5.0

    def test_admit_fails_when_the_database_cannot_be_written(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(PodStore, "add", _full)
        with pytest.raises(StoreError):
            scene.tenants.admit(a_tenancy())
        assert (scene.tenants.tenancies, scene.arbiter.tenants) == ({}, {})

    def test_admit_names_a_folder_that_cannot_be_created(self, scene: Scene) -> None:
        scene.arbiter.fails = OSError(28, "No space left on device")
        with pytest.raises(AdmissionError, match=f"{scene.folder}/t/u1: .*No space left"):
            scene.tenants.admit(a_tenancy())

    def test_admit_writes_a_changed_grant_before_it_removes_the_old(self, scene: Scene) -> None:
        scene.tenants.admit(a_tenancy())
        scene.events.clear()
        scene.tenants.admit(a_tenancy("u1", structs.replace(SHARE, memory_mib=8 * GIB)))
        assert scene.events == ["add in the database", "remove u1", "add u1"]
        assert scene.arbiter.tenants["u1"].allotments[0].memory_bytes == 8 << 30

    def test_admit_refuses_a_changed_grant_while_a_process_runs(self, scene: Scene) -> None:
        scene.tenants.admit(a_tenancy())
        scene.arbiter.living.add("u1")
        scene.events.clear()
        with pytest.raises(AdmissionError, match="create it again"):
            scene.tenants.admit(a_tenancy("u1", structs.replace(SHARE, uuid="GPU-1")))
        assert scene.events == []

    def test_admit_writes_a_renumbered_card_and_removes_nothing(self, scene: Scene) -> None:
        scene.tenants.admit(a_tenancy())
        scene.arbiter.living.add("u1")
        scene.events.clear()
        scene.tenants.admit(a_tenancy("u1", structs.replace(SHARE, card=3)))
        assert scene.events == ["add in the database", "add u1"]

    def test_admit_of_an_ended_pod_keeps_it(self, scene: Scene) -> None:
        scene.tenants.admit(a_tenancy())
        scene.tenants.mark_ended("u1")
        scene.tenants.admit(a_tenancy())
        scene.tenants.sweep()
        assert "u1" in scene.tenants.tenancies


class TestRestore:
    def test_restore_adds_all_tenants_of_the_database_to_the_arbiter(self, scene: Scene) -> None:
        scene.tenants.admit(a_tenancy("u1"))
        scene.tenants.admit(a_tenancy("u2"))
        scene.arbiter.tenants.clear()
        assert scene.another().restore() == 2
        assert set(scene.arbiter.tenants) == set(scene.tenants.tenancies) == {"u1", "u2"}

    def test_restore_keeps_a_tenant_whose_folder_is_unusable(
        self, scene: Scene, caplog: pytest.LogCaptureFixture
    ) -> None:
        scene.tenants.admit(a_tenancy())
        scene.arbiter.fails = OSError(5, "Input/output error")
        scene.another().restore()
        assert set(scene.tenants.tenancies) == {"u1"}
        assert "tenant_not_restored" in caplog.text

    def test_unknown_folders_have_no_tenant(self, scene: Scene) -> None:
        scene.tenants.admit(a_tenancy())
        (scene.folder / "t" / "u9").mkdir()
        (scene.folder / "t" / "a-file").touch()
        assert scene.tenants.unknown_folders() == {"u9"}

    @pytest.mark.parametrize("uid", ["", ".", "..", "../t", "a/b"])
    def test_discard_ignores_what_is_no_uid(self, scene: Scene, uid: str) -> None:
        scene.tenants.admit(a_tenancy("u1"))
        scene.tenants.discard(uid)
        assert (scene.folder / "t/u1").is_dir()
        assert (scene.folder / "state.db").exists()

    def test_discard_removes_injections_before_the_folder(self, scene: Scene) -> None:
        (scene.folder / "t" / "u9").mkdir()
        scene.tenants.discard("u9")
        assert scene.events == ["remove injections of u9"]
        assert not (scene.folder / "t" / "u9").exists()


class TestRelease:
    def test_release_removes_injections_then_folder_then_database(self, scene: Scene) -> None:
        scene.tenants.admit(a_tenancy())
        scene.events.clear()
        scene.tenants.mark_ended("u1")
        scene.tenants.sweep()
        assert scene.events == ["remove injections of u1", "remove u1", "remove in the database"]
        assert (scene.tenants.tenancies, scene.store.tenancies()) == ({}, [])

    def test_release_waits_for_the_next_sweep(self, scene: Scene) -> None:
        scene.tenants.admit(a_tenancy())
        scene.tenants.mark_ended("u1")
        assert set(scene.tenants.tenancies) == {"u1"}

    def test_release_waits_for_the_last_process(self, scene: Scene) -> None:
        scene.tenants.admit(a_tenancy())
        scene.arbiter.living.add("u1")
        scene.tenants.mark_ended("u1")
        scene.tenants.sweep()
        assert scene.tenants.ended == {"u1"}
        scene.arbiter.living.clear()
        scene.tenants.sweep()
        assert (scene.tenants.tenancies, scene.tenants.ended) == ({}, frozenset())

    def test_running_pod_is_not_released(self, scene: Scene) -> None:
        scene.tenants.admit(a_tenancy())
        scene.tenants.mark_ended("u1")
        scene.tenants.mark_running("u1")
        scene.tenants.sweep()
        assert set(scene.tenants.tenancies) == {"u1"}

    def test_end_of_an_unknown_pod_is_ignored(self, scene: Scene) -> None:
        scene.tenants.mark_ended("u9")
        scene.tenants.sweep()
        assert scene.events == []

    def test_end_of_an_unknown_pod_removes_its_folder(self, scene: Scene) -> None:
        (scene.folder / "t" / "u9").mkdir()
        scene.tenants.mark_ended("u9")
        assert scene.tenants.ended == frozenset()
        scene.tenants.sweep()
        assert not (scene.folder / "t" / "u9").exists()

    def test_lingering_pod_is_returned_once_after_a_minute(self, scene: Scene) -> None:
        scene.tenants.admit(a_tenancy())
        scene.arbiter.living.add("u1")
        scene.tenants.mark_ended("u1")
        calls = []
        for _ in range(4):
            calls.append([tenancy.id for tenancy in scene.tenants.sweep()])
            scene.clock.sleep(40.0)
        assert calls == [[], [], ["u1"], []]

    @pytest.mark.parametrize("error", [CdiError("read-only"), OSError(30, "Read-only file system")])
    def test_failed_release_is_retried_and_does_not_delay_others(
        self, scene: Scene, error: Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        scene.tenants.admit(a_tenancy("u1"))
        scene.tenants.mark_ended("u1")
        scene.withdrawing = error
        scene.tenants.sweep()
        scene.tenants.sweep()
        assert caplog.text.count("tenant_release_failed") == 1
        scene.withdrawing = None
        scene.tenants.sweep()
        assert scene.tenants.tenancies == {}

    def test_release_on_a_full_disk_keeps_the_tenant_until_it_is_deleted(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scene.tenants.admit(a_tenancy("u1"))
        scene.tenants.admit(a_tenancy("u2"))
        scene.tenants.mark_ended("u1")
        with monkeypatch.context() as patch:
            patch.setattr(PodStore, "remove", _full)
            scene.tenants.sweep()
        assert set(scene.tenants.tenancies) == {"u1", "u2"}
        scene.tenants.sweep()
        assert {tenancy.id for tenancy in scene.store.tenancies()} == {"u2"}


def test_pods_whose_folders_could_not_be_opened_for_lack_of_files_are_restored_and_released_later(scene: Scene) -> None:
    for uid in ("u1", "u2"):
        scene.tenants.admit(a_tenancy(uid))
    scene.arbiter.tenants.clear()
    scene.arbiter.fails = OSError(errno.ENFILE, "Too many open files in system")
    scene.another().restore()
    scene.tenants.mark_ended("u2")
    scene.tenants.sweep()
    assert scene.tenants.tenancies.keys() == {"u1", "u2"}
    scene.arbiter.fails = None
    scene.tenants.sweep()
    assert scene.tenants.tenancies.keys() == scene.arbiter.tenants.keys() == {"u1"}
    scene.events.clear()
    scene.tenants.sweep()
    assert scene.events == []


class TestWithARealArbiter:
    def test_pod_has_a_page_and_a_socket_for_any_user_until_release(self, tmp_path: Path) -> None:
        nvml: Any = Nvml()
        arbiter = Arbiterd([Card(0, 16 * GIB, "GPU-0")], rules=SharingRules(), nvml=nvml, simulated=True)
        arbiter.start()
        store = PodStore(tmp_path / "state.db", boot="b")
        tenants = PodTenants(
            store=store, arbiter=arbiter, folder=tmp_path / "t", clock=lambda: 0.0, remove_injections=lambda uid: None
        )
        try:
            tenants.admit(a_tenancy())
            modes = {name: stat.S_IMODE(os.lstat(tmp_path / "t" / "u1" / name).st_mode) for name in ("page", "sock")}
            assert modes == {"page": 0o666, "sock": 0o666}
            page = (tmp_path / "t" / "u1" / "page").stat().st_ino
            tenants.admit(a_tenancy())
            assert (tmp_path / "t" / "u1" / "page").stat().st_ino == page
            tenants.mark_ended("u1")
            tenants.sweep()
            assert list((tmp_path / "t").iterdir()) == []
        finally:
            arbiter.stop()
            store.close()


# --- what a Pod as a whole holds --------------------------------------------------------------------------------------

amounts = st.none() | st.integers(0, 100).map(lambda percent: 10 * percent)
parts = st.lists(
    st.builds(Share, st.integers(0, 3), st.integers(0, 9), amounts, amounts, st.booleans()),
    max_size=3,
    unique_by=lambda share: share.card,
)


@st.composite
def grants(draw: st.DrawFn) -> Grant:
    """Any grant, init containers and sidecars first."""
    roles = draw(st.lists(st.sampled_from([Role.INIT, Role.SIDECAR]), max_size=3)) + [Role.MAIN] * draw(
        st.integers(1, 3)
    )
    containers = (ContainerGrant(f"c{at}", at, role, tuple(draw(parts))) for at, role in enumerate(roles))
    return Grant("u1", "n1", tuple(containers))


@given(grants())
def test_shares_of_have_the_most_used_at_once(grant: Grant) -> None:
    held = shares_of(grant, {})
    assert {share.card: _amounts(share.usage()) for share in held} == {
        card: _amounts(usage) for card, usage in grant.usage().items()
    }


def _amounts(usage: Usage) -> tuple[int, int, int, bool]:
    return usage.memory_mib, usage.core_milli, usage.greedy_milli, usage.exclusive > 0


@given(grants())
def test_shares_of_have_a_quota_only_if_a_container_requested_one(grant: Grant) -> None:
    for held in shares_of(grant, {}):
        here = [share for container in grant.containers for share in container.shares if share.card == held.card]
        assert (held.core_milli is None) == all(share.core_milli is None for share in here)
        assert (held.greedy_milli is None) == all(share.greedy_milli is None for share in here)


def test_shares_of_have_the_granted_uuid_or_that_of_the_number() -> None:
    grant = Grant("u1", "n1", (ContainerGrant("a", 0, Role.MAIN, (SHARE, Share(1, 5))),))
    assert [share.uuid for share in shares_of(grant, {0: "another", 1: "GPU-1"})] == ["GPU-0", "GPU-1"]


def _full(*_: object) -> None:
    raise StoreError("database or disk is full")
