"""The network plugin of the nodes: joins a Pod to the bridge of its cluster (bridge.py) with an address of its own.

Run by containerd, on the node, as CNI says: what is wanted comes by environment, the network's settings by stdin. Nodes
of one cluster share the folder of leases, where a file named by an address holds the sandbox that has it. Addresses go
round, so that one comes again as late as can be. Standard library only: it runs for every Pod.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LAST = 254  # of a range of 256; the first is the bridge's
_SURELY = 60.0  # seconds after which a sandbox that has no network will not get one


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _put(path: Path, text: str) -> None:
    """Whole, or not at all: our caller may be killed at any line, and we with it."""
    fresh = path.with_name(f".{path.name}.fresh")
    fresh.write_text(text)
    fresh.replace(path)


def _take(folder: Path, prefix: str, sandbox: str) -> str:
    with _alone(folder):
        counter = folder / ".last"
        last = int(counter.read_text()) if counter.exists() else 1
        for step in range(1, _LAST):
            number = (last - 2 + step) % (_LAST - 1) + 2
            lease = folder / f"{prefix}.{number}"
            if _is_free(lease):
                _put(lease, sandbox)
                _put(counter, str(number))
                return lease.name
    raise OSError(f"every address of {prefix}.0/24 is taken")


def _is_free(lease: Path) -> bool:
    """Also where nobody gave it back: its sandbox never came to be, or is long gone."""
    if not lease.exists():
        return True
    gone = not Path(f"/sys/class/net/{_link(lease.read_text())}").exists()
    return gone and time.time() - lease.stat().st_mtime > _SURELY


def _link(sandbox: str) -> str:
    """What the machine's end of the Pod's network is called."""
    return f"v{sandbox[:12]}"


def _give_back(folder: Path, sandbox: str) -> None:
    with _alone(folder):
        for lease in folder.iterdir():
            if lease.is_file() and not lease.name.startswith(".") and lease.read_text() == sandbox:
                lease.unlink()


def _run(command: list[str], lines: list[str]) -> None:
    done = subprocess.run([*command, "-batch", "-"], input="\n".join(lines), capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def _add(network: dict[str, Any], sandbox: str, inside: str) -> dict[str, Any]:
    folder, prefix, bridge = Path(network["leases"]), network["prefix"], network["bridge"]
    name = _link(sandbox)
    address = _take(folder, prefix, sandbox)
    peer = f"eth0 netns {Path(inside).name}"
    _run(["ip"], [f"link add {name} type veth peer name {peer}", f"link set {name} master {bridge} up"])
    own = ["link set eth0 up", f"address add {address}/24 dev eth0", f"route add default via {prefix}.1"]
    _run(["nsenter", f"--net={inside}", "ip"], own)
    return {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0", "sandbox": inside}],
        "ips": [{"interface": 0, "address": f"{address}/24", "gateway": f"{prefix}.1"}],
    }


def _remove(network: dict[str, Any], sandbox: str) -> None:
    """Said as often as the runtime likes; the network namespace may be gone already, and the Pod's end with it."""
    subprocess.run(["ip", "link", "del", _link(sandbox)], capture_output=True)
    _give_back(Path(network["leases"]), sandbox)


def main() -> None:
    verb = os.environ["CNI_COMMAND"]
    network = json.load(sys.stdin)
    sandbox = os.environ.get("CNI_CONTAINERID", "")
    try:
        if verb == "ADD":
            print(json.dumps(_add(network, sandbox, os.environ["CNI_NETNS"])))
        elif verb == "DEL":
            _remove(network, sandbox)
        elif verb == "VERSION":
            print(json.dumps({"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}))
    except OSError as error:
        print(json.dumps({"cniVersion": "1.0.0", "code": 100, "msg": str(error)}))
        sys.exit(1)


if __name__ == "__main__":
    main()
