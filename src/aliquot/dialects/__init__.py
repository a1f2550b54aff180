"""How is it spelled: Kubernetes objects in, the model's nouns out, and back. Pure.

`qgpu`, `t9k` and `gpushare` are the dialects; none knows another. `registry` finds the dialect that a Pod speaks,
`nodereading` those that a node offers, by the `rules` of the cluster; `native` is our own annotations. `pods`, `nodes`
and `podfields` read what all dialects share; `kube` is what kube-scheduler itself would say. `wire` has Kubernetes' own
forms, `local` manifests on one machine. An annotation key, label key or resource name stands in the one module that
owns it.

Nothing here raises on any JSON: it parses, is refused with every broken rule (`Invalid`), or is not ours (None).
Rendering takes our own values and may rely on them.
"""

from aliquot.dialects.registry import (
    DEFAULT_RULES,
    DIALECTS,
    ENABLED_BY,
    Asked,
    MemoryUnit,
    NodeReader,
    PodReader,
    QgpuRules,
    Rules,
    Taints,
    advertised_gpushare_unit,
    guess_gpushare_unit,
    missing_tolerations,
    parse_grant,
    parse_node,
    parse_pod,
    parse_unhealthy,
    render_assigned,
    render_env,
    render_grant,
    render_inventory,
    render_pod,
    taints,
    tolerations,
)

__all__ = [
    "DEFAULT_RULES",
    "DIALECTS",
    "ENABLED_BY",
    "Asked",
    "MemoryUnit",
    "NodeReader",
    "PodReader",
    "QgpuRules",
    "Rules",
    "Taints",
    "advertised_gpushare_unit",
    "guess_gpushare_unit",
    "missing_tolerations",
    "parse_grant",
    "parse_node",
    "parse_pod",
    "parse_unhealthy",
    "render_assigned",
    "render_env",
    "render_grant",
    "render_inventory",
    "render_pod",
    "taints",
    "tolerations",
]
