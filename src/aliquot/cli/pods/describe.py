"""`aliquot describe`: all that is known of one Pod, workload or node, and why it is where it is."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

import click

from aliquot.cli.pods.completion import types_and_names
from aliquot.cli.pods.kinds import targets
from aliquot.cli.pods.rows import (
    Object,
    age,
    cards_on,
    compute,
    core,
    job_state,
    local_status,
    namespace_of,
    owner_of,
    paused_time,
    ready,
    selected,
    state_of,
    whole,
)
from aliquot.cli.tables import date_time, printable, table
from aliquot.model.status.machine import (
    CardStatus,
    ContainerStatus,
    NodeStatus,
    OwnerStatus,
    PodEventStatus,
    PodStatus,
    Status,
    WorkloadStatus,
)
from aliquot.wording.amounts import memory, release_delay
from aliquot.wording.states import state_words

_KEY = 12  # columns of the names on the left


@click.command()
@click.argument("what", metavar="TYPE [NAME]...", nargs=-1, required=True, shell_complete=types_and_names)
@click.option("-n", "--namespace", help="Of Pods and workloads  [default: default]")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Of all namespaces")
def describe(what: Sequence[str], namespace: str | None, everywhere: bool) -> None:
    """Show the details of a Pod, workload or node, with the reason for its placement.

    TYPE is as for `aliquot get`; without NAME, all of that type. TYPE/NAME does too.

    \b
    aliquot describe pod binpack-1-0
    aliquot describe sts/binpack-1
    aliquot describe node
    """
    wanted = targets(what)
    where = namespace_of(namespace, everywhere)
    status = local_status()
    found = [item for target in wanted for _, item in selected(status, target, where)]
    if not found:
        click.echo(f"nothing found{'' if where is None else f' in namespace {where}'}", err=True)
    for number, item in enumerate(found):
        if number:
            click.echo("\n")
        for line in described(status, item):
            click.echo(printable(line))


def described(status: Status, item: Object) -> Iterator[str]:
    """The lines of one object."""
    if isinstance(item, PodStatus):
        return _pod(status, item)
    return _node(status, item) if isinstance(item, NodeStatus) else _workload(status, item)


def _line(key: str, value: object) -> str:
    return f"{key + ':':<{_KEY}}  {value}"


# --- a Pod -----------------------------------------------------------------------------------------------------------


def _pod(status: Status, pod: PodStatus) -> Iterator[str]:
    running, count = ready(pod)
    yield _line("Name", pod.name)
    yield _line("Namespace", pod.namespace)
    if pod.owner:
        yield _line("Owner", owner_of(pod))
    yield _line("Status", f"{state_of(pod)} ({running} of {count} containers ready)")
    if pod.reason:
        yield _line("Reason", pod.reason)
    if pod.dialect:  # else it asks for no card
        yield _line("Class", f"{pod.app_class}, in the dialect {pod.dialect}")
    yield _line("Created", _when(pod.created))
    for key, moment in (("Started", pod.started), ("Finished", pod.finished)):
        if moment is not None:
            yield _line(key, _when(moment))
    yield _line("Restart", pod.restart_policy)
    yield _line("UID", pod.uid)
    yield _line("Node", pod.node or "none yet")
    yield from _why(pod.why)
    yield from _cards(status, pod)
    yield from _containers(pod)
    yield from _events(pod.events)


def _when(epoch: float) -> str:
    return f"{date_time(epoch)} ({age(epoch)} ago)"


def _why(sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        yield "Why:"
        yield from (f"  {sentence}" for sentence in sentences)


def _cards(status: Status, pod: PodStatus) -> Iterator[str]:
    """What it was given of each card, and what it takes of it now."""
    policy = next((node.policy for node in status.nodes or [] if node.name == pod.node), None)
    models = {card.uuid: card.model for card in status.cards}
    for share in pod.cards:
        model = models.get(share.uuid)
        yield f"Card {share.index}:  {f'{model}, ' if model else ''}{share.uuid}"
        quota = "the whole card" if share.exclusive else core(share.core) if share.core is not None else "none"
        time_share = "nothing yet" if share.share is None else f"{share.share:.1%} of the card's time"
        yield f"  {_line('compute', f'{time_share}; quota {quota}' + (f' ({policy})' if policy else ''))}"
        refused = share.refused_allocations
        more = f"; {refused} allocations past the limit were refused" if refused else ""
        yield f"  {_line('memory', f'{memory(share.used_mib)} of {memory(share.limit_mib)}{more}')}"
        yield f"  {_line('state', state_words(share.state, share.paused_by))}"
        yield f"  {_line('paused', f'{paused_time(share)} in all' if share.paused_seconds else 'never')}"


def _containers(pod: PodStatus) -> Iterator[str]:
    for container in pod.containers:
        yield f"{'Init container' if container.init else 'Container'} {container.name}:"
        yield f"  {_line('state', _container_state(container))}"
        if container.restarts:
            yield f"  {_line('restarts', container.restarts)}"
        yield f"  {_line('command', shlex.join(container.command) or '-')}"
        if container.image:
            yield f"  {_line('image', container.image + ' (not used: containers are local processes)')}"
        yield f"  {_line('log', container.log)}"


def _container_state(container: ContainerStatus) -> str:
    """Also how it ended last, when it has been started again."""
    code = container.exit_code
    last = "" if code is None else f"; last exit code {code}" + ("" if code < 128 else f" (signal {code - 128})")
    match container.state:
        case "running":
            pid = "" if container.pid is None else f", pid {container.pid}"
            return f"running for {age(container.started)}{pid}{last}"
        case "ended":
            return f"ended {age(container.ended)} ago{last.replace('; last', ',')}"
    return f"waiting{last}" + (f": {container.reason}" if container.reason else "")


def _events(events: Sequence[PodEventStatus]) -> Iterator[str]:
    if not events:
        yield _line("Events", "none")
        return
    yield "Events:"
    rows = [(age(event.time), event.type, event.text) for event in events]
    yield from (f"  {line}" for line in table(("AGE", "TYPE", "WHAT"), rows).splitlines())


# --- a workload ------------------------------------------------------------------------------------------------------


def _workload(status: Status, workload: WorkloadStatus) -> Iterator[str]:
    yield _line("Name", workload.name)
    yield _line("Namespace", workload.namespace)
    yield _line("Kind", workload.kind)
    counted = {"Job": "Succeeded", "CronJob": "Active Jobs"}.get(workload.kind, "Ready")
    yield _line(counted, f"{workload.ready} of {workload.replicas}")
    if workload.kind == "Job":
        yield _line("Status", job_state(workload))
    if workload.suspended:
        yield _line("Suspended", "yes: no new Pods until it is applied with suspend: false")
    if workload.schedule is not None:
        yield _line("Schedule", workload.schedule)
    if workload.last_run is not None:
        yield _line("Last run", _when(workload.last_run))
    if workload.next_run is not None:
        yield _line("Next run", date_time(workload.next_run))
    yield _line("Created", _when(workload.created))
    owner = OwnerStatus(workload.kind, workload.name)
    owned = (pod for pod in status.pods or [] if pod.namespace == workload.namespace and pod.owner == owner)
    pods = sorted(owned, key=lambda pod: pod.name)
    if not pods:
        yield _line("Pods", "none")
        return
    yield "Pods:"
    rows = [
        (pod.name, state_of(pod), pod.node or "-", ",".join(str(share.index) for share in pod.cards) or "-")
        for pod in pods
    ]
    lines = table(("NAME", "STATUS", "NODE", "CARDS"), rows).splitlines()
    yield from (f"  {line}" for line in lines)
    yield from (f"  {pod.name}: {pod.reason}" for pod in pods if pod.reason)


# --- a node ----------------------------------------------------------------------------------------------------------


def _node(status: Status, node: NodeStatus) -> Iterator[str]:
    yield _line("Name", node.name)
    if status.daemon.simulated:
        yield _line("Simulated", status.daemon.simulated)
    yield _line("Offers", ", ".join(node.offers) or "nothing")
    yield _line("Policy", f"{node.policy}, release delay {release_delay(status.rules.release_delay_seconds)}")
    for card in cards_on(status, node):
        yield ""
        yield from _node_card(status, card)


def _node_card(status: Status, card: CardStatus) -> Iterator[str]:
    yield f"Card {card.index}:  {card.model}, {card.uuid}"
    if card.is_out:
        yield f"  {_line('out', card.why_out or 'no reason given')}"
    booked, total = memory(card.memory_booked_bytes >> 20), memory(card.memory_mib)
    yield f"  {_line('memory', f'{booked} of {total} booked, {memory(card.free_mib)} free')}"
    busy = "" if card.utilisation is None else f"; busy {card.utilisation:.0%}"
    by_one = " by one tenant" * (card.uuid in whole(status))
    yield f"  {_line('compute', f'{card.core_booked:g}% booked{by_one}{busy}')}"
    rows = [
        (
            tenant.name,
            tenant.app_class,
            "-" if share.share is None else f"{share.share:.1%}",
            compute(share),
            f"{memory(share.used_mib)} / {memory(share.limit_mib)}",
            state_words(share.state, share.paused_by),
        )
        for tenant in status.tenants
        for share in tenant.cards
        if share.uuid == card.uuid
    ]
    if rows:
        head = ("NAME", "CLASS", "SHARE", "QUOTA", "MEMORY", "STATE")
        yield from (f"  {line}" for line in table(head, rows, frozenset({2, 3})).splitlines())
