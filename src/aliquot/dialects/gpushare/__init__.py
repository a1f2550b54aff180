"""gpushare (Aliyun): a card's memory, in one whole unit for the whole cluster, GiB or MiB.

names.py    resources, annotations, labels, the unit
pods.py     what a Pod requests
nodes.py    what a Node offers, and which of its cards are out of use
grants.py   which cards a Pod has, in annotations and variables
inspect.py  what the peer's extender answers about all of it
"""

from aliquot.dialects.gpushare.grants import parse_grant, render_assigned, render_env, render_grant, render_totals
from aliquot.dialects.gpushare.inspect import (
    InspectedCard,
    InspectedNode,
    InspectedNodes,
    render_inspected,
    render_inspected_card,
    render_inspected_node,
)
from aliquot.dialects.gpushare.names import (
    ACK_LABEL,
    ALLOCATION,
    ANNOTATIONS,
    ASSIGNED,
    ASSUME_TIME,
    CARD_SIZE,
    CONFIG_NAMESPACE,
    CORE,
    COUNT,
    DIALECT,
    INDEX,
    LABELS,
    MARKS,
    MEMORY,
    NODE_LABEL,
    POD_TOTAL,
    RESOURCES,
    MemoryUnit,
)
from aliquot.dialects.gpushare.nodes import (
    ENABLED_BY,
    UnitVote,
    amounts,
    capacity,
    card_order,
    elected_unit,
    labelled,
    offers,
    offers_in,
    parse_unhealthy,
    unit_vote,
    usual_isolation,
)
from aliquot.dialects.gpushare.pods import as_admitted, first_mention, lacks_place, parse_pod, places, remarks, words

__all__ = [
    "ACK_LABEL",
    "ALLOCATION",
    "ANNOTATIONS",
    "ASSIGNED",
    "ASSUME_TIME",
    "CARD_SIZE",
    "CONFIG_NAMESPACE",
    "CORE",
    "COUNT",
    "DIALECT",
    "ENABLED_BY",
    "INDEX",
    "LABELS",
    "MARKS",
    "MEMORY",
    "NODE_LABEL",
    "POD_TOTAL",
    "RESOURCES",
    "InspectedCard",
    "InspectedNode",
    "InspectedNodes",
    "MemoryUnit",
    "UnitVote",
    "amounts",
    "as_admitted",
    "capacity",
    "card_order",
    "elected_unit",
    "first_mention",
    "labelled",
    "lacks_place",
    "offers",
    "offers_in",
    "parse_grant",
    "parse_pod",
    "parse_unhealthy",
    "places",
    "remarks",
    "render_assigned",
    "render_env",
    "render_grant",
    "render_inspected",
    "render_inspected_card",
    "render_inspected_node",
    "render_totals",
    "unit_vote",
    "usual_isolation",
    "words",
]
