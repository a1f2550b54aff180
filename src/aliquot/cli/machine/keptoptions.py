"""Options of `aliquot up` that are not given are as they were set last."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from aliquot.cli.errors import InputError
from aliquot.cli.options.dashboard import parse_listen
from aliquot.services.dashboard.access import NO_DASHBOARD, Listen
from aliquot.services.machine.service import USUAL
from aliquot.services.machine.settings import KeptOptions

_LOG = logging.getLogger("aliquot")


def with_given(stored: KeptOptions, given: Mapping[str, Any]) -> KeptOptions:
    """Those of the last daemon, and instead of them those that are given now."""
    found = {name: given[name] for name in KeptOptions.__struct_fields__ if given[name] is not None}
    if "listen" in found:  # the token belongs to the address
        token_file = given["token_file"]
        found["token_file"] = None if token_file is None else os.path.abspath(token_file)
    return msgspec.structs.replace(stored, **found)


def kept_listen(kept: KeptOptions) -> Listen:
    """Where the dashboard was last. Without it the daemon starts all the same: its tenants need it more."""
    file = None if kept.token_file is None else Path(kept.token_file)
    try:
        listen = parse_listen(kept.listen, file, option="--listen")
    except InputError as error:
        _LOG.warning("no_dashboard", extra={"data": {"error": str(error), "hint": "--listen chooses another address"}})
        return NO_DASHBOARD
    return USUAL if listen is None else replace(listen, usual=True)
