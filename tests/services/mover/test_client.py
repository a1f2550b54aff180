"""The daemon's side of the mover, with the mover's own process; it has no card, as it needs none here."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from aliquot import __version__
from aliquot.adapters.gpu.nvml import Nvml
from aliquot.adapters.gpu.page import Page
from aliquot.adapters.host.handedfiles import Connection
from aliquot.model.claim import AppClass
from aliquot.model.tenant import Allotment, SharingRules, Tenant
from aliquot.services.daemon.connections import FairShare
from aliquot.services.mover import control
from aliquot.services.mover.client import MoverClient
from aliquot.services.mover.cuda import Card, CudaError
from aliquot.services.mover.pool import UNIT, Part
from aliquot.services.mover.store import Kept, Key, Store
from aliquot.services.runtime.elastic.parking import Parking
from aliquot.services.runtime.processes.registration import Tenancy
from kit.running.lingering import SECONDS, hand_over, lingering

SOME = control.Living([], [], complete=False, cards=[])
DAEMONS: list[MoverClient] = []


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "pool"
    made.mkdir(mode=0o700)
    yield made
    client(made, 0).quit()
    for daemon in DAEMONS:
        if daemon._child is not None:
            daemon._child.wait(60)
    DAEMONS.clear()


def client(folder: Path, size: int) -> MoverClient:
    made = MoverClient(folder, size, {**os.environ, "ALIQUOT_SIMGPU": "none"}, log_file=folder.with_suffix(".log"))
    DAEMONS.append(made)
    return made


def parking(mover: MoverClient) -> Parking:
    return Parking(threading.RLock(), {}, {}, cast("Nvml", None), mover, clock=lambda: 0.0)


def test_no_mover_is_started_without_a_pool_that_could_keep_anything(folder: Path) -> None:
    """It would say that all memory that left is lost. But it may be in a folder that this daemon does not see."""
    assert not client(folder, 0).living(SOME)
    assert not list(folder.iterdir())


def test_running_mover_is_used_again_unless_its_pool_is_smaller(folder: Path) -> None:
    found = []
    for size in (2 * UNIT, 4 * UNIT + 1, 4 * UNIT, 0):
        daemon = client(folder, size)
        assert daemon.living(SOME)
        assert daemon.state is not None
        found.append((daemon.state.size // UNIT, daemon.state.pid))
        daemon.close()
    assert [size for size, _ in found] == [2, 4, 4, 4]
    assert len({pid for _, pid in found}) == 2
    assert found[1] == found[2] == found[3]


def test_mover_that_ends_slowly_is_not_connected_to_again(folder: Path) -> None:
    """Told to quit, it closes this connection first; the kernel still accepts others in its name."""
    read, write = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "sock"))
        former = os.fork()
        if not former:
            listener.listen(8)
            os.write(write, b"x")
            connection, _ = listener.accept()
            connection.recv(control.LONGEST)
            small = control.PoolState(__version__, os.getpid(), UNIT, UNIT, UNIT, 0, None)
            connection.send(control.encode(small))
            connection.recv(control.LONGEST)
            connection.close()
            os.read(read, 1)
            os._exit(0)
        os.read(read, 1)
    try:
        daemon = client(folder, 2 * UNIT)
        assert daemon.living(SOME)
        assert daemon.state is not None
        assert daemon.state.size == 2 * UNIT
        daemon.close()
    finally:
        os.write(write, b"x")
        os.waitpid(former, 0)
        os.close(read)
        os.close(write)


def test_what_ended_tenants_left_is_forgotten_also_without_a_pool(folder: Path) -> None:
    Store(folder, 4 * UNIT).write_kept(Key("a", 0, 1, "GPU-0"), {1: Kept(UNIT, (Part(0, UNIT),))})
    mover = client(folder, 0)
    assert mover.keeps()
    parking(mover).round(1000.0)
    assert not mover.keeps()
    mover.close()


def test_tenant_whose_memory_may_not_leave_may_add_nothing(folder: Path) -> None:
    made = parking(client(folder, 0))
    tenant = Tenant("a", "a", AppClass.OFFLINE, (Allotment("GPU-0", 1 << 30, None),), 0)

    def limit() -> int | None:
        with socket.socket(socket.AF_UNIX) as shim:
            made.hand_over(Tenancy(tenant, folder, cast("Page", None), shim), shim, 0, 1, 0)
            message = made._inbox.get_nowait()
        assert message is not None
        return message[1].limit

    assert limit() == 0
    made._rules = SharingRules(oversubscribe=2.0, host_pool=1 << 30)
    assert limit() == (1 << 30) * 9 // 4


@pytest.mark.parametrize(("code", "ends"), [(46, True), (214, True), (719, True), (2, False), (999, False)])
def test_mover_ends_when_its_context_is_of_no_more_use(code: int, ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", end)
    card = Card.__new__(Card)
    card._cuda = cast("ctypes.CDLL", SimpleNamespace(cuCopy=lambda: code))
    card._ready = True
    with pytest.raises(SystemExit if ends else CudaError):
        card._call("cuCopy")
    card._ready = False  # a card that cannot be used at all is no reason to leave the others
    with pytest.raises(CudaError):
        card._call("cuCopy")


def test_mover_is_in_no_mps_server_of_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/somebody/elses")
    made = client(folder, 64 << 20)
    assert made.living(SOME)
    assert made.state is not None
    variables = Path(f"/proc/{made.state.pid}/environ").read_bytes().split(b"\0")
    assert [one for one in variables if one.startswith(b"CUDA_MPS_PIPE_DIRECTORY=")] == [
        f"CUDA_MPS_PIPE_DIRECTORY={folder}/none".encode()
    ]
    made.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user's")
def test_folder_that_another_user_made_first_is_taken_back_and_its_socket_never_asked(folder: Path) -> None:
    """Every user knows its name, and may create folders beside it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as impostor:
        impostor.bind(str(folder / "sock"))
        impostor.listen(8)
        impostor.setblocking(False)
        (folder / "parked").mkdir()
        (folder / "parked" / "a@0@1@GPU-0").touch()
        (folder / "memory").touch()
        os.chown(folder, 65534, 65534)
        assert not client(folder, 0).keeps()
        assert not client(folder, 0).living(SOME)
        made = client(folder, 4 * UNIT)
        assert made.living(SOME)
        assert made.state is not None
        assert made.state.size == 4 * UNIT
        with pytest.raises(BlockingIOError):
            impostor.accept()
        assert os.lstat(folder).st_uid == 0
        aside = [other for other in folder.parent.glob("pool.*") if other.is_dir()]
        assert os.lstat(aside[0]).st_uid == 65534
        assert (aside[0] / "memory").exists(), "what is another's is left alone"
        made.close()


