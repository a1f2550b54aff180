"""The host's folders and processes, fetched by the kubelet's socket: in containers that `unshare` makes.

This process is the kubelet, and what it sees is the host.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aliquot.adapters.host.hostmounts import listener_of
from aliquot.adapters.host.process.processes import start_time
from kit.running.privileges import needs_mounts

pytestmark = needs_mounts

# What a container of its own does: $HOST is what it is to fetch, and hides from it at first.
_BEGIN = "mount -t tmpfs none $HOST && "
_HEAD = (
    "import json, os, sys; from pathlib import Path\n"
    "from aliquot.adapters.host import hostmounts; from aliquot.adapters.host.process import processes\n"
    "host, kubelet = sys.argv[1], hostmounts.listener_of(Path(sys.argv[2]))\n"
)


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        yield path


@pytest.fixture
def host(tmp_path: Path) -> Path:
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "there").write_text("the host's")
    return folder


def contained(host: Path, kubelet: Path, code: str, *, own_ids: bool = True, wrapper: tuple[str, ...] = ()) -> Any:
    """What the code prints, in a container with mounts and, unless told otherwise, process ids of its own."""
    words = [sys.executable, "-c", _HEAD + code, str(host), str(kubelet)]
    apart = ["--pid", "--mount-proc"] if own_ids else ["--mount"]
    command = ["unshare", *apart, "--fork", "--kill-child", "sh", "-c", f'{_BEGIN}exec "$@"', "sh"]
    done = subprocess.run(
        [*command, *wrapper, *words],
        env={**os.environ, "HOST": str(host)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_fetch_mounts_the_hosts_folder(host: Path, kubelet: Path) -> None:
    code = (
        "before = os.listdir(host); hostmounts.fetch(kubelet, {host: 0o755})\n"
        "Path(host, 'new').write_text('from inside'); print(json.dumps([before, sorted(os.listdir(host))]))\n"
    )
    assert contained(host, kubelet, code) == [[], ["new", "there"]]
    assert (host / "new").read_text() == "from inside"


def test_fetch_makes_a_missing_folder_on_the_host(host: Path, kubelet: Path) -> None:
    code = "hostmounts.fetch(kubelet, {f'{host}/run/ours': 0o700}); print(json.dumps(os.listdir(f'{host}/run')))\n"
    assert contained(host, kubelet, code) == ["ours"]
    assert (host / "run" / "ours").stat().st_mode & 0o777 == 0o700


def test_fetch_mounts_nothing_on_the_host(host: Path, kubelet: Path) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    contained(
        host, kubelet, "hostmounts.fetch(kubelet, {host: 0o755}); hostmounts.fetch_processes(kubelet); print(1)\n"
    )
    assert Path("/proc/self/mountinfo").read_text() == before


def test_fetch_processes_shows_the_hosts_pids(host: Path, kubelet: Path) -> None:
    code = (
        "before = hostmounts.is_seen(kubelet); hostmounts.fetch_processes(kubelet)\n"
        "parent = int(Path('/proc/self/stat').read_text().rpartition(')')[2].split()[1])\n"
        "number = processes.number_of(kubelet)\n"
        "print(json.dumps([before, hostmounts.is_seen(kubelet), number, processes.start_time(number), os.getpid(),\n"
        "  processes.own_number() > 1, processes.known_as(os.getpid()) == processes.own_number(), parent > 0]))\n"
    )
    ours = os.getpid()
    assert contained(host, kubelet, code) == [False, True, ours, start_time(ours), 1, True, True, True]


def test_identities_find_a_folder_under_another_name(host: Path, kubelet: Path) -> None:
    here = host.stat()
    code = "print(json.dumps(hostmounts.identities(kubelet, [host, f'{host}/none'])))\n"
    assert contained(host, kubelet, code) == {str(host): [here.st_dev, here.st_ino]}


def test_fetch_without_privilege_says_so(host: Path, kubelet: Path) -> None:
    code = (
        "try:\n    hostmounts.fetch(kubelet, {host: 0o755})\n"
        "except hostmounts.HostAccessError as error:\n    print(json.dumps(str(error)))\n"
    )
    error = contained(host, kubelet, code, wrapper=("setpriv", "--bounding-set=-all", "--inh-caps=-all"))
    assert error == "the host's files cannot be reached: the container is not privileged"


def test_listener_of_a_dead_socket_raises_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        listener_of(tmp_path / "kubelet.sock")


class TestAnOlderLinux:
    """Which does not tell whose a socket is, but by process id; and in whose PID namespace that has to be."""

    OLDER = "hostmounts.peers.SO_PEERPIDFD = 9999; kubelet = hostmounts.listener_of(Path(sys.argv[2]))\n"

    def test_fetch_works_with_the_hosts_pids(self, host: Path, kubelet: Path) -> None:
        code = f"{self.OLDER}hostmounts.fetch(kubelet, {{host: 0o755}}); print(json.dumps(os.listdir(host)))\n"
        assert contained(host, kubelet, code, own_ids=False) == ["there"]

    def test_listener_of_says_that_it_needs_the_hosts_pids(self, host: Path, kubelet: Path) -> None:
        code = (
            f"try:\n    {self.OLDER}except hostmounts.HostAccessError as error:\n"
            "    print(json.dumps('cannot find out which process serves' in str(error)))\n"
        )
        assert contained(host, kubelet, code)
