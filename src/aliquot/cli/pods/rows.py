"""Pods, workloads and nodes of one machine, from the daemon's status: selection, and one row of a table for each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import UNSET

from aliquot.adapters.host.users import user_name
from aliquot.cli.client import read_status
from aliquot.cli.errors import InputError
from aliquot.cli.pods.kinds import DEFAULT_NAMESPACE, NODE, POD, Kind, Target
from aliquot.cli.tables import printable
from aliquot.model.status.machine import (
    CardStatus,
    ContainerStatus,
    NodeStatus,
    PodStatus,
    ShareStatus,
    Status,
    TenantStatus,
    WorkloadStatus,
)
from aliquot.wording.amounts import duration, in_units, memory

Object = PodStatus | WorkloadStatus | NodeStatus

_NOT_HERE = (
    "the daemon that answers here keeps no Pods of its own: on a node of Kubernetes `kubectl get pods` shows them, "
    "and `aliquot ps` those on the cards of this node"
)
_MOST_NAMES = 10


def local_status() -> Status:
    """The daemon's status. Raises InputError where the daemon runs no Pods."""
    status = read_status()
    if status.pods is UNSET:
        raise InputError(_NOT_HERE)
    return status


# --- selection -------------------------------------------------------------------------------------------------------


def listed(status: Status, kind: Kind) -> list[Object]:
    """All objects of a kind, by name; nodes in their order."""
    if kind is NODE:
        return [*(status.nodes or [])]
    workloads = (workload for workload in status.workloads or [] if workload.kind == kind.name)
    items: list[PodStatus | WorkloadStatus] = [*((status.pods or []) if kind is POD else workloads)]
    return [*sorted(items, key=_place)]


def _place(item: PodStatus | WorkloadStatus) -> tuple[str, str]:
    return item.namespace, item.name


def namespace_in(item: Object) -> str | None:
    """Nodes have no namespace."""
    return None if isinstance(item, NodeStatus) else item.namespace


def labels_of(item: Object) -> Mapping[str, str]:
    """Nodes have no labels here."""
    return {} if isinstance(item, NodeStatus) else item.labels


def selected(status: Status, target: Target, namespace: str | None) -> list[tuple[Kind, Object]]:
    """The objects that `target` names; `namespace` None: of all. Raises InputError for a name that does not exist."""
    where = target.namespace or namespace
    found = [
        (kind, item)
        for kind in target.kinds
        for item in listed(status, kind)
        if target.name in (None, item.name) and (kind is NODE or where in (None, namespace_in(item)))
    ]
    if target.name is not None and not found:
        raise not_there(status, target.kinds[0], target.name, where)
    return found


def not_there(status: Status, kind: Kind, name: str, namespace: str | None) -> InputError:
    """Names the objects that exist, and the namespace of one that is elsewhere."""
    items = listed(status, kind)
    elsewhere = sorted({space for item in items if item.name == name and (space := namespace_in(item)) is not None})
    place = "" if namespace is None or kind is NODE else f" in namespace {namespace}"
    text = f"no {kind.words[1]} is called {name}{place}: "
    if elsewhere:
        return InputError(f"{text}there is one in {', '.join(elsewhere)} (-n {elsewhere[0]})", code=1)
    names = [item.name for item in items if kind is NODE or namespace in (None, namespace_in(item))]
    return InputError(text + (f"there are {shortened(names)}" if names else "there is none"), code=1)


def shortened(names: Sequence[str], most: int = _MOST_NAMES) -> str:
    """A list of names, not longer than people read."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def namespace_of(given: str | None, everywhere: bool) -> str | None:
    """-n and -A, as kubectl has them."""
    if given is not None and everywhere:
        raise InputError("-n and -A: only one of them")
    return None if everywhere else given or DEFAULT_NAMESPACE


# --- text ------------------------------------------------------------------------------------------------------------


def state_of(pod: PodStatus) -> str:
    """The state as in kubectl's STATUS column."""
    if pod.terminating:
        return "Terminating"
    containers = apps(pod)
    match pod.phase:
        case "Succeeded":
            return "Completed"
        case "Failed":
            return "Error"
        case "Pending":
            first = [container for container in pod.containers if container.init]
            if any(_backs_off(container) for container in pod.containers):
                return f"{'Init:' if any(_backs_off(container) for container in first) else ''}CrashLoopBackOff"
            if pod.node is not None and first:
                return f"Init:{sum(container.state == 'ended' for container in first)}/{len(first)}"
            return "Pending" if pod.node is None else "Starting"
    if any(container.state != "running" and container.restarts for container in containers):
        return "CrashLoopBackOff"
    if any(container.state == "ended" and container.exit_code for container in containers):
        return "Error"
    return pod.phase


