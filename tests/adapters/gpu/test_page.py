"""The page that a tenant shares with the daemon: who lives, what they use, and that its owner can only hurt itself."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.adapters.gpu import page as pages
from aliquot.adapters.gpu.page import CARDS, SIZE, SLOTS, UNLIMITED, Page, PageError, _holder_in_proc
from aliquot.model.tenant import Allotment
from kit.running.privileges import needs_mounts

GIB = 1 << 30
ALLOTMENTS = (Allotment("GPU-one", 10 * GIB, 300), Allotment("GPU-two", None, None))
Child = Callable[..., "subprocess.Popen[str]"]

# Takes the slot's lock as a process of the tenant does, writes its pid and what it reserved, says so, and waits.
HOLD = """
import fcntl, os, struct, sys
path, slot, memory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
file = os.open(path, os.O_RDWR)
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
at = 64 + 16 * 128 + slot * 1088
os.pwrite(file, struct.pack("<I", os.getpid()), at)
os.pwrite(file, struct.pack("<Q", memory), at + 64)
print("held", flush=True)
sys.stdin.read()
"""

# Waits at a gate, as the shim does: on the word in the mapped page, shared with the daemon.
WAIT = """
import ctypes, mmap, os, sys
path, at = sys.argv[1], int(sys.argv[2])
mapped = mmap.mmap(os.open(path, os.O_RDWR), 0)
class Time(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]
word = ctypes.c_uint32.from_buffer(mapped, at)
number = {"x86_64": 202, "aarch64": 98}[os.uname().machine]
print("waits", flush=True)
woken = ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.byref(word), 0, 1, ctypes.byref(Time(20, 0)), None, 0)
print(woken, word.value, flush=True)
"""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    made = Page(tmp_path / "page", ALLOTMENTS)
    yield made
    made.close()


@pytest.fixture
def child() -> Iterator[Child]:
    """Starts a process with a program and its arguments; it has said its first line."""
    children: list[subprocess.Popen[str]] = []

    def start(program: str, *arguments: object) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            [sys.executable, "-S", "-c", program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(started)
        assert started.stdout is not None
        assert started.stdout.readline()
        return started

    yield start
    for child in children:
        child.kill()
        child.communicate()


def raw(page: Page) -> bytes:
    return page.path.read_bytes()


def test_page_has_the_tenants_limits(page: Page) -> None:
    content = raw(page)
    assert len(content) == SIZE
    assert struct.unpack_from("<4I", content) == (pages.MAGIC, pages.VERSION, 2, SLOTS)
    assert struct.unpack_from("<48sQQ", content, 64) == (b"GPU-one".ljust(48, b"\0"), 10 * GIB, 0)
    assert struct.unpack_from("<48sQQ", content, 64 + 128) == (b"GPU-two".ljust(48, b"\0"), UNLIMITED, 0)


def test_a_heartbeat_is_per_card(page: Page) -> None:
    page.beat(1, 123456789)
    assert struct.unpack_from("<Q", raw(page), 64 + 128 + 56) == (123456789,)
    assert struct.unpack_from("<Q", raw(page), 64 + 56) == (0,)


def test_page_words_are_at_their_offsets(page: Page) -> None:
    page.set_word(3, 1, pages.PAUSED, 1)
    page.set_word(3, 1, pages.WAKE, 1)
    page.set_overhead(3, 1, 500)
    page.set_gate(3, 1, closed=True)
    use = page.use(3, 1)
    assert (use.paused, use.wake, use.overhead, use.gate) == (1, 1, 500, 1)
    assert page.use(3, 0) == page.use(2, 1) == pages.Use(*[0] * 11)
    page.set_gate(3, 1, closed=False)
    assert page.use(3, 1).gate == 0


def test_page_is_adopted_by_the_next_daemon(tmp_path: Path, child: Child) -> None:
    """Running processes have it mapped: it is neither replaced nor emptied; limits are written anew."""
    first = Page(tmp_path / "page", ALLOTMENTS)
    child(HOLD, first.path, 5, 7 * GIB)
    first.close()
    inode = os.stat(tmp_path / "page").st_ino
    second = Page(tmp_path / "page", (Allotment("GPU-one", 20 * GIB, 300),))
    assert os.stat(second.path).st_ino == inode
    assert second.sweep() == [5]
    assert second.used(0) == 7 * GIB
    assert struct.unpack_from("<Q", raw(second), 64 + 48) == (20 * GIB,)
    second.close()


def test_page_used_is_the_sum_with_overheads(page: Page, child: Child) -> None:
    child(HOLD, page.path, 0, 3 * GIB)
    child(HOLD, page.path, 255, 2 * GIB)
    page.set_overhead(255, 0, GIB)
    page.set_overhead(7, 0, 99 * GIB)  # nobody's line
    assert page.used(0) == 6 * GIB
    assert page.used(1) == 0


def test_a_dead_process_gives_its_memory_back_and_a_living_one_keeps_it(page: Page, child: Child) -> None:
    child(HOLD, page.path, 1, GIB)
    dying = child(HOLD, page.path, 2, 4 * GIB)
    assert page.sweep() == [1, 2]
    dying.kill()
    dying.wait()
    assert page.sweep() == [1]
    assert page.used(0) == GIB
    assert page.pid(2) == 0
    assert page.use(2, 0).memory == 0


# Claims all slots, and takes as many locks behind them as its argument says.
LOCKS = """
import fcntl, os, struct, sys
path, count = sys.argv[1], int(sys.argv[2])
file = os.open(path, os.O_RDWR)
for slot in range(256):
    os.pwrite(file, struct.pack("<I", 1234), 64 + 16 * 128 + slot * 1088)
