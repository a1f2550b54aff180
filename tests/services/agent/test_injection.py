"""How a container reaches its tenant's folder: under a name that no other container ever gets."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from aliquot.adapters.storage.cdifolder import CdiError, CdiFolder
from aliquot.dialects.wire.cdi import name_of, parse_spec, render_spec
from aliquot.dialects.wire.objects import PodObject
from aliquot.model.claim import AppClass
from aliquot.model.containers.edits import Edits, Mount, Spec
from aliquot.model.grant import Share
from aliquot.model.tenancy import Tenancy
from aliquot.services.agent.devices.plugins import Refused
from aliquot.services.agent.injection import CdiInjector, Injection, Libraries, MountInjector, RuntimeInjector

CORE = "tke.cloud.tencent.com/qgpu-core"
MEMORY = "tke.cloud.tencent.com/qgpu-memory"
IDS, OTHERS = frozenset({"GPU-0-_-1", "GPU-0-_-2"}), frozenset({"GPU-0-_-3"})
PRELOAD = Mount("/host/ld.so.preload", "/etc/ld.so.preload")


def a_place(uid: str = "u1", *, card: str = "GPU-0", env: dict[str, str] | None = None) -> Injection:
    tenancy = Tenancy(uid, "ml", f"pod-{uid}", AppClass.NORMAL, (Share(0, 1024, uuid=card),), 0.0)
    env = {"NVIDIA_VISIBLE_DEVICES": card} if env is None else env
    return Injection(tenancy, "main", (card,), env, visible={"CUDA_VISIBLE_DEVICES": card[-1]})


def a_pod(*, seen: bool = True, **cards: str) -> PodObject:
    """Bound with these cards for its containers, which read that where the webhook has seen the Pod."""
    keys = {name: f"env.aliquot.dev/{name}.NVIDIA_VISIBLE_DEVICES" for name in cards}
    by_key = {keys[name]: card for name, card in cards.items()}
    env = {
        name: {
            "name": "NVIDIA_VISIBLE_DEVICES",
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}},
        }
        for name, key in keys.items()
    }
    containers = [{"name": name, "env": [env[name]] if seen else None} for name in cards]
    return msgspec.convert(
        {"metadata": {"name": "p", "annotations": by_key}, "spec": {"containers": containers}}, PodObject
    )


def driver(uuids: Sequence[str]) -> Edits:
    """What a driver's file says of these cards."""
    hooks = [{"hookName": "createContainer", "path": "/hook"}]
    return Edits({"FROM": "driver", "TO": "driver"}, (Mount("/d", "/d"),), ("/dev/nvidia0",), {"hooks": hooks}, "0.6.0")


@pytest.fixture
def libraries() -> Libraries:
    return Libraries((PRELOAD,), {"TO": "libraries"}, driver)


@pytest.fixture
def cdi(tmp_path: Path) -> CdiFolder:
    (tmp_path / "cdi").mkdir()
    return CdiFolder(tmp_path / "cdi", render_spec, parse_spec)


@pytest.fixture
def by_cdi(tmp_path: Path, cdi: CdiFolder, libraries: Libraries) -> CdiInjector:
    return CdiInjector(cdi, tmp_path / "t", libraries)


@pytest.fixture
def by_mounts(tmp_path: Path, libraries: Libraries) -> MountInjector:
    (tmp_path / "a").mkdir()
    return MountInjector(tmp_path / "a", tmp_path / "t", libraries)


