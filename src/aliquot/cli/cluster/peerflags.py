"""Flags of the peers' programs, converted to ours: logging flags are dropped, all others are checked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

# Flags of Go's glog, which gpushare's programs use, with one dash or two. --v is the level, the rest the destination.
_LOGS = re.compile(r"--?(logtostderr|alsologtostderr|stderrthreshold|log_dir|log_backtrace_at|vmodule)(=.*)?")
_VERBOSITY = re.compile(r"--?v=(\d+)")
_DEBUG = 5  # users of glog expect everything from this level on
_LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "warning": "warning"}


def plugin_arguments(words: Sequence[str]) -> list[str]:
    """Flags of gpushare-device-plugin-v2, for `aliquot agent`."""
    return [_plain(word) for word in _without_logs(words)]


def extender_arguments(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Flags of gpushare-sche-extender, for `aliquot scheduler`; its log level and port are in the environment."""
    level = _LEVELS.get(environment.get("LOG_LEVEL", "").lower())
    return [*([] if level is None else [f"--log-level={level}"]), *_without_logs(words)]


def _without_logs(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        verbosity = _VERBOSITY.fullmatch(word)
        if verbosity is not None and int(verbosity[1]) >= _DEBUG:
            yield "--log-level=debug"
        elif verbosity is None and not _LOGS.fullmatch(word):
            yield word


def _plain(word: str) -> str:
    """Go accepts one dash for long flags; we have no short ones of two letters."""
    return f"-{word}" if re.match(r"-[a-z]{2}", word) else word
