"""Processes: fork, exec, threads, signals. A child starts with nothing of its parent's."""

from __future__ import annotations

from shim.harness import GIB, Tenant, eventually


def test_a_forked_child_is_a_process_of_its_own(tenant: Tenant) -> None:
    program = tenant.start("""
        context(); alloc(GIB)
        pid = os.fork()
        if not pid:
            say(before=sorted(int(n) for n in os.listdir("/proc/self/fd") if int(n) >= 512))
            result = alloc(2 * GIB)[0]
            say(result=result, used=used(), more=alloc(2 * GIB)[0])
            heard(); os._exit(0)
        os.waitpid(pid, 0)
        say(used=used(), more=alloc(3 * GIB)[0]); heard()
    """)
    assert program.answer() == {"before": []}
    assert program.answer() == {"result": 0, "used": 3 * GIB, "more": 2}
    assert [tenant.use(slot).memory for slot in tenant.slots()] == [GIB, 2 * GIB]
    program.proceed()
    assert program.answer() == {"used": GIB, "more": 0}


def test_a_child_that_only_lives_and_dies_changes_nothing(tenant: Tenant) -> None:
    """DataLoader workers: forked from a process on the GPU, they never touch it."""
    program = tenant.start("""
        context(); rm = Context(); alloc(GIB)
        for _ in range(5):
            pid = os.fork()
            if not pid:
                files = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if int(n) >= 512]
                os._exit(len(files) + len(os.listdir("/proc/self/task")) - 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        say(used=used()); heard()
    """)
    assert program.answer() == {"used": GIB}
    assert tenant.slots() == [0]
    assert tenant.page.sweep() == [0]  # the parent's lock did not go with its children


def test_fork_while_other_threads_allocate_leaves_no_lock_taken(tenant: Tenant) -> None:
    answer = tenant.run("""
        import threading
        mine = context()
        stop = False
        def churn():
            cuda.cuCtxSetCurrent(mine)
            while not stop: free(alloc(MIB)[1])
        threads = [threading.Thread(target=churn) for _ in range(2)]
        for t in threads: t.start()
        codes = []
        for _ in range(20):
            pid = os.fork()
            if not pid:
                context()
                os._exit(alloc(MIB)[0])
            codes.append(os.waitpid(pid, 0)[1])
        stop = True
        for t in threads: t.join()
        say(codes=codes, used=used())
    """)
    assert answer == {"codes": [0] * 20, "used": 0}


def test_exec_starts_anew_and_the_old_image_is_forgotten(tenant: Tenant) -> None:
    program = tenant.start("""
        context(); rm = Context(); alloc(3 * GIB)
        code = "from straw import *; context(); say(r=alloc(3 * GIB)[0], used=used())"
        code = f"import sys; sys.path.insert(0, {sys.path[0]!r}); " + code
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", code])
    """)
    assert program.answer() == {"r": 0, "used": 3 * GIB}


def test_the_thread_takes_no_signal_and_does_not_keep_the_process(tenant: Tenant) -> None:
    answer = tenant.run("""
        import signal, threading, time
        rm = Context()
        time.sleep(0.05)
        names = [open(f"/proc/self/task/{t}/comm").read().strip() for t in os.listdir("/proc/self/task")]
        thread = next(t for t in os.listdir("/proc/self/task") if int(t) != os.getpid())
        status = open(f"/proc/self/task/{thread}/status").read()
        blocked = int(status.split("SigBlk:")[1].split()[0], 16)
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(threading.current_thread() is threading.main_thread()))
        for _ in range(20): os.kill(os.getpid(), signal.SIGUSR1)
        say(names=sorted(names)[:1], usual=all(blocked >> (s - 1) & 1 for s in (1, 2, 10, 15, 17)), mine=all(seen))
    """)
    assert answer == {"names": ["aliquot"], "usual": True, "mine": True}


def test_a_killed_process_leaves_a_slot_that_the_next_takes_clean(tenant: Tenant) -> None:
    first = tenant.start("context(); alloc(GIB); launch(); say(); heard()")
    first.answer()
    serial = tenant.page.pid(0)
    first.kill()
    second = tenant.start("context(); alloc(1); say(); heard()")
    second.answer()
    eventually(lambda: tenant.page.pid(0) not in (0, serial))
    assert (tenant.use().memory, tenant.use().launches) == (512, 0)


def test_a_stopped_neighbour_does_not_hold_anybody_up(tenant: Tenant) -> None:
    """Were it stopped inside its own reservation: others go on without it after a moment."""
    holder = tenant.start("""
        import fcntl
        fd = os.open(os.environ["ALIQUOT_TENANT"] + "/page", os.O_RDWR)
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, 256)      # the ledger's byte
        say(); heard()
    """)
    holder.answer()
    answer = tenant.run("""
        import time
        context()
        began = time.monotonic()
        results = [alloc(GIB)[0] for _ in range(5)]
        say(results=results, seconds=time.monotonic() - began)
    """)
    assert answer["results"] == [0, 0, 0, 0, 2]
    assert answer["seconds"] < 1
