"""What is read of a node, from folders and sockets as a node has them."""

from __future__ import annotations

import fcntl
import os
import platform
import socket
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from aliquot.services.doctor import site
from aliquot.services.doctor.site import Places, Site, lock_holder, look, settled
from kit.agents.fakenode import FakeNode
from kit.agents.kubelet import a_folder
from kit.agents.nodesite import UID
from kit.values.manifests import QGPU_CORE, QGPU_MEMORY


@pytest.fixture
def node() -> Iterator[FakeNode]:
    """In a folder with a short name, for the sockets' sake."""
    with a_folder() as folder:
        yield FakeNode(folder)


@pytest.fixture
def well(node: FakeNode) -> Iterator[FakeNode]:
    """With its agent and its kubelet."""
    with ExitStack() as stack:
        node.start(stack)
        yield node


def test_a_node_on_which_all_is_well(well: FakeNode) -> None:
    well.tenant(UID)
    site = look(well.places, None)
    problems = {name: getattr(site, name) for name in Site.__dataclass_fields__ if name.endswith("_problem")}
    assert problems == dict.fromkeys(problems)
    assert (site.node_name, [spec.pod_uid for spec in site.specs], site.folders) == ("n1", [UID], frozenset({UID}))
    assert site.agent is not None
    assert site.processes is not None
    assert [(holding.pod, holding.amounts) for holding in site.held or ()] == [
        ("train", {QGPU_CORE: 30, QGPU_MEMORY: 4})
    ]


def test_node_name_without_agent_is_the_one_an_agent_would_take(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "GPU-7")
    assert look(node.places, None).node_name == "gpu-7"


def test_places_come_from_the_running_agent(well: FakeNode) -> None:
    elsewhere = Places(run=well.places.run, preload=well.places.preload)
    site = look(elsewhere, None)
    assert (site.places.database, site.places.kubelet, site.places.cdi) == (
        well.places.database,
        well.places.kubelet,
        well.places.cdi,
    )


def test_an_agent_without_cdi_has_no_cdi_folder_to_look_at(well: FakeNode) -> None:
    well.agent.about.cdi = None
    site = look(well.places, None)
    assert (site.places.cdi, site.cdi_problem, site.specs) == (None, None, ())


