"""Registration: which channel groups the daemon hears of, with which file, when; and the rescue when it is gone."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from aliquot.adapters.gpu.link import Done, GroupSeen, Hello, receive
from aliquot.adapters.gpu.page import PAUSED
from shim.harness import MIB, Tenant, eventually


class Daemon:
    """The other end: takes a connection and collects whole sets."""

    def __init__(self, tenant: Tenant) -> None:
        self.listener = tenant.listen()
        self.connection: socket.socket | None = None
        self.hello: Hello | None = None

    def accept(self) -> Hello:
        """The next connection's hello."""
        if self.connection is not None:
            self.connection.close()
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(60)
        hello = receive(self.connection)
        assert isinstance(hello, Hello)
        return hello

    def groups(self) -> list[GroupSeen]:
        """The next whole set. Its files are closed here; `fd` says whether there was one."""
        assert self.connection is not None
        seen: list[GroupSeen] = []
        while True:
            message = receive(self.connection)
            if isinstance(message, Done):
                assert message.groups == len(seen)
                return seen
            assert isinstance(message, GroupSeen)
            assert os.readlink(f"/proc/self/fd/{message.fd}") == "/dev/null"  # the very file, as the program opened it
            os.close(message.fd)
            seen.append(message)

    def quiet(self, seconds: float = 0.3) -> bool:
        """Nothing more comes."""
        assert self.connection is not None
        self.connection.settimeout(seconds)
        try:
            return receive(self.connection) is None
        except TimeoutError:
            return True
        finally:
            self.connection.settimeout(60)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.listener.close()


@contextmanager
def daemon(tenant: Tenant) -> Iterator[Daemon]:
    made = Daemon(tenant)
    try:
        yield made
    finally:
        made.close()


STEPS = "rm = Context(); say(rm={k: v for k, v in vars(rm).items()}); "


def test_the_shim_sends_a_contexts_groups_with_channels_and_a_file(tenant: Tenant) -> None:
    with daemon(tenant) as other:
        program = tenant.start(STEPS + "heard()")
        rm = program.answer()["rm"]
        hello = other.accept()
        assert (hello.pid, hello.slot) == (program.process.pid, 0)
        assert tenant.page.pid(0) == program.process.pid
        while len(groups := other.groups()) < 2 or not all(group.channels for group in groups):
            pass  # sent while the program was still making them
        copy, compute = sorted(groups, key=lambda group: group.compute)
        assert (compute.client, compute.group, compute.device, compute.subdevice) == (
            rm["client"], rm["group"], rm["device"], rm["subdevice"],
        )  # fmt: skip
        assert (compute.engine, sorted(compute.channels)) == (1, rm["channels"])
        assert (copy.group, copy.compute, copy.engine, copy.channels) == (rm["copy"], False, 9, (rm["copy_channel"],))


def test_the_shim_sends_all_groups_again_after_each_change(tenant: Tenant) -> None:
    with daemon(tenant) as other:
        program = tenant.start(
            STEPS
            + """heard()
for _ in range(3): rm_alloc(rm.fd, rm.client, rm.group, CHANNEL)
say(); heard()
second = Context(0xC1D00002, channels=2)
say(); heard()
rm_free(rm.fd, rm.client, rm.channels[0])
say(); heard()
rm_free(rm.fd, rm.client, rm.device)
say(); heard()
rm_free(second.fd, second.client, second.client)
say(); heard()
"""
        )
        program.answer()
        other.accept()

        def sizes() -> list[int]:
            return sorted(len(group.channels) for group in other.groups())

        def wait_for(groups: list[int]) -> None:
            while sizes() != groups:  # a change that came apart was sent in parts
                pass

        wait_for([1, 8])
        for groups in ([1, 11], [1, 1, 2, 11], [1, 1, 2, 10], [1, 2], []):
            program.proceed()
            program.answer()
            wait_for(groups)
        assert other.quiet()


def test_the_file_is_kept_only_as_long_as_the_client_lives(tenant: Tenant) -> None:
    """And the shim's own files are above the program's, and close on exec."""
    program = tenant.start("""
        def high(): return sorted(int(n) for n in os.listdir("/proc/self/fd") if int(n) > 100)
        before = high()
        rm = Context()
        during = [n for n in high() if os.readlink(f"/proc/self/fd/{n}") == "/dev/null"]
        inherited = os.get_inheritable(during[0])
        rm_free(rm.fd, rm.client, rm.client)
        after = [n for n in high() if os.readlink(f"/proc/self/fd/{n}") == "/dev/null"]
        say(before=before, during=len(during), inherited=inherited, after=after); heard()
    """)
    assert program.answer() == {"before": [], "during": 1, "inherited": False, "after": []}


def test_a_client_without_groups_costs_nothing(tenant: Tenant) -> None:
    """NVML's, for one."""
    program = tenant.start("""
        fd = os.open("/dev/null", os.O_RDWR)
        device = rm_alloc(fd, 0xC1D00009, 0xC1D00009, CLIENT_DEVICE)
        rm_alloc(fd, 0xC1D00009, device, SUBDEVICE)
        rm_alloc(fd, 0xC1D00009, device, GROUP, engine=9)
        say(threads=len(os.listdir("/proc/self/task"))); heard()
    """)
    assert program.answer() == {"threads": 1}
    assert tenant.slots() == []