for at in range(count, 0, -1):
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1_000_000 + 2 * at)
print("held", flush=True)
sys.stdin.read()
"""


def test_locks_of_a_tenant_do_not_keep_the_daemon_busy(
    page: Page, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel goes through all of them at each look at a slot: with 20,000 it took seconds for each tenant."""
    lockf, calls = fcntl.lockf, 0

    def counted(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        end = time.thread_time() + 0.005  # more of the kernel's time than in this test, which would take long
        lockf(*arguments)
        while time.thread_time() < end:
            pass

    child(LOCKS, page.path, 500)
    monkeypatch.setattr("fcntl.lockf", counted)
    living = page.sweep()
    assert calls <= 20
    assert len(living) >= SLOTS - calls
    assert living[-1] == SLOTS - 1
    calls = 0
    assert page.sweep() == living
    assert calls == 0, "not again for a while"
    monkeypatch.undo()
    page._not_before = 0.0
    assert page.sweep() == [], "in the end they are swept"


def test_sweep_that_has_no_time_takes_the_claims_of_the_page_for_true(page: Page, child: Child) -> None:
    """So that nothing of a living process is freed; the next sweep is as thorough as ever."""
    child(LOCKS, page.path, 5)
    assert page.sweep(seconds=0.0) == [*range(SLOTS)]
    assert page.sweep() == []


def test_holders_are_looked_for_only_for_a_while_and_in_the_end_all_are_seen(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 20,000 locks a Pod that got the page of another one could keep that one's place for ever."""
    looked: list[int] = []

    def slow(slot: int) -> int:
        looked.append(slot)
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass
        return 1234

    def is_own(pid: int) -> bool:
        return pid == 4321

    assert not page.may_be_held(range(SLOTS), is_own)
    monkeypatch.setattr(page, "holder", slow)
    looks = 1
    while page.may_be_held(range(SLOTS), is_own):
        assert len(looked) <= 6 * looks, "a look has 20 ms"
        looks += 1
        assert looks <= SLOTS
    assert looked == [*range(SLOTS)]
    assert page.may_be_held(range(SLOTS), is_own), "the next one begins anew"
    assert page.may_be_held(range(SLOTS), lambda pid: pid == 1234)


def test_one_that_is_not_visible_may_hold_the_page(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "holder", lambda slot: 0 if slot == 7 else None)
    assert page.may_be_held(range(SLOTS), lambda pid: False)
    assert not page.may_be_held(range(7), lambda pid: False)


def test_page_holder_is_the_process_with_the_lock(page: Page, child: Child) -> None:
    holding = child(HOLD, page.path, 3, GIB)
    os.pwrite(page.fileno(), struct.pack("<I", 1234), 64 + 16 * 128 + 3 * 1088)  # whatever is written there
    assert (page.holder(3), page.holder(4)) == (holding.pid, None)


@needs_mounts
def test_a_holder_out_of_our_pid_namespace_has_the_number_that_proc_has_for_it(page: Page, child: Child) -> None:
    """As for an agent without hostPID that has fetched the host's /proc; with its own there is none."""
    holding = child(HOLD, page.path, 3, GIB)
    code = (
        "import sys; from pathlib import Path; from aliquot.adapters.gpu.page import Page\n"
        "print(Page(Path(sys.argv[1]), []).holder(3))"
    )
    for proc, expected in (([], holding.pid), (["--mount-proc"], 0)):
        command = ["unshare", "--pid", *proc, "--fork", sys.executable, "-c", code, str(page.path)]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{expected}\n"


def test_a_file_of_the_same_number_on_another_device_has_other_holders(page: Page, child: Child) -> None:
    holding = child(HOLD, page.path, 3, GIB)
    here = os.stat(page.path)
    elsewhere = os.stat_result((*here[:2], here.st_dev + 1, *here[3:]))
    assert (_holder_in_proc(here, 3), _holder_in_proc(elsewhere, 3)) == (holding.pid, 0)


def test_a_slot_that_was_swept_can_be_taken_again(page: Page, child: Child) -> None:
    dying = child(HOLD, page.path, 2, GIB)
    dying.kill()
    dying.wait()
    assert page.sweep() == []
    child(HOLD, page.path, 2, GIB)
    assert page.sweep() == [2]


def test_opening_the_gate_wakes_waiting_threads(page: Page, child: Child) -> None:
    page.set_gate(4, 1, closed=True)
    waiting = child(WAIT, page.path, Page._at(4, 1) + pages.GATE)
    assert waiting.stdout is not None
    for _ in range(500):  # until it sleeps in the kernel
        if Path(f"/proc/{waiting.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S":
            break
    page.set_gate(4, 1, closed=False)
    words = waiting.stdout.readline().split()
    assert words[1] == "0"  # the gate is open, and it did not sleep for its twenty seconds


def test_refusals_are_counted_over_all_processes(page: Page) -> None:
    for slot, refused in ((0, 2), (9, 3)):
        os.pwrite(page.fileno(), struct.pack("<I", 1234), 64 + 16 * 128 + slot * 1088)
        page.set_word(slot, 0, pages.REFUSED, refused)
    page.set_word(10, 0, pages.REFUSED, 100)
    assert page.refused(0) == 5


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=3000))
def test_a_page_full_of_anything_is_read_all_the_same(page: Page, garbage: bytes) -> None:
    os.pwrite(page.fileno(), (garbage * (SIZE // len(garbage) + 1))[:SIZE], 0)
    for card in range(CARDS):
        assert 0 <= page.used(card) < 2**63
        assert page.refused(card) >= 0
        page.use(17, card)
    page.sweep()
    assert page.used(0) == 0  # nobody lives


@pytest.mark.parametrize("left", [0, 1, 63, 64, 5000, SIZE - 1])
def test_a_truncated_page_kills_no_process(page: Page, left: int) -> None:
    """A process that touches a mapping past the end of its file is killed. The daemon must not be."""
    os.truncate(page.path, left)
    assert page.use(255, 15).memory == 0
    assert page.used(0) == page.refused(1) == 0
    assert page.sweep() == []
    page.set_gate(255, 15, closed=False)
    page.beat(1, 5)
    page.set_word(200, 3, pages.PAUSED, 1)
    assert (page.use(200, 3).paused == 1) == (page.trouble is None) == (left > 200 * 1088)


# Makes its page longer and shorter, as fast as it can; says when it has begun.
STRETCH = """
import os, sys
file, size = os.open(sys.argv[1], os.O_RDWR), os.stat(sys.argv[1]).st_size
print("begins", flush=True)
while True:
    os.posix_fallocate(file, 0, 512 << 20)
    os.ftruncate(file, size)
"""


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no tmpfs to fill")
def test_page_writes_do_not_wait_for_an_owner_that_extends_it(child: Child) -> None:
    """The kernel holds the file's lock meanwhile; all tenants of the card would wait for a heartbeat."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        page = Page(Path(folder, "page"), ALLOTMENTS)
        child(STRETCH, page.path)
        waited = []
        for at in range(30):
            began = time.monotonic()
            page.beat(0, at)
            waited.append(time.monotonic() - began)
            time.sleep(0.01)  # so that it is at any point of it
        assert page.trouble is None
        page.close()
    assert sum(seconds > 0.02 for seconds in waited) < 5  # by the file's lock it is nearly every time


def test_cut_truncates_an_extended_page_and_loses_nothing(page: Page) -> None:
    page.beat(1, 5)
    os.truncate(page.path, SIZE + 1)
    assert page.is_longer()
    pages.cut(page.fileno())
    assert not page.is_longer()
    assert struct.unpack_from("<Q", raw(page), 64 + 128 + 56) == (5,)


def test_page_keeps_write_errors_in_trouble(tmp_path: Path) -> None:
    page = Page(tmp_path / "page", ALLOTMENTS)
    page.close()
    page.beat(0, 1)
    assert page.trouble is not None


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _hard_link(path: Path) -> None:
    (path.parent / "of-another").write_bytes(bytes(64))
    os.link(path.parent / "of-another", path)


@pytest.mark.parametrize(
    "make", [_link, _hard_link, Path.mkdir, os.mkfifo], ids=["link", "hard link", "folder", "fifo"]
)
def test_page_refuses_what_is_not_a_regular_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Its folder is the tenant's: after a restart anything may be there."""
    make(tmp_path / "page")
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(PageError):
        Page(tmp_path / "page", ALLOTMENTS)
    assert set(os.listdir("/proc/self/fd")) == before


def test_more_cards_than_a_page_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="16 cards"):
        Page(tmp_path / "page", [Allotment(f"GPU-{at}") for at in range(17)])