class TestCdiInjector:
    def spec(self, cdi: CdiFolder) -> Spec:
        (only,) = cdi.specs()
        return only

    def test_reserve_returns_only_a_device_name(self, by_cdi: CdiInjector) -> None:
        answer = by_cdi.reserve(CORE, IDS)
        assert answer.cdi == (name_of(CORE, IDS).qualified,)
        assert (answer.env, answer.mounts) == ({}, ())

    def test_reserve_writes_no_spec(self, by_cdi: CdiInjector, cdi: CdiFolder) -> None:
        by_cdi.reserve(CORE, IDS)
        assert cdi.specs() == []
        by_cdi.inject(CORE, IDS, a_place(), a_pod())
        assert self.spec(cdi).name == name_of(CORE, IDS)

    def test_spec_names_its_pod_and_container(self, by_cdi: CdiInjector, cdi: CdiFolder) -> None:
        by_cdi.inject(CORE, IDS, a_place(), a_pod())
        spec = self.spec(cdi)
        assert (spec.pod_uid, spec.namespace, spec.pod, spec.container) == ("u1", "ml", "pod-u1", "main")

    def test_spec_mounts_the_folder_read_only_and_the_page_writable(
        self, by_cdi: CdiInjector, cdi: CdiFolder, tmp_path: Path
    ) -> None:
        by_cdi.inject(CORE, IDS, a_place(), a_pod())
        folder = tmp_path / "t" / "u1"
        mounts = self.spec(cdi).edits.mounts
        assert mounts == (
            Mount("/d", "/d"),
            PRELOAD,
            Mount(str(folder), "/run/aliquot/tenant"),
            Mount(str(folder / "page"), "/run/aliquot/tenant/page", writable=True),
        )

    def test_spec_environment_precedence_is_dialect_node_driver(self, by_cdi: CdiInjector, cdi: CdiFolder) -> None:
        by_cdi.inject(CORE, IDS, a_place(env={"NVIDIA_VISIBLE_DEVICES": "GPU-0", "ALIQUOT_TENANT": "/evil"}), a_pod())
        assert self.spec(cdi).edits.env == {
            "FROM": "driver",
            "TO": "libraries",
            "NVIDIA_VISIBLE_DEVICES": "GPU-0",
            "ALIQUOT_TENANT": "/run/aliquot/tenant",
        }

    def test_spec_copies_the_drivers_edits_and_version(self, by_cdi: CdiInjector, cdi: CdiFolder) -> None:
        by_cdi.inject(CORE, IDS, a_place(), a_pod())
        edits = self.spec(cdi).edits
        assert (edits.devices, edits.version) == (("/dev/nvidia0",), "0.6.0")
        assert edits.extra == driver(()).extra

    def test_reserve_again_removes_the_injection(self, by_cdi: CdiInjector, cdi: CdiFolder) -> None:
        by_cdi.inject(CORE, IDS, a_place("old"), a_pod())
        by_cdi.reserve(CORE, IDS)
        assert (cdi.specs(), by_cdi.owners()) == ([], {})

    def test_remove_deletes_all_specs_of_the_pod_and_no_others(self, by_cdi: CdiInjector, cdi: CdiFolder) -> None:
        by_cdi.inject(CORE, IDS, a_place("u1"), a_pod())
        by_cdi.inject(MEMORY, IDS, a_place("u1"), a_pod())
        by_cdi.inject(CORE, OTHERS, a_place("u2"), a_pod())
        by_cdi.remove("u1")
        assert self.spec(cdi).pod_uid == "u2"
        assert by_cdi.owners() == {name_of(CORE, OTHERS).qualified: "u2"}

    def test_remove_keeps_a_spec_that_another_pod_has_by_now(self, by_cdi: CdiInjector, cdi: CdiFolder) -> None:
        by_cdi.inject(CORE, IDS, a_place("old"), a_pod())
        by_cdi.reserve(CORE, IDS)
        by_cdi.inject(CORE, IDS, a_place("new"), a_pod())
        by_cdi.remove("old")
        assert self.spec(cdi).pod_uid == "new"

    def test_owners_are_read_from_existing_specs(
        self, by_cdi: CdiInjector, cdi: CdiFolder, libraries: Libraries, tmp_path: Path
    ) -> None:
        by_cdi.inject(CORE, IDS, a_place(), a_pod())
        another = CdiInjector(cdi, tmp_path / "t", libraries)
        assert another.owners() == by_cdi.owners()
        another.remove("u1")
        assert cdi.specs() == []

    def test_inject_rewrites_a_deleted_spec(self, by_cdi: CdiInjector, cdi: CdiFolder) -> None:
        by_cdi.inject(CORE, IDS, a_place(), a_pod())
        (cdi.path / name_of(CORE, IDS).file).unlink()
        by_cdi.inject(CORE, IDS, a_place(), a_pod())
        assert self.spec(cdi).pod_uid == "u1"

    def test_cdi_folder_that_is_missing_is_an_error_only_on_inject(self, tmp_path: Path, libraries: Libraries) -> None:
        injector = CdiInjector(CdiFolder(tmp_path / "none", render_spec, parse_spec), tmp_path / "t", libraries)
        injector.remove("u1")
        with pytest.raises(CdiError, match="create it and add it to the container runtime's cdi_spec_dirs"):
            injector.inject(CORE, IDS, a_place(), a_pod())


