"""The memory quota: what is refused, what is given back, for each way a program can take memory."""

from __future__ import annotations

import pytest

from shim.harness import GIB, MIB, Tenant, eventually

# How to take `n` bytes, per entry point of the driver: an expression whose value is (result, key), and the way back.
WAYS = {
    "cuMemAlloc_v2": ("alloc(n)", "free(key)"),
    "cuMemAlloc": ("old_alloc(n)", "cuda.cuMemFree(c_uint(key))"),
    "cuMemAllocManaged": ("take(cuda.cuMemAllocManaged, c_size_t(n), 1)", "free(key)"),
    "cuMemAllocPitch_v2": ("pitched(n)", "free(key)"),
    "cuMemAllocAsync": ("alloc_async(n)", "(free_async(key), cuda.cuCtxSynchronize())"),
    "cuMemAllocAsync_ptsz": (
        "take(cuda.cuMemAllocAsync_ptsz, c_size_t(n), None)",
        "(cuda.cuMemFreeAsync_ptsz(c_uint64(key), None), cuda.cuCtxSynchronize())",
    ),
    "cuMemAllocFromPoolAsync": (
        "take(cuda.cuMemAllocFromPoolAsync, c_size_t(n), pool(), None)",
        "(free_async(key), cuda.cuCtxSynchronize())",
    ),
    "cuMemCreate": ("piece(n)", "cuda.cuMemRelease(c_uint64(key))"),
    "cuArrayCreate_v2": ("array2d(n)", "cuda.cuArrayDestroy(c_void_p(key))"),
    "cuArray3DCreate_v2": ("array3d(n)", "cuda.cuArrayDestroy(c_void_p(key))"),
    "cuMipmappedArrayCreate": ("mipmap(n)", "cuda.cuMipmappedArrayDestroy(c_void_p(key))"),
}
HELPERS = """
def take(function, *arguments):
    p = c_uint64()
    return function(byref(p), *arguments), p.value
def old_alloc(n):
    p = c_uint()
    return cuda.cuMemAlloc(byref(p), c_uint(n)), p.value
def pitched(n):
    p, pitch = c_uint64(), c_size_t()
    return cuda.cuMemAllocPitch_v2(byref(p), byref(pitch), c_size_t(MIB), c_size_t(n // MIB), 4), p.value
def pool():
    p = c_void_p()
    cuda.cuDeviceGetDefaultMemPool(byref(p), 0)
    return p
def array2d(n):
    a = c_void_p()
    d = (c_size_t * 3)(MIB, n // MIB, 1 << 32 | 1)
    return cuda.cuArrayCreate_v2(byref(a), byref(d)), a.value
def array3d(n):
    a = c_void_p()
    return cuda.cuArray3DCreate_v2(byref(a), byref(Array3D(MIB, n // MIB // 4, 4, 1, 1, 0))), a.value
def mipmap(n):
    a = c_void_p()
    return cuda.cuMipmappedArrayCreate(byref(a), byref(Array3D(MIB, n // MIB, 0, 1, 1, 0)), 1), a.value
"""


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_memory_is_charged_refused_past_the_quota_and_given_back(tenant: Tenant, way: str) -> None:
    take, give = WAYS[way]
    answer = tenant.run(f"""{HELPERS}
context()
n = 3 * GIB
first, key = {take}
charged = used()
second, other = {take}
taken = cuda.fake_taken(0)
key = key
{give}
after = used()
third, key = {take}
say(first=first, charged=charged, second=second, taken=taken, after=after, third=third)
""")
    assert answer == {"first": 0, "charged": 3 * GIB, "second": 2, "taken": 3 * GIB, "after": 0, "third": 0}
    assert tenant.use().refused == 1


def test_exactly_the_quota_fits_whatever_the_driver_rounds_it_to(tenant: Tenant) -> None:
    tenant.grant(1_000_000_000)  # no multiple of the driver's pages
    assert tenant.run("context(); say(all=alloc(1_000_000_000)[0], more=alloc(1)[0])") == {"all": 0, "more": 2}


