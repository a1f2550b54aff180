"""A booking ends with its last process, whatever its processes do: ask again, fork, end, outlive the daemon."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aliquot.adapters.host.home import TENANT_VARIABLE, Home
from aliquot.adapters.host.process import processes
from aliquot.adapters.storage.store import Store
from aliquot.model.tenancy import TenantEnvironment
from aliquot.services.daemon.control import Caller, RefusedError
from aliquot.services.machine.requests import RunRequest
from aliquot.services.machine.tenants.machine import LocalMachine
from kit.machines.machine import Machine, PaperArbiter, cards, eventually, paper
from kit.running import threads

# Starts children on request, with and without a mark, and ends. `plain`: forked only, as a program that never execs.
PROGRAM = """
import os, subprocess, sys, time
kept = []  # Python complains of a child that goes on without its Popen
for line in sys.stdin:
    kind, _, folder = line.strip().partition(" ")
    if kind == "marked":
        kept.append(subprocess.Popen(["sleep", "600"], env={"ALIQUOT_TENANT": folder, "PATH": os.environ["PATH"]},
                                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
        pid = kept[-1].pid
    else:
        pid = os.fork()
        if pid == 0:
            os.closerange(0, 3)
            time.sleep(600)
            os._exit(0)
    print(pid, flush=True)
"""
CARD = 24 * 1024


@dataclass(eq=False)
class Program:
    """A process that asks, and the bookings that it and its children have."""

    process: subprocess.Popen[str]
    bookings: list[tuple[str, int]] = field(default_factory=list)  # tenant, MiB: the last is its own
    children: dict[int, str] = field(default_factory=dict)  # pid -> tenant at the time of the fork
    marked: set[int] = field(default_factory=set)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (
            self.process.stdin,
            self.process.stdout,
        ):  # its children may have them too: nothing waits for their end
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Bookings(RuleBasedStateMachine):
    """Random sequences on one card. The model counts a booking as long as one of its processes lives."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="alq")
        self.programs: list[Program] = []
        self.ended: list[Program] = []

    @initialize()
    def start(self) -> None:
        self.home = Home(self.folder.name, self.folder.name)
        for path in (self.home.tenants, self.home.logs):
            os.makedirs(path, exist_ok=True)
        self.build()

    def build(self) -> None:
        self.machine = LocalMachine(
            cards(1),
            home=self.home,
            store=Store(self.home.database, self.home.tenants),
            arbiter=PaperArbiter(),
            watch=lambda _: None,
            environment=lambda tenancy, folder: TenantEnvironment({TENANT_VARIABLE: folder}),
        )

    @precondition(lambda self: len(self.programs) < 4)
    @rule()
    def begin(self) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.programs.append(Program(subprocess.Popen([sys.executable, "-S", "-c", PROGRAM], text=True, **pipes)))

    @precondition(lambda self: self.programs)
    @rule(data=st.data(), gib=st.integers(4, 12))
    def ask(self, data: st.DataObject, gib: int) -> None:
        program = data.draw(st.sampled_from(self.programs))
        pid = program.process.pid
        caller = Caller(pid, os.geteuid(), os.getegid(), processes.start_time(pid))
        answers: list[Any] = []
        request = RunRequest(("x",), memory_mib=gib * 1024, wait=False)
        try:
            self.machine.admission.submit(request, caller, 1.0, answers.append)
        except RefusedError as refused:
            if refused.details["kind"] != "busy":
                raise
            program.bookings.append(("", 0))  # it has left the one before all the same
            return
        folder = answers[0]["ok"]["set"][TENANT_VARIABLE]
        program.bookings.append((os.path.basename(folder), gib * 1024))

    @precondition(lambda self: any(program.bookings for program in self.programs))
    @rule(data=st.data(), kind=st.sampled_from(["marked", "plain"]))
    def fork(self, data: st.DataObject, kind: str) -> None:
        program = data.draw(st.sampled_from([program for program in self.programs if program.bookings]))
        tenant, _ = program.bookings[-1]
        if not tenant or len(program.children) > 3:
            return
        assert program.process.stdin is not None
        assert program.process.stdout is not None
        program.process.stdin.write(f"{kind} {self.machine.directory(tenant)}\n")
        program.process.stdin.flush()
        pid = int(program.process.stdout.readline())
        program.children[pid] = tenant
        if kind == "marked":  # in the middle of the exec it has its parent's environment
            program.marked.add(pid)
            eventually(lambda: b"sleep" in _command_line(pid))

    @precondition(lambda self: any(program.children for program in self.programs + self.ended))
    @rule(data=st.data())
    def child_ends(self, data: st.DataObject) -> None:
        program = data.draw(st.sampled_from([program for program in self.programs + self.ended if program.children]))
        pid = data.draw(st.sampled_from(sorted(program.children)))
        del program.children[pid]
        os.kill(pid, 9)
        eventually(lambda: processes.start_time(pid) is None)
        self.machine.sweep_now()

    @precondition(lambda self: self.programs)
    @rule(data=st.data())
    def program_ends(self, data: st.DataObject) -> None:
        """Its marked children go on; a child without a mark has lost its parent, and belongs to no booking."""
        program = data.draw(st.sampled_from(self.programs))
        program.end()
        for tenant in [
            tenancy.id for tenancy in self.machine.tenancies.values() if tenancy.root == program.process.pid
        ]:
            self.machine.ended(tenant, 2.0)
        for pid in program.children.keys() - program.marked:
            os.kill(pid, 9)
        program.children = {pid: tenant for pid, tenant in program.children.items() if pid in program.marked}
        self.programs.remove(program)
        self.ended.append(program)

    @rule()
    def daemon_restarts(self) -> None:
        self.machine.store.close()
        self.build()
        self.machine.restore()

    @invariant()
    def bookings_with_processes_are_booked(self) -> None:
        living: dict[str, int] = {}
        for program in self.programs + self.ended:
            sizes = dict(program.bookings)
            holders = set(program.children.values())
            if program in self.programs and program.bookings:
                holders.add(program.bookings[-1][0])
            living |= {tenant: sizes[tenant] for tenant in holders if tenant}
        assert sum(living.values()) <= CARD
        assert living.keys() <= self.machine.tenancies.keys()
        if self.programs or self.ended:
            assert self.machine.ledger.board.used_memory[0].sum() >= sum(living.values())

    def teardown(self) -> None:
        for program in self.programs + self.ended:
            for pid in program.children:
                os.kill(pid, 9)
            program.end()
        self.machine.store.close()
        self.folder.cleanup()


def _command_line(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


def test_bookings_with_live_processes_never_exceed_the_card() -> None:
    short = settings(
        max_examples=5,
        stateful_step_count=12,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],  # to shrink takes long, and the steps are few
    )
    run_state_machine_as_test(Bookings, settings=short)


@pytest.fixture(scope="module")
def shared() -> Iterator[Machine]:
    found = paper("1x24")
    found.up()
    yield found
    found.close()


@pytest.fixture
def machine(shared: Machine) -> Iterator[Machine]:
    yield shared
    shared.clear()


# One process that asks as often as there are amounts, starts a child in each booking if it is to, and never execs.
ASKING = """
import json, os, socket, subprocess, sys
path, children, *amounts = sys.argv[1:]
kept = []
for gib in amounts:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(60)
    connection.connect(path)
    request = {"op": "run", "command": ["x"], "memory_mib": int(gib) * 1024, "wait": False}
    connection.sendall(json.dumps(request).encode() + b"\\n")
    answer = json.loads(connection.makefile().readline())
    if "ok" in answer and children == "children":
        pipe, started = os.pipe()
        environment = {**os.environ, **answer["ok"]["set"]}
        kept.append(subprocess.Popen(["sh", "-c", "echo; exec sleep 600"], env=environment, stdout=started))
        os.read(pipe, 1)
    print(answer["ok"]["name"] if "ok" in answer else answer["error"]["kind"], flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def asking(machine: Machine, *words: str) -> Iterator[list[str]]:
    """What it was answered."""
    command = [sys.executable, "-S", "-c", ASKING, str(machine.home / "control.sock"), *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield [process.stdout.readline().strip() for _ in words[1:]]
        assert process.poll() is None, "it was killed meanwhile"
        process.kill()


def test_asking_again_from_one_process_does_not_free_the_memory_of_its_children(machine: Machine) -> None:
    with asking(machine, "children", *["8"] * 6) as answers:
        assert answers[3:] == ["busy"] * 3
        assert machine.names() == answers[:3]
    assert machine.names() == answers[:3]


def test_stop_of_a_booking_that_its_process_left_spares_that_process(machine: Machine) -> None:
    with asking(machine, "children", "8", "8") as answers:
        machine.aliquot("stop", answers[0])
        eventually(lambda: machine.names() == answers[1:])
    assert machine.names() == answers[1:]  # its child goes on


def test_asking_again_without_children_replaces_the_booking(machine: Machine) -> None:
    with asking(machine, "alone", *["24"] * 3) as answers:
        assert machine.names() == answers[2:]
    eventually(lambda: not machine.names())


def test_run_in_a_run_gets_the_whole_card_again(machine: Machine) -> None:
    """Both are one process: the first `aliquot run` becomes the second."""
    command = [sys.executable, "-m", "aliquot", "run", "--no-wait", "--", "echo", "there"]
    result = machine.aliquot("run", "--no-wait", "--", *command)
    assert (result.returncode, result.stdout) == (0, "there\n"), result.stderr


def test_run_whose_first_thread_has_ended_is_booked_until_it_is_stopped(machine: Machine) -> None:
    """In /proc it looks like a zombie."""
    name = machine.detach("--memory", "16", "--", sys.executable, "-c", threads.PROGRAM)
    run = machine.status()["tenants"][0]["pid"]
    eventually(lambda: threads.is_headless(run))
    assert machine.aliquot("run", "--no-wait", "--memory", "16", "--", "true").returncode != 0
    assert machine.aliquot("stop", "--timeout", "0", name).returncode == 0
    eventually(lambda: processes.start_time(run) is None)
