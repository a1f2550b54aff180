"""Launches: counted, reported, and held at a closed gate while the daemon lives; some calls must not wait there."""

from __future__ import annotations

import time
from bisect import bisect_left

import pytest

from aliquot.adapters.gpu.link import Hello, Wake, receive
from aliquot.adapters.gpu.page import GATE, WAKE
from aliquot.arbiter.gaps import EDGES
from shim.harness import Program, Tenant, eventually

STREAM = "c_void_p(0)"
KERNELS = {
    "cuLaunchKernel": "(None, 1, 1, 1, 1, 1, 1, 0, S, None, None)",
    "cuLaunchKernel_ptsz": "(None, 1, 1, 1, 1, 1, 1, 0, S, None, None)",
    "cuLaunchKernelEx": "(byref((c_uint64 * 7)(0, 0, 0, 0, S.value or 0)), None, None, None)",
    "cuLaunchCooperativeKernel": "(None, 1, 1, 1, 1, 1, 1, 0, S, None)",
    "cuGraphLaunch": "(instantiate(graph()), S)",
    "cuGraphLaunch_ptsz": "(instantiate(graph()), S)",
    "cuLaunchGridAsync": "(None, 1, 1, S)",
}
OTHERS = {
    "cuMemcpyHtoDAsync_v2": "(c_uint64(0), None, c_size_t(4), S)",
    "cuMemcpyDtoH_v2": "(None, c_uint64(0), c_size_t(4))",
    "cuMemcpyAsync_ptsz": "(c_uint64(0), c_uint64(0), c_size_t(4), S)",
    "cuMemsetD8_v2_ptds": "(c_uint64(0), 1, c_size_t(4))",
    "cuMemsetD32Async": "(c_uint64(0), 1, c_size_t(4), S)",
    "cuMemPrefetchBatchAsync": "(None, None, c_size_t(0), None, None, c_size_t(0), c_ulonglong(0), S)",
    "cuMemDiscardAndPrefetchBatchAsync_ptsz": "(None, None, c_size_t(0), None, None, c_size_t(0), c_ulonglong(0), S)",
    "cuMemBatchDecompressAsync": "(None, c_size_t(0), 0, None, S)",
}
UNCOUNTED = {
    "cuStreamSynchronize": "(S)",
    "cuEventSynchronize": "(None)",
    "cuCtxSynchronize": "()",
    "cuStreamQuery": "(S)",
    "cuEventQuery": "(None)",
    "cuMemFreeAsync": "(c_uint64(0), S)",
}


def caller(tenant: Tenant, *calls: str) -> Program:
    """A program that has its slot, and then makes each call in turn when told, and says its result."""
    program = tenant.start(
        "context(); S = stream(); alloc(1)\nsay(slot=0)\nheard()\n"
        + "".join(f"say(result=cuda.{call})\nheard()\n" for call in calls)
    )
    assert program.answer() == {"slot": 0}
    return program


@pytest.mark.parametrize(("name", "arguments"), [*KERNELS.items(), *OTHERS.items()])
def test_work_is_counted_once_and_reaches_the_driver(tenant: Tenant, name: str, arguments: str) -> None:
    answer = tenant.run(f"""
        context(); S = stream()
        results = [cuda.{name}{arguments} for _ in range(3)]
        say(results=results, calls=cuda.fake_calls({name.encode()!r}))
    """)
    assert answer == {"results": [0, 0, 0], "calls": 3}
    assert tenant.use().launches == 3


@pytest.mark.parametrize(("name", "arguments"), KERNELS.items())
def test_a_kernel_waits_at_a_closed_gate_until_it_opens(tenant: Tenant, name: str, arguments: str) -> None:
    program = caller(tenant, f"{name}{arguments}")
    with tenant.beating():
        tenant.page.set_gate(0, 0, closed=True)
        program.proceed()
        eventually(lambda: tenant.use().launches == 1)
        time.sleep(0.02)
        assert program.process.poll() is None
        tenant.page.set_gate(0, 0, closed=False)
        assert program.answer() == {"result": 0}
        assert tenant.use().rescued == 0


