"""Root's daemon on simulated cards: every user of the machine can use them, and none reaches what is another's."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

from aliquot.adapters.gpu import player
from kit.machines.machine import ALIQUOT, PATIENCE, Machine

NOBODY = 65534
PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")  # that of the tests may be in root's home

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

# The other user may not be able to read this Python: everything is loaded before the change.
BECOME = f"""
import encodings.idna, json, os, signal, subprocess, sys
import aliquot.__main__, aliquot.cli.run.command
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); os.chdir("/")
sys.argv[0] = "aliquot"
aliquot.__main__.main()
"""
ALLOCATE = """
import ctypes
cuda, count, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
said = [cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), count.value]
said.append(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
said += [cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(gib << 30)) for gib in (1, 3)]
print(*said)
"""
# What a request that a program makes of the player gets: an errno, or "closed" if the player does not answer.
ASK = """
import os, socket, struct, sys, time
def ask(kind, payload=b""):
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(sys.argv[1])
    links.append(link)
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with theirs:
            head = struct.pack("=IIQ", 0x4D495347, kind, time.monotonic_ns())
            socket.send_fds(link, [head + payload], [theirs.fileno()])
        answer, came, _, _ = socket.recv_fds(mine, 1 << 17, 1)
    except OSError:
        return "closed"
    files.extend(came)
    return struct.unpack_from("=IiII", answer)[1] if answer else "closed"
links, files = [], []
"""
SIM_STATE, SIM_FAULT, SIM_OPEN, LOSE = 11, 12, 14, 1


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    if not os.path.exists(player.shim()):
        pytest.skip("the libraries are not built")
    if PYTHON is None or as_nobody([PYTHON, "-c", f"open({player.shim()!r})"]).returncode != 0:
        pytest.skip("another user can read neither a Python nor the libraries")
    before = os.umask(0o077)  # of a careful administrator
    try:
        machine = Machine([*ALIQUOT, "up", "--simulate", "1x8GiB", "--listen", "0"])
        machine.up()
    finally:
        os.umask(before)
    yield machine
    machine.aliquot("down")
    machine.close()


def as_nobody(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", capture_output=True, text=True, check=False,
        timeout=PATIENCE,
    )  # fmt: skip


def ask_as_nobody(machine: Machine, program: str) -> str:
    assert PYTHON is not None
    result = as_nobody([PYTHON, "-c", ASK + program, f"{machine.home}/player/sock"])
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_any_user_runs_on_roots_simulated_cards_within_the_quota(machine: Machine) -> None:
    command = [sys.executable, "-c", BECOME, "run", "--memory", "2", "--", str(PYTHON), "-c", ALLOCATE]
    result = subprocess.run(
        command, env=machine.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (result.returncode, result.stdout) == (0, "0 0 1 0 0 2\n"), result.stderr


def test_other_users_cause_no_faults_and_see_no_state(machine: Machine) -> None:
    fault = struct.pack("=IIQ", 0, LOSE, 0)
    assert ask_as_nobody(machine, f"print(ask({SIM_FAULT}, {fault!r}), ask({SIM_STATE}))") == "1 1", "EPERM"
    result = machine.aliquot("run", "--memory", "2", "--", str(PYTHON), "-c", ALLOCATE)
    assert result.stdout == "0 0 1 0 0 2\n", "the card is there"


def test_user_who_opens_all_connections_leaves_room_for_others(machine: Machine) -> None:
    program = f"""
got = [ask({SIM_OPEN}) for _ in range(400)]
print(got.count(0), set(got[-10:]) <= {{24, "closed"}}, flush=True)
sys.stdin.read()
"""
    words = [str(PYTHON), "-c", ASK + program, f"{machine.home}/player/sock"]
    with subprocess.Popen(
        words, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as greedy:  # fmt: skip
        assert greedy.stdout is not None
        opened, refused = greedy.stdout.readline().split()
        assert (int(opened) <= 250, refused) == (True, "True")
        result = machine.aliquot("run", "--memory", "2", "--", str(PYTHON), "-c", ALLOCATE)
        assert result.stdout == "0 0 1 0 0 2\n", result.stderr
        greedy.communicate()


def test_other_users_read_no_file_of_the_daemon(machine: Machine) -> None:
    machine.aliquot("run", "-d", "--memory", "1", "--", "sleep", "600")
    program = """
import json, os, sys
for path in json.loads(sys.argv[1]):
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        print(path)
    except OSError:
        pass
"""
    found = [(folder, names) for folder, _, names in os.walk(machine.home)]
    paths = [os.path.join(folder, name) for folder, names in found for name in ["", *names]]
    assert {"state.db", "state.db-wal", "lock", "player.json"} <= {os.path.basename(path) for path in paths}
    result = as_nobody([str(PYTHON), "-c", program, json.dumps(paths)])
    assert result.stdout == f"{machine.home}/player/\n", "a folder with nothing but the socket"
    machine.clear()
