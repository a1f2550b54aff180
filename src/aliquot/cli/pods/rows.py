"""Pods, workloads and nodes of one machine, from the daemon's status: who is meant, and one row of a table for each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from aliquot.cli.client import ask
from aliquot.cli.errors import InputError
from aliquot.cli.pods.kinds import DEFAULT_NAMESPACE, NODE, POD, Kind, Target
from aliquot.cli.tables import printable
from aliquot.wording.amounts import duration, memory

Json = dict[str, Any]

_NOT_HERE = (
    "the daemon that answers here keeps no Pods of its own: on a node of Kubernetes `kubectl get pods` shows them, "
    "and `aliquot ps` those on the cards of this node"
)
_MOST_NAMES = 10


def standing() -> Json:
    """The daemon's status, of one that runs Pods."""
    status = ask({"op": "status"})
    if "pods" not in status:
        raise InputError(_NOT_HERE)
    return status


# --- who is meant ----------------------------------------------------------------------------------------------------


def listed(status: Json, kind: Kind) -> list[Json]:
    """All there are of a kind, by name; nodes as they are counted."""
    if kind is NODE:
        nodes: list[Json] = status.get("nodes", [])
        return nodes
    found = status["pods"] if kind is POD else status.get("workloads", [])
    return sorted(
        (each for each in found if kind is POD or each["kind"] == kind.name),
        key=lambda each: (each["namespace"], each["name"]),
    )


def selected(status: Json, target: Target, namespace: str | None) -> list[tuple[Kind, Json]]:
    """Those that are meant; `namespace` None: of all. Raises InputError for a name that is not there."""
    where = target.namespace or namespace
    found = [
        (kind, each)
        for kind in target.kinds
        for each in listed(status, kind)
        if target.name in (None, each["name"]) and (kind is NODE or where in (None, each["namespace"]))
    ]
    if target.name is not None and not found:
        raise not_there(status, target.kinds[0], target.name, where)
    return found


def not_there(status: Json, kind: Kind, name: str, namespace: str | None) -> InputError:
    """Says which there are, and where it is when it is elsewhere."""
    every = listed(status, kind)
    elsewhere = sorted({each["namespace"] for each in every if kind is not NODE and each["name"] == name})
    place = "" if namespace is None or kind is NODE else f" in namespace {namespace}"
    text = f"no {kind.words[1]} is called {name}{place}: "
    if elsewhere:
        return InputError(f"{text}there is one in {', '.join(elsewhere)} (-n {elsewhere[0]})", code=1)
    names = [each["name"] for each in every if kind is NODE or namespace in (None, each["namespace"])]
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


# --- in words --------------------------------------------------------------------------------------------------------


def state_of(pod: Json) -> str:
    """As kubectl's STATUS has it."""
    if pod.get("terminating"):
        return "Terminating"
    containers = apps(pod)
    match pod["phase"]:
        case "Succeeded":
            return "Completed"
        case "Failed":
            return "Error"
        case "Pending":
            first = [container for container in pod["containers"] if container["init"]]
            if any(container["state"] == "waiting" and container["restarts"] for container in pod["containers"]):
                preparing = any(each["state"] == "waiting" and each["restarts"] for each in first)
                return f"{'Init:' if preparing else ''}CrashLoopBackOff"
            if pod["node"] is not None and first:
                return f"Init:{sum(each['state'] == 'ended' for each in first)}/{len(first)}"
            return "Pending" if pod["node"] is None else "Starting"
    if any(container["state"] != "running" and container["restarts"] for container in containers):
        return "CrashLoopBackOff"
    if any(container["state"] == "ended" and container["exit_code"] for container in containers):
        return "Error"
    return str(pod["phase"])


def apps(pod: Json) -> list[Json]:
    """Its containers, less those that only prepare."""
    return [container for container in pod["containers"] if not container["init"]]


def ready(pod: Json) -> tuple[int, int]:
    """How many of its containers run, and how many there are."""
    containers = apps(pod)
    return sum(container["state"] == "running" for container in containers), len(containers)


def age(since: float | None) -> str:
    """How long ago."""
    return "-" if since is None else duration(max(0, int(time.time() - since)))


def core(percent: float | None) -> str:
    """As --core says it."""
    return "-" if percent is None else f"{percent:g}%"


def cards_of(cards: Sequence[Json]) -> tuple[str, str, str]:
    """Which, how much memory of each, and how much compute of each."""
    if not cards:
        return "-", "-", "-"
    sizes = [memory(card["memory_limit_bytes"] >> 20) for card in cards]
    cores = ["whole" if card["exclusive"] else core(card["core"]) for card in cards]
    return ",".join(str(card["index"]) for card in cards), _of_each(sizes), _of_each(cores)


def _of_each(amounts: Sequence[str]) -> str:
    """Once, where they are all the same."""
    if len(set(amounts)) > 1:
        return " + ".join(amounts)
    return amounts[0] if len(amounts) == 1 or amounts[0] in ("whole", "-") else f"{len(amounts)} x {amounts[0]}"


