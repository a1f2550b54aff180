"""The dashboard's files from the package: read once, compressed once, each with an ETag."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

import aliquot

FOLDER = Path(aliquot.__file__).parent / "static"
_TEXT = (".html", ".js", ".css", ".svg", ".json", ".webmanifest", ".map")
_KINDS = {".js": "text/javascript", ".woff2": "font/woff2", ".webmanifest": "application/manifest+json"}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file. `zipped` is None where compression gains nothing."""

    body: bytes
    zipped: bytes | None
    kind: str
    tag: str
    lasting: bool  # its name contains its hash: it never changes


def read_assets(folder: Path = FOLDER) -> dict[str, Asset]:
    """By the path of the request; `/` is the page. Empty where the front end was never built."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix in (".gz", ".br"):
            continue
        name = f"/{path.relative_to(folder).as_posix()}"
        found["/" if name == "/index.html" else name] = _read(path, lasting=name.startswith("/assets/"))
    return found


def _read(path: Path, *, lasting: bool) -> Asset:
    body = path.read_bytes()
    kind = _KINDS.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    text = path.suffix in _TEXT
    zipped = gzip.compress(body, 9, mtime=0) if text and len(body) > 512 else None
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    return Asset(body, zipped, f"{kind}; charset=utf-8" if text else kind, tag, lasting)
