"""What the build says when it cannot go on."""

from __future__ import annotations


class CannotBuildError(Exception):
    """Why, and what to do."""