# --- rows ------------------------------------------------------------------------------------------------------------

_POD_HEAD = ("NAME", "READY", "STATUS", "RESTARTS", "AGE", "NODE", "CARDS", "MEMORY", "CORE", "CLASS")
_NODE_HEAD = ("NAME", "STATUS", "CARDS", "FREE", "MEMORY FREE", "ON ONE CARD", "CORE FREE", "PODS", "POLICY")


def head(kind: Kind, *, wide: bool, everywhere: bool) -> tuple[str, ...]:
    """The columns of a kind."""
    if kind is NODE:
        return (*_NODE_HEAD, *(("OFFERS", "MODEL", "FREE ON EACH (GiB)") if wide else ()))
    made = "COMPLETIONS" if kind.name == "Job" else "READY"
    columns = (
        (*_POD_HEAD, *(("DIALECT", "OWNER", "PID") if wide else ()))
        if kind is POD
        else ("NAME", made, "AGE", *(("USER",) if wide else ()))
    )
    return ("NAMESPACE", *columns) if everywhere else columns


def row(status: Json, kind: Kind, each: Json, *, wide: bool, everywhere: bool, prefixed: bool) -> tuple[str, ...]:
    """One of them."""
    name = kind.shown(each["name"]) if prefixed else each["name"]
    if kind is NODE:
        return _node_row(status, each, name, wide)
    columns = _pod_row(each, name, wide) if kind is POD else _workload_row(each, name, wide)
    return tuple(map(printable, (each["namespace"], *columns) if everywhere else columns))


def _pod_row(pod: Json, name: str, wide: bool) -> tuple[str, ...]:
    running, there = ready(pod)
    pids = [str(container["pid"]) for container in pod["containers"] if container["pid"] is not None]
    owner = pod["owner"]
    return (
        name,
        f"{running}/{there}",
        state_of(pod),
        str(sum(container["restarts"] for container in pod["containers"])),
        age(pod["created"]),
        pod["node"] or "-",
        *cards_of(pod["cards"]),
        pod["class"],
        *(
            (pod["dialect"] or "-", f"{owner['kind']}/{owner['name']}" if owner else "-", ",".join(pids) or "-")
            if wide
            else ()
        ),
    )


def _workload_row(workload: Json, name: str, wide: bool) -> tuple[str, ...]:
    made = f"{workload['ready']}/{workload['replicas']}"
    return (name, made, age(workload["created"]), *((str(workload["user"]),) if wide else ()))


def cards_on(status: Json, node: Json) -> list[Json]:
    """The cards of a node, in order."""
    found = [card for card in status["cards"] if card.get("node", node["name"]) == node["name"]]
    return sorted(found, key=lambda each: int(each["index"]))


def free_memory(card: Json) -> int:
    """MiB that a newcomer could have; nothing on a card that is out."""
    return max(0, card["memory_bytes"] - card["memory_booked_bytes"]) >> 20 if card.get("healthy", True) else 0


def whole(status: Json) -> set[str]:
    """The cards that somebody has to themselves, by UUID."""
    return {card["uuid"] for tenant in status["tenants"] for card in tenant["cards"] if card["exclusive"]}


def _node_row(status: Json, node: Json, name: str, wide: bool) -> tuple[str, ...]:
    cards = cards_on(status, node)
    room = [free_memory(card) for card in cards]
    taken = whole(status)
    compute = sum(
        max(0.0, 100 - card["core_booked"]) for card in cards if card.get("healthy", True) and card["uuid"] not in taken
    )
    out = sum(not card.get("healthy", True) for card in cards)
    pods = sum(pod["node"] == node["name"] and pod["phase"] in ("Pending", "Running") for pod in status["pods"])
    models = sorted({card["model"] for card in cards})
    return (
        name,
        f"{out} out" if out else "Ready",
        str(len(cards)),
        str(sum(not card["tenants"] and card.get("healthy", True) for card in cards)),
        f"{memory(sum(room))} of {memory(sum(card['memory_bytes'] for card in cards) >> 20)}",
        memory(max(room, default=0)),
        f"{compute:g}% of {100 * len(cards)}%",
        str(pods),
        node["policy"],
        *((",".join(node["offers"]), "/".join(models), " ".join(f"{each / 1024:g}" for each in room)) if wide else ()),
    )


def waiting_lines(pods: Iterable[Json]) -> Iterator[str]:
    """Why each waits, or failed; those with the same reason together."""
    alike: dict[tuple[str, str], list[str]] = {}
    for pod in pods:
        if pod["reason"] and (pod["phase"] in ("Pending", "Failed") or state_of(pod) != "Running"):
            verb = "waits" if pod["phase"] == "Pending" else "failed" if pod["phase"] == "Failed" else "is not ready"
            alike.setdefault((verb, pod["reason"]), []).append(pod["name"])
    for (verb, reason), names in alike.items():
        yield printable(f"{shortened(names)} {verb if len(names) == 1 else _PLURAL[verb]}: {reason}")


_PLURAL = {"waits": "wait", "failed": "failed", "is not ready": "are not ready"}