def _backs_off(container: ContainerStatus) -> bool:
    return container.state == "waiting" and container.restarts > 0


def apps(pod: PodStatus) -> list[ContainerStatus]:
    """Its containers without the init containers."""
    return [container for container in pod.containers if not container.init]


def ready(pod: PodStatus) -> tuple[int, int]:
    """How many of its containers run, and how many there are."""
    containers = apps(pod)
    return sum(container.state == "running" for container in containers), len(containers)


def age(since: float | None) -> str:
    """How long ago."""
    return "-" if since is None else duration(max(0, int(time.time() - since)))


def core(percent: float | None) -> str:
    """The percentage as --core takes it."""
    return "-" if percent is None else f"{percent:g}%"


def compute(share: ShareStatus) -> str:
    """What was promised of a card's compute."""
    return "whole" if share.exclusive else core(share.core)


def paused_time(share: ShareStatus) -> str:
    """How long online work kept it from the card, in all."""
    return duration(round(share.paused_seconds, 1)) if share.paused_seconds else "-"


def latency_words(tenant: TenantStatus, shares: Sequence[ShareStatus]) -> str:
    """What an online tenant accepts to have added to its requests, and how long it had more."""
    if tenant.latency_seconds is None:
        return "-"
    missed = sum(share.latency_missed_seconds for share in shares)
    return duration(tenant.latency_seconds) + (f", {duration(missed)} missed" if missed else "")


def cards_of(shares: Sequence[ShareStatus]) -> tuple[str, str, str]:
    """Which cards, how much memory of each, and how much compute of each."""
    if not shares:
        return "-", "-", "-"
    sizes = [memory(share.limit_mib) for share in shares]
    cores = [compute(share) for share in shares]
    return ",".join(str(share.index) for share in shares), _of_each(sizes), _of_each(cores)


def _of_each(amounts: Sequence[str]) -> str:
    """The amount once, with their number, where all are the same; else their sum, as in "4 GiB + 8 GiB"."""
    if len(set(amounts)) > 1:
        return " + ".join(amounts)
    return amounts[0] if len(amounts) == 1 or amounts[0] in ("whole", "-") else f"{len(amounts)} x {amounts[0]}"


# --- rows ------------------------------------------------------------------------------------------------------------

_POD_HEAD = ("NAME", "READY", "STATUS", "RESTARTS", "AGE", "NODE", "CARDS", "MEMORY", "CORE", "CLASS")
_WORKLOAD_HEADS = {
    "Job": ("NAME", "STATUS", "COMPLETIONS", "AGE"),
    "CronJob": ("NAME", "SCHEDULE", "SUSPEND", "ACTIVE", "LAST SCHEDULE", "AGE"),
}
_NODE_HEAD = ("NAME", "STATUS", "CARDS", "FREE", "MEMORY FREE", "ON ONE CARD", "CORE FREE", "PODS", "POLICY")


def head(kind: Kind, *, wide: bool, everywhere: bool) -> tuple[str, ...]:
    """The columns of a kind."""
    if kind is NODE:
        return (*_NODE_HEAD, *(("OFFERS", "MODEL", "FREE ON EACH (GiB)") if wide else ()))
    columns = (
        (*_POD_HEAD, *(("USER", "DIALECT", "OWNER", "PID") if wide else ()))
        if kind is POD
        else (*_WORKLOAD_HEADS.get(kind.name, ("NAME", "READY", "AGE")), *(("USER",) if wide else ()))
    )
    return ("NAMESPACE", *columns) if everywhere else columns


