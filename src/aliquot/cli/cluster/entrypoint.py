"""Starts our programs by the vendors' names; and without any name, as a container that has no command.

gpushare's images name their program themselves, so its extender's Deployment has no `command`. Our one image is for
all programs: its default argument is `by-environment`, and a manifest's `args` may begin with a flag.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aliquot.cli.cluster.peerflags import Converted, extender_arguments, plugin_arguments
from aliquot.cli.errors import InputError

log = logging.getLogger(__name__)

BY_ENVIRONMENT = "by-environment"
_DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")  # every device plugin's Pod mounts it
_OWN_FLAGS = ("-h", "--help", "--version")  # of `aliquot` itself


def extender_words(words: Sequence[str]) -> list[str]:
    """`aliquot scheduler` for gpushare-sche-extender."""
    return ["scheduler", "--drop-in", *_converted(lambda: extender_arguments(words, os.environ))]


def plugin_words(words: Sequence[str]) -> list[str]:
    """`aliquot agent` for gpushare-device-plugin-v2."""
    return ["agent", *_converted(lambda: plugin_arguments(words))]


def is_unnamed(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a container was started without the name of a program."""
    if list(words) == [BY_ENVIRONMENT]:
        return True
    in_pod = "KUBERNETES_SERVICE_HOST" in environment
    return in_pod and bool(words) and words[0].startswith("-") and words[0] not in _OWN_FLAGS


def unnamed_words(
    words: Sequence[str], environment: Mapping[str, str] = os.environ, plugins: Path = _DEVICE_PLUGINS
) -> list[str]:
    """The program that is meant: in a Pod with the kubelet's folder the device plugin, in any other the extender."""
    flags = [word for word in words if word != BY_ENVIRONMENT]
    if "KUBERNETES_SERVICE_HOST" not in environment:
        return ["--help"]
    return plugin_words(flags) if plugins.is_dir() else extender_words(flags)


def _converted(convert: Callable[[], Converted]) -> list[str]:
    from aliquot.adapters.host.logs import start_logging

    try:
        converted = convert()
    except InputError as error:
        error.show()
        sys.exit(error.exit_code)
    if converted.ignored:
        start_logging("info")
    for flag, why in converted.ignored.items():
        log.warning("flag_without_effect", extra={"data": {"flag": flag, "why": why}})
    return converted.arguments
