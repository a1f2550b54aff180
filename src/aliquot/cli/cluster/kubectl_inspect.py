"""`kubectl inspect gpushare`: who holds how much memory of which card, laid out to the byte as the peer's plugin does.

Scripts read that output, so it stays as it is, with the unit in its head line and trailing spaces where the peer has
them. So do failures: `Failed due to ...` on stdout without a newline, and exit code 1; what to do goes to stderr, where
the peer prints nothing. What is better than there: cards of unequal size are shown with their own size, a Pod on
several cards has one line, nodes and Pods come in a fixed order, and Pods of the other dialects that sit on the same
cards are counted.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from aliquot.adapters.kubernetes.kubectl import Kubectl, KubectlError, Trouble
from aliquot.cli.errors import InputError, run_and_exit
from aliquot.cli.options.kubectl import kubectl_options
from aliquot.cli.tables import printable
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.text import printable_json, printable_lines

if TYPE_CHECKING:
    from aliquot.dialects import Rules
    from aliquot.dialects.gpushare import InspectedCard, InspectedNodes
    from aliquot.dialects.wire.objects import NodeObject, PodObject
    from aliquot.model.claim import Claim
    from aliquot.model.node import Node
    from aliquot.model.refusal import Invalid

_DETAILS = re.compile(r"--?d(?:=(1|0|[tTfF]|true|TRUE|True|false|FALSE|False))?")
_FROM_SERVER = re.compile(r"^Error from server \(\w+\): ")  # kubectl's own words before those of the API server


@dataclass(frozen=True, slots=True)
class HeldPod:
    """A Pod on a node, and what it holds in the cluster's unit: by card, or `pending` where its cards are unknown."""

    namespace: str
    name: str
    cards: dict[int, int]
    pending: int = 0


@dataclass(frozen=True, slots=True)
class SharedNode:
    """A node that shares its cards: what there is, in the cluster's unit, and who holds it."""

    name: str
    address: str
    total: int
    cards: tuple[int, ...]  # the size of each
    pods: list[HeldPod] = field(default_factory=list)

    @property
    def pending(self) -> int | None:
        """What is allocated on unknown cards; None where every Pod's cards are known."""
        waiting = [pod.pending for pod in self.pods if pod.pending]
        return sum(waiting) if waiting else None

    @property
    def used(self) -> int:
        """What is allocated of it."""
        return sum(sum(pod.cards.values()) + pod.pending for pod in self.pods)

    def used_of(self, card: int) -> int:
        """What is allocated of one card."""
        return sum(pod.cards.get(card, 0) for pod in self.pods)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("node", required=False)
@click.option("-d", "details", is_flag=True, help="Every Pod, with what it holds of each card")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print it"
)
@click.option("-n", "--namespace", hidden=True, expose_value=False)  # cards belong to no namespace
@kubectl_options
def inspect(node: str | None, details: bool, output: str, kubectl: Kubectl) -> None:
    """Show how much GPU memory is allocated on the nodes that share it, or on NODE alone.

    \b
    kubectl inspect gpushare
    kubectl inspect gpushare -d gpu-7
    """
    nodes, pods = _read_cluster(kubectl, node)
    shared, unit, notes = shared_nodes(nodes, pods)
    for note in notes:
        click.echo(f"note: {printable(note)}", err=True)
    if output == "json":
        import msgspec

        click.echo(printable_json(msgspec.json.format(msgspec.json.encode(as_json(shared)), indent=2).decode()))
    else:
        click.echo(printable_lines(detailed(shared) if details else summary(shared, unit)), nl=False)


def _read_cluster(kubectl: Kubectl, node: str | None) -> tuple[list[JsonObject], list[JsonObject]]:
    """Nodes and Pods, asked for at the same time. A failure ends the command as it ends the peer's."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(kubectl.pods, node)
        try:
            nodes = kubectl.nodes(node)
        except KubectlError as error:
            raise _failure(error, _FROM_SERVER.sub("", error.text)) from error
        try:
            return nodes, asked.result()
        except KubectlError as error:
            why = "failed to get Pods" + ("" if node is None else f" in node {node}")
            raise _failure(error, why, error.text) from error


def _failure(error: KubectlError, why: str, *more: str) -> click.ClickException:
    if error.trouble is Trouble.NO_KUBECTL:  # the peer needs none
        return InputError(str(error))
    click.echo(f"Failed due to {printable(why)}", nl=False)
    advice = ": ".join(part for part in (*more, error.advice) if part)
    if advice:
        click.echo(f"\nnote: {printable(advice)}", err=True)
    raise click.exceptions.Exit(1) from error


def main() -> None:
    """Entry point of the plugin, which kubectl finds by its name, kubectl-inspect-gpushare."""
    run_and_exit(inspect, "kubectl inspect gpushare", as_click_reads(sys.argv[1:]))


def as_click_reads(words: Sequence[str]) -> list[str]:
    """The words with -d as Go's package flag lets people write it: --d, -d=true, -d=0."""
    found = []
    for word in words:
        written = _DETAILS.fullmatch(word)
        if written is None:
            found.append(word)
        elif written[1] is None or written[1].lower() in ("1", "t", "true"):
            found.append("-d")
    return found


