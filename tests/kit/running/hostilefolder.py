"""A folder of another user, with modules under the names that our programs import."""

from __future__ import annotations

from pathlib import Path

_TAKEN = "taken"
_MODULE = "import os\nopen({mark!r}, 'a').write(os.path.basename(__file__) + ' ')\n"
_NAMES = (
    "aliquot/__init__",
    "aliquot/__main__",
    "click",
    "json",
    "msgspec",
    "numpy",
    "subprocess",
    "time",
    "usercustomize",
)


def hostile_folder(folder: Path) -> Path:
    """Make one there."""
    for name in _NAMES:
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_MODULE.format(mark=str(folder / _TAKEN)))
    return folder


def taken(folder: Path) -> list[str]:
    """Its modules that a program has run."""
    mark = folder / _TAKEN
    return mark.read_text().split() if mark.exists() else []
