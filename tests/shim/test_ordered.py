"""Stream-ordered memory of a tenant that may be parked: from memory that can leave, or else from the driver's pools."""

from __future__ import annotations

import pytest

from aliquot.adapters.gpu.page import Order, State, Stays
from shim.harness import GIB, MIB, Tenant, eventually, with_helpers


def test_stream_ordered_memory_can_leave_and_counts_as_that_of_its_pool(parkable: Tenant) -> None:
    program = parkable.start(
        with_helpers("""
        s = stream()
        _, p = alloc_async(100 * MIB, s); _, q = alloc_from(default(), 10, s)
        in_pool = about(17, p + 5) == default().value
        say(plain=plain(), used=used(), pool=in_pool, context=about(1, p), start=about(11, p + 5), p=p,
            asked=[ask(a) for a in (RESERVED, USED)])
        heard()
        """)
    )
    seen = program.answer()
    assert (seen["plain"], seen["used"], seen["pool"], seen["context"]) == (0, 100 * MIB + 512, True, 0)
    assert seen["start"] == seen["p"]
    assert seen["asked"] == [100 * MIB + 512] * 2
    move = parkable.page.move(0, 0)
    assert (move.movable, Stays(move.stays)) == (102 * MIB, Stays(0))
    program.proceed()
    assert program.end() == 0


def test_others_have_the_drivers_pool_as_ever(tenant: Tenant) -> None:
    seen = tenant.run(
        with_helpers("_, p = alloc_async(MIB); say(plain=plain(), freed=free_async(p), events=cuda.fake_events())")
    )
    assert seen == {"plain": 1, "freed": 0, "events": 0}


def test_freed_memory_is_used_again_at_once_on_its_stream_and_elsewhere_when_its_work_is_done(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        s, t = stream(), stream()
        _, p = alloc_async(10 * MIB, s)
        cuda.fake_unfinished(1)
        assert free_async(p, s) == 0
        _, other = alloc_async(10 * MIB, t)
        before = cuda.fake_event_waits()
        _, same = alloc_async(10 * MIB - 5, s)
        waited = cuda.fake_event_waits() - before
        assert free_async(same, s) == free_async(other, None) == 0
        _, third = alloc_async(10 * MIB, t)
        cuda.fake_unfinished(0)
        _, fourth = alloc_async(10 * MIB, t)
        say(same=same == p, waited=waited, other=other in (p, third), third=third in (p, other), fourth=fourth == p,
            taken=taken(), used=used(), events=cuda.fake_events())
        """)
    )
    assert seen == {
        "same": True, "waited": 1, "other": False, "third": False, "fourth": True,
        "taken": 30 * MIB, "used": 30 * MIB, "events": 3,
    }  # fmt: skip


def test_freed_memory_serves_a_little_less_than_it_has(parkable: Tenant) -> None:
    """The smallest that fits, and no more than a quarter too large. It is reserved, and what was asked for is used."""
    seen = parkable.run(
        with_helpers("""
        tell(THRESHOLD, 2**64 - 1)
        sizes = [100, 90, 110, 126, 128]
        of = {n: alloc_async(n * MIB)[1] for n in sizes}
        was = {p: n for n, p in of.items()}
        assert not any(free_async(p) for p in of.values())
        got = [was.get(alloc_async(n * MIB)[1], 0) for n in (88, 88, 101, 101, 101)]
        small = alloc_async(400_000)[1]
        assert free_async(small) == 0
        fits, small_fits = ask(USED) // MIB, alloc_async(360_000)[1] == small
        say(got=got, used=fits, reserved=ask(RESERVED) // MIB, small=small_fits)
        """)
    )
    # 101 MiB are 102: whole units of 2 MiB; 128 is more than a quarter larger
    assert seen == {"got": [90, 100, 110, 126, 0], "used": 2 * 88 + 3 * 101, "reserved": 656, "small": True}


def test_memory_of_the_same_stream_is_found_behind_much_that_is_not_done(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        s, t = stream(), stream()
        others, (_, p) = [alloc_async(MIB, t)[1] for _ in range(40)], alloc_async(MIB, s)
        cuda.fake_unfinished(1)
        assert not any(free_async(q, t) for q in others) and free_async(p, s) == 0
        say(again=alloc_async(MIB, s)[1] == p)
        """)
    )
    assert seen == {"again": True}


