"""Tar files."""

from __future__ import annotations

import tarfile


def read_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = tar.extractfile(member)
    assert content is not None
    return content.read()