# --- what there is -------------------------------------------------------------------------------------------------


def shared_nodes(nodes: Sequence[JsonObject], pods: Iterable[JsonObject]) -> tuple[list[SharedNode], str, list[str]]:
    """The nodes that advertise gpu-mem, by name; the unit; and what could not be counted, in sentences."""
    from aliquot import dialects
    from aliquot.dialects import native
    from aliquot.dialects.rules import EVERY
    from aliquot.dialects.wire.objectreading import read_object
    from aliquot.dialects.wire.objects import NodeObject, PodObject

    read_nodes = [node for obj in nodes if isinstance(node := read_object(obj, NodeObject, "node"), NodeObject)]
    unit = dialects.guess_gpushare_unit(read_nodes)
    rules = dialects.Rules(gpushare_unit=unit)
    found: dict[str, tuple[SharedNode, Node | None]] = {}
    for node in read_nodes:
        made = _shared_node(node, rules)
        if made is not None:
            found[made[0].name] = made
    notes: list[str] = []
    # nvidia.com/gpu and KAI's annotations are ours only on Pods that we placed.
    ours, every = dialects.PodReader(rules), dialects.PodReader(replace(rules, served=frozenset(EVERY)))
    for obj in pods:
        pod = read_object(obj, PodObject, "pod")
        if isinstance(pod, PodObject) and pod.spec.node_name in found:
            reader = every if native.GRANT in (pod.metadata.annotations or {}) else ours
            _count(pod, reader.read(pod).claim, *found[pod.spec.node_name], unit.mib, notes)
    shared = [found[name][0] for name in sorted(found)]
    # The peer learns the unit from the first node with cards, and prints none without.
    return shared, str(unit) if any(node.cards for node in shared) else "", notes


