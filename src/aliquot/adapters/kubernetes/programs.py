"""Runs kubectl and login programs for what they print: as much of it as is sensible, and no longer than they may take.

`subprocess.run` keeps all that a program prints, gigabytes too.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence

_PIECE = 65536
_MOST_ERRORS = 65536  # bytes of its errors that are kept; the rest is read and dropped


class TooMuchError(subprocess.SubprocessError):
    """The program printed more than anything sensible."""


def output_of(
    words: Sequence[str],
    *,
    seconds: float,
    most: int,
    stdin: bytes | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run it. Raises OSError, TimeoutExpired, and TooMuchError if it prints more than `most` bytes."""
    process = subprocess.Popen(  # noqa: S603  # words of the user's own, and no shell
        words,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        bufsize=0,
    )
    try:
        said, errors = _exchange(process, memoryview(stdin or b""), time.monotonic() + seconds, most)
    except subprocess.TimeoutExpired:
        raise subprocess.TimeoutExpired(list(words), seconds) from None
    finally:
        process.kill()  # if it is given up
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()
    return subprocess.CompletedProcess(list(words), process.returncode, said, errors)


def _exchange(process: subprocess.Popen[bytes], left: memoryview, deadline: float, most: int) -> tuple[bytes, bytes]:
    """Write `left`, and read all that it prints, until it has ended."""
    said, errors = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            selector.register(pipe, selectors.EVENT_READ)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(process.args, 0)
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    left = _write(key.fd, left)
                    more = bool(left)
                else:
                    piece = os.read(key.fd, _PIECE)
                    more = bool(piece)
                    if key.fileobj is process.stdout:
                        said += piece
                    else:
                        errors += piece[: max(0, _MOST_ERRORS - len(errors))]
                if not more:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]  # of the pipes above
            if len(said) > most:
                raise TooMuchError(f"it printed more than {most >> 20} MiB")
    process.wait(max(0.0, deadline - time.monotonic()))
    return bytes(said), bytes(errors)


def _write(pipe: int, left: memoryview) -> memoryview:
    """Write a piece. Returns the bytes that are left; none if the program has closed its end."""
    try:
        return left[os.write(pipe, left[:_PIECE]) :]
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[:0]