def row(status: Status, kind: Kind, item: Object, *, wide: bool, everywhere: bool, prefixed: bool) -> tuple[str, ...]:
    """One object."""
    name = kind.shown(item.name) if prefixed else item.name
    if isinstance(item, NodeStatus):
        return _node_row(status, item, name, wide)
    columns = _pod_row(item, name, wide) if isinstance(item, PodStatus) else _workload_row(item, name, wide)
    return tuple(map(printable, (item.namespace, *columns) if everywhere else columns))


def _pod_row(pod: PodStatus, name: str, wide: bool) -> tuple[str, ...]:
    running, count = ready(pod)
    pids = [str(container.pid) for container in pod.containers if container.pid is not None]
    return (
        name,
        f"{running}/{count}",
        state_of(pod),
        str(sum(container.restarts for container in pod.containers)),
        age(pod.created),
        pod.node or "-",
        *cards_of(pod.cards),
        pod.app_class,
        *((user_name(pod.user), pod.dialect or "-", owner_of(pod) or "-", ",".join(pids) or "-") if wide else ()),
    )


def owner_of(pod: PodStatus) -> str | None:
    """KIND/NAME of the workload that made it."""
    return None if pod.owner is None else f"{pod.owner.kind}/{pod.owner.name}"


def _workload_row(workload: WorkloadStatus, name: str, wide: bool) -> tuple[str, ...]:
    made: tuple[str, ...] = (f"{workload.ready}/{workload.replicas}",)
    if workload.kind == "Job":
        made = (job_state(workload), *made)
    elif workload.kind == "CronJob":
        suspend, last = str(workload.suspended), workload.last_run
        made = (workload.schedule or "-", suspend, str(workload.ready), "<none>" if last is None else age(last))
    return (name, *made, age(workload.created), *((user_name(workload.user),) if wide else ()))


def job_state(job: WorkloadStatus) -> str:
    """The state as in kubectl's STATUS column."""
    over = {"Succeeded": "Complete", "Failed": "Failed"}.get(job.phase or "")
    return over or ("Suspended" if job.suspended else "Running")


def cards_on(status: Status, node: NodeStatus) -> list[CardStatus]:
    """The cards of a node, in order."""
    return sorted(status.cards_of(node.name), key=lambda card: card.index)


def whole(status: Status) -> set[str]:
    """UUIDs of the cards that one tenant has whole."""
    return {share.uuid for tenant in status.tenants for share in tenant.cards if share.exclusive}


def _node_row(status: Status, node: NodeStatus, name: str, wide: bool) -> tuple[str, ...]:
    cards = cards_on(status, node)
    room = [card.free_mib for card in cards]
    free_core = sum(max(0.0, 100 - card.core_booked) for card in cards if not card.is_out)
    out = sum(card.is_out for card in cards)
    pods = sum(pod.node == node.name and pod.phase in ("Pending", "Running") for pod in status.pods or [])
    models = sorted({card.model for card in cards})
    return (
        name,
        f"{out} out" if out else "Ready",
        str(len(cards)),
        str(sum(not card.tenants and not card.is_out for card in cards)),
        f"{memory(sum(room))} of {memory(sum(card.memory_mib for card in cards))}",
        memory(max(room, default=0)),
        f"{free_core:g}% of {100 * len(cards)}%",
        str(pods),
        node.policy,
        *(
            (",".join(node.offers), "/".join(models), " ".join(f"{in_units(mib, 1024)}" for mib in room))
            if wide
            else ()
        ),
    )


def waiting_lines(pods: Iterable[PodStatus]) -> Iterator[str]:
    """Why each Pod waits, failed or is paused; Pods with the same reason in one line."""
    alike: dict[tuple[str, str], list[str]] = {}
    for pod in pods:
        for by in dict.fromkeys(share.paused_by for share in pod.cards if share.paused_by):
            alike.setdefault(("is paused", f"{by} has the card"), []).append(pod.name)
        if pod.reason and (pod.phase in ("Pending", "Failed") or state_of(pod) != "Running"):
            verb = "waits" if pod.phase == "Pending" else "failed" if pod.phase == "Failed" else "is not ready"
            alike.setdefault((verb, pod.reason), []).append(pod.name)
    for (verb, reason), names in alike.items():
        yield printable(f"{shortened(names)} {verb if len(names) == 1 else _PLURAL[verb]}: {reason}")


_PLURAL = {"waits": "wait", "failed": "failed", "is not ready": "are not ready", "is paused": "are paused"}
