"""One look at /proc: the processes of some users, their parents, and the marks that they carry in their environment.

The owner of a process decides how long it takes to read its environment, and whether that works at all. So a scan looks
only at the users it is asked about, takes those with few processes first, and has one deadline for everything. Users
whose processes were not all read by then are `unfinished`: what is not found there may exist. So are those with a
process that could not be read because we lack files or memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from aliquot.adapters.host.process.processes import has_no_thread, is_shortage, uid_of

SECONDS = 5.0  # for a whole scan
_ENVIRON = 1 << 18  # bytes of a process's environment that are searched
_MOST_LISTS = 20  # lists of /proc in one scan: bounds it on a machine that starts processes all the time
# In the middle of an exec the kernel returns no environment: the old memory is gone, the new one has none yet. An exec
# takes some hundred microseconds, under load more. All such processes of a scan are read again together.
_PAUSES = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
_MOST_THREADS = 16  # of a process whose first thread has ended: the others that are tried, each may be about to end
_BARE_PAUSES = 3  # so many of them for a process whose environment has length 0; so has an exec, for an instant


@dataclass(frozen=True, slots=True)
class Seen:
    """A process. `started` as in processes.py: with the pid it names the process."""

    parent: int
    started: int
    uid: int
    marks: Mapping[str, str]


@dataclass(slots=True, eq=False)
class Reading:
    """Where a scan is, for another thread: the process whose environment it reads, and its user."""

    pid: int | None = None
    uid: int | None = None


@dataclass(slots=True)
class Scan:
    """What a scan found, by pid."""

    processes: dict[int, Seen] = field(default_factory=dict)
    unfinished: set[int] = field(default_factory=set)  # users

    _by_mark: dict[tuple[str, str], list[int]] | None = None
    _by_parent: dict[int, list[int]] | None = None

    def has(self, pid: int, started: int) -> bool:
        """Whether it found that very process."""
        seen = self.processes.get(pid)
        return seen is not None and seen.started == started

    def marked(self, name: str, value: str, uid: int | None = None) -> dict[int, int]:
        """The processes with that mark, with their start times; only of that user, if one is given."""
        by_mark, _ = self.indexed()
        marked = [(pid, self.processes[pid]) for pid in by_mark.get((name, value), ())]
        return {pid: seen.started for pid, seen in marked if uid in (None, seen.uid)}

    def below(self, roots: Mapping[int, int], mark: tuple[str, str], uid: int, *, without: int) -> dict[int, int]:
        """The children of these processes (pid: start time), their children and so on. A process of that user belongs
        to its parent unless it carries the mark with another value. The process `without` and what is below it do not
        belong to them."""
        name, value = mark
        _, by_parent = self.indexed()
        known = {pid for pid, started in roots.items() if self.has(pid, started)}

        def belongs(pid: int) -> bool:
            seen = self.processes[pid]
            return seen.uid == uid and seen.marks.get(name, value) == value and pid != without

        found, fresh = set[int](), known
        while fresh:
            children = {child for pid in fresh for child in by_parent.get(pid, ())} - found - known
            fresh = {pid for pid in children if belongs(pid)}
            found |= fresh
        return {pid: self.processes[pid].started for pid in found}

    def indexed(self) -> tuple[dict[tuple[str, str], list[int]], dict[int, list[int]]]:
        """Its processes by mark and by parent. Made once, when nothing more is found: many tenants ask."""
        if self._by_mark is None or self._by_parent is None:
            by_mark: dict[tuple[str, str], list[int]] = {}
            by_parent: dict[int, list[int]] = {}
            for pid, seen in self.processes.items():
                by_parent.setdefault(seen.parent, []).append(pid)
                for mark in seen.marks.items():
                    by_mark.setdefault(mark, []).append(pid)
            self._by_mark, self._by_parent = by_mark, by_parent
        return self._by_mark, self._by_parent


def with_environment(name: str, value: str, *, uid: int | None = None) -> dict[int, int]:
    """The processes that were started with this in their environment, with their start times."""
    return scan((name,), None if uid is None else {uid}).marked(name, value, uid)


def scan(
    names: Collection[str],
    uids: Set[int] | None = None,
    *,
    skip: Set[int] = frozenset(),
    reading: Reading | None = None,
    seconds: float = SECONDS,
    proc: str = "/proc",
) -> Scan:
    """The processes of these users (None: of all) with their marks: the variables of these names. Those of the users to
    skip are not read."""
    return _Scanning(names, uids, skip, reading or Reading(), time.monotonic() + seconds, proc).run()


class _Scanning:
    def __init__(
        self,
        names: Collection[str],
        uids: Set[int] | None,
        skip: Set[int],
        reading: Reading,
        deadline: float,
        proc: str,
    ) -> None:
        self._starts = {name: b"\0" + os.fsencode(name) + b"=" for name in names}
        self._uids, self._skip, self._reading, self._deadline, self._proc = uids, skip, reading, deadline, proc
        self._found = Scan()
        self._again: dict[str, int] = {}  # may be in an exec: how often it was read
        self._in_exec = set[str]()  # was in one for sure when it was read last

    def run(self) -> Scan:
        for entries, owner in self._groups():
            if self._late():
                self._leave_out(owner)
                continue
            self._reading.uid = owner
            for entry in entries:
                if self._late():
                    self._leave_out(owner)
                    break
                self._look(entry)
        for pause in _PAUSES:
            if not self._again or self._late():
                break
            time.sleep(pause)
            for entry, owner in list(self._owners(list(self._again))):
                self._reading.uid = owner
                self._look(entry)
        for _, owner in self._owners(self._in_exec & self._again.keys()):  # which mark it will have is not known
            self._leave_out(owner)
        self._found.indexed()  # here, which may be a thread, and not where it is asked
        return self._found

    def _late(self) -> bool:
        return time.monotonic() > self._deadline

    def _leave_out(self, owner: int) -> None:
        self._found.unfinished.add(owner)

    def _groups(self) -> Iterator[tuple[list[str], int]]:
        """All processes by their owners, with those that start meanwhile: a process may fork and end before we read it,
        and its child was not in the first list."""
        listed: set[str] = set()
        for _ in range(_MOST_LISTS):
            new = {entry for entry in self._list() if entry.isdigit()} - listed
            listed |= new
            groups: dict[int, list[str]] = {}
            for entry, owner in self._owners(new):
                groups.setdefault(owner, []).append(entry)
            for owner in groups.keys() & self._skip:
                del groups[owner]
                self._leave_out(owner)
            if not groups:
                return
            yield from sorted(((entries, owner) for owner, entries in groups.items()), key=lambda group: len(group[0]))

    def _list(self) -> list[str]:
        try:
            return os.listdir(self._proc)
        except OSError as error:
            if self._uids is None or not is_shortage(error):
                raise
            self._found.unfinished |= self._uids
            return []

    def _owners(self, entries: Iterable[str]) -> Iterator[tuple[str, int]]:
        for entry in entries:
            try:
                owner = os.stat(f"{self._proc}/{entry}").st_uid
            except OSError:
                continue
            if owner == 0:  # a process that is not dumpable looks like root's, for any owner
                try:
                    owner = uid_of(int(entry)) or 0
                except OSError:  # we lack files: it may be anybody's
                    self._found.unfinished |= self._uids or {0}
                    continue
            if self._uids is None or owner in self._uids:
                yield entry, owner

    def _look(self, entry: str) -> None:
        tries = self._again.pop(entry, 0)
        try:
            # By this handle all files are those of one process: the number may be another's a moment later.
            folder = os.open(f"{self._proc}/{entry}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            self._failed(entry, error)
            return
        try:
            self._read(entry, folder, tries)
        except (ValueError, IndexError):  # it is gone
            pass
        except OSError as error:  # it is gone, or not ours to read
            self._failed(entry, error)
        finally:
            self._reading.pid = None
            os.close(folder)

    def _failed(self, entry: str, error: OSError) -> None:
        if is_shortage(error):
            for _, owner in self._owners((entry,)):
                self._leave_out(owner)

    def _read(self, entry: str, folder: int, tries: int) -> None:
        self._reading.pid = int(entry)
        try:
            environment = _content(folder, "environ")
        except PermissionError:  # another's; or one whose first thread has ended, whose files are root's then
            environment = b"" if _fields(folder)[0] == b"Z" else b"\0"
        except ProcessLookupError:  # its first thread has ended, or all have; an older kernel returns nothing
            environment = b""
        self._reading.pid = None
        marks = dict(self._marks(b"\0" + environment)) if environment else {}
        owner = os.fstat(folder).st_uid
        if environment and not marks and self._uids is not None and owner not in self._uids:
            return  # root's, most likely: neither marked nor asked about
        fields = _fields(folder)
        if has_no_thread(fields):
            return
        if not environment and fields[0] == b"Z":
            marks = dict(self._marks(b"\0" + self._of_other_thread(entry, folder)))
        elif not environment and _may_be_in_exec(fields, tries):
            self._again[entry] = tries + 1
            (self._in_exec.discard if int(fields[48]) else self._in_exec.add)(entry)
        uid = owner or uid_of(int(entry)) or 0
        if self._uids is None or uid in self._uids:
            self._found.processes[int(entry)] = Seen(int(fields[1]), int(fields[19]), uid, marks)

    def _of_other_thread(self, entry: str, folder: int) -> bytes:
        """The environment of a process whose first thread has ended: that one has none any more."""
        threads = os.open("task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            for thread in [name for name in os.listdir(threads) if name != entry][:_MOST_THREADS]:
                self._reading.pid = int(entry)
                try:
                    if environment := _content(threads, f"{thread}/environ"):
                        return environment
                except OSError as error:  # it has ended
                    if is_shortage(error):
                        raise
        finally:
            self._reading.pid = None
            os.close(threads)
        return b""

    def _marks(self, environment: bytes) -> Iterator[tuple[str, str]]:
        for name, start in self._starts.items():
            _, there, rest = environment.partition(start)
            if there:
                yield name, os.fsdecode(rest.partition(b"\0")[0])


def _fields(folder: int) -> list[bytes]:
    """The fields of /proc/PID/stat, from the state on."""
    return _content(folder, "stat").rpartition(b")")[2].split()


def _content(folder: int, name: str) -> bytes:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder), "rb", buffering=0) as file:
        content = b""
        while len(content) < _ENVIRON and (piece := file.read(_ENVIRON - len(content))):
            content += piece
        return content


def _may_be_in_exec(fields: list[bytes], tries: int) -> bool:
    """Whether a process without an environment may be in the middle of an exec. Kernel threads have no memory."""
    memory, start, end = int(fields[20]), int(fields[47]), int(fields[48])
    bare = start == end != 0
    return memory > 0 and (not bare or tries < _BARE_PAUSES)
