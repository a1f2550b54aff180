"""What was found out about the control of cards: a small file in the state folder.

A verdict holds for a model of card with one version of the driver, until the machine boots. Another boot, another
driver or a file that cannot be read means that nothing is known; the card is tried again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from aliquot.model.cardstate.control import CardControl, ControlLevel, ControlReason

_VERSION = 1


class Verdicts:
    """Of this boot and this driver, by the card's model. One process writes the file."""

    def __init__(self, path: Path, driver: str, boot: str | None = None) -> None:
        self._path, self._driver = path, driver
        self._boot = boot if boot is not None else Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._known = self._read()

    def of(self, model: str) -> CardControl | None:
        """None: nothing is known."""
        return self._known.get(model)

    def set(self, model: str, control: CardControl) -> None:
        """Known from now on, in any case by this process. Raises OSError when it cannot be written."""
        self._known[model] = control
        written = {name: [one.level, one.reason] for name, one in self._known.items()}
        content = {"version": _VERSION, "boot": self._boot, "driver": self._driver, "verdicts": written}
        fresh = self._path.with_name(f"{self._path.name}~")
        with fresh.open("w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._path)

    def _read(self) -> dict[str, CardControl]:
        try:
            found = json.loads(self._path.read_text())
            if [found[key] for key in ("version", "boot", "driver")] != [_VERSION, self._boot, self._driver]:
                return {}
            return _parse(found["verdicts"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError):  # none, cut off, or of a later release
            return {}


def _parse(verdicts: Mapping[str, tuple[str, str | None]]) -> dict[str, CardControl]:
    return {
        str(model): CardControl(
            ControlLevel.of_this_release(level), None if reason is None else ControlReason.of_this_release(reason)
        )
        for model, (level, reason) in verdicts.items()
    }