def test_an_opened_gate_wakes_those_who_wait_at_once(tenant: Tenant) -> None:
    """Not at their own next look, a tenth of a second later. The best of some tries: the machine may be busy."""
    program = caller(tenant, *["cuLaunch(None)"] * 8)
    took = []
    for launches in range(1, 9):
        tenant.beat()
        tenant.page.set_gate(0, 0, closed=True)
        program.proceed()
        eventually(lambda wanted=launches: tenant.use().launches == wanted)  # type: ignore[misc]
        time.sleep(0.01)
        began = time.monotonic()
        tenant.page.set_gate(0, 0, closed=False)
        program.answer()
        took.append(time.monotonic() - began)
    assert min(took) < 0.02
    assert sorted(took)[4] < 0.09


@pytest.mark.parametrize(("name", "arguments"), [*OTHERS.items(), *UNCOUNTED.items()])
def test_copies_waits_queries_and_frees_are_never_gated(tenant: Tenant, name: str, arguments: str) -> None:
    program = caller(tenant, f"{name}{arguments}")
    tenant.page.set_gate(0, 0, closed=True)
    program.proceed()
    assert "result" in program.answer()


def test_a_capturing_stream_is_never_gated(tenant: Tenant) -> None:
    program = tenant.start("""
        context(); S = stream(); alloc(1); cuda.cuStreamBeginCapture_v2(S, 0)
        say(); heard(); say(result=launch(S))
    """)
    program.answer()
    tenant.page.set_gate(0, 0, closed=True)
    program.proceed()
    assert program.answer() == {"result": 0}


def test_a_gate_whose_daemon_is_gone_opens_by_itself_and_that_counts_once(tenant: Tenant) -> None:
    program = caller(tenant, "cuLaunchKernel" + KERNELS["cuLaunchKernel"], *["cuLaunch(None)"] * 3)
    tenant.page.set_gate(0, 0, closed=True)
    tenant.beat()
    began = time.monotonic()
    program.proceed()
    assert program.answer() == {"result": 0}
    assert time.monotonic() - began > 0.4
    for _ in range(3):
        program.proceed()
        program.answer()
    assert tenant.use().rescued == 1
    assert tenant.use().gate == 1  # the daemon's word, left as it is


def test_a_gate_stays_closed_while_the_daemon_lives(tenant: Tenant) -> None:
    program = caller(tenant, "cuLaunch(None)")
    with tenant.beating():
        tenant.page.set_gate(0, 0, closed=True)
        program.proceed()
        time.sleep(1.0)
        assert tenant.use().rescued == 0
        tenant.page.set_word(0, 0, GATE, 0)  # without waking it: it looks by itself
        assert program.answer() == {"result": 0}


def test_a_heartbeat_from_the_future_is_no_heartbeat(tenant: Tenant) -> None:
    program = caller(tenant, "cuLaunch(None)")
    tenant.page.set_gate(0, 0, closed=True)
    tenant.beat(age=-3600)
    program.proceed()
    assert program.answer() == {"result": 0}
    assert tenant.use().rescued == 1


def test_waits_are_shown_while_they_last(tenant: Tenant) -> None:
    program = tenant.start("context(); alloc(1); cuda.fake_hold(1); say(); cuda.cuCtxSynchronize(); say(); heard()")
    program.answer()
    eventually(lambda: tenant.use().waiting == 1)
    (tenant.folder / "go").touch()
    program.answer()
    assert tenant.use().waiting == 0


def test_busy_time_runs_from_a_kernel_to_the_end_of_a_wait(tenant: Tenant) -> None:
    program = caller(
        tenant,
        "cuMemcpyHtoDAsync_v2" + OTHERS["cuMemcpyHtoDAsync_v2"],
        "cuLaunch(None)",
        "cuLaunch(None)",
        "cuEventQuery(None)",
    )

    def step() -> None:
        program.proceed()
        program.answer()

    step()
    assert tenant.use().busy_since_ns == 0  # a copy is no work of the compute engine
    step()
    since = tenant.use().busy_since_ns
    assert 0 < since <= time.monotonic_ns()
    time.sleep(0.03)
    step()
    assert tenant.use().busy_since_ns == since
    step()
    assert tenant.use().busy_since_ns == 0
    assert 30e6 <= tenant.use().busy_ns <= 2e9