class TestEnvironmentByFile:
    """For an agent without the CDI folder and without the webhook."""

    @pytest.fixture
    def by_file(self, tmp_path: Path, libraries: Libraries) -> MountInjector:
        return MountInjector(tmp_path / "a", tmp_path / "t", libraries, by_file=True)

    def file(self, by_file: MountInjector, ids: frozenset[str] = IDS) -> Path:
        mounts = by_file.reserve(CORE, ids).mounts
        return next(Path(mount.host) for mount in mounts if mount.container == "/run/aliquot/env")

    def test_reserve_gives_every_card_until_the_owner_is_known(self, by_file: MountInjector) -> None:
        assert by_file.reserve(CORE, IDS).env["NVIDIA_VISIBLE_DEVICES"] == "all"
        assert not self.file(by_file).exists()

    def test_inject_writes_the_environment_of_the_container(self, by_file: MountInjector) -> None:
        file = self.file(by_file)
        by_file.inject(CORE, IDS, a_place(card="GPU-1", env={"NVIDIA_VISIBLE_DEVICES": "GPU-1", "X": "a=b"}), a_pod())
        assert file.read_bytes() == b"CUDA_VISIBLE_DEVICES=1\0NVIDIA_VISIBLE_DEVICES=GPU-1\0X=a=b\0"
        assert file.stat().st_mode & 0o777 == 0o644

    def test_remove_deletes_the_files_of_the_pod_and_no_others(self, by_file: MountInjector) -> None:
        first, second = self.file(by_file), self.file(by_file, OTHERS)
        by_file.inject(CORE, IDS, a_place("u1"), a_pod())
        by_file.inject(CORE, OTHERS, a_place("u2"), a_pod())
        by_file.remove("u1")
        assert (first.exists(), second.exists()) == (False, True)

    def test_inject_replaces_a_folder_that_the_runtime_created(self, by_file: MountInjector) -> None:
        file = self.file(by_file)
        file.mkdir(parents=True)
        by_file.inject(CORE, IDS, a_place(), a_pod())
        assert file.is_file()


