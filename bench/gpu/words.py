"""How the commands of `aliquot` are spelled: all that the bench knows of the command line, in one place."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

ALIQUOT = (sys.executable, "-P", "-m", "aliquot")
RUNS_ALREADY = "already runs"  # what a daemon says that finds another


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a tenant asks for. `app_class` None: neither online nor offline."""

    name: str
    app_class: str | None = None
    core: int = 10  # percent of a card; 0: none is booked
    memory: str = "2GiB"
    park: str | None = None  # idle time after which its memory may leave the card
    group: str | None = None  # shares the card in space with others of it


def up(policy: str, release_delay: str, simulate: str | None) -> list[str]:
    """The daemon, in the foreground."""
    words = [*ALIQUOT, "up", "--policy", policy, "--release-delay", release_delay, "--listen", "0"]
    return words + (["--simulate", simulate] if simulate else [])


def down() -> list[str]:
    return [*ALIQUOT, "down"]


def run(ask: Ask, command: list[str], *, wait: bool = True) -> list[str]:
    words = [
        *ALIQUOT,
        "run",
        "--name",
        ask.name,
        *(["--core", str(ask.core)] if ask.core else []),
        "--memory",
        ask.memory,
    ]
    words += ["--park", ask.park] if ask.park else []
    if ask.app_class:
        words += ["--class", ask.app_class]
    if ask.group:
        words += ["--together", ask.group]
    if not wait:
        words.append("--no-wait")
    return [*words, "--", *command]


def daemon_pid(home: Path) -> int | None:
    """The daemon that holds this home, started by any process; None when the one that did is gone."""
    try:
        pid = int((home / "lock").read_text().split()[0])
        return pid if b"aliquot" in Path(f"/proc/{pid}/cmdline").read_bytes() else None
    except (OSError, ValueError, IndexError):
        return None


def set_policy(policy: str) -> list[str]:
    return [*ALIQUOT, "policy", "set", policy]


def set_release_delay(delay: str) -> list[str]:
    return [*ALIQUOT, "policy", "release-delay", delay]


def oversubscribe(factor: float) -> list[str]:
    return [*ALIQUOT, "policy", "oversubscribe", str(factor)]


def park(name: str) -> list[str]:
    return [*ALIQUOT, "park", name]


def wake(name: str) -> list[str]:
    return [*ALIQUOT, "wake", name]


def tenants() -> list[str]:
    """A JSON list of those that have a slice."""
    return [*ALIQUOT, "ps", "-o", "json"]


def standings() -> list[str]:
    """How tenants stand on the cards, as JSON."""
    return [*ALIQUOT, "top", "-o", "json"]


def burn_load(kernel: str, *more: str) -> list[str]:
    return [*ALIQUOT, "burn", "load", "--kernel", kernel, "-o", "json", *more]


def burn_serve(kernel: str, period: str, *more: str) -> list[str]:
    return [*ALIQUOT, "burn", "serve", "--kernel", kernel, "--period", period, "-o", "json", *more]


def burn_calibrate() -> list[str]:
    return [*ALIQUOT, "burn", "calibrate", "-o", "json"]
