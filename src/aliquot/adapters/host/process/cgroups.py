"""The Pod of a process, from its cgroup: the kubelet names every Pod's cgroup after its UID.

The *first* Pod on the path counts. A container that may make cgroups can name one after another Pod, but only below its
own. Below user@N.service no name counts: there systemd lets an ordinary user of the node make cgroups.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

from aliquot.adapters.host.process.processes import is_shortage

# An API Pod's UID is a UUID; a static Pod's is the 32 hexadecimal digits of its manifest's hash. systemd reads a dash
# in a slice's name as a step down, so the kubelet spells it as an underscore there.
_UID = r"(?P<uid>[0-9a-f]{8}([-_])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}|[0-9a-f]{32})"
_PLAIN = re.compile(rf"pod{_UID}")
# A cgroup root's steps come first; a runtime that does not speak to systemd keeps "slice:runtime:id" as one name.
_SLICE = re.compile(rf"(?:[^/]*-)?kubepods(?:-burstable|-besteffort)?-pod{_UID}\.slice(?::[^/]*)?")
_STEPS = 5  # to a Pod's cgroup: two of a cgroup root, kubepods, the class, the Pod
_OF_A_USER = re.compile(r"user@[0-9]+\.service")
_NEVER_PODS = ("system.slice", "user.slice", "init.scope")
_MOST_THREADS = 16  # that are looked at
_GONE = " (deleted)"  # what the kernel appends when the cgroup was removed and a last process is still in it


def pod_of(pid: int, *, proc: Path = Path("/proc")) -> str | None:
    """The UID of the Pod; None if it is in no Pod, or gone. Of a process whose first thread has ended another thread
    knows it: in version 1 the kernel says of an ended one that it is in no cgroup. Raises OSError where no file is left
    to read that."""
    folder = proc / str(pid)
    found = _pod_in(folder / "cgroup")
    if found is None:
        try:
            threads = [name for name in os.listdir(folder / "task") if name != str(pid)][:_MOST_THREADS]
        except OSError as error:
            if is_shortage(error):
                raise
            return None
        found = next(filter(None, (_pod_in(folder / "task" / thread / "cgroup") for thread in threads)), None)
    return found


def _pod_in(file: Path) -> str | None:
    try:
        return parse_cgroups(read_cgroups(file))
    except OSError as error:
        if is_shortage(error):
            raise
        return None


def read_cgroups(file: Path) -> str:
    """The text of /proc/PID/cgroup as the kernel wrote it: a name in it may have any sign but a line feed, and what
    Python takes for the end of a line would begin a line of its maker's. Raises OSError."""
    return file.read_bytes().decode(errors="replace")


def pod_folders(*, root: Path = Path("/sys/fs/cgroup")) -> dict[str, Path]:
    """The cgroups of version 2 of all Pods, by UID. Those that cannot be seen are missing, as in a container that has
    only its own."""
    pods: dict[str, Path] = {}
    folders = [path for path in _inside(str(root)) if os.path.basename(path) not in _NEVER_PODS]
    for _ in range(_STEPS):
        others = []
        for path in folders:
            name = os.path.basename(path)
            uid = parse_cgroups(f"0::/{name}")
            if uid is None:
                others.append(path)
            elif ":" not in name:  # with it a name is one container's
                pods.setdefault(uid, Path(path))
        folders = [path for folder in others for path in _inside(folder)]
    return pods


def _inside(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir()]
    except OSError:
        return []


def pods_seen(*, proc: Path = Path("/proc")) -> dict[str, int]:
    """The number of processes of each Pod, by UID, as far as they are visible here."""
    owners = Counter(pod_of(int(path.name), proc=proc) for path in proc.iterdir() if path.name.isdigit())
    return {uid: times for uid, times in owners.items() if uid is not None}


def parse_cgroups(text: str) -> str | None:
    """The same from /proc/PID/cgroup: one line in version 2, one for each hierarchy in version 1."""
    for line in text.split("\n"):
        path = line.split(":", 2)[2] if line.count(":") >= 2 else ""
        for step in path.removesuffix(_GONE).split("/"):
            if _OF_A_USER.fullmatch(step):
                break
            found = _PLAIN.fullmatch(step) or _SLICE.fullmatch(step)
            if found is not None:
                return found["uid"].replace("_", "-")
    return None
