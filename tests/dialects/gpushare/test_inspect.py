"""The answer of /inspect, as the peer's kubectl plugin reads it."""

from __future__ import annotations

from aliquot.dialects.gpushare.inspect import render_inspected, render_inspected_card, render_inspected_node


def test_inspected_nodes_have_cards_with_their_pods() -> None:
    card = render_inspected_card(1, total=16, used=4, pods=[("team", "web", 4)])
    node = render_inspected_node("n1", total=32, used=4, cards=iter([card]))
    assert render_inspected(iter([node])) == {
        "nodes": [
            {
                "name": "n1",
                "totalGPU": 32,
                "usedGPU": 4,
                "devs": [
                    {
                        "id": 1,
                        "totalGPU": 16,
                        "usedGPU": 4,
                        "pods": [{"name": "web", "namespace": "team", "usedGPU": 4}],
                    }
                ],
            }
        ]
    }
