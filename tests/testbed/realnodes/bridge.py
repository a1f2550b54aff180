"""The network of a cluster that is no network: `python bridge.py PORT` makes it, and takes it down when its stdin ends.

A bridge in the machine's own network namespace, where API server, kubelets and nodes are too, with an address range for
Pods (cni.py joins them); and the first address of a service range, whose port 443 leads to the API server's PORT. There
is no kube-proxy: other services have an address that leads nowhere. Several clusters can be on a machine: each takes
the first number that is free. It tells on stdout, as JSON, which.

Standard library only, and nothing of the testbed, as house.py: its stdin is a pipe from the test run, which ends
however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys

_CHUNK = 1 << 16


def _ip(*words: str) -> str:
    """What it complained of; empty when it was done."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""


def _take_number() -> int:
    for number in range(256):
        wrong = _ip("link", "add", f"aliquot-net-{number}", "type", "bridge")
        if not wrong:
            return number
        if "exists" not in wrong:
            raise OSError(f"cannot make a bridge, for which a Pod network needs root: {wrong}")
    raise OSError("all numbers of Pod networks (bridges aliquot-net-0 to 255) are taken")


def _furnish(number: int) -> None:
    """A bridge without an address of its own takes its lowest port's, another whenever such a Pod comes or goes, and
    Pods that know the one before reach nobody for up to a minute."""
    bridge = f"aliquot-net-{number}"
    for words in (
        ("link", "set", bridge, "address", f"02:00:0a:f4:{number:02x}:01"),
        ("address", "add", f"10.244.{number}.1/24", "dev", bridge),
        ("link", "set", bridge, "up"),
        ("address", "add", f"10.96.{number}.1/32", "dev", "lo"),
    ):
        if wrong := _ip(*words):
            raise OSError(f"ip {' '.join(words)}: {wrong}")


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """As kube-proxy would: who has no API server to talk to is hung up on."""
    with contextlib.suppress(OSError):
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_pour(reader, back), _pour(there, writer))
        back.close()
    writer.close()


async def _serve(address: str, port: int, number: int) -> None:
    await asyncio.start_server(lambda reader, writer: _lead(reader, writer, port), address, 443)
    print(json.dumps({"number": number}), flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, lambda: None if os.read(0, 1) else ended.set())
    await ended.wait()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the test run
    number = None
    try:
        number = _take_number()
        _furnish(number)
        asyncio.run(_serve(f"10.96.{number}.1", int(sys.argv[1]), number))
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(1)
    finally:
        if number is not None:
            _ip("address", "del", f"10.96.{number}.1/32", "dev", "lo")
            _ip("link", "del", f"aliquot-net-{number}")


if __name__ == "__main__":
    main()
