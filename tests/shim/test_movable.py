"""Memory of a tenant that may be parked: pieces behind addresses, what cannot leave, and the reserve of the card."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time

import pytest

from aliquot.adapters.gpu.link import MoverHello, receive
from aliquot.adapters.gpu.page import Move, Order, Page, State, Stays, Why
from aliquot.services.mover import wire
from shim.harness import GIB, MIB, Tenant, eventually, with_helpers


def test_memory_is_pieces_and_all_of_it_comes_back(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        small = [alloc(n)[1] for n in (1, 512, 513, 4096, MIB)]
        large = [alloc(n)[1] for n in (MIB + 1, 600 * MIB)]
        plain = cuda.fake_calls(b"cuMemAlloc_v2")
        during = taken()
        results = [free(p) for p in small + large]
        apart = len({p // 512 for p in small})
        say(plain=plain, during=during, results=results, after=taken(), left=used(), apart=apart)
        """)
    )
    assert seen["plain"] == 2  # the block of one byte for the next wait, and one that stays
    assert seen["during"] == (2 + 2 + 600) * MIB  # small ones share one unit
    assert (seen["results"], seen["left"], seen["apart"]) == ([0] * 7, 0, 5)
    assert seen["after"] == (2 + 2) * MIB  # pieces of up to 16 MiB that are kept for the next
    move = parkable.page.move(0, 0)
    assert move.movable == move.kept == seen["after"]


def test_allocation_of_a_pitch_can_leave_too(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        p, pitch = c_uint64(), c_size_t()
        made = cuda.cuMemAllocPitch_v2(byref(p), byref(pitch), c_size_t(1000), c_size_t(4096), 4)
        bad = cuda.cuMemAllocPitch_v2(byref(c_uint64()), byref(c_size_t()), c_size_t(1000), c_size_t(0), 4)
        say(made=made, pitch=pitch.value, bad=bad, taken=taken(), freed=free(p.value), after=taken())
        """)
    )
    after = seen.pop("after")  # kept for the next
    assert after == 4 * MIB
    assert seen == {"made": 0, "pitch": 1024, "bad": 1, "taken": 4 * MIB, "freed": 0}


def test_end_of_a_context_frees_its_memory(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        c = context(); alloc(100 * MIB); alloc(10); before = taken(), used()
        assert cuda.cuCtxDestroy_v2(c) == 0
        context(); say(before=before, after=[taken(), used()])
        """)
    )
    assert seen == {"before": [102 * MIB, 100 * MIB + 512], "after": [0, 0]}


def test_memory_may_be_freed_on_a_stream(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("_, p = alloc(64 * MIB); say(freed=free_async(p, stream()), after=[taken(), used()])")
    )
    assert seen == {"freed": 0, "after": [0, 0]}


@pytest.mark.parametrize("size", [4096, 8 << 20])
def test_allocation_after_a_kernel_failed_answers_what_the_context_does(parkable: Tenant, size: int) -> None:
    seen = parkable.run(
        with_helpers(f"""
        cuda.fake_fault(700)
        waited, refused = cuda.cuCtxSynchronize(), alloc({size})[0]
        cuda.fake_fault(0)
        say(waited=waited, refused=refused, later=alloc({size})[0], used=used())
        """)
    )
    assert seen == {"waited": 700, "refused": 700, "later": 0, "used": size}


def test_reserve_of_the_card_is_left_alone(parkable: Tenant) -> None:
    """The card of straw has 64 GiB."""
    parkable.page.set_reserve(0, 63 * GIB)
    seen = parkable.run(
        with_helpers("""
        big = [alloc(2 * GIB)[0], piece(2 * GIB)[0]]
        fits, then = [alloc(600 * MIB)[0], piece(400 * MIB)[0]], alloc(600 * MIB)[0]
        say(big=big, fits=fits, next=then, taken=taken(), used=used())
        """)
    )
    assert (seen["big"], seen["fits"], seen["next"]) == ([2, 2], [0, 0], 2)
    assert seen["taken"] == seen["used"] == 1000 * MIB


def test_reserve_is_nothing_to_tenants_that_stay(tenant: Tenant) -> None:
    tenant.page.set_reserve(0, 63 * GIB)
    assert tenant.run("context(); say(result=alloc(3 * GIB)[0])") == {"result": 0}


