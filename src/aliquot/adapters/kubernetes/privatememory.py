"""Memory for answers of many megabytes. The heap would keep it; this goes back to the kernel when nobody has it."""

from __future__ import annotations

from contextlib import suppress
from mmap import MADV_HUGEPAGE, MAP_ANONYMOUS, MAP_PRIVATE, mmap

_HUGE = 1 << 21  # bytes of a huge page


def private_memory(size: int) -> mmap:
    """So many bytes, of which those that are not written take no memory, but for the rest of a huge page."""
    memory = mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)  # Python's own choice is shared memory: no huge pages
    if size >= _HUGE:
        with suppress(OSError):  # a kernel without them
            memory.madvise(MADV_HUGEPAGE)  # one page fault in place of 512
    return memory
