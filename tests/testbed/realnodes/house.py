"""The walls of a node that is no machine: `python house.py NAME` builds them, and takes them down when its stdin ends.

A node has a mount namespace (the kubelet's device-plugins folder is hard-coded, and two nodes have one each) and a PID
namespace: when its first process dies, the kernel kills all the others, containers and their shims too. This program
stays outside, to remove what no namespace holds: the node's cgroups and its address. Its stdin is a pipe from the test
run, which ends however that ends. It tells on stdout, as JSON, what a test needs to come in.

Standard library only, and nothing of the testbed: it runs with `-I -S`, to be up in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS, _NEW_PIDS = 0x00020000, 0x20000000  # CLONE_NEWNS, CLONE_NEWPID
_RECURSIVE, _PRIVATE, _SHARED, _BIND = 0x4000, 1 << 18, 1 << 20, 0x1000
_PARENT_DEATH_SIGNAL = 1

CGROUPS = Path("/sys/fs/cgroup")
_ADDRESSES = [f"192.0.2.{last}" for last in range(1, 255)]  # for documentation, so nobody's: kubelet refuses 127.x.x.x

# Where a node writes, each a tmpfs of its own. In /etc and /var/lib the machine's files stay to be seen beneath.
_BARE = ("/run", "/var/log")
_OVER = ("/etc", "/var/lib")
_OWN = ("/var/lib/kubelet", "/var/lib/aliquot", "/var/lib/containerd", "/etc/cni", "/etc/cdi", "/run/cdi")

# What kubelet insists on, and would set for the whole machine: it is shown paper that says so already.
_KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}


def _checked(answer: int, what: str) -> None:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str = "") -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    _checked(_LIBC.mount(*words, ctypes.c_ulong(flags), options.encode() or None), f"mount {target}")


def _cover(folder: str) -> None:
    """What the machine has there can be read; what is written is the node's, and gone with it."""
    layers = f"/run/.layers{folder}"
    for name in ("upper", "work"):
        os.makedirs(f"{layers}/{name}")
    _mount("node", folder, "overlay", 0, f"lowerdir={folder},upperdir={layers}/upper,workdir={layers}/work")


def _furnish() -> None:
    """Prepare the namespaces, before anything runs there."""
    _checked(_LIBC.unshare(_NEW_MOUNTS), "unshare")
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)
    _mount("proc", "/proc", "proc")
    for folder in _BARE:
        _mount("node", folder, "tmpfs", 0, "mode=755")
    for name, value in _KERNEL_SETTINGS.items():
        paper = Path("/run/.kernel", name.replace("/", "."))
        paper.parent.mkdir(exist_ok=True)
        paper.write_text(f"{value}\n")
        _mount(str(paper), f"/proc/sys/{name}", None, _BIND)
    for folder in _OVER:
        _cover(folder)
    for folder in _OWN:
        os.makedirs(folder, exist_ok=True)
        _mount("node", folder, "tmpfs", 0, "mode=755")
    _mount("none", "/", None, _RECURSIVE | _SHARED)  # as on a machine: what is mounted for a Pod is seen by its runtime


def _be_init(ready_pipe: int) -> None:
    """The first process of the node: buries the dead, and with it everything ends."""
    _LIBC.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    os.setsid()
    _furnish()
    os.write(ready_pipe, b".")
    os.close(ready_pipe)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        signal.sigwait({signal.SIGCHLD})


def _open_house() -> int:
    """The pid of the node's first process, in the house and ready."""
    ours = os.open("/proc/self/ns/pid", os.O_RDONLY)
    _checked(_LIBC.unshare(_NEW_PIDS), "unshare, for which a real node needs root")
    reading, writing = os.pipe()
    init = os.fork()
    if not init:
        try:
            os.close(reading)
            os.close(0)
            _be_init(writing)
        except BaseException as error:
            print(f"cannot furnish the node: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    _checked(_LIBC.setns(ours, _NEW_PIDS), "setns")  # later children of ours are not of the node, which may be gone
    os.close(writing)
    if not os.read(reading, 1):
        os.waitpid(init, 0)
        raise OSError("the node's first process did not come up")
    return init


# What no namespace holds


def hierarchies() -> list[Path]:
    """The cgroup hierarchies of this machine: several by controller (v1), or one (v2)."""
    if (CGROUPS / "cgroup.procs").exists():
        return [CGROUPS]
    return [path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def _make_cgroups(name: str) -> None:
    for hierarchy in hierarchies():
        folder = hierarchy / name
        folder.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):  # v1 leaves them empty, and then nobody may come in
            with contextlib.suppress(FileNotFoundError):
                (folder / setting).write_text((hierarchy / setting).read_text())


def _remove_cgroups(name: str) -> None:
    """The kernel needs a moment after the last process of a cgroup has died."""
    for hierarchy in hierarchies():
        for folder, _, _ in os.walk(hierarchy / name, topdown=False):
            for _ in range(200):
                try:
                    os.rmdir(folder)
                except FileNotFoundError:
                    pass
                except OSError:
                    time.sleep(0.01)
                    continue
                break


def _take_address() -> str:
    for address in _ADDRESSES:
        done = subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], capture_output=True, text=True)
        if not done.returncode:
            return address
        if "exists" not in done.stderr and "assigned" not in done.stderr:
            raise OSError(f"ip address add {address}/32 dev lo: {done.stderr.strip()}")
    raise OSError("all node addresses (192.0.2.0/24 on lo) are taken")


def main() -> None:
    name = sys.argv[1]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the test run
    address, init = "", 0
    try:
        address = _take_address()
        _make_cgroups(name)
        init = _open_house()
        print(json.dumps({"init": init, "address": address}), flush=True)
        sys.stdin.buffer.read()
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(1)
    finally:
        if init:
            os.kill(init, signal.SIGKILL)
            os.waitpid(init, 0)  # returns when every process of the node has died
        _remove_cgroups(name)
        if address:
            subprocess.run(["ip", "address", "del", f"{address}/32", "dev", "lo"], capture_output=True)


if __name__ == "__main__":
    main()
