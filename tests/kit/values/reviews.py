"""Reviews of Pods by the webhook, and what the API server makes of its answers."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

from aliquot.dialects import Rules
from aliquot.dialects.wire.webhook.admission import (
    AdmissionSettings,
    review,
)

Json = dict[str, Any]


PLAIN, BY_ENV = AdmissionSettings(), AdmissionSettings(env_by_field_ref=True)


def asked(pod: object, operation: str = "CREATE", **more: object) -> Json:
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {"uid": "u-1", "kind": kind, "operation": operation, "object": pod, **more}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def answer(body: object, settings: AdmissionSettings = PLAIN, rules: Rules | None = None) -> Json:
    said = review(body, rules or Rules(), settings)
    assert isinstance(said, dict), said
    assert (said["apiVersion"], said["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: Json = said["response"]
    assert response["uid"] == "u-1"
    json.dumps(said).encode()
    return response


def operations(response: Json) -> list[Json]:
    if "patch" not in response:
        return []
    assert response["patchType"] == "JSONPatch"
    patch: list[Json] = json.loads(base64.b64decode(response["patch"]))
    return patch


def patched(pod: Json, response: Json) -> Json:
    """What the API server makes of the Pod (RFC 6902, as much of it as we use)."""
    whole = copy.deepcopy(pod)
    for operation in operations(response):
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        holder: Any = whole
        for part in path:
            holder = holder[int(part)] if isinstance(holder, list) else holder[part]
        if operation["op"] == "remove":
            del holder[int(last) if isinstance(holder, list) else last]
        elif isinstance(holder, list):
            holder.insert(len(holder) if last == "-" else int(last), operation["value"])
        else:
            holder[last] = operation["value"]
    return whole


def admitted(pod: Json, settings: AdmissionSettings = PLAIN) -> Json:
    response = answer(asked(pod), settings)
    assert response["allowed"], response
    return patched(pod, response)