def test_mover_of_another_user_is_not_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "sock"))
        listener.listen(8)
        monkeypatch.setattr("aliquot.services.mover.client.credentials", lambda connection: (1, 4711, 4711))
        assert not client(folder, 0).living(SOME)
        assert not client(folder, 0)._connect()
    (folder / "sock").unlink()


@pytest.mark.parametrize("complete", [False, True])
def test_tenants_that_claim_many_processes_do_not_keep_the_daemon_from_saying_who_lives(
    folder: Path, complete: bool
) -> None:
    store = Store(folder, 8 * UNIT)
    kept = [Key("t0000000", 255, 1, "GPU-0"), Key("t0000000", 255, 2, "GPU-0"), Key("t9999999", 0, 1, "GPU-0")]
    for at, key in enumerate(kept):
        store.write_kept(key, {1: Kept(UNIT, (Part(at * UNIT, UNIT),))})
    mover = client(folder, 0)
    tenants = [f"t{number:07}" for number in range(200)]
    living = [(tenant, slot, 1) for tenant in tenants for slot in range(256)]
    assert mover.living(control.Living(living, tenants, complete, cards=[]))
    assert mover.state is not None
    left = {path.name for path in (folder / "parked").iterdir()}
    assert left == {kept[0].file} | (set() if complete else {kept[2].file})
    mover.close()


