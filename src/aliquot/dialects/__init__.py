"""HOW IS IT SPELLED?  Kubernetes objects in, the model's nouns out, and back. Pure.

One module per dialect, and none knows another: `qgpu`, `t9k`, `gpushare`. `pods` and `nodes` read what is the same in
all of them; `registry` finds the dialect that a Pod speaks, `nodereading` those that a node offers, by the `rules` of
the cluster; `native` is our own annotations. Beside them stand the words of Kubernetes: `kube` is what kube-scheduler
itself would say, `objects` what the API server sends, `extender` what kube-scheduler and we say to each other, `wiring`
how it is told of us, `admission` and `webhooks` what the API server asks before it takes a Pod, `upkeep` what a node
should look like, `events` how things are told, `leases` who leads, `advertising` what the kubelet is told of a node's
cards, `cdi` what container runtimes read, `deployment` our own objects in a cluster, `workloads` how they stand,
`leftovers` our marks on its nodes, `handover` what another device plugin gave; `localobjects` and `localpods` are what
a machine without Kubernetes makes of a manifest, `podfields` the words that one may have in it, `localstatus` how it is
shown again. Annotation keys, label keys and resource names stand in the one module that owns them.

Nothing here raises on any JSON: it parses, is refused with every broken rule (`Invalid`), or is not ours (None).
Rendering takes values of ours and may rely on them.
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
    told_gpushare_unit,
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
    "told_gpushare_unit",
    "tolerations",
]