def test_answer_about_a_pool_that_is_an_int_has_four_bytes(parkable: Tenant) -> None:
    """They are the last of their page, and nothing is behind it."""
    seen = parkable.run(
        with_helpers("""
        import ctypes, mmap
        pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
        start = ctypes.addressof(c_char.from_buffer(pages))
        assert ctypes.CDLL(None).mprotect(c_void_p(start + mmap.PAGESIZE), c_size_t(mmap.PAGESIZE), 0) == 0
        alloc_async(MIB)
        last = c_int.from_address(start + mmap.PAGESIZE - 4)
        say(result=cuda.cuMemPoolGetAttribute(default(), 1, byref(last)), value=last.value)
        """)
    )
    assert seen == {"result": 0, "value": 1}


def test_stream_that_each_thread_has_is_the_same_in_one_thread_only(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        import threading
        own, got = c_void_p(2), []
        _, p = alloc_async(MIB, own)
        cuda.fake_unfinished(1)
        assert free_async(p, own) == 0
        def other(): primary(); got.append(alloc_async(MIB, own))
        thread = threading.Thread(target=other); thread.start(); thread.join()
        say(other=[got[0][0], got[0][1] == p], again=alloc_async(MIB, own)[1] == p)
        """)
    )
    assert seen == {"other": [0, False], "again": True}


def test_kept_memory_is_given_back_by_a_trim_and_at_a_wait_beyond_the_threshold(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        def fill(n): return [free_async(p) for p in [alloc_async(20 * MIB)[1] for _ in range(n)]]
        fill(5); kept = taken(), used(), ask(RESERVED), ask(USED)
        wait(); waited = taken(), used()
        trim(30 * MIB); trimmed = taken()
        trim(); nothing = taken(), used(), ask(RESERVED), ask(RESERVED_HIGH), ask(USED_HIGH)
        tell(RESERVED_HIGH, 0); tell(USED_HIGH, 0); anew = ask(RESERVED_HIGH), ask(USED_HIGH)
        tell(THRESHOLD, 2**64 - 1); fill(5); wait(); all_kept = taken()
        tell(THRESHOLD, 60 * MIB); wait(); some = taken()
        cuda.fake_unfinished(1); trim(); unfinished = taken()
        say(kept=kept, waited=waited, trimmed=trimmed, nothing=nothing, anew=anew, all=all_kept, some=some,
            unfinished=unfinished)
        """)
    )
    assert seen == {
        "kept": [100 * MIB, 100 * MIB, 100 * MIB, 0],
        "waited": [20 * MIB, 20 * MIB],  # a little is kept over waits
        "trimmed": 20 * MIB,
        "nothing": [0, 0, 0, 100 * MIB, 100 * MIB],
        "anew": [0, 0],
        "all": 100 * MIB, "some": 60 * MIB, "unfinished": 60 * MIB,
    }  # fmt: skip