def test_connections_of_one_tenant_that_wait_for_the_mover_are_bounded(folder: Path) -> None:
    made = parking(client(folder, 0))
    tenant = Tenant("a", "a", AppClass.OFFLINE, (Allotment("GPU-0", 1 << 30, None),), 0)
    other = Tenant("b", "b", AppClass.OFFLINE, (Allotment("GPU-0", 1 << 30, None),), 0)
    shims = []
    for who in (*[tenant] * 500, other):
        shims.append(socket.socket(socket.AF_UNIX))
        made.hand_over(Tenancy(who, folder, cast("Page", None), shims[-1]), shims[-1], 0, 1, 0)
    open_ = [shim for shim in shims if shim.fileno() >= 0]
    assert len(open_) < 100
    assert shims[-1] in open_
    while not made._inbox.empty():
        made._take(made._inbox.get_nowait())
    assert not made._handed
    assert all(shim.fileno() < 0 for shim in shims)


def test_connections_of_one_user_that_wait_for_the_mover_are_bounded(folder: Path) -> None:
    """Each run has some of its own, and a user hundreds of runs."""
    made = parking(client(folder, 0))
    made._shares = FairShare(20, 5)
    kept: dict[int, list[Connection]] = {4711: [], 4712: []}
    for user, shims in kept.items():
        for run in range(8):
            tenant = Tenant(f"{user}-{run}", "a", AppClass.OFFLINE, (Allotment("GPU-0", 1 << 30, None),), user)
            shims.append(Connection(socket.AF_UNIX))
            shims[-1].owner = user
            made.hand_over(Tenancy(tenant, folder, cast("Page", None), shims[-1]), shims[-1], 0, 1, 0)
        assert sum(shim.fileno() >= 0 for shim in shims) == 5
    while not made._inbox.empty():
        made._take(made._inbox.get_nowait())
    assert made._shares.held(4711) == made._shares.held(4712) == 0


def test_files_whose_close_hangs_do_not_hold_up_the_mover(folder: Path) -> None:
    """A tenant connects again and again, each time with such a file that nobody received: one too many is refused, and
    was closed in the thread that answers the daemon."""
    mover = client(folder, UNIT)
    assert mover.living(SOME)
    began = time.monotonic()
    with contextlib.ExitStack() as attack:
        for _ in range(6):
            shim, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            attack.enter_context(shim)
            hand_over(shim, b"x", attack.enter_context(lingering()))
            assert mover.serve(ours, control.Serve("a", 0, 1, "GPU-" + "0" * 32, None))
            ours.close()
        assert mover.living(SOME)
        assert time.monotonic() - began < SECONDS / 2
    mover.close()


def test_log_of_the_mover_is_bounded(folder: Path) -> None:
    log = folder.with_suffix(".log")
    log.touch()
    os.truncate(log, 9 << 20)
    mover = client(folder, UNIT)
    assert mover.living(SOME)
    mover.quit()
    assert log.stat().st_size < 1 << 20
    assert log.with_name(f"{log.name}.1").stat().st_size > 8 << 20


@pytest.mark.parametrize("gone", [False, True])
def test_connection_that_a_mover_has_got_is_handed_over_although_its_answer_is_late(folder: Path, gone: bool) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(0.1)
    daemon = client(folder, UNIT)
    daemon._connection = ours
    with theirs, socket.socket(socket.AF_UNIX) as shim:
        if gone:
            theirs.close()
        assert daemon.serve(shim, control.Serve("a", 0, 1, "GPU-0", None)) is not gone
    assert daemon.state is None