def test_page_says_what_cannot_leave(parkable: Tenant) -> None:
    program = parkable.start(
        with_helpers("""
        context(); _, p = alloc(10 * MIB); step()  # not the device's own: the driver's pool serves the next one
        _, a = alloc_async(MIB); step()
        b = array(); step()
        assert free_async(a) == 0; step()
        assert cuda.cuArrayDestroy(b) == 0; step()
        _, h = piece(2 * MIB); map_(h, 2 * MIB); step()
        access(2 * MIB); step()
        unmap(2 * MIB); map_(h, MIB); access(MIB); step()
        unmap(MIB); map_(h, 2 * MIB); access(2 * MIB); step()
        assert export(h) == 0; step()
        unmap(2 * MIB); assert release(h) == 0; step()
        """)
    )
    seen = []
    for _ in range(11):
        program.answer()
        move = parkable.page.move(0, 0)
        seen.append((move.movable // MIB, Stays(move.stays)))
        program.proceed()
    assert program.end() == 0
    nothing = Stays(0)
    assert seen == [
        (10, nothing), (10, Stays.POOLED), (10, Stays.POOLED | Stays.OTHER), (10, Stays.OTHER), (10, nothing),
        (10, Stays.OTHER), (12, nothing), (10, Stays.OTHER), (12, nothing), (10, Stays.SHARED), (10, Stays.SHARED),
    ]  # fmt: skip


def test_retained_handle_is_the_number_that_the_program_knows(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        _, h = piece(2 * MIB); map_(h, 2 * MIB)
        again, p = c_uint64(), alloc(2 * MIB)[1]
        results = [cuda.cuMemRetainAllocationHandle(byref(again), c_void_p(0x100000000))]
        same = again.value == h
        results += [cuda.cuMemRetainAllocationHandle(byref(c_uint64()), c_void_p(p))]
        results += [release(h), release(h), release(h)]
        mapped = taken()
        assert cuda.cuMemUnmap(c_uint64(0x100000000), c_size_t(2 * MIB)) == 0
        say(results=results, same=same, mapped=mapped, after=taken())
        """)
    )
    assert seen["same"]
    assert seen["results"][:4] == [0, 1, 0, 0]
    assert seen["results"][4] != 0
    assert (seen["mapped"], seen["after"]) == (4 * MIB, 2 * MIB)


def test_memory_that_cannot_be_shared_by_ipc_is_explained(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        import os
        r, w = os.pipe(); os.dup2(w, 2)
        _, p = alloc(2 * MIB)
        results = [cuda.cuIpcGetMemHandle(byref((c_char * 64)()), c_uint64(p)) for _ in range(2)]
        say(results=results, text=os.read(r, 4096).decode())
        """)
    )
    assert seen["results"] == [1, 1]
    assert seen["text"].count("may be parked, and such memory cannot be shared") == 1


def leave_behind(page: Page, slot: int, pid: int = 0) -> None:
    """What a process that died may have left on the page."""
    dead = struct.pack("<4I2Q", Order.LEAVE, State.LOST, 3, 1, 64 * MIB, 64 * MIB)
    os.pwrite(page.fileno(), dead, page._move_at(slot, 0))
    os.pwrite(page.fileno(), struct.pack("<I", pid), page._at(slot, 0) - 64)


def test_process_inherits_nothing_from_the_one_that_had_its_slot(parkable: Tenant) -> None:
    """Memory that was lost before is none of its own: its calls do not wait for it."""
    leave_behind(parkable.page, 0)
    program = parkable.start(with_helpers("_, p = alloc(10 * MIB); say(result=launch()); heard()"))
    assert program.answer() == {"result": 0}
    move = parkable.page.move(0, 0)
    assert (move.order, move.state, move.wanted, move.movable, move.parked) == (0, 0, 0, 10 * MIB, 0)


def test_what_the_dead_left_is_cleared_when_their_memory_is_given_back(parkable: Tenant) -> None:
    leave_behind(parkable.page, 1, pid=4711)
    assert parkable.run(with_helpers("say(result=alloc(5 * GIB)[0])")) == {"result": 2}
    assert parkable.page.pid(1) == 0
    assert parkable.page.move(1, 0) == Move(*[0] * 11)


def test_process_that_was_taken_for_dead_shows_its_memory_again(parkable: Tenant) -> None:
    program = parkable.start(
        with_helpers("""
        context(); alloc(10 * MIB); alloc_async(MIB); step()
        for name in os.listdir("/proc/self/fd"):
            if int(name) >= 512: os.close(int(name))
        alloc(4 * MIB); step()
        """)
    )
    program.answer()
    leave_behind(parkable.page, 0)
    program.proceed()
    program.answer()
    move = parkable.page.move(parkable.slots()[0], 0)
    assert (move.movable, Stays(move.stays)) == (14 * MIB, Stays.POOLED)


def refusal(tenant: Tenant) -> Why:
    """Why it does not leave, when it is ordered to."""
    tenant.page.order(0, 0, Order.LEAVE)
    eventually(lambda: bool(tenant.page.move(0, 0).why), 60)
    return Why(tenant.page.move(0, 0).why)


def mover_connection(listener: socket.socket, kept: contextlib.ExitStack) -> socket.socket:
    """The first connection that asks for the mover. All of them stay open."""
    while True:
        connection = kept.enter_context(listener.accept()[0])
        if isinstance(receive(connection), MoverHello):
            return connection


def test_order_to_leave_is_not_tried_for_ever_where_nothing_can(parkable: Tenant) -> None:
    """Its only memory is mapped nowhere. The mover is there, and has nothing to do."""
    with parkable.listen() as listener, contextlib.ExitStack() as kept:
        listener.settimeout(60)
        program = parkable.start(with_helpers("piece(10 * MIB); step()"))
        program.answer()
        parkable.page.order(0, 0, Order.LEAVE)
        connection = mover_connection(listener, kept)
        connection.send(wire.answer(Why.NOTHING))
        eventually(lambda: bool(parkable.page.move(0, 0).why), 60)
        move = parkable.page.move(0, 0)
        assert (move.why, move.state, move.movable) == (Why.BUSY, State.RESIDENT, 0)


def test_work_that_does_not_end_holds_calls_up_for_a_while_only(parkable: Tenant) -> None:
    """It may call a function of the host that waits for what such a call has locked."""
    program = parkable.start(with_helpers("alloc(10 * MIB); cuda.fake_hold(1); step(); say(result=launch()); heard()"))
    program.answer()
    parkable.page.order(0, 0, Order.LEAVE)
    eventually(lambda: parkable.page.move(0, 0).state == State.LEAVING, 60)
    program.proceed()
    assert program.answer() == {"result": 0}
    move = parkable.page.move(0, 0)
    assert (move.state, move.why, move.wanted) == (State.RESIDENT, Why.BUSY, 0)
    assert refusal(parkable) is Why.BUSY  # the wait is still under way
    (parkable.folder / "go").touch()
    eventually(lambda: refusal(parkable) is Why.MOVER, 60)  # it is tried again, and there is no mover here


def test_wait_that_was_given_up_does_not_go_on_to_other_contexts(parkable: Tenant) -> None:
    """Streams may capture by then, and a wait for their context would break that."""
    program = parkable.start(
        with_helpers("""
        import time
        _, p = alloc(10 * MIB); context(); launch(); primary(); cuda.fake_hold(1); step()
        result = cuda.cuStreamWriteValue32_v2(None, c_uint64(p), 1, 0); step()
        time.sleep(0.5); say(result=result, waits=cuda.fake_calls(b"cuCtxSynchronize"))
        """)
    )
    program.answer()
    parkable.page.order(0, 0, Order.LEAVE)
    eventually(lambda: parkable.page.move(0, 0).state == State.LEAVING, 60)
    program.proceed()
    program.answer()
    assert Why(parkable.page.move(0, 0).why) is Why.BUSY
    (parkable.folder / "go").touch()
    program.proceed()
    assert program.answer() == {"result": 0, "waits": 1}


def test_move_gives_way_soon_to_a_call_that_writes_a_word_for_which_work_may_wait(parkable: Tenant) -> None:
    """Work that waits for a word does not end before it is written: other calls are held up for 10 s then."""
    program = parkable.start(
        with_helpers("""
        _, p = alloc(10 * MIB); cuda.fake_hold(1); step()
        say(result=cuda.cuStreamWriteValue32_v2(None, c_uint64(p), 1, 0)); heard()
        """)
    )
    program.answer()
    parkable.page.order(0, 0, Order.LEAVE)
    began = time.monotonic()
    eventually(lambda: parkable.page.move(0, 0).state == State.LEAVING, 60)
    program.proceed()
    assert program.answer() == {"result": 0}
    assert time.monotonic() - began < 9.5
    move = parkable.page.move(0, 0)
    assert (move.state, move.why, move.wanted) == (State.RESIDENT, Why.BUSY, 0)
    (parkable.folder / "go").touch()


def test_process_with_more_contexts_than_can_be_waited_for_stays(parkable: Tenant) -> None:
    program = parkable.start(with_helpers("alloc(10 * MIB); step()\nfor _ in range(16): context(); launch()\nstep()"))
    program.answer()
    assert refusal(parkable) is Why.MOVER
    program.proceed()
    program.answer()
    assert refusal(parkable) is Why.BUSY


@pytest.mark.parametrize("end", ["cuCtxDestroy_v2", "cuGreenCtxDestroy"])
def test_contexts_that_ended_are_not_waited_for(parkable: Tenant, end: str) -> None:
    """The driver crashes when it gets one. Neither do they count: sixteen are the most that can be waited for."""
    program = parkable.start(
        with_helpers(f"""
        kept = context(); alloc(10 * MIB); launch()
        for _ in range(20):
            ended = context(); launch(); assert cuda.{end}(ended) == 0
        cuda.cuCtxSetCurrent(kept); step(); say(result=launch()); heard()
        """)
    )
    program.answer()
    assert refusal(parkable) is Why.MOVER
    program.proceed()
    assert program.answer() == {"result": 0}


@pytest.mark.parametrize("end", ["cuDevicePrimaryCtxReset_v2(0)", "cuDevicePrimaryCtxRelease_v2(0)"])
def test_context_of_the_device_that_ended_is_not_waited_for(parkable: Tenant, end: str) -> None:
    """It stays current, and the shim itself gives back its memory after that."""
    program = parkable.start(
        with_helpers(f"""
        kept = context(); alloc(10 * MIB); launch()
        primary(); alloc(20 * MIB); free_async(alloc_async(10 * MIB)[1]); launch(); cuda.{end}; launch()
        cuda.cuCtxSetCurrent(kept); step(); say(result=launch()); heard()
        """)
    )
    program.answer()
    assert refusal(parkable) is Why.MOVER
    program.proceed()
    assert program.answer() == {"result": 0}


def test_context_that_was_released_but_not_by_its_last_holder_is_waited_for(parkable: Tenant) -> None:
    """Also where no call follows: its work may still run."""
    program = parkable.start(
        with_helpers("""
        primary(); alloc(10 * MIB); launch()
        cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), 0); cuda.cuDevicePrimaryCtxRelease_v2(0)
        step(); say(waits=cuda.fake_calls(b"cuCtxSynchronize")); heard()
        """)
    )
    program.answer()
    assert refusal(parkable) is Why.MOVER
    program.proceed()
    assert program.answer() == {"waits": 1}


def test_allocation_does_not_wait_for_a_daemon_that_has_long_been_gone(parkable: Tenant) -> None:
    parkable.page.set_room_wait(0, 60.0)
    parkable.page.set_reserve(0, 63 * GIB)
    parkable.beat(age=60.0)
    seen = parkable.run(
        with_helpers("""
        import time
        began = time.monotonic(); result = alloc(2 * GIB)[0]
        say(result=result, seconds=time.monotonic() - began)
        """)
    )
    assert seen["result"] == 2
    assert seen["seconds"] < 8.0


def test_pool_that_is_full_for_a_moment_is_tried_again(parkable: Tenant) -> None:
    with parkable.listen() as listener, contextlib.ExitStack() as kept, parkable.beating():
        listener.settimeout(60)
        program = parkable.start(with_helpers("alloc(10 * MIB); step()"))
        program.answer()
        parkable.page.order(0, 0, Order.LEAVE)
        connection = mover_connection(listener, kept)
        connection.settimeout(60)
        connection.send(wire.answer(Why.NOTHING))
        for why in (Why.POOL, Why.POOL, Why.NOTHING):
            packet, files, _, _ = socket.recv_fds(connection, wire.LONGEST, wire.AT_A_TIME)
            for file in files:
                os.close(file)
            assert wire.read_pieces(packet).out
            connection.send(wire.answer(why))
        eventually(lambda: parkable.page.move(0, 0).state == State.PARKED, 60)


def test_same_size_again_asks_the_driver_for_nothing(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        def made(): return cuda.fake_calls(b"cuMemCreate")
        for n in (5, 3 * MIB, 16 * MIB): free(alloc(n)[1])
        before = made()
        again = [free(alloc(n)[1]) for n in (5, 3 * MIB, 16 * MIB) * 3]
        kept = made() - before, taken()
        large = [free(alloc(17 * MIB)[1]) for _ in range(2)]
        say(again=again, kept=kept, large=large, made=made() - before, taken=taken(), used=used())
        """)
    )
    assert (seen["again"], seen["large"]) == ([0] * 9, [0] * 2)
    assert seen["kept"] == [0, (2 + 4 + 16) * MIB]
    assert (seen["made"], seen["taken"], seen["used"]) == (2, (2 + 4 + 16) * MIB, 0)


def test_what_is_kept_goes_where_the_card_is_full(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        for n in (3 * MIB, 16 * MIB): free(alloc(n)[1])
        say(whole=alloc(4 * GIB)[0], taken=taken())
        """)
    )
    assert seen == {"whole": 0, "taken": 4 << 30}
