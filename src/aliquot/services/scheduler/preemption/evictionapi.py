"""The writes of a preemption: evictions, and the node that is promised to a Pod."""

from __future__ import annotations

import re
from dataclasses import dataclass

from aliquot.adapters.kubernetes.kube import ApiError, Kube, NotSent, Unreachable
from aliquot.dialects.native import RETRIED
from aliquot.dialects.wire.objects import PodObject
from aliquot.model.decoding.openjson import JsonObject

_TIMEOUT = 5.0  # seconds for one call
_WRITES = 4  # tries of one write, where other clients write the Pod between our read and ours
_AUTHORIZER = re.compile(r"\bcannot [a-z]+ resource\b")


@dataclass(frozen=True, slots=True)
class Evictee:
    """A Pod to evict."""

    uid: str
    key: str  # namespace/name


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the API server does not evict a Pod."""

    why: str
    # By a PodDisruptionBudget, an overloaded server or a webhook that is down: it may be allowed in seconds. Otherwise
    # by admission, or by a mistake.
    temporary: bool


class Unsure(Unreachable):
    """A nomination or its withdrawal was sent, and may have been written."""


async def evict(kube: Kube, pod: Evictee, *, dry_run: bool = False) -> Refusal | None:
    """Evict the Pod, or only ask whether that is allowed. None: it is, or the Pod is gone. Raises ApiError where our
    role does not allow it, and Unreachable."""
    namespace, name = pod.key.split("/", 1)
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }
    try:
        await kube.create(
            f"{_path(pod.key)}/eviction", body, params={"dryRun": "All"} if dry_run else None, timeout=_TIMEOUT
        )
    except ApiError as error:
        if lacks_right(error):
            raise
        if error.status in (404, 409):  # gone, or made anew under that name
            return None
        return Refusal(_why(error), is_temporary(error))
    return None


def is_temporary(error: ApiError) -> bool:
    """Whether the API server may answer otherwise in seconds. It may have carried out the call all the same."""
    return error.status >= 500 or error.status == 429


def lacks_right(error: ApiError) -> bool:
    """Whether our role does not allow the call: so says the authorizer. Other refusals by 403 are about one object: an
    admission webhook, a namespace that terminates."""
    return error.status == 403 and _AUTHORIZER.search(error.message) is not None


def _why(error: ApiError) -> str:
    """The API server's words: the cause, which names the budget, where there is one."""
    causes = error.details.get("causes") if isinstance(error.details, dict) else None
    texts = [str(cause["message"]) for cause in causes or () if isinstance(cause, dict) and cause.get("message")]
    return "; ".join([error.message, *texts])


async def nominate(kube: Kube, key: str, uid: str, node: str) -> bool:
    """Write the node as the Pod's nominatedNodeName. False where the Pod needs none any more, or others write the Pod
    again and again: only one of two replicas can promise it a node. Raises Unsure where it may be written."""
    for _ in range(_WRITES):
        try:
            pod: PodObject = await kube.get(_path(key), into=PodObject, timeout=_TIMEOUT)
            taken = pod.spec.node_name or (pod.status and pod.status.nominated_node_name)
            if pod.metadata.uid != uid or pod.metadata.deletion_timestamp is not None or taken:
                return False
            await _write_nomination(kube, key, {"uid": uid, "resourceVersion": pod.metadata.resource_version}, node)
            return True
        except ApiError as error:
            if error.status == 404:
                return False
            if error.status != 409:
                raise
    return False


async def withdraw_nomination(kube: Kube, key: str, uid: str, node: str) -> bool:
    """Remove the Pod's nominatedNodeName where it is this node. False where another client wrote the Pod meanwhile."""
    try:
        pod: PodObject = await kube.get(_path(key), into=PodObject, timeout=_TIMEOUT)
        if pod.metadata.uid == uid and pod.status and pod.status.nominated_node_name == node:
            await _write_nomination(kube, key, {"uid": uid, "resourceVersion": pod.metadata.resource_version}, None)
    except ApiError as error:
        if error.status not in (404, 409):
            raise
        return error.status == 404
    return True


async def _write_nomination(kube: Kube, key: str, metadata: JsonObject, node: str | None) -> None:
    body = {"metadata": metadata, "status": {"nominatedNodeName": node}}
    try:
        await kube.patch(f"{_path(key)}/status", body, timeout=_TIMEOUT)
    except NotSent:
        raise
    except Unreachable as error:
        raise Unsure(str(error)) from error
    except ApiError as error:
        if is_temporary(error):
            raise Unsure(str(error)) from error
        raise


async def retry(kube: Kube, key: str, uid: str, stamp: str) -> None:
    """Touch the Pod, so that kube-scheduler tries it at once."""
    await kube.patch(_path(key), {"metadata": {"uid": uid, "annotations": {RETRIED: stamp}}}, timeout=_TIMEOUT)


def _path(key: str) -> str:
    namespace, name = key.split("/", 1)
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
