"""What `aliquot doctor` finds: data first, so that a program can read it too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from aliquot.model.status.machine import FindingStatus
from aliquot.wording.amounts import memory

_MOST_NAMES = 3


class Level(StrEnum):
    """Whether something is to be done."""

    OK = "ok"
    NOTE = "note"  # worth knowing; nothing is wrong
    FINDING = "finding"
    UNKNOWN = "cannot look"  # we were not let see it


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's outcome: about whom, what is wrong (or what is well), and what to do."""

    check: str
    level: Level
    about: tuple[str, ...]
    what: str
    fix: str | None = None  # a command or an edit; NODE or POD in it stands for each of `about`

    @property
    def whom(self) -> str:
        """A few names, and how many more."""
        more = f" and {len(self.about) - _MOST_NAMES:,} more" if len(self.about) > _MOST_NAMES else ""
        return ", ".join(self.about[:_MOST_NAMES]) + more

    @property
    def advice(self) -> str | None:
        """The fix, with the name in it where it is about one only."""
        if self.fix is None or len(self.about) != 1:
            return self.fix
        namespace, _, name = self.about[0].rpartition("/")
        return self.fix.replace("POD", f"{name} -n {namespace}" if namespace else name).replace("NODE", self.about[0])


def found(check: str, about: str, what: str, fix: str) -> Finding:
    """Something to be done."""
    return Finding(check, Level.FINDING, (about,), what, fix)


def ok(check: str, what: str) -> Finding:
    """A check that found nothing wrong."""
    return Finding(check, Level.OK, (), what)


def with_memory(finding: FindingStatus) -> str:
    """How much of the card's memory a process on it has, to be appended."""
    if finding.pid is None or not finding.memory_bytes:
        return ""
    return f" ({memory(finding.memory_bytes >> 20)} of memory)"


def grouped(findings: Iterable[Finding]) -> list[Finding]:
    """Those that say the same of several made one, in the order in which they first came."""
    groups: dict[tuple[str, Level, str, str | None], Finding] = {}
    for finding in findings:
        key = (finding.check, finding.level, finding.what, finding.fix)
        known = groups.get(key)
        groups[key] = finding if known is None else replace(known, about=known.about + finding.about)
    return list(groups.values())


def moment(text: object) -> datetime | None:
    """A time as the API server writes it; None for anything else, and where a zone is missing."""
    try:
        when = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return when if when is not None and when.tzinfo is not None else None
