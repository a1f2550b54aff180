"""What the peers' programs are told, as ours are: flags that say nothing to us are left out, all others are checked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

# Go's glog, with which gpushare's programs log, takes one dash or two. How much, --v says; the rest is where.
_LOGS = re.compile(r"--?(logtostderr|alsologtostderr|stderrthreshold|log_dir|log_backtrace_at|vmodule)(=.*)?")
_VERBOSITY = re.compile(r"--?v=(\d+)")
_DEBUG = 5  # from here on glog's users mean everything
_LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "warning": "warning"}


def plugin_words(words: Sequence[str]) -> list[str]:
    """gpushare-device-plugin-v2's, for `aliquot agent`."""
    return [_plain(word) for word in _without_logs(words)]


def extender_words(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """gpushare-sche-extender's, for `aliquot scheduler`: its level of logs is in the environment, as its port is."""
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
    """Go's flags may have one dash; ours of one letter are none."""
    return f"-{word}" if re.match(r"-[a-z]{2}", word) else word
