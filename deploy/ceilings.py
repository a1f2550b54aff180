"""How large the tree is, by package, and whether it is larger than it may be: `make check` runs it.

A feature enters when one leaves. Whoever must raise a ceiling says in the commit which feature it is for.
Binary files are listed here, or refused: what is built or downloaded does not belong into the repository.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
BINARIES = ("docs/img/*.png",)
_HEAD = 8192  # bytes of a file that are looked at


@dataclass(frozen=True)
class Ceiling:
    """How much there may be of one kind of file."""

    folder: str
    suffixes: tuple[str, ...]
    most: int
    unit: str  # lines, or kB


CEILINGS = (
    Ceiling("src", (".py",), 73_000, "lines"),  # the target is 65,000
    Ceiling("shim", (".c", ".h"), 8_500, "lines"),
    Ceiling("docs", (".md",), 490, "kB"),  # the target is 450
)


def size(ceiling: Ceiling, files: Mapping[str, bytes]) -> int:
    """How much there is."""
    chosen = [
        text
        for name, text in files.items()
        if name.startswith(f"{ceiling.folder}/") and PurePosixPath(name).suffix in ceiling.suffixes
    ]
    if ceiling.unit == "lines":
        return sum(text.count(b"\n") for text in chosen)
    return -(-sum(map(len, chosen)) // 1000)


def packages(files: Mapping[str, bytes]) -> Counter[str]:
    """Lines of Python by package of src; those of services and adapters are told apart."""
    found: Counter[str] = Counter()
    for name, text in files.items():
        parts = PurePosixPath(name).parts
        if parts[:2] == ("src", "aliquot") and name.endswith(".py"):
            depth = 4 if parts[2] in ("services", "adapters") and len(parts) > 4 else 3
            found["/".join(parts[2:depth] if len(parts) > 3 else ("(root)",))] += text.count(b"\n")
    return found


def binaries(files: Mapping[str, bytes], allowed: Sequence[str] = BINARIES) -> list[str]:
    """Files with zero bytes that are not allowed."""
    return sorted(
        name
        for name, text in files.items()
        if b"\0" in text[:_HEAD] and not any(fnmatch(name, pattern) for pattern in allowed)
    )


def tracked(root: Path) -> dict[str, bytes]:
    """All files that git knows, and those that it would add."""
    words = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, check=True, capture_output=True).stdout.decode().split("\0")  # noqa: S603
    return {name: (root / name).read_bytes() for name in names if name and (root / name).is_file()}


def report(files: Mapping[str, bytes], ceilings: Iterable[Ceiling] = CEILINGS) -> tuple[list[str], list[str]]:
    """What to print, and what is wrong."""
    said = [f"{lines:7,} {name}" for name, lines in sorted(packages(files).items())]
    wrong = [f"{name} is a binary file: only {', '.join(BINARIES)} may be" for name in binaries(files)]
    for ceiling in ceilings:
        now = size(ceiling, files)
        said.append(
            f"{now:7,} {ceiling.unit} of {'/'.join(ceiling.suffixes)} in {ceiling.folder}, at most {ceiling.most:,}"
        )
        if now > ceiling.most:
            over = f"{now - ceiling.most:,} {ceiling.unit} over its ceiling"
            wrong.append(f"{ceiling.folder} is {over}: take something out, or say in the commit what it is for")
    return said, wrong


def main() -> int:
    said, wrong = report(tracked(ROOT))
    print("\n".join(said))
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
