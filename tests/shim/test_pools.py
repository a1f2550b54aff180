"""Memory that is not one pointer: physical pieces and their mappings, pools, and graphs that allocate."""

from __future__ import annotations

import pytest

from shim.harness import GIB, MIB, Tenant

# ---- pieces ----


def test_a_piece_is_charged_until_it_is_released_and_unmapped(tenant: Tenant) -> None:
    """As PyTorch's expandable segments do, in either order."""
    answer = tenant.run("""
        context()
        steps = []
        _, h = piece(2 * GIB)
        cuda.cuMemMap(c_uint64(0x100000000), c_size_t(2 * GIB), c_size_t(0), c_uint64(h), c_ulonglong(0))
        cuda.cuMemRelease(c_uint64(h)); steps.append(used())
        cuda.cuMemUnmap(c_uint64(0x100000000), c_size_t(2 * GIB)); steps.append(used())
        _, h = piece(2 * GIB)
        cuda.cuMemMap(c_uint64(0x100000000), c_size_t(2 * GIB), c_size_t(0), c_uint64(h), c_ulonglong(0))
        cuda.cuMemUnmap(c_uint64(0x100000000), c_size_t(2 * GIB)); steps.append(used())
        cuda.cuMemRelease(c_uint64(h)); steps.append(used())
        say(steps=steps, taken=cuda.fake_taken(0))
    """)
    assert answer == {"steps": [2 * GIB, 0, 2 * GIB, 0], "taken": 0}


def test_a_retained_handle_is_released_twice(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        _, h = piece(GIB)
        cuda.cuMemMap(c_uint64(0x100000000), c_size_t(GIB), c_size_t(0), c_uint64(h), c_ulonglong(0))
        again = c_uint64()
        cuda.cuMemRetainAllocationHandle(byref(again), c_void_p(0x100000000))
        cuda.cuMemUnmap(c_uint64(0x100000000), c_size_t(GIB))
        cuda.cuMemRelease(c_uint64(h)); one = used()
        cuda.cuMemRelease(again)
        say(one=one, both=used())
    """)
    assert answer == {"one": GIB, "both": 0}


def test_one_unmap_may_end_many_mappings(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        for i in range(8):
            _, h = piece(16 * MIB)
            at = c_uint64(0x100000000 + i * 16 * MIB)
            cuda.cuMemMap(at, c_size_t(16 * MIB), c_size_t(0), c_uint64(h), c_ulonglong(0))
            cuda.cuMemRelease(c_uint64(h))
        before = used()
        cuda.cuMemUnmap(c_uint64(0x100000000), c_size_t(64 * MIB)); half = used()
        cuda.cuMemUnmap(c_uint64(0x100000000 + 64 * MIB), c_size_t(64 * MIB))
        say(before=before, half=half, after=used())
    """)
    assert answer == {"before": 128 * MIB, "half": 64 * MIB, "after": 0}


def test_memory_of_another_process_is_not_charged_again(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        h = c_uint64()
        cuda.cuMemImportFromShareableHandle(byref(h), c_void_p(7), 1)
        imported = used()
        say(imported=imported, released=cuda.cuMemRelease(h), used=used())
    """)
    assert answer == {"imported": 0, "released": 0, "used": 0}


# ---- pools ----


def test_a_pool_is_charged_what_it_holds_not_what_it_handed_out(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        pool = c_void_p(); cuda.cuDeviceGetMemPool(byref(pool), 0)
        cuda.cuMemPoolSetAttribute(pool, 4, byref(c_uint64(2**64 - 1)))     # keeps all, as PyTorch sets it
        _, p = alloc_async(2 * GIB)
        free_async(p)
        cuda.cuCtxSynchronize(); kept = used()
        cuda.cuMemPoolTrimTo(pool, c_size_t(GIB)); trimmed = used()
        say(kept=kept, trimmed=trimmed, again=alloc_async(4 * GIB)[0], used=used())
    """)
    assert answer == {"kept": 2 * GIB, "trimmed": GIB, "again": 0, "used": 4 * GIB}


def test_a_pool_serves_from_what_it_holds_without_asking_the_quota(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        results = []
        for _ in range(5):
            result, p = alloc_async(4 * GIB)
            results.append(result)
            free_async(p)
        say(results=results, waits=cuda.fake_waits())
    """)
    assert answer == {"results": [0] * 5, "waits": 0}


def test_spare_memory_of_pools_makes_room_before_anything_is_refused(tenant: Tenant) -> None:
    """Even when its free has not happened yet on the stream: then the driver is waited for, as it does itself."""
    answer = tenant.run("""
        context()
        pool = c_void_p(); cuda.cuDeviceGetMemPool(byref(pool), 0)
        cuda.cuMemPoolSetAttribute(pool, 4, byref(c_uint64(2**64 - 1)))
        _, p = alloc_async(3 * GIB)
        free_async(p)
        say(plain=alloc(3 * GIB)[0], pieces=piece(2 * GIB)[0], used=used())
    """)
    assert answer == {"plain": 0, "pieces": 2, "used": 3 * GIB}


def test_a_wait_lets_go_of_what_a_pool_gave_back(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        _, p = alloc_async(2 * GIB)
        free_async(p)
        cuda.cuStreamSynchronize(None)
        heard_nothing = cuda.fake_calls(b"cuMemGetInfo_v2")
        say(taken=cuda.fake_taken(0), asked=heard_nothing)
    """)
    assert answer == {"taken": 0, "asked": 0}
    assert tenant.use().memory == 0


