"""Which Pods belong to a node rather than to its users, and so do not keep it from being empty for a whole-node Pod.

    a DaemonSet's   T9k's rule
    a static Pod's  the mirror of a file on the node. The kubelet runs no other Pod with that annotation: it deletes
                    those without a file, so that no user can hide behind it
    our scheduler's known by its service account, in its own namespace. Labels would not do, any user sets those.
                    Who can create Pods with that account already has the scheduler's rights

Pure.
"""

from __future__ import annotations

import base64
import json

from aliquot.dialects.pods import mapping_at
from aliquot.dialects.wire.objects import PodObject

_MIRROR = "kubernetes.io/config.mirror"
_SUBJECT = "system:serviceaccount:"


def belongs_to_node(pod: PodObject, own_account: str | None) -> bool:
    """`own_account`: namespace/name of the account that our scheduler runs as, where it has one."""
    if pod.daemon or _MIRROR in (pod.metadata.annotations or ()):
        return True
    return own_account is not None and own_account == f"{pod.metadata.namespace}/{pod.spec.service_account_name}"


def account_of_token(token: str | None) -> str | None:
    """namespace/name of the service account whose token it is; None for another credential.

    The account `default` is none: every Pod of its namespace has it.
    """
    try:
        payload = (token or "").split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        subject = str(claims["sub"])
    except (IndexError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return _account(*subject.removeprefix(_SUBJECT).split(":")) if subject.startswith(_SUBJECT) else None


def account_of_deployment(deployment: object) -> str | None:
    """The same, of its Pods. Accepts any JSON."""
    whole = mapping_at(deployment, "", [])
    template = mapping_at(mapping_at(whole.get("spec"), "", []).get("template"), "", [])
    account = mapping_at(template.get("spec"), "", []).get("serviceAccountName")
    namespace = mapping_at(whole.get("metadata"), "", []).get("namespace")
    return _account(namespace, account) if isinstance(namespace, str) and isinstance(account, str) else None


def _account(namespace: str, *name: str) -> str | None:
    return f"{namespace}/{name[0]}" if len(name) == 1 and name[0] not in ("", "default") else None