def test_site_without_agent_or_kubelet_names_each_problem(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aliquot.adapters.gpu.nvml.Nvml", _no_driver)
    site = look(node.places, "n7")
    assert site.node_name == "n7"
    assert site.agent_problem == f"no program listens on {node.places.run}/control.sock"
    assert str(site.kubelet_problem).endswith("kubelet.sock is not there")
    assert site.held_problem == "the kubelet does not run"
    assert site.nvml_problem == "NVML: Driver Not Loaded"


def test_a_killed_kubelet_leaves_a_socket_without_a_listener(node: FakeNode) -> None:
    path = node.places.kubelet / "device-plugins" / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    assert look(node.places, "n1").kubelet_problem == f"no program listens on {path}"


def test_simulated_cards_need_no_driver(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aliquot.adapters.gpu.nvml.Nvml", _no_driver)
    (node.places.run / "player.json").write_text("{}")
    assert look(node.places, "n1").nvml_problem is None


def test_a_driver_that_hangs_is_not_waited_for(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    class Hanging:
        def cards(self) -> tuple[()]:
            answers.wait()
            return ()

    monkeypatch.setattr(site, "_PATIENCE", 0.05)
    monkeypatch.setattr("aliquot.adapters.gpu.nvml.Nvml", Hanging)
    assert look(node.places, "n1").nvml_problem == "NVML did not answer within 0.05 s"
    answers.set()


def test_an_agent_of_a_release_with_another_status_is_not_misread(well: FakeNode) -> None:
    well.agent.otherwise["cards"] = {"0": "A30"}
    site = look(well.places, "n1")
    assert site.agent is None
    assert str(site.agent_problem).startswith("its answer cannot be read (Expected `array`, got `object`")


def test_site_reads_where_links_lead(node: FakeNode) -> None:
    (node.places.run / "a").mkdir()
    (node.places.run / "a" / "gpu-mem-1").symlink_to(node.places.run / "t" / UID)
    assert look(node.places, "n1").links == {"gpu-mem-1": UID}


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_cdi_folder_that_is_not_there(node: FakeNode) -> None:
    (node.folder / "cdi").rmdir()
    assert look(node.places, "n1").cdi_problem == f"{node.places.cdi} is not there"


def test_a_cdi_folder_that_cannot_be_written(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere but to a read-only mount
    assert look(node.places, "n1").cdi_problem == f"{node.places.cdi} cannot be written"


def test_files_of_others_in_the_cdi_folder_are_left_alone(node: FakeNode) -> None:
    (node.folder / "cdi" / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    (node.folder / "cdi" / "aliquot.dev-x.yaml").write_text("not ours after all\n")
    (node.folder / "cdi" / ".aliquot-draft.1").write_text("{")
    assert look(node.places, "n1").specs == ()
    assert len(list((node.folder / "cdi").iterdir())) == 3


def test_what_a_spec_mounts_and_is_not_there_is_known(node: FakeNode) -> None:
    node.tenant(UID)
    assert look(node.places, "n1").absent == {"/var/lib/aliquot/shim/1/libaliquot.so"}


def test_a_database_that_is_gone_or_damaged_is_not_touched(node: FakeNode) -> None:
    path = node.places.database
    path.write_bytes(b"this was a database" * 100)
    assert look(node.places, "n1").database_problem == "is damaged: file is not a database"
    assert path.read_bytes().startswith(b"this was")
    path.unlink()
    assert look(node.places, "n1").database_problem == "is not there"
    assert not path.exists()


def test_a_database_of_another_program(node: FakeNode) -> None:
    node.places.database.unlink()
    with sqlite3.connect(node.places.database) as database:
        database.execute("CREATE TABLE x (y)")
    database.close()
    site = look(node.places, "n1")
    assert (site.database_problem, site.database_foreign) == ("is the state of another program", True)


def test_a_shim_that_is_not_there(node: FakeNode) -> None:
    (node.places.database.parent / "shim" / "current").unlink()
    assert "shim/current: No such file" in str(look(node.places, "n1").shim_problem)


def test_a_shim_of_another_architecture(node: FakeNode) -> None:
    node.install(183 if platform.machine() == "x86_64" else 62)
    assert f"and this host is {platform.machine()}" in str(look(node.places, "n1").shim_problem)


def test_what_the_host_preloads_is_read(node: FakeNode) -> None:
    node.places.preload.write_text("/usr/local/lib/aliquot/libaliquot.so\n")
    assert "libaliquot.so" in look(node.places, "n1").preloaded


def test_disks_are_looked_at_with_their_kind(node: FakeNode) -> None:
    seen = {disk.path: disk for disk in look(node.places, "n1").disks}
    assert seen.keys() == {str(node.places.run), str(node.places.database.parent), str(node.places.cdi)}
    assert all(disk.kind and disk.free > 0 for disk in seen.values())


# --- the lock --------------------------------------------------------------------------------------------------------


def test_lock_holder_is_read_without_locking(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with open(lock, "w") as file:
        assert lock_holder(lock) is None
        fcntl.flock(file, fcntl.LOCK_EX)
        assert lock_holder(lock) == os.getpid()
    assert lock_holder(lock) is None


def test_a_missing_lock_is_held_by_no_process(tmp_path: Path) -> None:
    assert lock_holder(tmp_path / "lock") is None


# --- Pods that end while we look -------------------------------------------------------------------------------------


def test_leftover_that_the_agent_removes_is_dropped(node: FakeNode) -> None:
    path = node.tenant("uid-of-old", "old")
    site = look(node.places, "n1")

    def swept(seconds: float) -> None:
        path.unlink(missing_ok=True)
        if (node.places.run / "t" / "uid-of-old").exists():
            (node.places.run / "t" / "uid-of-old").rmdir()

    after = settled(site, frozenset(), swept)
    assert (after.specs, after.folders) == ((), frozenset())


def test_leftover_that_stays_is_kept(node: FakeNode) -> None:
    node.tenant("uid-of-old", "old")
    slept: list[float] = []
    after = settled(look(node.places, "n1"), frozenset(), slept.append)
    assert ([spec.pod_uid for spec in after.specs], after.folders) == (["uid-of-old"], frozenset({"uid-of-old"}))
    assert sum(slept) == 3.0


def test_a_pod_that_starts_while_we_look_is_not_judged(node: FakeNode) -> None:
    node.tenant("uid-of-old", "old")
    site = look(node.places, "n1")

    def another(seconds: float) -> None:
        if not (node.places.run / "t" / "uid-of-new").exists():
            node.tenant("uid-of-new", "new")

    assert settled(site, frozenset(), another).folders == {"uid-of-old"}


def test_settled_does_not_wait_without_leftovers(node: FakeNode) -> None:
    node.tenant(UID)
    slept: list[float] = []
    settled(look(node.places, "n1"), frozenset({UID}), slept.append)
    assert slept == []


def test_look_changes_nothing(well: FakeNode) -> None:
    well.tenant(UID)

    def everything() -> dict[str, tuple[int, int]]:
        found = {str(path): path.lstat() for path in well.folder.rglob("*")}
        return {path: (seen.st_mtime_ns, seen.st_size) for path, seen in found.items() if stat.S_ISREG(seen.st_mode)}

    before = everything()
    look(well.places, None)
    assert everything() == before


def _no_driver() -> None:
    from aliquot.adapters.gpu.nvml import NvmlError

    raise NvmlError("NVML: Driver Not Loaded")
