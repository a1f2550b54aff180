"""How is it spelled: parses Kubernetes objects to the model, and renders them back. Pure.

`qgpu`, `t9k`, `gpushare`, `hami` and `kai` are the dialects; none imports another. `registry` finds a Pod's dialect,
`nodereading` those that a node offers, by the `rules` of the cluster; `native` has our own annotations. `pods` and
`nodes` read what all dialects share, `podrendering` writes a claim as a Pod; `kube` is what Kubernetes itself decides.
`lookalikes` finds misspelled names, `podgroups` reads Pods that start together, `latency` what online Pods accept,
`elastic` memory that may leave the card. `wire` has Kubernetes' own forms, `dra` slices and claims, `local` manifests
on one machine. Every annotation key, label key and resource name is in one module only.

Parsing accepts any JSON and never raises: the result is a value, every rule that is violated (`Invalid`), or None for
an object without GPUs. Rendering takes our own values and relies on them.
"""

from aliquot.dialects.gpushare import MemoryUnit, as_admitted, parse_unhealthy
from aliquot.dialects.latency import release_delay
from aliquot.dialects.native import render_inventory
from aliquot.dialects.nodereading import (
    WHOLE_CARDS_NEED,
    NodeReader,
    UnitPoll,
    advertised_gpushare_unit,
    guess_gpushare_unit,
    parse_node,
)
from aliquot.dialects.qgpu import QgpuRules
from aliquot.dialects.registry import (
    ENABLED_BY,
    PodReader,
    parse_grant,
    parse_pod,
    render_assigned,
    render_env,
    render_grant,
    render_pod,
)
from aliquot.dialects.rules import DEFAULT_RULES, DIALECTS, Rules
from aliquot.dialects.t9k import missing_tolerations, taints, tolerations

__all__ = [
    "DEFAULT_RULES",
    "DIALECTS",
    "ENABLED_BY",
    "WHOLE_CARDS_NEED",
    "MemoryUnit",
    "NodeReader",
    "PodReader",
    "QgpuRules",
    "Rules",
    "UnitPoll",
    "advertised_gpushare_unit",
    "as_admitted",
    "guess_gpushare_unit",
    "missing_tolerations",
    "parse_grant",
    "parse_node",
    "parse_pod",
    "parse_unhealthy",
    "release_delay",
    "render_assigned",
    "render_env",
    "render_grant",
    "render_inventory",
    "render_pod",
    "taints",
    "tolerations",
]
