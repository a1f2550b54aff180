"""Flags of gpushare's programs, converted to ours. A flag that has no effect here is accepted, and named in a warning.

Go's package flag reads them: one dash or two, `-flag=value` or `-flag value`; a switch takes its value after `=` only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aliquot.cli.errors import InputError

_TO_STDERR = "the log goes to stderr"
_KUBELET = "Pods come from the API server, and their devices from the kubelet's own folder"

# Flags of Go's glog and klog, and why they have no effect. -v, -logtostderr and -alsologtostderr have one.
_LOG_SWITCHES = {
    "logtostderr": _TO_STDERR,
    "alsologtostderr": _TO_STDERR,
    "one-output": _TO_STDERR,
    "skip-headers": "log lines are JSON",
    "skip-log-headers": "log lines are JSON",
    "add-dir-header": "log lines are JSON",
}
_LOG_VALUES = {
    "log-dir": _TO_STDERR,
    "log-file": _TO_STDERR,
    "log-file-max-size": _TO_STDERR,
    "log-flush-frequency": "log lines are never held back",
    "stderrthreshold": "--v or --log-level decides what is logged",
    "vmodule": "--v or --log-level decides what is logged, for all modules",
    "log-backtrace-at": "errors are logged with their trace",
}
_PLUGIN_SWITCHES = {
    "mps": "cards are shared by their time slices, without MPS",
    "health-check": "the health of the cards is always checked",
    "query-kubelet": _KUBELET,
}
_PLUGIN_VALUES = dict.fromkeys(
    ("kubelet-address", "kubelet-port", "client-cert", "client-key", "token", "timeout"), _KUBELET
)
_FLAG = re.compile(r"--?([A-Za-z][A-Za-z0-9_-]+|v)(?:=(.*))?", re.DOTALL)
_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_DEBUG = 5  # users of glog expect everything from this level on
_LEVELS = {"debug": "debug", "info": "info", "warn": "warning", "warning": "warning", "error": "warning"}
_EXTENDER_PORT = 39999  # where gpushare's extender listens without $PORT


@dataclass(frozen=True, slots=True)
class Converted:
    """Arguments for our program; and the flags without effect, with the reason. Never their values: one is a token."""

    arguments: list[str]
    ignored: dict[str, str]


def plugin_arguments(words: Sequence[str]) -> Converted:
    """Flags of gpushare-device-plugin-v2, for `aliquot agent`. Raises InputError."""
    return _convert(words, _LOG_SWITCHES | _PLUGIN_SWITCHES, _LOG_VALUES | _PLUGIN_VALUES)


def extender_arguments(words: Sequence[str], environment: Mapping[str, str]) -> Converted:
    """Flags and environment of gpushare-sche-extender, for `aliquot scheduler`. Raises InputError."""
    converted = _convert(words, _LOG_SWITCHES, _LOG_VALUES)
    level = _LEVELS.get(environment.get("LOG_LEVEL", "").lower())
    arguments = [] if level is None else [f"--log-level={level}"]
    if not environment.get("PORT"):
        arguments.append(f"--port={_EXTENDER_PORT}")
    ignored = {"$THREADNESS": "one thread serves all calls"} if environment.get("THREADNESS") else {}
    return Converted([*arguments, *converted.arguments], {**converted.ignored, **ignored})


def _convert(words: Sequence[str], switches: Mapping[str, str], values: Mapping[str, str]) -> Converted:
    arguments: list[str] = []
    ignored: dict[str, str] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        found = _FLAG.fullmatch(word)
        name, value = (found[1].replace("_", "-"), found[2]) if found else ("", None)
        if name in switches:
            if not (name.endswith("logtostderr") and (value is None or value in _TRUE)):
                ignored[f"--{name}"] = switches[name]
        elif name in values or name == "v":
            if value is None:
                if not left:
                    raise InputError(f"{word} needs a value")
                value = left.pop(0)
            if name != "v":
                ignored[f"--{name}"] = values[name]
            elif not re.fullmatch("[0-9]{1,9}", value):
                raise InputError(f'{word}: "{value}" is not allowed: a whole number, for example 2')
            elif int(value) >= _DEBUG:
                arguments.append("--log-level=debug")
        else:  # ours; Go accepts one dash for long flags
            arguments.append(f"-{word}" if found and not word.startswith("--") else word)
    return Converted(arguments, ignored)
