"""What goes into a layer: files, folders and links by path, and the tar made of them."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

# Debian 12 is merged: these are links into /usr, though packages still name the old places.
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, or a link where `link` says whereto, or a folder where `folder` is true. All belong to root."""

    mode: int = 0o644
    data: bytes = b""
    link: str = ""
    folder: bool = False


def merged(path: str) -> str:
    """Where a path of a package lies: usr/lib/x for ./lib/x."""
    clean = str(PurePosixPath("/", path.lstrip("/"))).lstrip("/")
    first = clean.partition("/")[0]
    return f"usr/{clean}" if first in MERGED else clean


def of_tar(archive: bytes) -> dict[str, Entry]:
    """What a package holds. Hard links become files, owners root, and no file may change who runs it."""
    found: dict[str, Entry] = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            path = merged(member.name)
            if not path:
                continue
            found[path] = _entry(tar, member)
    return found


def _entry(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
    if member.isdir():
        shared = member.mode & 0o1000  # as /tmp; others' folders are written by root alone
        return Entry(mode=member.mode & (0o1777 if shared else 0o755), folder=True)
    if member.issym():
        return Entry(mode=0o777, link=member.linkname)
    content = tar.extractfile(member)
    if content is None:
        raise ValueError(
            f"{member.name} is neither a file nor a folder nor a link: packages of devices are not for images"
        )
    return Entry(mode=member.mode & 0o755, data=content.read())


def with_folders(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Every folder that a path goes through is there, and before it."""
    whole = dict(entries)
    for path in entries:
        for parent in PurePosixPath(path).parents:
            if str(parent) != ".":
                whole.setdefault(str(parent), Entry(mode=0o755, folder=True))
    return whole


def packed(entries: Mapping[str, Entry], *, made_at: int) -> bytes:
    """A tar: sorted, one time for all, root's, and with nothing in it of the machine that packs."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, entry in sorted(with_folders(entries).items()):
            info = tarfile.TarInfo(path)
            info.mode, info.mtime = entry.mode, made_at
            info.uname = info.gname = "root"
            if entry.folder:
                info.type = tarfile.DIRTYPE
            elif entry.link:
                info.type, info.linkname = tarfile.SYMTYPE, entry.link
            else:
                info.size = len(entry.data)
            tar.addfile(info, io.BytesIO(entry.data))
    return out.getvalue()


def compressed(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=6, mtime=0)


def files(entries: Mapping[str, Entry]) -> Iterator[tuple[str, Entry]]:
    return ((path, entry) for path, entry in sorted(entries.items()) if not entry.folder and not entry.link)


def joined(parts: Iterable[Mapping[str, Entry]]) -> dict[str, Entry]:
    """Of several: the later wins where files meet; a folder stays what it was first."""
    whole: dict[str, Entry] = {}
    for part in parts:
        for path, entry in part.items():
            if not (entry.folder and path in whole):
                whole[path] = entry
    return whole
