"""Half a registration: without the shim, connect to the tenant's socket, name a channel group of nobody, and compute.

usage: half.py OPTIONS-OF-aliquot-burn-load. The same process goes on as `aliquot burn load`.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys

_MAGIC, _VERSION, _HELLO, _GROUP, _DONE = 0x54514C41, 1, 1, 2, 3


def main() -> None:
    loaded = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    kept = [path for path in loaded if not path.endswith("libaliquot.so")]
    if kept != loaded:
        os.environ["LD_PRELOAD"] = " ".join(kept)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    daemon.connect(os.path.join(os.environ["ALIQUOT_TENANT"], "sock"))
    real = "/dev/nvidiactl"
    fd = os.open(real, os.O_RDWR) if _is_device(real) else os.pipe()[0]  # what the stand-in's file is
    words = (0xBAD, 0xBAD, 0, 0xBAD, 1, 1, 1, 0, 7)
    for kind, body, files in ((_HELLO, (os.getpid(), 200), []), (_GROUP, words, [fd]), (_DONE, (1,), [])):
        socket.send_fds(daemon, [struct.pack(f"<I2H{len(body)}I", _MAGIC, _VERSION, kind, *body)], files)
    daemon.set_inheritable(True)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "aliquot", "burn", "load", *sys.argv[1:]])


def _is_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


if __name__ == "__main__":
    main()