def test_a_pool_of_the_programs_own_is_charged_and_what_outlives_it_stays_charged(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        pool, p = c_void_p(), c_uint64()
        cuda.cuMemPoolCreate(byref(pool), byref(PoolProps(type=1, location=Location(DEVICE, 0))))
        cuda.cuMemAllocFromPoolAsync(byref(p), c_size_t(GIB), pool, None)
        cuda.cuMemPoolDestroy(pool); outlived = used()
        free_async(p.value)
        host = c_void_p()
        cuda.cuMemPoolCreate(byref(host), byref(PoolProps(type=1, location=Location(2, 0))))
        on_host = cuda.cuMemAllocFromPoolAsync(byref(p), c_size_t(8 * GIB), host, None)
        say(outlived=outlived, freed=used(), on_host=on_host)
    """)
    assert answer == {"outlived": GIB, "freed": 0, "on_host": 0}


def test_a_pools_pointer_may_be_freed_the_plain_way_and_plain_memory_on_a_stream(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        _, p = alloc_async(GIB)
        _, q = alloc(GIB)
        results = [free(p), free_async(q)]
        cuda.cuCtxSynchronize()
        say(results=results, used=used())
    """)
    assert answer == {"results": [0, 0], "used": 0}


# ---- graphs ----


def test_a_graph_that_could_never_run_within_the_quota_is_refused_while_it_is_built(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        g = graph()
        say(results=[alloc_node(g, GIB)[0] for _ in range(6)], used=used())
    """)
    assert answer == {"results": [0, 0, 0, 0, 2, 2], "used": 0}


def test_nodes_that_do_not_live_together_count_once(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        g = graph()
        results = []
        for _ in range(6):
            result, p = alloc_node(g, 3 * GIB)
            results += [result, free_node(g, p)]
        x = instantiate(g)
        launched = [cuda.cuGraphLaunch(x, None), cuda.cuGraphLaunch(x, None)]
        say(results=results, launched=launched, used=used(), taken=cuda.fake_taken(0))
    """)
    assert answer == {"results": [0] * 12, "launched": [0, 0], "used": 3 * GIB, "taken": 3 * GIB}


def test_a_graph_is_refused_at_launch_when_others_took_its_room_and_kept_memory_is_trimmed_for_others(
    tenant: Tenant,
) -> None:
    answer = tenant.run("""
        context()
        g = graph(); alloc_node(g, 3 * GIB); x = instantiate(g)
        _, p = alloc(2 * GIB)
        refused = cuda.cuGraphLaunch(x, None)
        free(p)
        launched = cuda.cuGraphLaunch(x, None); held = used()
        plain = alloc(4 * GIB)[0]       # the graph is done: what the driver keeps for it is taken back
        say(refused=refused, launched=launched, held=held, plain=plain, used=used())
    """)
    assert answer == {"refused": 2, "launched": 0, "held": 3 * GIB, "plain": 0, "used": 4 * GIB}


@pytest.mark.parametrize("version", ["", "_v2", "_v3"])
def test_the_general_way_to_add_nodes_is_the_same(tenant: Tenant, version: str) -> None:
    edges = "None, " if version else ""
    answer = tenant.run(f"""
        context()
        g = graph()
        results = []
        for _ in range(3):
            pool = PoolProps(type=1, location=Location(DEVICE, 0))
            params = NodeParams(type=10, alloc=AllocNode(pool=pool, bytes=2 * GIB))
            results.append(cuda.cuGraphAddNode{version}(byref(c_void_p()), g, None, {edges}c_size_t(0), byref(params)))
        say(results=results)
    """)
    assert answer == {"results": [0, 0, 2]}


def test_an_allocation_on_a_capturing_stream_is_a_node(tenant: Tenant) -> None:
    answer = tenant.run("""
        context()
        s = stream(); cuda.cuStreamBeginCapture_v2(s, 0)
        first, p = alloc_async(3 * GIB, s)
        freed = free_async(p, s)
        second, q = alloc_async(3 * GIB, s)
        third, _ = alloc_async(3 * GIB, s)
        say(results=[first, freed, second, third], used=used(), taken=cuda.fake_taken(0))
    """)
    assert answer == {"results": [0, 0, 0, 2], "used": 0, "taken": 0}