def test_kept_memory_makes_room_within_the_quota_and_on_the_card(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        tell(THRESHOLD, 2**64 - 1)
        assert free_async(alloc_async(3 * GIB)[1]) == 0
        result, p = alloc_async(2 * GIB)
        plain_too = alloc(2 * GIB)[0]
        refused = alloc_async(MIB)[0]
        say(result=result, plain=plain_too, refused=refused, taken=taken(), used=used())
        """)
    )
    assert seen == {"result": 0, "plain": 0, "refused": 2, "taken": 4 * GIB, "used": 4 * GIB}


def test_full_card_has_kept_memory_given_back_first(parkable: Tenant) -> None:
    """The card of straw has 64 GiB."""
    parkable.page.set_reserve(0, 62 * GIB)
    seen = parkable.run(
        with_helpers("""
        tell(THRESHOLD, 2**64 - 1)
        assert free_async(alloc_async(GIB)[1]) == 0
        say(result=alloc_async(GIB + 100 * MIB)[0], taken=taken(), full=alloc_async(GIB)[0], used=used())
        """)
    )
    assert seen == {"result": 0, "taken": GIB + 100 * MIB, "full": 2, "used": GIB + 100 * MIB}


@pytest.mark.parametrize("full", ["quota", "card"])
@pytest.mark.parametrize("call", ["alloc", "alloc_async", "piece"])
def test_allocation_waits_for_what_was_freed_on_other_streams(tenant: Tenant, full: str, call: str) -> None:
    """Of the quota or of the card, 4 GiB are left for it."""
    tenant.grant(4 * GIB if full == "quota" else 63 * GIB)
    tenant.page.set_parkable(0, True)
    tenant.page.set_reserve(0, 0 if full == "quota" else 60 * GIB)
    seen = tenant.run(
        with_helpers(f"""
        assert free_async(alloc_async(3 * GIB, other := stream())[1], other) == 0
        cuda.fake_unfinished(-9)
        say(result={call}(2 * GIB)[0], taken=taken(), used=used(), more={call}(3 * GIB)[0])
        """)
    )
    assert seen == {"result": 0, "taken": 2 * GIB, "used": 2 * GIB, "more": 2}


@pytest.mark.parametrize(
    "how",
    [
        "context(); p = alloc_async(MIB)[1]",  # not the device's own context
        "p = alloc_from(pool(handles=1), MIB)[1]",  # others may be given it
        "p = alloc_from(pool(most=GIB), MIB)[1]",
        "cuda.fake_fail_next(999); p = alloc_async(MIB)[1]",  # no memory that can leave
    ],
)
def test_what_is_unusual_is_served_by_the_driver_and_stays(parkable: Tenant, how: str) -> None:
    program = parkable.start(with_helpers(f"{how}\nsay(plain=plain())\nheard()\nassert free_async(p) == 0\nstep()"))
    assert program.answer() == {"plain": 1}
    assert Stays(parkable.page.move(0, 0).stays) == Stays.POOLED
    program.proceed()
    program.answer()
    assert Stays(parkable.page.move(0, 0).stays) == Stays(0)
    program.proceed()
    assert program.end() == 0


def test_allocation_on_a_capturing_stream_is_a_node_of_the_graph(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        s, g = stream(), c_void_p()
        _, before = alloc_async(MIB, s)
        assert cuda.cuStreamBeginCapture_v2(s, 0) == 0
        _, p = alloc_async(MIB, s)
        freed = free_async(p, s)
        assert cuda.cuStreamEndCapture(s, byref(g)) == 0
        say(plain=plain(), freed=freed, after=free_async(before, s))
        """)
    )
    assert seen == {"plain": 1, "freed": 0, "after": 0}


def test_allocation_beside_a_capture_asks_the_driver_only_where_its_pool_would_have_to_grow(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        s, t = stream(), stream()
        alloc_async(4 * MIB, t)
        assert cuda.cuStreamBeginCapture_v2(s, 0) == 0
        asked = []
        for size in (4 * MIB, 64 * MIB):
            before = cuda.fake_calls(b"cuMemAlloc_v2")
            assert alloc_async(size, t)[0] == 0
            asked.append(cuda.fake_calls(b"cuMemAlloc_v2") - before)
        say(asked=asked)
        """)
    )
    assert seen == {"asked": [0, 1]}


def test_pool_of_the_programs_own_may_end_before_what_was_allocated_from_it(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        own = pool()
        _, p = alloc_from(own, 10 * MIB); _, q = alloc_from(own, 20 * MIB)
        asked = ask(USED, own), ask(USED), plain()
        assert free_async(q) == 0
        assert cuda.cuMemPoolDestroy(own) == 0
        left = taken(), used()
        freed = free_async(p); wait(); gone = taken(), used(); again = pool(); _, r = alloc_from(again, 10 * MIB)
        own_again = r != p
        assert free(r) == 0
        trim(of=again); wait()
        asked_dead = cuda.fake_asked_dead()
        assert alloc(4 * GIB - MIB)[0] == 0
        say(asked=asked, left=left, freed=freed, gone=gone, own_again=own_again, asked_dead=asked_dead)
        """)
    )
    assert seen == {
        "asked": [30 * MIB, 0, 0], "left": [10 * MIB, 10 * MIB], "freed": 0, "gone": [0, 0], "own_again": True,
        "asked_dead": 0,
    }  # fmt: skip


