"""JSON that is nested deeper than decoders can follow, as the API server keeps it in any object's managedFields."""

from __future__ import annotations

import json

LEVELS = 9000  # the API server takes 10,000


def deep(levels: int = LEVELS) -> str:
    """A mapping of that many levels."""
    return '{"f:a":' * levels + "{}" + "}" * levels


def with_deep_fields(value: object, levels: int = LEVELS) -> bytes:
    """The JSON of a value in which each text "DEEP" is such a mapping."""
    return json.dumps(value).replace('"DEEP"', deep(levels)).encode()


MANAGED = [{"manager": "kubectl", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": "DEEP"}]