def _shared_node(obj: NodeObject, rules: Rules) -> tuple[SharedNode, Node | None] | None:
    from aliquot import dialects
    from aliquot.dialects import gpushare
    from aliquot.model.node import Node

    amounts = obj.status.allocatable or obj.status.capacity or {}
    total, count = _allocatable(amounts, gpushare.MEMORY, gpushare.COUNT)
    if total <= 0:
        return None
    node = dialects.parse_node(obj, rules)
    if isinstance(node, Node):
        sizes = {card.index: card.memory_mib // rules.gpushare_unit.mib for card in node.cards}
        cards = tuple(sizes.get(index, 0) for index in range(max(sizes, default=-1) + 1))
    else:  # it breaks a rule, and takes no Pods; those that are there are counted as the peer does
        cards = (total // count,) * count if 0 < count <= total else ()
    address = "unknown" if obj.address is None else printable(obj.address)  # a node says of itself what it likes
    return SharedNode(obj.metadata.name, address, total, cards), node if isinstance(node, Node) else None


def _allocatable(amounts: Any, *resources: str) -> list[int]:
    """How many of each; 0 where that is missing or cannot be read."""
    from aliquot.model.numbers.quantity import QuantityError, parse_count

    found = []
    for resource in resources:
        try:
            found.append(parse_count(amounts.get(resource, 0)))
        except QuantityError:
            found.append(0)
    return found


def _count(
    pod: PodObject,
    claim: Claim | tuple[Invalid, ...] | None,
    shared: SharedNode,
    node: Node | None,
    unit: int,
    notes: list[str],
) -> None:
    """Add what the Pod holds, if it holds anything."""
    from aliquot import dialects
    from aliquot.model.grant import Grant

    if pod.finished or claim is None:
        return
    if isinstance(claim, tuple):
        notes.append(f"{pod.metadata.name} on {shared.name}: its GPU is not counted: {claim[0].sentence()}")
        return
    grant = dialects.parse_grant(pod, claim, node)
    held = {card: -(-use.memory_mib // unit) for card, use in grant.usage().items()} if isinstance(grant, Grant) else {}
    if not held or any(card >= len(shared.cards) for card in held):
        shared.pods.append(HeldPod(claim.namespace, claim.name, {}, _asked(claim, shared, unit)))
    else:
        shared.pods.append(HeldPod(claim.namespace, claim.name, held))


def _asked(claim: Claim, shared: SharedNode, unit: int) -> int:
    """What a Pod holds of the node when its cards are not known."""
    from aliquot.model.claim import Usage, peak

    size = max(shared.cards, default=0) * unit
    parts = (
        (
            container.role,
            Usage(
                memory_mib=container.slice.memory_on(size)
                * (len(shared.cards) if container.count is None else container.count)
            ),
        )
        for container in claim.containers
    )
    return -(-peak(parts).memory_mib // unit)


# --- as JSON ---------------------------------------------------------------------------------------------------------


def as_json(nodes: Iterable[SharedNode]) -> InspectedNodes:
    """As the peer's extender answers GET /inspect; what is pending is its device -1."""
    from aliquot.dialects import gpushare

    return gpushare.render_inspected(
        gpushare.render_inspected_node(node.name, total=node.total, used=node.used, cards=_cards_as_json(node))
        for node in nodes
    )


def _cards_as_json(node: SharedNode) -> Iterator[InspectedCard]:
    from aliquot.dialects import gpushare

    for card, size in enumerate(node.cards):
        pods = [(pod.namespace, pod.name, pod.cards[card]) for pod in node.pods if card in pod.cards]
        yield gpushare.render_inspected_card(card, total=size, used=node.used_of(card), pods=pods)
    if node.pending is not None:
        pods = [(pod.namespace, pod.name, pod.pending) for pod in node.pods if pod.pending]
        yield gpushare.render_inspected_card(-1, total=0, used=node.pending, pods=pods)


# --- for people and scripts ------------------------------------------------------------------------------------------


def summary(nodes: Sequence[SharedNode], unit: str) -> str:
    """A line per node."""
    width = max((len(node.cards) for node in nodes), default=0)
    pending = any(node.pending is not None for node in nodes)
    head = ["NAME", "IPADDRESS", *(f"GPU{card}(Allocated/Total)" for card in range(width))]
    rows = ["\t".join([*head, *["PENDING(Allocated)"] * pending, f"GPU Memory({unit})\n"])]
    for node in nodes:
        cells = [node.name, node.address]
        cells += [f"{node.used_of(card)}/{size}" for card, size in enumerate(node.cards)]
        cells += ["0/0"] * (width - len(node.cards))
        if pending:
            cells.append("" if node.pending is None else str(node.pending))
        rows.append("\t".join([*cells, f"{node.used}/{node.total}\n"]))
    rule = len(rows[1].encode()) + 20 if nodes else 0
    return tabulated("".join(rows) + "-" * rule + f"\nAllocated/Total GPU Memory In Cluster:\n{_in_cluster(nodes)}\t\n")


def detailed(nodes: Sequence[SharedNode]) -> str:
    """A table per node, with a line per Pod."""
    text = ""
    rule = 0
    for node in nodes:
        rows = "".join(_row(pod, node) for pod in sorted(node.pods, key=_by_card))
        rule = rule or len(rows.encode()) + 10  # the peer's, by the first node
        head = ["NAME", "NAMESPACE", *(f"GPU{card}(Allocated)" for card in range(len(node.cards)))]
        head += ["Pending(Allocated)"] * (node.pending is not None)
        text += (
            f"\nNAME:\t{node.name}\nIPADDRESS:\t{node.address}\n\n"
            + "".join(f"{cell}\t" for cell in head)
            + f"\n{rows}Allocated :\t{node.used} ({_percent(node.used, node.total)}%)\t\n"
            f"Total :\t{node.total} \t\n" + "-" * rule + "\n"
        )
    return tabulated(f"{text}\n\nAllocated/Total GPU Memory In Cluster:\t{_in_cluster(nodes)}\t\n")


def _row(pod: HeldPod, node: SharedNode) -> str:
    amounts = [pod.cards.get(card, 0) for card in range(len(node.cards))]
    amounts += [pod.pending] * (node.pending is not None)
    return "".join(f"{cell}\t" for cell in (pod.name, pod.namespace, *amounts)) + "\n"


def _by_card(pod: HeldPod) -> tuple[bool, int, str, str]:
    return not pod.cards, min(pod.cards, default=0), pod.namespace, pod.name


def _in_cluster(nodes: Iterable[SharedNode]) -> str:
    used, total = sum(node.used for node in nodes), sum(node.total for node in nodes)
    return f"{used}/{total} ({_percent(used, total)}%)"


def _percent(used: int, total: int) -> int:
    """In floats, as the peer: 29 of 100 is 28 percent there."""
    return int(used / total * 100) if total else 0


# --- columns as Go's text/tabwriter lays them out, for output that must be the peer's to the byte --------------------
#
# A cell ends with a TAB. Lines that follow each other and have a cell in the same column form a block, and the cells of
# a block are as wide as its widest plus two spaces. What stands after a line's last TAB is no cell and is not padded; a
# line that ends with a TAB therefore ends with spaces.

_PADDING = 2


def tabulated(text: str) -> str:
    """The text with its TABs turned into columns; as NewWriter(.., 0, 0, 2, ' ', 0) would write it."""
    lines = [line.split("\t") for line in text.split("\n")]
    widths: list[list[int]] = [[] for _ in lines]
    _measure(lines, widths, 0, len(lines), 0)
    return "\n".join(
        "".join(cell.ljust(width) for cell, width in zip(line, wide, strict=False)) + line[-1]
        for line, wide in zip(lines, widths, strict=True)
    )


def _measure(lines: list[list[str]], widths: list[list[int]], start: int, end: int, column: int) -> None:
    """The widths of this column for the lines from start to end, block by block; then of those to its right."""
    at = start
    while at < end:
        if column >= len(lines[at]) - 1:
            at += 1
            continue
        first = at
        while at < end and column < len(lines[at]) - 1:
            at += 1
        wide = max(len(line[column]) for line in lines[first:at]) + _PADDING
        for width in widths[first:at]:
            width.append(wide)
        _measure(lines, widths, first, at, column + 1)
