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


def test_many_pools_are_charged_as_one_and_too_many_are_refused(
    tenant: Tenant, capfd: pytest.CaptureFixture[str]
) -> None:
    """An audit took 14.5 GiB with a quota of 4: from the 65th on, what a pool kept was not counted."""
    answer = tenant.run("""
        context()
        pools = []
        def make():
            pool = c_void_p()
            result = cuda.cuMemPoolCreate(byref(pool), byref(PoolProps(type=1, location=Location(DEVICE, 0))))
            pools.append(pool)
            return result
        results = []
        for _ in range(200):
            p = c_uint64(); make()
            cuda.cuMemPoolSetAttribute(pools[-1], 4, byref(c_uint64(2**64 - 1)))    # keeps all that it ever had
            results.append(cuda.cuMemAllocFromPoolAsync(byref(p), c_size_t(64 * MIB), pools[-1], None))
        held = used()
        made = sum(make() == 0 for _ in range(4000))
        say(granted=results.count(0), held=held, taken=cuda.fake_taken(0), made=200 + made)
    """)
    assert answer == {"granted": 64, "held": 4 * GIB, "taken": 4 * GIB, "made": 4096}
    assert capfd.readouterr().err.count("4096 memory pools") == 1


@pytest.mark.parametrize("where", ["Location(0, 0)", "Location(2, 0)", "Location(DEVICE, 0)"])
def test_managed_pools_are_charged_what_they_hand_out_wherever_they_prefer_to_be(tenant: Tenant, where: str) -> None:
    """CUDA 13: an audit took 19.7 GiB with a quota of 4."""
    answer = tenant.run(f"""
        context()
        made, default, host = c_void_p(), c_void_p(), c_void_p()
        assert cuda.cuMemPoolCreate(byref(made), byref(PoolProps(type=2, location={where}))) == 0
        assert cuda.cuMemGetDefaultMemPool(byref(default), byref({where}), 2) == 0
        assert cuda.cuMemGetMemPool(byref(host), byref(Location(2, 0)), 1) == 0
        def take(pool, n):
            p = c_uint64()
            return cuda.cuMemAllocFromPoolAsync(byref(p), c_size_t(n), pool, None), p.value
        _, first = take(made, 3 * GIB)
        results = [take(made, 2 * GIB)[0], take(default, 2 * GIB)[0], take(default, GIB)[0], take(host, 8 * GIB)[0]]
        full = used()
        free_async(first); cuda.cuCtxSynchronize()
        say(results=results, full=full, freed=used())
    """)
    assert answer == {"results": [2, 2, 0, 0], "full": 4 * GIB, "freed": GIB}


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


WITHIN = {  # how a graph `child` with a node of 3 GiB, or of none yet, becomes a part of `g`
    "moved": "add(4, child=child, ownership=1)",
    "copied": "cuda.cuGraphAddChildGraphNode(byref(c_void_p()), g, None, c_size_t(0), child)",
    "copied by the general way": "add(4, child=child, ownership=0)",
    "cloned": "cuda.cuGraphClone(byref(g), child)",
}


@pytest.mark.parametrize("way", WITHIN)
def test_graph_within_another_is_charged_at_its_launch(tenant: Tenant, way: str) -> None:
    answer = tenant.run(f"""
        context()
        g, child = graph(), graph()
        def add(kind, child, ownership):
            params = NodeParams(type=kind)
            ctypes.memmove(ctypes.addressof(params) + 16, byref((c_uint64 * 2)(child.value, ownership)), 16)
            return cuda.cuGraphAddNode(byref(c_void_p()), g, None, c_size_t(0), byref(params))
        assert alloc_node(child, 3 * GIB)[0] == 0
        assert {WITHIN[way]} == 0
        more = alloc_node(g, 2 * GIB)[0]
        x = instantiate(g)
        alloc(2 * GIB)
        say(more=more, launched=cuda.cuGraphLaunch(x, None), taken=cuda.fake_taken(0))
    """)
    assert answer == {"more": 2, "launched": 2, "taken": 2 * GIB}


def test_what_is_added_to_a_part_of_a_graph_later_counts_in_the_whole(tenant: Tenant) -> None:
    """A child that was moved, and the bodies of a condition; their handles may be another graph's after its end."""
    answer = tenant.run("""
        context()
        class Condition(ctypes.Structure):
            _fields_ = (("type", c_int), ("reserved", c_int * 3), ("handle", c_uint64), ("kind", c_int),
                        ("size", c_uint), ("bodies", ctypes.POINTER(c_void_p)), ("rest", c_char * 208))
        g = graph(); params = Condition(type=13, size=2)
        assert cuda.cuGraphAddNode(byref(c_void_p()), g, None, c_size_t(0), byref(params)) == 0
        bodies = [c_void_p(params.bodies[i]) for i in range(2)]
        results = [alloc_node(bodies[0], 3 * GIB)[0], alloc_node(bodies[1], 2 * GIB)[0], alloc_node(g, GIB)[0]]
        x = instantiate(g)
        launched = cuda.cuGraphLaunch(x, None); held = used()
        cuda.cuGraphDestroy(g); cuda.cuGraphExecDestroy(x); cuda.cuDeviceGraphMemTrim(0)
        say(results=results, launched=launched, held=held, anew=alloc_node(bodies[0], 4 * GIB)[0])
    """)
    assert answer == {"results": [0, 2, 0], "launched": 0, "held": 4 * GIB, "anew": 0}
