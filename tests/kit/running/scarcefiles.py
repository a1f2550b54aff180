"""A process that has hardly any file left, as under an attack on them."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

_SOME = 64  # more than a test has open


@contextmanager
def scarce_files(free: int) -> Iterator[None]:
    """Only so many files can be opened meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(int(name) for name in os.listdir("/proc/self/fd")) + _SOME
    with contextlib.ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
        taken: list[int] = []
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        for file in taken[free:]:
            held.callback(os.close, file)
        for file in taken[:free]:
            os.close(file)
        yield
