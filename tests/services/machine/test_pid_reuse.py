"""Root's daemon signals no process that took over the pid of another: neither a connection's nor a stored one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.host.control import AnswerError, ask
from aliquot.adapters.host.home import Home
from aliquot.adapters.host.process import processes
from aliquot.adapters.storage.store import Store
from aliquot.model.claim import AppClass
from aliquot.model.grant import Share
from aliquot.model.tenancy import Tenancy
from kit.cards.reuse import NOBODY, SERVER, connection_of_ended, needs_root
from kit.machines.machine import Machine, eventually, paper


@pytest.fixture
def machine() -> Iterator[Machine]:
    found = paper("1x24")
    os.chmod(found.home, 0o711)
    yield found
    found.close()


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@needs_root
def test_pid_reused_between_connect_and_accept_gets_no_run(machine: Machine) -> None:
    machine.up()
    assert machine.daemon is not None
    machine.daemon.send_signal(signal.SIGSTOP)  # it accepts nothing meanwhile
    request = {"op": "run", "command": ["x"], "name": "trap", "memory_mib": 1024}
    line = json.dumps(request).encode() + b"\n"
    with connection_of_ended(machine.home / "control.sock", line, victim=SERVER) as (asked, victim):
        eventually(lambda: processes.uid_of(victim.pid) == NOBODY)
        machine.daemon.send_signal(signal.SIGCONT)
        asked.settimeout(60)
        answer = json.loads(asked.makefile().readline())
        with_name = {"op": "stop", "name": "trap", "timeout": 0}
        if "ok" in answer:  # what an attacker would do next: let root's daemon kill it
            ask([Home(str(machine.home), str(machine.home))], with_name, 60)
        assert victim.poll() is None
        assert answer == {"error": {"kind": "denied", "text": "the requesting process has ended"}}
        assert machine.names() == []


def test_stored_pid_of_another_process_is_not_adopted(machine: Machine, victim: subprocess.Popen[bytes]) -> None:
    """The daemon was down when the run ended, and its pid went to another process."""
    started = processes.start_time(victim.pid)
    assert started is not None
    home = Home(str(machine.home), str(machine.home))
    Path(home.tenants).mkdir()
    store = Store(home.database, home.tenants)
    share = Share(0, 1024, uuid="GPU-0")
    run = Tenancy("a" * 10, "", "run-1", AppClass.NORMAL, (share,), 1.0, NOBODY, victim.pid, started - 1, ("x",))
    store.add(run)
    store.set("boot", processes.boot_id())
    store.close()
    machine.up()
    assert machine.names() == []
    with pytest.raises(AnswerError):
        ask([home], {"op": "stop", "name": "run-1", "timeout": 0}, 60)
    assert victim.poll() is None


@needs_root
def test_send_signal_does_no_more_for_a_user_than_the_user_could(victim: subprocess.Popen[bytes]) -> None:
    started = processes.start_time(victim.pid)
    with pytest.raises(PermissionError):
        processes.send_signal(victim.pid, signal.SIGKILL, started, user=NOBODY)
    processes.kill_all({victim.pid: started or 0}, user=NOBODY)
    assert victim.poll() is None
    with subprocess.Popen(SERVER) as server:
        eventually(lambda: processes.uid_of(server.pid) == NOBODY)
        with pytest.raises(PermissionError):
            processes.send_signal(server.pid, signal.SIGKILL, processes.start_time(server.pid), user=NOBODY)
        server.kill()
