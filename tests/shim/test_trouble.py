"""What goes wrong around the shim: threads in each other's way, a page that is written over, a daemon that is slow."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess

import pytest

from aliquot.adapters.gpu import page
from aliquot.adapters.gpu.link import Done, GroupSeen, Hello, receive
from shim.harness import GIB, MIB, Tenant, eventually

# ---- threads ----


def test_a_library_whose_constructor_asks_the_driver_may_be_loaded_while_another_thread_asks(tenant: Tenant) -> None:
    """The loader's lock is held over the constructor, and taken by every lookup: no lock of ours may be held there."""
    done = subprocess.run(
        [tenant.built.folder / "probe", "late", tenant.built.folder / "liblate.so"],
        env=tenant.environment(),
        capture_output=True,
        text=True,
        timeout=5,
        check=True,
    )
    assert done.stdout == "thread libaliquot.so cuMemAlloc_v2\n"


def test_a_pool_that_ends_is_not_asked_any_more_by_another_threads_wait(tenant: Tenant) -> None:
    answer = tenant.run("""
        import threading
        mine = context()
        pool, p = c_void_p(), c_uint64()
        cuda.cuMemPoolCreate(byref(pool), byref(PoolProps(type=1, location=Location(DEVICE, 0))))
        cuda.cuMemAllocFromPoolAsync(byref(p), c_size_t(GIB), pool, None)
        cuda.fake_linger(50)
        ending = threading.Thread(target=cuda.cuMemPoolDestroy, args=(pool,))
        ending.start()
        while ending.is_alive():
            cuda.cuCtxSynchronize()
        say(asked=cuda.fake_asked_dead(), used=used(), freed=free_async(p.value), after=used())
    """)
    assert answer == {"asked": 0, "used": GIB, "freed": 0, "after": 0}


def test_pools_of_a_context_that_ends_are_not_asked_by_a_thread_on_another_card(tenant: Tenant) -> None:
    tenant.grant(GIB, GIB)
    answer = tenant.run("""
        import threading
        context(0)
        alloc_async(MIB)
        context(1)
        cuda.fake_linger(50)
        ending = threading.Thread(target=cuda.cuDevicePrimaryCtxReset_v2, args=(0,))
        ending.start()
        while ending.is_alive():
            cuda.cuCtxSynchronize()
        say(asked=cuda.fake_asked_dead())
    """)
    assert answer == {"asked": 0}


def test_an_address_that_is_mapped_again_before_its_unmap_returned_counts_once(tenant: Tenant) -> None:
    answer = tenant.run("""
        import threading, time
        context()
        def mapped():
            _, h = piece(GIB)
            cuda.cuMemMap(c_uint64(0x100000000), c_size_t(GIB), c_size_t(0), c_uint64(h), c_ulonglong(0))
            cuda.cuMemRelease(c_uint64(h))
        mapped()
        cuda.fake_linger(60)
        slow = threading.Thread(target=cuda.cuMemUnmap, args=(c_uint64(0x100000000), c_size_t(GIB)))
        slow.start()
        time.sleep(0.02)
        mapped()
        slow.join(); both = used()
        cuda.cuMemUnmap(c_uint64(0x100000000), c_size_t(GIB))
        say(both=both, after=used(), taken=cuda.fake_taken(0))
    """)
    assert answer == {"both": GIB, "after": 0, "taken": 0}


def test_the_end_of_a_context_gives_back_every_one_of_many_allocations(tenant: Tenant) -> None:
    answer = tenant.run("""
        doomed = context()
        kept = [alloc(MIB)[1] for _ in range(1500)]
        for p in kept[::3]: free(p)
        other = context(); alloc(MIB)
        cuda.cuCtxDestroy_v2(doomed)
        say(used=used())
    """)
    assert answer == {"used": MIB}