def test_many_allocations_of_odd_sizes_are_charged_what_they_take_of_the_card(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        for _ in range(10): alloc(2 * MIB + 1)
        large = used()
        for _ in range(10): alloc(1)
        say(large=large, small=used() - large)
    """)
    assert answer == {"large": 40 * MIB, "small": 5120}


def test_what_the_driver_refuses_is_not_charged(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        cuda.fake_fail_next(999)
        say(result=alloc(GIB)[0], used=used())
    """)
    assert answer == {"result": 999, "used": 0}
    assert tenant.use().refused == 0


def test_without_a_context_the_driver_answers(tenant: Tenant) -> None:
    assert tenant.run("say(alloc=alloc(GIB)[0], pooled=alloc_async(GIB)[0])") == {"alloc": 201, "pooled": 201}


def test_an_unknown_pointer_is_freed_by_the_driver(tenant: Tenant) -> None:
    assert tenant.run("context(); say(result=free(0x1234), calls=cuda.fake_calls(b'cuMemFree_v2'))") == {
        "result": 1,
        "calls": 1,
    }


def test_a_pitch_wider_than_foreseen_is_charged_afterwards(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        p, pitch = c_uint64(), c_size_t()
        cuda.cuMemAllocPitch_v2(byref(p), byref(pitch), c_size_t(512), c_size_t(1 << 20), 4)
        say(pitch=pitch.value, used=used())
    """)
    assert answer == {"pitch": 1024, "used": GIB}


def test_sparse_arrays_and_host_pieces_cost_nothing(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        a = c_void_p()
        sparse = cuda.cuArray3DCreate_v2(byref(a), byref(Array3D(MIB, 32768, 1, 1, 1, 0x40)))
        host, _ = piece(32 * GIB, kind=2)
        say(sparse=sparse, host=host, used=used())
    """)
    assert answer == {"sparse": 0, "host": 0, "used": 0}


# ---- contexts ----


def test_the_end_of_a_context_gives_back_what_was_allocated_in_it_and_only_that(tenant: Tenant) -> None:
    answer = tenant.run("""
        first = context(); alloc(GIB)
        second = context(); alloc(MIB)
        _, h = piece(2 * MIB)
        cuda.cuCtxDestroy_v2(first)
        say(used=used())
    """)
    assert answer == {"used": 3 * MIB}


@pytest.mark.parametrize("end", ["cuDevicePrimaryCtxReset_v2(0)", "cuDevicePrimaryCtxRelease_v2(0)"])
def test_the_end_of_the_devices_own_context_gives_back_too(tenant: Tenant, end: str) -> None:
    answer = tenant.run(f"""
        context()
        mine = c_void_p(); cuda.cuDevicePrimaryCtxRetain(byref(mine), 0); cuda.cuCtxSetCurrent(mine)
        alloc(GIB); before = used()
        cuda.{end}
        say(before=before, after=used())
    """)
    assert answer == {"before": GIB, "after": 0}


def test_the_devices_own_context_stays_while_a_program_holds_it(tenant: Tenant) -> None:
    answer = tenant.run("""
        mine = c_void_p()
        for _ in range(2): cuda.cuDevicePrimaryCtxRetain(byref(mine), 0)
        cuda.cuCtxSetCurrent(mine)
        alloc(GIB)
        cuda.cuDevicePrimaryCtxRelease_v2(0)
        say(used=used())
    """)
    assert answer == {"used": GIB}


# ---- several cards ----


def test_each_card_has_its_own_quota_and_a_card_that_was_not_granted_has_none(tenant: Tenant) -> None:
    tenant.grant(GIB, 2 * GIB)
    two = tenant.run("""
        context(0); first = [alloc(GIB)[0], alloc(MIB)[0]]
        context(1); second = [alloc(2 * GIB)[0], alloc(MIB)[0]]
        say(first=first, second=second, elsewhere=piece(MIB, device=1)[0])
    """)
    assert two == {"first": [0, 2], "second": [0, 2], "elsewhere": 2}
    tenant.grant(GIB)
    assert tenant.run("context(1); say(result=alloc(MIB)[0], pooled=alloc_async(MIB)[0])") == {"result": 2, "pooled": 2}


