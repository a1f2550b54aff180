"""Traces for simulations."""

from __future__ import annotations

from aliquot.model.node import Node
from aliquot.sim.trace import parse_nodes


def nodes(*rows: str) -> list[Node]:
    return parse_nodes(["sn,cpu_milli,memory_mib,gpu,model\n", *(f"{row}\n" for row in rows)], "nodes")
