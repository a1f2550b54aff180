"""Calls under way when the driver is to take the process off the card: one that it gets later does not come back."""

from __future__ import annotations

import time

import pytest

from aliquot.adapters.gpu.page import Order, State, Why
from shim.harness import Program, Tenant, eventually

THREADS = """
import _thread, threading, time
c = primary()
free(alloc(10 * MIB)[1])
def module():
    say(began=1); cuda.cuModuleLoad(byref(c_void_p()), b"")
def event():
    cuda.fake_hold(2); say(began=1); cuda.cuEventSynchronize(None); say(ended=1)
def thread(work):
    _thread.start_new_thread(lambda: (cuda.cuCtxSetCurrent(c), work()), ())
"""


def start(tenant: Tenant, code: str) -> Program:
    """A program that made a call which does not return before the file `go` is there."""
    program = tenant.start(THREADS + code + "\nheard(); os._exit(0)")
    assert program.answer() == {"began": 1}
    time.sleep(0.5)
    return program


def state(tenant: Tenant, slot: int = 0) -> int:
    return tenant.page.move(slot, 0).state


def go(tenant: Tenant) -> None:
    (tenant.folder / "go").touch()


def halts(tenant: Tenant, slot: int = 0) -> bool:
    """Whether it does, when it is ordered to."""
    tenant.page.order(slot, 0, Order.HALT)
    eventually(lambda: state(tenant, slot) == State.HALTED or bool(tenant.page.move(slot, 0).why), 60)
    return state(tenant, slot) == State.HALTED


def test_process_without_memory_halts_too(parkable: Tenant) -> None:
    """It has a context, which the driver takes with those of the tenant's other processes."""
    with parkable.beating():
        program = parkable.start("primary(); launch(); step(); say(result=launch()); heard()")
        program.answer()
        assert halts(parkable)
        program.proceed()
        eventually(lambda: parkable.page.move(0, 0).wanted == 1, 60)
        parkable.page.order(0, 0, Order.RETURN)
        assert program.answer() == {"result": 0}


@pytest.mark.parametrize("has_memory", [True, False])
def test_halted_is_said_once_the_call_has_returned(parkable: Tenant, has_memory: bool) -> None:
    with parkable.beating():
        if has_memory:
            start(parkable, "thread(module)")
        else:
            without = THREADS.replace("free(alloc(10 * MIB)[1])", "launch(); time.sleep(1)")
            parkable.start(without + "thread(module)\nheard(); os._exit(0)").answer()
        time.sleep(6)  # for calls that began before calls were shown
        parkable.page.order(0, 0, Order.HALT)
        began = time.monotonic()
        while time.monotonic() - began < 0.6:
            assert state(parkable) in (State.RESIDENT, State.LEAVING)
            time.sleep(0.01)
        go(parkable)
        eventually(lambda: state(parkable) == State.HALTED, 60)


def test_call_that_takes_long_keeps_it_on_the_card_and_others_go_on(parkable: Tenant) -> None:
    with parkable.beating():
        program = start(parkable, "thread(module); heard(); say(result=launch())")
        assert not halts(parkable)
        assert (state(parkable), parkable.page.move(0, 0).why) == (State.RESIDENT, Why.BUSY)
        program.proceed()
        assert program.answer() == {"result": 0}
        go(parkable)
        eventually(lambda: halts(parkable), 60)


def test_wait_for_the_card_goes_on_behind_the_drivers_lock(parkable: Tenant) -> None:
    """What the shim itself asks of the driver afterwards waits for the return."""
    with parkable.beating():
        program = start(parkable, "free_async(alloc_async(10 * MIB)[1])\nthread(event)")
        assert halts(parkable)
        assert parkable.page.move(0, 0).wanted == 0
        parkable.page.order(0, 0, Order.AWAY)
        go(parkable)
        eventually(lambda: parkable.page.move(0, 0).wanted == 1, 60)
        parkable.page.order(0, 0, Order.RETURN)
        assert program.answer() == {"ended": 1}
        eventually(lambda: state(parkable) == State.RESIDENT, 60)
        assert parkable.page.move(0, 0).wanted == 0


def test_program_that_launches_all_the_time_halts(parkable: Tenant) -> None:
    """Its launches wait in the shim, and not in the driver."""
    with parkable.beating():
        program = start(parkable, "say(began=1)\nfor _ in range(3): thread(lambda: [launch() for _ in iter(int, 1)])")
        assert halts(parkable)
        eventually(lambda: parkable.page.move(0, 0).wanted == 3, 60)
        parkable.page.order(0, 0, Order.RETURN)
        eventually(lambda: state(parkable) == State.RESIDENT, 60)
        launches = parkable.use().launches
        eventually(lambda: parkable.use().launches > launches, 60)
        assert program.process.poll() is None


def test_thread_that_ended_in_a_call_is_not_waited_for(parkable: Tenant) -> None:
    with parkable.beating():
        start(
            parkable,
            """
libc = ctypes.CDLL(None)
libc.pthread_cancel.argtypes = [c_uint64]
ident = []
thread(lambda: (ident.append(threading.get_ident()), module()))
time.sleep(0.2); libc.pthread_cancel(ident[0])
""",
        )
        assert halts(parkable)


def test_call_that_was_left_by_a_jump_ends_with_the_threads_next(parkable: Tenant) -> None:
    """As a handler of a signal may do."""
    with parkable.beating():
        program = start(parkable, "cuda.fake_jump(cuda.cuModuleLoad); say(began=1); heard(); launch(); say(ended=1)")
        assert not halts(parkable)
        program.proceed()
        assert program.answer() == {"ended": 1}
        assert halts(parkable)


def test_child_does_not_wait_for_calls_of_its_parent(parkable: Tenant) -> None:
    with parkable.beating():
        start(
            parkable,
            """
thread(module); time.sleep(0.2)
if os.fork() == 0:
    primary(); free(alloc(10 * MIB)[1]); heard(); os._exit(0)
""",
        )
        eventually(lambda: 1 in parkable.slots(), 60)
        assert halts(parkable, 1)
        assert not halts(parkable, 0)