def test_a_daemon_that_starts_later_gets_all_groups(tenant: Tenant) -> None:
    program = tenant.start(STEPS + "heard()")
    program.answer()
    eventually(lambda: tenant.slots() == [0])
    for _ in range(3):
        with daemon(tenant) as other:
            began = time.monotonic()
            assert other.accept().slot == 0
            assert len(other.groups()) == 2
            assert time.monotonic() - began < 3


def test_the_shim_reconnects_slowly_to_a_daemon_that_closes_at_once(tenant: Tenant) -> None:
    program = tenant.start(STEPS + "heard()")
    program.answer()
    listener = tenant.listen()
    deadline = time.monotonic() + 1.0
    tries = 0
    listener.settimeout(0.1)
    while time.monotonic() < deadline:
        try:
            connection, _ = listener.accept()
            connection.close()
            tries += 1
        except TimeoutError:
            pass
    listener.close()
    assert 2 <= tries <= 20


def test_a_pause_whose_daemon_is_gone_is_undone_by_the_process_itself(tenant: Tenant) -> None:
    program = tenant.start("rm = Context(channels=70); say(); heard()")
    program.answer()
    eventually(lambda: tenant.slots() == [0])
    tenant.page.set_word(0, 0, PAUSED, 1)
    tenant.beat()
    began = time.monotonic()
    eventually(lambda: tenant.use().paused == 0)
    assert 0.5 < time.monotonic() - began < 2.0
    assert tenant.use().rescued == 1
    channels = [int(line.split()[3]) for line in tenant.rm_log.read_text().splitlines() if line.startswith("enable")]
    assert sorted(channels) == [1, 6, 64]  # at most 64 in one call; the copy group too


def test_a_pause_of_a_daemon_that_lives_is_left_alone(tenant: Tenant) -> None:
    program = tenant.start("rm = Context(); say(); heard()")
    program.answer()
    eventually(lambda: tenant.slots() == [0])
    tenant.page.set_word(0, 0, PAUSED, 1)
    for _ in range(18):
        tenant.beat()
        time.sleep(0.05)
    assert tenant.use().paused == 1
    assert not tenant.rm_log.exists()


def test_a_rescue_on_one_card_leaves_the_other_paused(tenant: Tenant) -> None:
    tenant.grant(None, None)
    program = tenant.start("""
        first = Context(0xC1D00001, channels=2, subdevice=0xA0)
        second = Context(0xC1D00002, channels=3, subdevice=0xA1)
        say(); heard()
    """)
    program.answer()
    eventually(lambda: tenant.slots() == [0])
    tenant.page.set_word(0, 1, PAUSED, 1)
    tenant.page.beat(1, 0)
    eventually(lambda: tenant.use(card=1).paused == 0)
    lines = [line.split() for line in tenant.rm_log.read_text().splitlines()]
    assert {line[1] for line in lines} == {"c1d00002"}


def test_a_program_that_closes_all_files_does_not_have_its_own_touched(tenant: Tenant) -> None:
    """What it opens at the same numbers is its own: nothing is sent there, and nothing closed."""
    with daemon(tenant) as other:
        program = tenant.start("""
            import socket, time
            rm = Context(); alloc_context = context(); alloc(MIB); say(); heard()
            os.closerange(3, 4096)
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for n in range(512, 520): os.dup2(theirs.fileno(), n)
            say(); heard()
            time.sleep(0.25)        # two rounds of the thread
            mine.setblocking(False)
            try: got = len(mine.recv(999))
            except BlockingIOError: got = 0
            still = all(os.fstat(n).st_ino == os.fstat(theirs.fileno()).st_ino for n in range(512, 520))
            say(got=got, still=still, alloc=alloc(MIB)[0]); heard()
        """)
        program.answer()
        other.accept()
        assert len(other.groups()) == 2
        program.proceed()
        program.answer()
        program.proceed()
        assert program.answer() == {"got": 0, "still": True, "alloc": 0}
        # it has connected again, perhaps twice: the program may have closed the first new socket too
        for _ in range(3):
            other.accept()
            assert other.connection is not None
            if not isinstance(message := receive(other.connection), Done | None):
                raise AssertionError(message)  # its groups are out of reach: their file is gone
            if message is not None:
                break
        assert tenant.use().memory == 2 * MIB


def test_a_hostile_message_size_is_never_sent(tenant: Tenant) -> None:
    """More channels than a message can name: the shim sends the first 128, and says so once."""
    with daemon(tenant) as other:
        program = tenant.start("rm = Context(channels=200); say(); heard()")
        program.answer()
        other.accept()
        got = other.groups()
        while max(len(group.channels) for group in got) < 128:
            got = other.groups()
        assert sorted(len(group.channels) for group in got) == [1, 128]
