#!/usr/bin/python3.11 -ISB
"""Asks the agent of this node how it is, as /usr/bin/aliquot-probe: what the kubelet runs in the agent's container.

    aliquot-probe live      0: it answers
    aliquot-probe ready     0: it waits for nothing, as its /readyz says
    --timeout=SECONDS       how long it has until it must have said so; 4 unless told
    --run-dir=FOLDER        the agent's own --run-dir

Else 1, and one line that says why not, which `kubectl describe pod` shows. It asks over the agent's control socket
(services/agent/api/control.py), for the port may be another program's. It runs a few times a minute on every node for
ever, so it imports nothing that is not built into Python: with `socket` it would take twice the time.
"""

import sys
import time
from _socket import AF_UNIX, SOCK_STREAM, socket

_USAGE = "usage: aliquot-probe live|ready [--timeout=SECONDS] [--run-dir=FOLDER]"
_AGAIN = 0.25  # seconds between two tries: who starts is seen to be ready soon, however seldom the kubelet asks


def asked(path: str, what: str, seconds: float) -> str | None:
    """None for a yes; else why not."""
    connection = socket(AF_UNIX, SOCK_STREAM)
    connection.settimeout(seconds)
    try:
        connection.connect(path)
        connection.sendall(b'{"op": "%s"}\n' % what.encode())
        answer = b""
        while not answer.endswith(b"\n") and (piece := connection.recv(4096)):
            answer += piece
    except (FileNotFoundError, ConnectionRefusedError):
        return f"no agent listens at {path}: it starts, or is gone; the container's log tells"
    except (TimeoutError, BlockingIOError):  # the latter where many wait for it already
        return f"the agent has {path} but does not answer: it hangs, or the node is overloaded"
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    finally:
        connection.close()
    return None if answer.startswith(b'{"ok"') else _said(answer)


def _said(answer: bytes) -> str:
    """What it said instead of a yes."""
    import json  # here, for most probes need none

    try:
        return str(json.loads(answer)["error"]["text"])
    except (ValueError, LookupError, TypeError):
        return f"the agent answered {answer[:200]!r}, which is neither yes nor no"


def main(words: list[str]) -> int:
    """Asks until the answer is yes, or the time is over."""
    options = {"--timeout": "4", "--run-dir": "/run/aliquot"}
    what, *others = words or ["--help"]
    for word in others:
        name, _, value = word.partition("=")
        if name not in options or not value:
            what = "--help"
        options[name] = value
    if what not in ("live", "ready") or not options["--timeout"].isdecimal() or not int(options["--timeout"]):
        print(_USAGE, file=sys.stderr)
        return 2
    end = time.monotonic() + int(options["--timeout"])
    while True:
        left = end - time.monotonic()
        why = asked(f"{options['--run-dir']}/control.sock", what, max(left, 0.001))
        if why is None:
            return 0
        if time.monotonic() + _AGAIN >= end:
            print(why)
            return 1
        time.sleep(_AGAIN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