class TestMountInjector:
    def link(self, answer_of: MountInjector, ids: frozenset[str] = IDS) -> Path:
        (host,) = (
            mount.host for mount in answer_of.reserve(CORE, ids).mounts if mount.container == "/run/aliquot/tenant"
        )
        return Path(host)

    def test_reserve_mounts_a_path_that_does_not_exist_yet(self, by_mounts: MountInjector, tmp_path: Path) -> None:
        answer = by_mounts.reserve(CORE, IDS)
        link = self.link(by_mounts)
        assert link.parent == tmp_path / "a"
        assert not link.is_symlink()
        assert Mount(str(link / "page"), "/run/aliquot/tenant/page", writable=True) in answer.mounts
        assert PRELOAD in answer.mounts
        assert answer.env == {"FROM": "driver", "TO": "libraries", "ALIQUOT_TENANT": "/run/aliquot/tenant"}

    def test_inject_links_the_tenants_folder(self, by_mounts: MountInjector, tmp_path: Path) -> None:
        link = self.link(by_mounts)
        by_mounts.inject(CORE, IDS, a_place(), a_pod(main="GPU-0"))
        assert link.readlink() == tmp_path / "t" / "u1"

    def test_inject_refuses_a_pod_without_environment_by_annotation(self, by_mounts: MountInjector) -> None:
        with pytest.raises(Refused, match="--env-by-annotation and create the Pod again, or enable CDI"):
            by_mounts.inject(CORE, IDS, a_place(), a_pod())
        assert by_mounts.owners() == {}

    def test_inject_refuses_annotations_that_no_container_reads(self, by_mounts: MountInjector) -> None:
        """The Pod was made while the webhook was away: an NVIDIA_VISIBLE_DEVICES of the image's own would hold."""
        with pytest.raises(Refused, match="--env-by-annotation"):
            by_mounts.inject(CORE, IDS, a_place(), a_pod(seen=False, main="GPU-0"))

    def test_inject_refuses_the_environment_of_another_container(self, by_mounts: MountInjector) -> None:
        with pytest.raises(Refused, match="--env-by-annotation"):
            by_mounts.inject(CORE, IDS, a_place(env={"T9K_GPU_PERCENT": "30"}), a_pod(main="GPU-0", other="GPU-1"))
        by_mounts.inject(CORE, IDS, a_place(), a_pod(other="GPU-1", main="GPU-0"))

    def test_inject_without_promised_environment(self, by_mounts: MountInjector) -> None:
        by_mounts.inject(CORE, IDS, a_place(env={}), a_pod())
        assert set(by_mounts.owners().values()) == {"u1"}

    def test_reserve_again_removes_the_injection(self, by_mounts: MountInjector) -> None:
        by_mounts.inject(CORE, IDS, a_place("old"), a_pod(main="GPU-0"))
        assert not self.link(by_mounts).is_symlink()

    def test_inject_replaces_the_link_atomically(self, by_mounts: MountInjector, tmp_path: Path) -> None:
        link = self.link(by_mounts)
        for uid in ("u1", "u2"):
            by_mounts.inject(CORE, IDS, a_place(uid), a_pod(main="GPU-0"))
        assert link.readlink().name == "u2"
        assert [path.name for path in (tmp_path / "a").iterdir()] == [link.name]

    def test_remove_deletes_all_links_of_the_pod_and_no_others(self, by_mounts: MountInjector, tmp_path: Path) -> None:
        by_mounts.inject(CORE, IDS, a_place("u1"), a_pod(main="GPU-0"))
        by_mounts.inject(MEMORY, IDS, a_place("u1"), a_pod(main="GPU-0"))
        by_mounts.inject(CORE, OTHERS, a_place("u2"), a_pod(main="GPU-0"))
        (tmp_path / "a" / ".half.1").symlink_to(tmp_path / "t" / "u1")  # of an agent that was killed
        by_mounts.remove("u1")
        assert set(by_mounts.owners().values()) == {"u2"}
        assert len(list((tmp_path / "a").iterdir())) == 1

    def test_inject_replaces_a_folder_that_the_runtime_created(self, by_mounts: MountInjector, tmp_path: Path) -> None:
        """Runtimes make what they shall mount and do not find: containers restarted before us after a reboot."""
        for opened in (True, False):
            link = self.link(by_mounts)
            (link / "page").mkdir(parents=True)
            if opened:
                by_mounts.reserve(CORE, IDS)
            by_mounts.inject(CORE, IDS, a_place(), a_pod(main="GPU-0"))
            assert link.readlink() == tmp_path / "t" / "u1"

    def test_missing_links_folder_is_created(self, by_mounts: MountInjector, tmp_path: Path) -> None:
        shutil.rmtree(tmp_path / "a")
        by_mounts.remove("u1")
        assert by_mounts.owners() == {}
        by_mounts.inject(CORE, IDS, a_place(), a_pod(main="GPU-0"))
        assert set(by_mounts.owners().values()) == {"u1"}


class TestRuntimeInjector:
    def test_runtime_injector_uses_what_the_runtime_supports(
        self, by_cdi: CdiInjector, by_mounts: MountInjector
    ) -> None:
        assert RuntimeInjector(by_cdi, by_mounts, has_cdi=lambda: True).reserve(CORE, IDS).cdi
        assert RuntimeInjector(by_cdi, by_mounts, has_cdi=lambda: False).reserve(CORE, IDS).mounts

    def test_runtime_injector_removes_from_both(self, by_cdi: CdiInjector, by_mounts: MountInjector) -> None:
        has_cdi = False
        either = RuntimeInjector(by_cdi, by_mounts, has_cdi=lambda: has_cdi)
        either.inject(CORE, IDS, a_place(), a_pod(main="GPU-0"))
        has_cdi = True  # the runtime was updated
        either.inject(MEMORY, IDS, a_place(), a_pod())
        assert list(either.owners().values()) == ["u1", "u1"]
        either.remove("u1")
        assert either.owners() == {}