def test_an_unlimited_card_is_counted_and_refuses_nothing(tenant: Tenant) -> None:
    tenant.grant(None)
    program = tenant.start("context(); result = alloc(32 * GIB)[0]; say(result=result, info=info()); heard()")
    assert program.answer() == {"result": 0, "info": [32 * GIB, 64 * GIB]}
    assert tenant.use().memory == 32 * GIB


# ---- what others see ----


def test_the_card_looks_as_large_as_the_quota(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        alloc(GIB)
        total = c_size_t(); cuda.cuDeviceTotalMem_v2(byref(total), 0)
        old, small = c_uint(), c_uint(); cuda.cuMemGetInfo(byref(old), byref(small))
        say(info=info(), total=total.value, old=old.value, small=small.value)
    """)
    assert answer == {"info": [3 * GIB, 4 * GIB], "total": 4 * GIB, "old": 3 * GIB, "small": 4 * GIB - 1}


def test_nvml_shows_the_quota_of_the_tenants_cards_and_leaves_others_as_they_are(tenant: Tenant) -> None:
    answer = tenant.run("""
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        context(); alloc(GIB)
        def memory(card):
            device, v1, v2 = c_void_p(), (c_ulonglong * 3)(), (c_ulonglong * 5)(0x02000028)
            nvml.nvmlDeviceGetHandleByIndex_v2(card, byref(device))
            assert nvml.nvmlDeviceGetMemoryInfo(device, byref(v1)) == 0
            assert nvml.nvmlDeviceGetMemoryInfo_v2(device, byref(v2)) == 0
            return list(v1), list(v2)[1:]
        say(mine=memory(0), other=memory(1))
    """)
    assert answer["mine"] == [[4 * GIB, 3 * GIB, GIB], [4 * GIB, 0, 3 * GIB, GIB]]
    assert answer["other"] == [[64 * GIB, 64 * GIB - 5, 5], [64 * GIB, 3, 64 * GIB - 8, 5]]


def test_what_the_driver_takes_beside_allocations_counts(tenant: Tenant) -> None:
    program = tenant.start("context(); alloc(MIB); say(); heard(); say(result=alloc(3 * GIB)[0], info=info())")
    program.answer()
    tenant.page.set_overhead(0, 0, 2 * GIB)
    program.proceed()
    assert program.answer() == {"result": 2, "info": [2 * GIB - MIB, 4 * GIB]}


# ---- a tenant's processes ----


def test_processes_of_one_tenant_share_its_quota(tenant: Tenant) -> None:
    first = tenant.start("context(); say(result=alloc(3 * GIB)[0]); heard()")
    assert first.answer() == {"result": 0}
    assert tenant.run("context(); say(result=alloc(2 * GIB)[0], fits=alloc(GIB)[0])") == {"result": 2, "fits": 0}
    first.proceed()
    assert first.end() == 0
    assert tenant.run("context(); say(result=alloc(4 * GIB)[0])") == {"result": 0}


def test_the_memory_of_a_killed_process_is_given_back_to_the_others(tenant: Tenant) -> None:
    survivor = tenant.start("context(); alloc(MIB); say(); heard(); say(info=info(), result=alloc(4 * GIB - MIB)[0])")
    survivor.answer()
    victim = tenant.start("context(); say(result=alloc(3 * GIB)[0]); heard()")
    assert victim.answer() == {"result": 0}
    assert tenant.page.used(0) == 3 * GIB + MIB
    victim.kill()
    survivor.proceed()
    assert survivor.answer() == {"info": [4 * GIB - MIB, 4 * GIB], "result": 0}


def test_many_processes_that_race_for_the_last_bytes_get_all_of_them_and_not_one_more(tenant: Tenant) -> None:
    """Twelve want 8 x 64 MiB each, the quota holds 60 of the 96: it is never passed, and all of it is handed out."""
    tenant.grant(60 * 64 * MIB)
    racer = """
        context()
        say(); heard()
        say(got=sum(alloc(64 * MIB)[0] == 0 for _ in range(8)))
        heard()
    """
    racers = [tenant.start(racer) for _ in range(12)]
    for rival in racers:
        rival.answer()
    for rival in racers:
        rival.proceed()
    most = 0
    got = []
    for rival in racers:
        most = max(most, tenant.page.used(0))
        got.append(rival.answer()["got"])
    assert sum(got) == 60
    assert max(most, tenant.page.used(0)) == 60 * 64 * MIB


def test_threads_of_one_process_do_not_miscount(tenant: Tenant) -> None:
    answer = tenant.run("""
        import threading
        mine = context()
        def churn():
            cuda.cuCtxSetCurrent(mine)
            kept = []
            for i in range(400):
                result, p = alloc(3 * MIB)
                if result == 0: kept.append(p)
                if i % 3: free(kept.pop())
            for p in kept: free(p)
        threads = [threading.Thread(target=churn) for _ in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
        say(used=used(), taken=cuda.fake_taken(0))
    """)
    assert answer == {"used": 0, "taken": 0}


def test_a_process_whose_files_were_all_closed_keeps_its_slot_and_its_charge(tenant: Tenant) -> None:
    program = tenant.start("""
        context(); alloc(GIB)
        os.closerange(3, 4096)
        alloc(GIB)              # finds that its lock is gone, and takes it again
        say(used=used()); heard()
    """)
    assert program.answer() == {"used": 2 * GIB}
    assert tenant.page.sweep() == [0]
    assert tenant.use().memory == 2 * GIB


def test_a_process_that_was_taken_for_dead_registers_its_memory_anew(tenant: Tenant) -> None:
    """Its files were closed, and before it noticed the daemon swept its slot."""
    program = tenant.start("""
        context(); alloc(GIB)
        os.closerange(3, 4096)
        say(); heard()
        alloc(GIB); say(used=used()); heard()
    """)
    program.answer()
    assert tenant.page.sweep() in ([], [0])  # 0: its own thread has noticed first
    program.proceed()
    assert program.answer() == {"used": 2 * GIB}
    assert tenant.page.sweep() in ([0], [1])  # 1: its thread looked for a slot while we held the lock of its old one


# ---- when the page is no page ----


@pytest.mark.parametrize("page", [None, b"", b"x" * 300_000])
def test_without_a_usable_page_memory_is_refused_and_the_reason_is_said_once(
    tenant: Tenant, capfd: pytest.CaptureFixture[str], page: bytes | None
) -> None:
    path = tenant.folder / "page"
    path.unlink()
    if page is not None:
        path.write_bytes(page)
    answer = tenant.run("context(); say(results=[alloc(MIB)[0], alloc_async(MIB)[0], piece(MIB)[0]], launch=launch())")
    assert answer == {"results": [2, 2, 2], "launch": 0}
    error = capfd.readouterr().err
    assert error.count("aliquot:") == 1
    assert str(path) in error
    assert "aliquot run" in error


def test_program_that_became_another_user_is_told_to_start_as_that_one(
    tenant: Tenant, capfd: pytest.CaptureFixture[str]
) -> None:
    (tenant.folder / "page").chmod(0)
    seen = tenant.run("""
        import os
        if not os.geteuid(): os.setuid(65534)
        context(); say(result=alloc(MIB)[0], user=os.geteuid())
    """)
    assert seen["result"] == 2
    assert f"start it with `aliquot run` as user {seen['user']}." in capfd.readouterr().err


def test_a_full_page_of_slots_refuses_and_says_so(tenant: Tenant, capfd: pytest.CaptureFixture[str]) -> None:
    holder = tenant.start("""
        import fcntl, struct
        fd = os.open(os.environ["ALIQUOT_TENANT"] + "/page", os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX, 256, 0)
        say(); heard()
    """)
    holder.answer()
    assert tenant.run("context(); say(result=alloc(MIB)[0])") == {"result": 2}
    assert "no more fit" in capfd.readouterr().err
    holder.kill()
    eventually(lambda: tenant.run("context(); say(result=alloc(MIB)[0])") == {"result": 0})
