"""The command lines of our own Python processes: all of them come from here.

None looks for modules in its working folder or beside a script: for root that may be a folder of another user, who puts
his own aliquot/__main__.py there. tests/adapters/host/process/test_ourselves.py searches the source for others.
"""

from __future__ import annotations

import sys


def module(name: str, *words: str) -> list[str]:
    """A module of ours as a program."""
    return [sys.executable, "-P", "-m", name, *words]


def aliquot(*words: str) -> list[str]:
    """The command itself."""
    return module("aliquot", *words)


def script(path: str, *words: str, site: bool = False) -> list[str]:
    """A file that needs the standard library alone; with `site` also what is installed."""
    return [sys.executable, "-I", *([] if site else ["-S"]), path, *words]


def code(text: str, *words: str) -> list[str]:
    """A line of Python that needs the standard library alone."""
    return [sys.executable, "-I", "-c", text, *words]
