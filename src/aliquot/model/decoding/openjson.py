"""JSON whose shape others decide: a manifest that somebody wrote, an object of the API server, the patch of one, a line
that a daemon of another release sent.

Its types stay open. It may have fields that are newer than this release, which must come through unchanged, and what
is wrong in it is answered by a rule with the field's name (`Invalid`), not by a decoder. Objects of the API server
that are only read are decoded into the structs of dialects/wire; what we report ourselves is a type with a name of
its own: model/status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonObject = dict[str, Any]
JsonView = Mapping[str, Any]  # the same, where it is only read
