"""`aliquot explain`: where Pods would go on a cluster, or every reason why not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aliquot.cli.main import InputError

if TYPE_CHECKING:
    from aliquot.model.grant import Grant, Share
    from aliquot.model.refusal import Refusal
    from aliquot.services.snapshot import Verdict


@click.command()
@click.option("-f", "--filename", type=click.Path(path_type=Path), required=True, help="PODS.yaml; - reads from stdin")
@click.option(
    "--cluster",
    type=click.Path(path_type=Path),
    required=True,
    help="CLUSTER.yaml, as `kubectl get nodes,pods -A -o yaml` prints it (-o json is read faster)",
)
@click.option(
    "--priority", type=click.Choice(["binpack", "spread", "fgd", "dense"]), default="binpack", show_default=True
)
@click.option(
    "--rules", type=click.Choice(["seed", "2026"]), default="seed", show_default=True, help="Whose rules hold for qGPU"
)
@click.option(
    "--memory-unit",
    type=click.Choice(["auto", "GiB", "MiB"]),
    default="auto",
    show_default=True,
    help="The unit of aliyun.com/gpu-mem; auto goes by what the nodes advertise",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.pass_context
def explain(
    context: click.Context,
    filename: Path,
    cluster: Path,
    priority: str,
    rules: str,
    memory_unit: str,
    output: str,
) -> None:
    """Where Pods would go on a cluster, or every reason why not.

    The Pods of PODS.yaml (Deployments, StatefulSets and Jobs count as their replicas) are taken in order, each booked
    before the next. Nothing is changed anywhere. Exit code 0 when all fit, 1 when some do not, 2 when the input
    cannot be read.

    \b
    kubectl get nodes,pods -A -o json > cluster.json
    aliquot explain -f pods.yaml --cluster cluster.json
    """
    from aliquot import dialects
    from aliquot.cli.manifests import flatten, read_documents
    from aliquot.dialects import MemoryUnit, QgpuRules, Rules
    from aliquot.services.snapshot import take_snapshot

    pods = _pods(filename)
    objects = flatten(read_documents(cluster), cluster)
    nodes = [obj for obj in objects if isinstance(obj, dict) and obj.get("kind") == "Node"]
    if not nodes:
        raise InputError(f"{cluster}:1:1: has no Node in it: kubectl get nodes,pods -A -o yaml prints some")
    unit = dialects.guess_gpushare_unit(nodes) if memory_unit == "auto" else MemoryUnit(memory_unit)
    snapshot = take_snapshot(objects, policy=priority, rules=Rules(QgpuRules(rules), unit))
    for note in snapshot.notes:
        click.echo(f"note: {note}", err=True)
    verdicts = [snapshot.place(pod) for pod in pods]
    if output == "json":
        import msgspec

        answer = [_as_json(verdict) for verdict in verdicts]
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
    else:
        click.echo("\n".join(_lines(verdicts, len(nodes))))
    context.exit(0 if all(verdict.fits for verdict in verdicts) else 1)


def _pods(path: Path) -> list[dict[str, Any]]:
    from aliquot.cli.manifests import flatten, read_documents
    from aliquot.dialects import kube
    from aliquot.model.refusal import Invalid

    found: list[dict[str, Any]] = []
    for line, document in read_documents(path):
        for obj in flatten([(line, document)], path):
            made = kube.expand(obj)
            if isinstance(made, Invalid):
                raise InputError(f"{path}:{line}:1: {made.sentence()}")
            found += made
    if not found:
        raise InputError(f"{path}:1:1: has no Pod in it: a Pod, Deployment, StatefulSet or Job is wanted")
    return found


# --- as JSON -----------------------------------------------------------------------------------------------------


def _as_json(verdict: Verdict) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "pod": verdict.pod,
        "fits": verdict.fits,
        "node": verdict.grant.node if verdict.grant else None,
        "containers": _containers(verdict.grant) if verdict.grant else {},
        "error": "; ".join(broken.sentence() for broken in verdict.broken) or None,
        "refusals": [_refusal(refusal, verdict) for refusal in verdict.refusals],
    }
    return {**entry, "notes": list(verdict.notes)} if verdict.notes else entry


def _containers(grant: Grant) -> dict[str, list[dict[str, Any]]]:
    return {container.name: [_share(share) for share in container.shares] for container in grant.containers}


def _share(share: Share) -> dict[str, Any]:
    core = 1000 if share.exclusive else share.core_milli
    entry = {"card": share.card, "memory_gib": _in(share.memory_mib, 1024), "core": _in(core, 10)}
    if share.greedy_milli is not None:
        entry["core_greedy"] = _in(share.greedy_milli, 10)
    if share.exclusive:
        entry["exclusive"] = True
    return entry


def _refusal(refusal: Refusal, verdict: Verdict) -> dict[str, Any]:
    wanted, had = _amounts(refusal, verdict)
    return {
        "node": refusal.node,
        "card": refusal.card,
        "reason": str(refusal.reason),
        "wanted": wanted,
        "had": had,
        "never": refusal.never,
    }


def _amounts(refusal: Refusal, verdict: Verdict) -> tuple[Any, Any]:
    """Wanted and had in the units people use: GiB, percent of a card, cores; or the words that name a condition."""
    from aliquot.dialects import ENABLED_BY
    from aliquot.model.refusal import Reason

    if refusal.reason in (Reason.MODE, Reason.MIXED) and verdict.claim is not None:
        return ENABLED_BY[verdict.claim.offer], None
    per = {Reason.MEMORY: 1024, Reason.HOST_MEMORY: 1024, Reason.CORE: 10, Reason.GREEDY: 10, Reason.CPU: 1000}.get(
        refusal.reason, 1
    )
    return _in(refusal.wanted, per), _in(refusal.had, per)


def _in(amount: int | str | None, per: int) -> int | float | str | None:
    if not isinstance(amount, int):
        return amount
    return amount // per if amount % per == 0 else round(amount / per, 2)


# --- for people --------------------------------------------------------------------------------------------------


def _lines(verdicts: list[Verdict], nodes: int) -> Iterable[str]:
    wide = max(len(verdict.pod) for verdict in verdicts)
    for verdict in verdicts:
        name = verdict.pod.ljust(wide)
        if verdict.grant is not None:
            yield f"{name}  {verdict.grant.node}  {_cards(verdict.grant)}{_remarks(verdict)}"
        elif verdict.broken:
            yield f"{name}  is not allowed"
            yield from (f"    {broken.sentence()}" for broken in verdict.broken)
        elif not verdict.ours:
            yield f"{name}  -{_remarks(verdict)}"
        else:
            yield f"{name}  fits none of {nodes:,} node{'s' if nodes > 1 else ''}{_hope(verdict)}"
            yield from _why_not(verdict)
    misfits = sum(not verdict.fits for verdict in verdicts)
    yield f"\n{len(verdicts) - misfits} of {len(verdicts)} fit" if misfits else f"\nall {len(verdicts)} fit"


def _remarks(verdict: Verdict) -> str:
    return f"  ({'; '.join(verdict.notes)})" if verdict.notes else ""


def _cards(grant: Grant) -> str:
    parts = []
    for container in grant.containers:
        shares = []
        for share in container.shares:
            entry = _share(share)
            amounts = [f"{entry['memory_gib']} GiB"]
            if entry["core"] is not None:
                amounts.append(f"{entry['core']}%")
            if "core_greedy" in entry:
                amounts.append(f"greedy {entry['core_greedy']}%")
            shares.append(f"GPU {share.card} ({', '.join(amounts)})")
        parts.append(f"{container.name}: {' + '.join(shares)}")
    return "; ".join(parts)


def _hope(verdict: Verdict) -> str:
    """Whether waiting helps: some node must have refused only for what passes."""
    never = {refusal.node for refusal in verdict.refusals if refusal.never and refusal.card is None}
    sizes: dict[str, list[bool]] = {}
    for refusal in verdict.refusals:
        if refusal.card is not None:
            sizes.setdefault(refusal.node, []).append(refusal.never)
    never |= {node for node, cards in sizes.items() if all(cards)}
    if {refusal.node for refusal in verdict.refusals} - never:
        return " now; it may when others leave"
    return ", and never will as they are"


@dataclass(slots=True)
class _Group:
    """One reason, over all the nodes that gave it."""

    nodes: dict[str, None] = field(default_factory=dict)
    most: Any = None
    wanted: Any = None
    never: bool = True


_SENTENCES = {
    "memory": "GPU memory: {wanted} GiB wanted, no card has over {had} GiB free",
    "core": "compute: {wanted}% of a card wanted, no card has over {had}% free",
    "core-greedy": "offline compute: {wanted}% of a card wanted, no card has over {had}% free",
    "slices": "too many share the card already",
    "exclusive": "the card is held exclusively, or shared where it is wanted exclusively",
    "health": "the card is sick or gone",
    "model": "the card is of another model",
    "cards": "{wanted} cards wanted, {had} would do",
    "containers": "each container alone would fit, all {wanted} together do not",
    "mode": "the node does not serve this: it needs {wanted}",
    "mixed": "the node does not mix online and offline Pods: it needs {wanted}",
    "whole-node": "the node is taken by others, or as a whole",
    "cpu": "CPU: {wanted} wanted, {had} free at most",
    "host-memory": "memory of the node: {wanted} GiB wanted, {had} GiB free at most",
    "invalid-node": "the node's labels or inventory break a rule: {had}",
    "unschedulable": "the node is cordoned",
    "not-ready": "the node is not ready",
    "taint": "the Pod does not tolerate the taint {had}",
    "selector": "the node does not match {wanted}",
}


def _why_not(verdict: Verdict) -> Iterable[str]:
    """Every reason once, with how many nodes gave it; a node may give several."""
    groups: dict[tuple[str, Any], _Group] = {}
    for refusal in verdict.refusals:
        wanted, had = _amounts(refusal, verdict)
        words = isinstance(had, str) or isinstance(wanted, str)
        group = groups.setdefault((str(refusal.reason), (wanted, had) if words else None), _Group())
        group.nodes[refusal.node] = None
        if not isinstance(had, int | float) or group.most is None or had > group.most:
            group.most = had
        if not isinstance(wanted, int | float) or group.wanted is None or wanted > group.wanted:
            group.wanted = wanted
        group.never = group.never and refusal.never
    largest = max((len(group.nodes) for group in groups.values()), default=0)
    wide = len(f"{largest:,}")
    for (reason, _), group in sorted(groups.items(), key=lambda item: (-len(item[1].nodes), item[0][0])):
        names = list(group.nodes)
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        count = f"{len(names):,}".rjust(wide)
        sentence = _SENTENCES[reason].format(wanted=group.wanted, had=group.most)
        yield f"    {count} {'node ' if len(names) == 1 else 'nodes'}  {sentence}  [{shown}]"