def test_pool_that_the_driver_does_not_end_goes_on(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        _, p = alloc_async(10 * MIB)
        refused = cuda.cuMemPoolDestroy(default()) != 0
        say(refused=refused, pool=about(17, p) == default().value, used=ask(USED))
        """)
    )
    assert seen == {"refused": True, "pool": True, "used": 10 * MIB}


def test_memory_may_be_freed_the_plain_way_and_ends_with_the_devices_own_context(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        tell(THRESHOLD, 2**64 - 1)
        _, p = alloc_async(10 * MIB); _, q = alloc_async(20 * MIB); _, r = alloc_async(5)
        assert free(p) == 0
        plainly = taken(), used(), ask(USED)
        assert free_async(q) == 0
        assert cuda.cuDevicePrimaryCtxReset_v2(0) == 0
        primary()
        after = taken(), used(), ask(RESERVED)
        _, p = alloc_async(20 * MIB)
        say(plainly=plainly, after=after, again=[free_async(p), taken(), plain()])
        """)
    )
    assert seen == {
        "plainly": [22 * MIB, 20 * MIB + 512, 20 * MIB + 512], "after": [0, 0, 0], "again": [0, 20 * MIB, 0],
    }  # fmt: skip


def test_forked_child_has_nothing_of_it(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        assert free_async(alloc_async(10 * MIB)[1]) == 0
        child = os.fork()
        if not child:
            os._exit(ask(RESERVED) != 0)
        say(child=os.waitpid(child, 0)[1])
        """)
    )
    assert seen == {"child": 0}


def test_page_says_what_is_kept_and_holds_nothing(parkable: Tenant) -> None:
    """Small ones share pieces with others: they are not counted."""
    program = parkable.start(
        with_helpers("""
        tell(THRESHOLD, 2**64 - 1)
        _, p = alloc_async(600 * MIB); _, q = alloc_async(10 * MIB); _, r = alloc_async(10); step()
        assert free_async(p) == free_async(q) == free_async(r) == 0; step()
        _, q = alloc_async(10 * MIB); step()
        trim(); step()
        array(); step()
        assert free_async(q) == 0; step()
        """)
    )
    seen = []
    for _ in range(6):
        program.answer()
        move = parkable.page.move(0, 0)
        seen.append((move.movable // MIB, move.kept // MIB, Stays(move.stays)))
        program.proceed()
    assert program.end() == 0
    nothing = Stays(0)
    assert seen == [
        (612, 0, nothing), (612, 610, nothing), (612, 600, nothing), (10, 0, nothing), (10, 0, Stays.OTHER),
        (10, 10, Stays.OTHER),
    ]  # fmt: skip


def test_kept_memory_is_given_back_before_the_rest_leaves(parkable: Tenant) -> None:
    """Without a mover nothing leaves, but what nobody uses is gone by then."""
    with parkable.beating():
        program = parkable.start(
            with_helpers("""
            tell(THRESHOLD, 2**64 - 1)
            _, p = alloc_async(10 * MIB)
            assert free_async(alloc_async(20 * MIB)[1]) == 0
            step()
            say(taken=taken(), used=used(), freed=free_async(p))
            """)
        )
        program.answer()
        assert (parkable.page.move(0, 0).movable, parkable.page.move(0, 0).kept) == (30 * MIB, 20 * MIB)
        parkable.page.order(0, 0, Order.LEAVE)
        eventually(lambda: parkable.page.move(0, 0).why != 0)
        assert (parkable.page.move(0, 0).movable, parkable.page.move(0, 0).state) == (10 * MIB, State.RESIDENT)
        assert parkable.page.move(0, 0).kept == 0
        program.proceed()
        assert program.answer() == {"taken": 10 * MIB, "used": 10 * MIB, "freed": 0}
        assert program.end() == 0


def test_threads_that_allocate_and_free_never_share_memory(parkable: Tenant) -> None:
    seen = parkable.run(
        with_helpers("""
        import random, threading
        held, lock, wrong, context = set(), threading.Lock(), [], primary()
        def work(seed):
            assert cuda.cuCtxSetCurrent(context) == 0
            chosen, mine, on = random.Random(seed), [], stream()
            for _ in range(300):
                if mine and chosen.random() < 0.5:
                    p = mine.pop(chosen.randrange(len(mine)))
                    with lock: held.remove(p)
                    assert free_async(p, on) == 0
                else:
                    result, p = alloc_async(chosen.choice([10, 700, 5000, 3 * MIB, 8 * MIB]), on)
                    with lock:
                        wrong.append(p) if result or p in held else None
                        held.add(p)
                    mine.append(p)
                if chosen.random() < 0.05: wait()
            for p in mine:
                with lock: held.remove(p)
                assert free_async(p, on) == 0
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        trim()
        say(wrong=wrong, taken=taken(), used=used(), plain=plain(), asked=ask(RESERVED))
        """)
    )
    assert seen == {"wrong": [], "taken": 0, "used": 0, "plain": 0, "asked": 0}
