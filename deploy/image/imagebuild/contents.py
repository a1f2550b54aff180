"""What is dropped from packages and wheels, and the few files that are ours."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence

from imagebuild.entries import Entry

USER = 65532  # the scheduler's: no root, no file of its own

PASSWD = f"""root:x:0:0:root:/root:/bin/sh
aliquot:x:{USER}:{USER}:aliquot:/nonexistent:/bin/false
nobody:x:65534:65534:nobody:/nonexistent:/bin/false
"""
GROUP = f"""root:x:0:
aliquot:x:{USER}:
nogroup:x:65534:
"""
NSSWITCH = """passwd: files
group: files
hosts: files dns
"""


def patterns(text: str) -> list[str]:
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line]


def without(entries: Mapping[str, Entry], dropped: Sequence[str]) -> dict[str, Entry]:
    """The rest. Empty folders go with what was in them; those that were empty before stay."""
    # one expression: thousands of paths times tens of patterns
    any_of = re.compile("|".join(fnmatch.translate(pattern) for pattern in dropped))
    gone = {path for path in entries if any_of.match(path)}
    emptied = {str(path).rpartition("/")[0] for path in gone}
    kept = {path: entry for path, entry in entries.items() if path not in gone}
    while True:
        full = {path.rpartition("/")[0] for path in kept}
        empty = {path for path in emptied if path in kept and path not in full}
        if not empty:
            return kept
        for path in empty:
            del kept[path]
        emptied |= {path.rpartition("/")[0] for path in empty}


def ours() -> dict[str, Entry]:
    """What Debian's packages make when they are installed, as far as it is needed."""
    text = {
        "etc/passwd": PASSWD,
        "etc/group": GROUP,
        "etc/nsswitch.conf": NSSWITCH,
        "etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",
    }
    links = {name: Entry(mode=0o777, link=f"usr/{name}") for name in ("bin", "lib", "lib64", "sbin")}
    links["usr/bin/sh"] = Entry(mode=0o777, link="dash")
    folders = {
        path: Entry(mode=0o755, folder=True) for path in ("run", "proc", "sys", "dev", "root", "usr/lib64", "usr/sbin")
    }
    folders["tmp"] = folders["var/tmp"] = Entry(mode=0o1777, folder=True)
    return {path: Entry(data=body.encode()) for path, body in text.items()} | links | folders
