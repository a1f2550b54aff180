"""Which Pod a process is of: every spelling that kubelets and container runtimes have for its cgroup."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aliquot.adapters.host.process.cgroups import parse_cgroups, pod_folders, pod_of, pods_seen
from kit.running.scarcefiles import scarce_files

UID = "3f2a9c1e-8d47-4b6a-9e05-1c7d2b8f4a60"
UNDERSCORED = UID.replace("-", "_")
OTHER = "00000000-1111-4222-8333-444444444444"
STATIC = "1d2c3b4a5968778695a4b3c2d1e0f9a8"
ID = "a1" * 32

PATHS = {
    "cgroupfs, guaranteed": f"/kubepods/pod{UID}/{ID}",
    "cgroupfs, burstable": f"/kubepods/burstable/pod{UID}/{ID}",
    "cgroupfs, best effort": f"/kubepods/besteffort/pod{UID}/{ID}",
    "cgroupfs, a cgroup root in front": f"/nodes/one/kubepods/besteffort/pod{UID}/{ID}",
    "systemd, guaranteed": f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
    "systemd, burstable, CRI-O": (
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/crio-{ID}.scope/container"
    ),
    "systemd, best effort": (
        f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope"
    ),
    "systemd, a cgroup root in front": (
        f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
        f"kubelet-kubepods-besteffort-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope"
    ),
    "systemd's names without systemd": (
        f"/system.slice/containerd.service/kubepods-besteffort-pod{UNDERSCORED}.slice:cri-containerd:{ID}"
    ),
    "seen from a cgroup namespace, cgroupfs": f"/../../pod{UID}/{ID}",
    "seen from a cgroup namespace, another class of service": f"/../../../burstable/pod{UID}/{ID}",
    "seen from a cgroup namespace, systemd": (
        f"/../../kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope"
    ),
    "below the container": f"/kubepods/pod{UID}/{ID}/system.slice/docker-{ID}.scope",
    "the container was removed": f"/kubepods/pod{UID}/{ID} (deleted)",
    "the Pod was removed": f"/kubepods/pod{UID} (deleted)",
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_a_pod_is_known_by_its_cgroup(path: str) -> None:
    assert parse_cgroups(f"0::{path}\n") == UID


def test_parse_cgroups_of_version_1() -> None:
    text = f"12:rdma:/\n11:memory:/kubepods/pod{UID}/{ID}\n1:name=systemd:/kubepods/pod{UID}/{ID}\n"
    assert parse_cgroups(text) == UID


def test_parse_cgroups_of_both_versions() -> None:
    text = f"4:memory:/kubepods/besteffort/pod{UID}/{ID}\n0::/system.slice/containerd.service\n"
    assert parse_cgroups(text) == UID


def test_a_static_pod_has_the_hash_of_its_manifest() -> None:
    assert parse_cgroups(f"0::/kubepods/burstable/pod{STATIC}/{ID}\n") == STATIC
    path = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-{ID}.scope"
    assert parse_cgroups(f"0::{path}\n") == STATIC


def test_parse_cgroups_takes_the_first_pod_on_the_path() -> None:
    assert parse_cgroups(f"0::/kubepods/pod{UID}/{ID}/kubepods/pod{OTHER}/x\n") == UID
    path = f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope/pod{OTHER}"
    assert parse_cgroups(f"0::{path}\n") == UID


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/init.scope",
        "/user.slice/user-1000.slice/session-2.scope",
        f"/system.slice/docker-{ID}.scope",
        f"/docker/{ID}",
        "/kubepods/besteffort",
        "/kubepods.slice/kubepods-burstable.slice",
        "/machine.slice/libpod-abc.scope/container",
        "/kubepods/pod123/abc",
        f"/kubepods/pod{UID}x/abc",
        f"/kubepods/podx{UID}",
        f"/podman/libpod{UID}",
        f"/kubepods/pod{UID.replace('-', '_', 1)}/abc",
        f"/kubepods/pod{UID.upper()}/abc",
        f"/ordinary-pod{UNDERSCORED}.slice/x.scope",
    ],
)
def test_parse_cgroups_outside_a_pod_is_none(path: str) -> None:
    assert parse_cgroups(f"0::{path}\n") is None


@pytest.mark.parametrize("above", ["", "/../../../.."])
@pytest.mark.parametrize(
    "name", [f"pod{UID}", f"kubepods/pod{UID}/x", f"kubepods-besteffort-pod{UNDERSCORED}.slice/x.scope"]
)
def test_user_of_the_node_cannot_name_a_cgroup_after_a_pod(name: str, above: str) -> None:
    """systemd lets users make cgroups below their own manager. Such a process would be charged to that Pod, whose own
    would be ended for it."""
    users = f"{above}/user.slice/user-1000.slice/user@1000.service"
    assert parse_cgroups(f"0::{users}/{name}\n") is None
    assert parse_cgroups(f"0::{users}/app.slice/{name}\n") is None
    assert parse_cgroups(f"4:memory:/user.slice\n1:name=systemd:{users}/{name}\n") is None
    assert parse_cgroups(f"0::/kubepods/pod{OTHER}/{ID}{users}/{name}\n") == OTHER, "below a Pod's own"


@pytest.mark.parametrize("sign", ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_name_of_a_cgroup_is_never_two_lines(tmp_path: Path, sign: str) -> None:
    """The kernel forbids a line feed in a name, and nothing else."""
    (tmp_path / "77").mkdir()
    users = "/user.slice/user-1000.slice/user@1000.service"
    (tmp_path / "77" / "cgroup").write_bytes(f"0::{users}/x{sign}0::pod{UID}\n".encode())
    assert pod_of(77, proc=tmp_path) is None


@pytest.mark.parametrize("text", ["", "\n", "0::", "nonsense", "a:b", "::\n:::"])
def test_a_file_that_makes_no_sense_names_no_pod(text: str) -> None:
    assert parse_cgroups(text) is None


def test_pod_of_reads_proc(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77/cgroup").write_text(f"0::/kubepods/pod{UID}/{ID}\n")
    assert pod_of(77, proc=tmp_path) == UID
    assert pod_of(78, proc=tmp_path) is None, "gone"


def test_pod_of_a_process_whose_first_thread_has_ended(tmp_path: Path) -> None:
    """In version 1 the kernel says of an ended thread that it is in no cgroup."""
    pod = "12345678-1234-1234-1234-123456789abc"
    for thread, path in (("7", "/"), ("7/task/7", "/"), ("7/task/8", f"/kubepods/pod{pod}/c")):
        (tmp_path / thread).mkdir(parents=True)
        (tmp_path / thread / "cgroup").write_text(f"4:devices:{path}\n1:name=systemd:{path}\n")
    assert pod_of(7, proc=tmp_path) == pod


def test_pod_of_this_process() -> None:
    assert pod_of(os.getpid()) == parse_cgroups(Path("/proc/self/cgroup").read_text())


def test_pods_seen_counts_processes(tmp_path: Path) -> None:
    for pid, path in (("77", f"/kubepods/pod{UID}/a"), ("78", f"/kubepods/pod{UID}/b"), ("79", "/init.scope")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cgroup").write_text(f"0::{path}\n")
    (tmp_path / "self").mkdir()
    assert pods_seen(proc=tmp_path) == {UID: 2}


@pytest.mark.parametrize("path", [path for path in PATHS.values() if ".." not in path and ":" not in path])
def test_folder_of_a_pods_cgroup_is_found(tmp_path: Path, path: str) -> None:
    (tmp_path / path.strip("/")).mkdir(parents=True)
    (tmp_path / f"system.slice/pod{UID}").mkdir(parents=True)
    (tmp_path / f"kubepods/pod{OTHER}/pod{UID}").mkdir(parents=True)  # a container may make cgroups below its own
    uid = parse_cgroups(f"0::{path}")
    assert uid is not None
    found = pod_folders(root=tmp_path)
    assert found.keys() == {uid, OTHER}
    assert found[OTHER] == tmp_path / f"kubepods/pod{OTHER}"
    assert parse_cgroups(f"0::/{found[uid].name}") == uid
    assert str(tmp_path / path.strip("/")).startswith(f"{found[uid]}")


def test_folder_of_a_pods_cgroup_that_cannot_be_seen(tmp_path: Path) -> None:
    (tmp_path / f"kubepods-pod{UNDERSCORED}.slice:cri-containerd:{ID}").mkdir()  # one container's, not its Pod's
    (tmp_path / f"pod{OTHER}").write_text("not a folder")
    assert pod_folders(root=tmp_path) == {}
    assert pod_folders(root=tmp_path / "none") == {}


def test_process_is_not_taken_for_one_of_no_pod_while_no_file_is_left(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(f"0::/kubepods/pod{UID}/{ID}\n")
    with scarce_files(0), pytest.raises(OSError, match="Too many open files"):
        pod_of(7, proc=tmp_path)
    assert pod_of(7, proc=tmp_path) == UID