def test_a_function_of_the_host_sees_the_work_before_it_done(tenant: Tenant) -> None:
    seen = tenant.run("""
        context(); heard = []
        call = ctypes.CFUNCTYPE(None, c_void_p)(lambda with_: heard.append(with_))
        for _ in range(600): launch(); result = cuda.cuLaunchHostFunc(None, call, c_void_p(7))
        say(result=result, heard=len(heard), first=heard[0])
    """)
    assert seen == {"result": 0, "heard": 600, "first": 7}
    assert tenant.use().busy_since_ns == 0
    assert tenant.use().busy_ns > 0


def test_gaps_are_counted_by_length_from_a_wait_to_the_next_launch(tenant: Tenant) -> None:
    tenant.run("""
        import time
        context()
        for pause in (0.03, 0.03, 0.2): launch(); cuda.cuCtxSynchronize(); time.sleep(pause)
        launch(); launch(); say()
    """)
    counts = tenant.page.gaps(0)
    short = sum(counts[: bisect_left(EDGES, 0.03)])
    assert (short, sum(counts), sum(counts[bisect_left(EDGES, 0.2) :])) == (0, 3, 1)


def test_copy_ends_one_gap_and_its_end_begins_another(tenant: Tenant) -> None:
    """The process was not idle while it waited for the copy."""
    tenant.run("""
        import time
        context()
        launch(); cuda.cuCtxSynchronize(); time.sleep(0.03)
        cuda.cuMemcpyDtoH_v2(None, c_uint64(0), c_size_t(4)); cuda.cuCtxSynchronize(); time.sleep(0.03)
        launch(); say()
    """)
    counts = tenant.page.gaps(0)
    assert (sum(counts[: bisect_left(EDGES, 0.03)]), sum(counts)) == (0, 2)


def test_a_captured_kernel_does_not_make_busy(tenant: Tenant) -> None:
    tenant.run("context(); S = stream(); cuda.cuStreamBeginCapture_v2(S, 0); say(result=launch(S))")
    assert tenant.use().busy_since_ns == 0


def test_an_armed_wake_is_sent_by_the_next_launch_once(tenant: Tenant) -> None:
    listener = tenant.listen()
    program = tenant.start("""
        context(); rm = Context(); alloc(1); say(); heard()
        for _ in range(5): launch()
        say(); heard()
    """)
    program.answer()
    connection, _ = listener.accept()
    connection.settimeout(5)
    assert isinstance(receive(connection), Hello)
    tenant.page.set_word(0, 0, WAKE, 1)
    program.proceed()
    program.answer()
    wakes = 0
    connection.settimeout(0.3)
    try:
        while (message := receive(connection)) is not None:
            wakes += message == Wake(0)
    except TimeoutError:
        pass
    assert wakes == 1
    assert tenant.use().wake == 0
    connection.close()
    listener.close()


def test_each_card_has_its_own_line(tenant: Tenant) -> None:
    tenant.grant(None, None)
    tenant.run("""
        first = context(0); second = context(1)
        for _ in range(3): launch()
        cuda.cuCtxSetCurrent(first); launch()
        say()
    """)
    assert (tenant.use(card=0).launches, tenant.use(card=1).launches) == (1, 3)


def test_errno_is_left_as_it_was(tenant: Tenant) -> None:
    tenant.grant(None)
    answer = tenant.run("""
        mine = ctypes.CDLL("libcuda.so.1", use_errno=True)
        context()
        seen = []
        for call in (lambda: mine.cuLaunch(None), lambda: mine.cuMemAlloc_v2(byref(c_uint64()), c_size_t(4)),
                     lambda: mine.cuMemAlloc_v2(byref(c_uint64()), c_size_t(1 << 50)), lambda: mine.cuCtxSynchronize()):
            ctypes.set_errno(77); call(); seen.append(ctypes.get_errno())
        say(seen=seen)
    """)
    assert answer == {"seen": [77] * 4}
