"""All that is fuzzed; docs/security.md has the same list, and tests/fuzz/test_targets.py compares."""

from __future__ import annotations

from . import doors, files, kubernetes, tenants, views
from .target import Target

TARGETS: tuple[Target, ...] = (*tenants.TARGETS, *doors.TARGETS, *kubernetes.TARGETS, *files.TARGETS, *views.TARGETS)