def test_a_pool_that_may_not_be_asked_during_a_capture_stays_charged(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        alloc_async(3 * GIB)
        cuda.fake_forbid(900)
        cuda.cuCtxSynchronize()
        say(refused=alloc(2 * GIB)[0], used=used())
    """)
    assert answer == {"refused": 2, "used": 3 * GIB}


# ---- the page, written over by another process of the tenant ----


def scribble(tenant: Tenant, at: int, value: bytes) -> None:
    with open(tenant.folder / "page", "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), value, at)


def test_a_wait_that_was_wiped_off_the_page_does_not_count_below_zero(tenant: Tenant) -> None:
    program = tenant.start("context(); alloc(1); cuda.fake_hold(1); say(); cuda.cuCtxSynchronize(); say(); heard()")
    program.answer()
    eventually(lambda: tenant.use().waiting == 1)
    tenant.page.set_word(0, 0, page.WAITING, 0)
    (tenant.folder / "go").touch()
    program.answer()
    assert tenant.use().waiting == 0


def test_a_charge_that_was_written_over_is_put_right_by_the_next_one(tenant: Tenant) -> None:
    program = tenant.start("context(); p = alloc(GIB)[1]; say(); heard(); free(p); say(used=used()); heard()")
    program.answer()
    scribble(tenant, page.Page._at(0, 0) + page.MEMORY, struct.pack("<Q", 2**63 + 7))
    program.proceed()
    assert program.answer() == {"used": 0}


def test_a_page_that_shows_ever_new_dead_does_not_hold_an_allocation_up(tenant: Tenant) -> None:
    scribbler = tenant.start(f"""
        import time
        fd = os.open(os.environ["ALIQUOT_TENANT"] + "/page", os.O_RDWR)
        say()
        end = time.monotonic() + 2
        dead = (b"1234" + bytes({page._SLOT_SIZE - 4})) * 150
        while time.monotonic() < end: os.pwrite(fd, dead, {page._SLOT_AT + 100 * page._SLOT_SIZE})
    """)
    scribbler.answer()
    eventually(lambda: tenant.page.pid(150) != 0)
    answer = tenant.run("""
        import time
        context()
        began = time.monotonic()
        say(results=[alloc(5 * GIB)[0] for _ in range(5)], seconds=time.monotonic() - began)
    """)
    scribbler.kill()
    assert answer["results"] == [2] * 5
    assert answer["seconds"] < 0.5


def test_a_page_that_is_gone_with_its_locks_costs_an_allocation_no_wait(tenant: Tenant) -> None:
    """The program closed our file, and there is none to open: nobody can be in the way."""
    answer = tenant.run("""
        import time
        context(); alloc(MIB)
        os.unlink(os.environ["ALIQUOT_TENANT"] + "/page")
        os.closerange(3, 4096)
        began = time.monotonic()
        results = [alloc(MIB)[0] for _ in range(20)]
        say(good=sum(results) == 0, seconds=time.monotonic() - began)
    """)
    assert answer["good"]
    assert answer["seconds"] < 0.3  # 20 ms each, were the lock waited for


def test_an_absurd_number_of_cards_does_not_keep_a_pause_from_being_undone(tenant: Tenant) -> None:
    program = tenant.start("rm = Context(); say(); heard()")
    program.answer()
    eventually(lambda: tenant.slots() == [0])
    scribble(tenant, 8, b"\xff" * 4)
    tenant.page.set_word(0, 0, page.PAUSED, 1)
    tenant.beat(age=10)
    eventually(lambda: tenant.use().paused == 0)


# ---- the daemon ----


def test_a_process_without_groups_registers_when_it_uses_the_card(tenant: Tenant) -> None:
    """Under MPS the groups are the server's; memory comes before the first kernel, and already makes it known."""
    with tenant.listen() as listener:
        program = tenant.start("context(); alloc(MIB); launch(); say(); heard()")
        program.answer()
        with accepted(listener) as connection:
            hello = receive(connection)
            assert isinstance(hello, Hello)
            assert hello.pid == program.process.pid
            assert receive(connection) == Done(0)


def accepted(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    connection.settimeout(5)
    return connection


def hung_up(connection: socket.socket) -> bool:
    """The other end leaves within some seconds, nothing being read here."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(3000))


def one_set(connection: socket.socket) -> int | None:
    """How many groups until the done, which must say the same; None: the connection ended first."""
    seen = 0
    while not isinstance(message := receive(connection), Done | None):
        if isinstance(message, GroupSeen):
            os.close(message.fd)
            seen += 1
    assert message is None or message.groups == seen
    return seen if message else None


@pytest.mark.parametrize("known", [False, True])
def test_the_shim_sends_all_groups_on_the_next_connection(tenant: Tenant, known: bool) -> None:
    """`known`: an earlier daemon had heard it all, and nothing changed since."""
    program = tenant.start("""
        rm = Context()
        for _ in range(400): rm_alloc(rm.fd, rm.client, rm_alloc(rm.fd, rm.client, rm.device, GROUP, engine=9), CHANNEL)
        say(); heard()
    """)
    program.answer()
    with tenant.listen() as listener:
        if known:
            with accepted(listener) as first:
                assert one_set(first) == 402
        with accepted(listener) as slow:
            assert hung_up(slow)  # more than its buffer holds was sent, and nobody read
            assert one_set(slow) is None
        with accepted(listener) as again:
            assert one_set(again) == 402
