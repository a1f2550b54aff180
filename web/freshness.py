"""Checks without npm that src/aliquot/static was built from these sources: `make web` records what made what.

python web/freshness.py            exit code 1 where sources or built files have changed since, with what to do
python web/freshness.py --write    after a build: this is what it was made of
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

WEB = Path(__file__).resolve().parent
STATIC = WEB.parent / "src" / "aliquot" / "static"
RECORD = ".built"
_NOT_SOURCES = ("node_modules", "dist", "mock", "tests")  # folders that no built file is made of
_SUFFIXES = (".ts", ".tsx", ".css", ".html", ".json", ".svg", ".js", ".mjs")


def sources(web: Path) -> list[Path]:
    """What the build reads: code, styles, the page, settings, and the lock file that names every dependency."""
    found = (path for path in web.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
    return [path for path in found if path.relative_to(web).parts[0] not in _NOT_SOURCES]


def built(static: Path) -> list[Path]:
    """What the build wrote."""
    return [path for path in static.rglob("*") if path.is_file()]


def digest(paths: Iterable[Path], folder: Path) -> str:
    """Of names and contents, in an order that does not depend on the disk."""
    found = hashlib.sha256()
    for path in sorted(paths, key=lambda path: path.relative_to(folder).as_posix()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        found.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return found.hexdigest()


def record(web: Path, static: Path) -> str:
    """The two lines that `--write` leaves beside the sources: the package does not need them."""
    return f"sources {digest(sources(web), web)}\nbuilt {digest(built(static), static)}\n"


def trouble(web: Path, static: Path) -> str | None:
    """What is wrong, and what to do about it; None when all is well."""
    try:
        recorded = (web / RECORD).read_text()
    except FileNotFoundError:
        return f"web/{RECORD} is not there: run make web"
    now = record(web, static)
    if recorded == now:
        return None
    if recorded.splitlines()[:1] != now.splitlines()[:1]:
        return "web/ has changed since src/aliquot/static was built: run make web"
    return "src/aliquot/static is not what the build wrote: change web/ instead, and run make web"


def main() -> int:
    parser = argparse.ArgumentParser(description="Is the built dashboard fresh?")
    parser.add_argument("--write", action="store_true", help="write down what it was built from")
    if parser.parse_args().write:
        (WEB / RECORD).write_text(record(WEB, STATIC))
        return 0
    wrong = trouble(WEB, STATIC)
    if wrong:
        print(f"error: {wrong}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
