"""Which ResourceQuotas limit nothing: objects in, findings out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aliquot.dialects.kube.shapes import mapping
from aliquot.model.decoding.openjson import JsonObject
from aliquot.services.doctor.findings import Finding, found, ok

_LIMITS = "limits.nvidia.com/"


def quota_findings(quotas: Iterable[JsonObject]) -> Iterator[Finding]:
    """Those that only HAMi's scheduler counts. A limit beside the request of the same resource does no harm."""
    well = True
    for quota in quotas:
        hard = mapping(mapping(quota.get("spec")).get("hard"))
        limits = {name: f"requests.{name.removeprefix('limits.')}" for name in hard if name.startswith(_LIMITS)}
        instead = {limit: request for limit, request in limits.items() if request not in hard}
        if instead:
            well = False
            metadata = mapping(quota.get("metadata"))
            what = f"{', '.join(instead)} limits nothing: only HAMi's scheduler counts it"
            fix = f"write {', '.join(instead.values())} in its spec.hard (docs/queues.md says what each counts)"
            yield found("quotas", f"{metadata.get('namespace')}/{metadata.get('name')}", what, fix)
    if well:
        yield ok("quotas", "none that only HAMi's scheduler counts")
