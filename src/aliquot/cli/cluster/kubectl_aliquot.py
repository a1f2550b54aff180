"""`kubectl aliquot`: every node's cards, the Pods on them and the Pods that wait, in all dialects."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from aliquot.adapters.kubernetes.kubectl import Kubectl
from aliquot.cli.cluster.clustertables import details, tables, waiting_lines
from aliquot.cli.cluster.objects import cluster_objects
from aliquot.cli.errors import InputError, run_and_exit
from aliquot.cli.options.kubectl import kubectl_options, reach
from aliquot.cli.tables import printable
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.text import printable_json
from aliquot.wording.amounts import in_units
from aliquot.wording.withheld import withheld_words

if TYPE_CHECKING:
    from aliquot.model.status.printed import PrintedCluster, PrintedNode, PrintedUse, PrintedWaiting
    from aliquot.services.explain.overview import NodeStanding, Overview, PodStanding


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("node", required=False)
@click.option("-d", "--detail", is_flag=True, help="Show every card and every Pod")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json"]),
    default="table",
    show_default=True,
    help="wide: one line per node, with its cards, however many nodes there are",
)
@click.option("--pending", is_flag=True, help="Show only the Pods that wait, each with its reason")
@click.option("-n", "--namespace", hidden=True, expose_value=False)  # cards belong to no namespace
@kubectl_options
def aliquot(node: str | None, detail: bool, output: str, pending: bool, kubectl: Kubectl) -> None:
    """Show the cluster's GPUs: what nodes offer and hold, which Pods are on them, and which wait and why.

    \b
    kubectl aliquot               all nodes; similar ones in one line when there are many
    kubectl aliquot NODE -d       one node: its cards and its Pods
    kubectl aliquot --pending     the Pods that wait, and why
    kubectl aliquot explain POD   every reason why a Pod does not fit
    kubectl aliquot doctor        what is wrong with the installation
    kubectl aliquot dashboard     the same in a browser, live
    kubectl aliquot usage         who used how much of the cards
    """
    seen = overview(kubectl)
    if node is not None and node not in [standing.name for standing in seen.nodes]:
        raise InputError(f"{node} has no GPU that Aliquot shares: kubectl aliquot -o wide lists those that do")
    nodes = [standing for standing in seen.nodes if node in (None, standing.name)]
    if output == "json":
        import msgspec

        click.echo(
            printable_json(msgspec.json.format(msgspec.json.encode(as_json(seen, nodes, pending)), indent=2).decode())
        )
        return
    lines: Iterable[str]
    if pending:
        lines = waiting_lines(seen, None)
    elif detail:
        lines = details(nodes)
    else:
        lines = tables(seen, nodes, wide=output == "wide" or node is not None, alone=node is not None)
    for block in lines:
        for line in block.split("\n"):
            click.echo(printable(line))


def main() -> None:
    """Entry point of the plugin, which kubectl finds by its name, kubectl-aliquot."""
    first = sys.argv[1:2]
    if first == ["explain"]:
        from aliquot.cli.cluster.explain import explain

        run_and_exit(explain, "kubectl aliquot explain", sys.argv[2:])
    if first == ["doctor"]:
        from aliquot.cli.cluster.doctor import doctor

        run_and_exit(doctor, "kubectl aliquot doctor", sys.argv[2:])
    if first == ["dashboard"]:
        from aliquot.cli.dashboard import dashboard

        run_and_exit(dashboard, "kubectl aliquot dashboard", ["--cluster", *sys.argv[2:]])
    if first == ["usage"]:
        from aliquot.cli.cluster.usage import usage

        run_and_exit(usage, "kubectl aliquot usage", sys.argv[2:])
    run_and_exit(aliquot, "kubectl aliquot")


def overview(kubectl: Kubectl) -> Overview:
    """The cluster as it stands. Ends the command where it cannot be seen."""
    from aliquot.services.doctor.locate import UnknownOptionError, find_scheduler
    from aliquot.services.explain.overview import look

    objects = reach(lambda: cluster_objects(kubectl))
    nodes = [obj for obj in objects if _is_node(obj)]
    try:
        return look(objects, find_scheduler(kubectl).rules(None, "auto", nodes))
    except UnknownOptionError as error:
        raise InputError(str(error)) from error


def _is_node(obj: JsonObject) -> bool:
    return obj.get("kind") == "Node"


# --- for programs ----------------------------------------------------------------------------------------------------


def as_json(seen: Overview, nodes: Iterable[NodeStanding], pending: bool) -> PrintedCluster:
    """All of it, with amounts in GiB and percent as `explain -o json` has them."""
    waiting: list[PrintedWaiting] = [
        {"pod": pod.key, "created": pod.created, "reason": seen.why_waits(pod)} for pod in seen.waiting
    ]
    return {"pending": waiting} if pending else {"nodes": [_node_json(node) for node in nodes], "pending": waiting}


def _node_json(node: NodeStanding) -> PrintedNode:
    return {
        "name": node.name,
        "offers": list(node.offers),
        "policy": None if node.node is None else node.node.isolation.value,
        "oversubscribe": node.factor,
        "pool_gib": in_units(node.pool_mib, 1024),
        "pool_booked_gib": in_units(node.beyond_mib, 1024),
        "trouble": list(node.trouble),
        "notes": node.notes,
        "cards": [
            {
                "index": card.card.index,
                "uuid": card.card.uuid,
                "model": card.card.model,
                "healthy": card.card.healthy,
                "withheld": withheld_words(card.card.withheld) if card.card.withheld else None,
                "memory_gib": in_units(card.card.memory_mib, 1024),
                "memory_used_gib": in_units(card.used.memory_mib, 1024),
                "core_used": in_units(card.used.booked_milli, 10),
                "greedy_used": in_units(card.used.greedy_milli, 10),
                "shared_by": card.used.slices,
                "exclusive": bool(card.used.exclusive),
            }
            for card in node.cards
        ],
        "pods": [
            {
                "pod": pod.key,
                "class": pod.claim.app_class.value,
                "dialect": pod.claim.dialect,
                "whole_node": pod.grant.whole_node,
                "guessed": pod.guessed,
                "parkable": pod.claim.parkable,
                "cards": _cards_json(pod),
            }
            for pod in node.pods
        ],
        "claims": [
            {
                "claim": claim.key,
                "class": claim.claim.app_class.value,
                "cards": _cards_json(claim),
                "pods": list(claim.users),
            }
            for claim in node.claims
        ],
    }


def _cards_json(pod: PodStanding) -> list[PrintedUse]:
    return [
        {
            "index": card,
            "memory_gib": in_units(use.memory_mib, 1024),
            "core": in_units(use.booked_milli, 10),
            "greedy": in_units(use.greedy_milli, 10),
        }
        for card, use in pod.grant.usage().items()
    ]
