"""Is the node's agent there, and does it have all it needs of kubelet, runtime, driver and host: what was seen in,
findings out. Whether what it gave to Pods is right is looked at in holdingchecks.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aliquot import dialects
from aliquot.cli.findings import Finding, Json, Level, found, ok, part
from aliquot.cli.nodeside import Site
from aliquot.dialects import Rules, native, qgpu
from aliquot.dialects.advertising import adverts
from aliquot.dialects.cdi import reads_cdi
from aliquot.model.device import Card
from aliquot.model.node import Node
from aliquot.model.quantity import QuantityError, parse_count
from aliquot.model.refusal import Invalid

_LEAST_FREE = 16 << 20  # bytes
_LEAST_INODES = 16
_LOOK_AT_AGENT = "its log says why: kubectl logs of its Pod on this node"
_RESTART_AGENT = "restart the agent on this node: kubectl delete pod of its DaemonSet; running Pods do not notice"


def agent_findings(site: Site, node: Json | None, rules: Rules) -> Iterator[Finding]:
    """All that is wrong with the agent and what it stands on. `node` is its Node; None: it could not be seen."""
    yield from _kubelet(site)
    yield from _agent(site)
    yield from _database(site)
    yield from _shim(site)
    yield from _disks(site)
    yield from _driver(site)
    yield from _cards(site)
    told = None if node is None else dialects.parse_node(node, rules)
    if node is not None and isinstance(told, Node):  # else told as a broken rule
        yield from _resources(site, node, told, rules)
        yield from _inventory(site, node, told)
    yield from _cdi(site, node)


def runs(site: Site) -> bool:
    """Whether an agent answers; a daemon of `aliquot up` is none."""
    return site.agent is not None and "agent" in site.agent


# --- who is there ----------------------------------------------------------------------------------------------------


def _kubelet(site: Site) -> Iterator[Finding]:
    if site.kubelet_problem is not None:
        what = f"{site.kubelet_problem}: the kubelet does not run, so that no Pod starts here"
        yield found("kubelet", site.node_name, what, "systemctl status kubelet; journalctl -u kubelet tells why")
    elif site.held_problem is not None:
        what = (
            f"does not tell which Pod has which devices, so that no container with a card starts: {site.held_problem}"
        )
        fix = f"mount {site.places.kubelet}/pod-resources into the agent; is the kubelet older than 1.23?"
        yield found("kubelet", site.node_name, what, fix)
    else:
        containers = len(site.held or ())
        yield ok("kubelet", f"runs, and tells of {containers:,} container{'s' * (containers != 1)} with devices")


def _agent(site: Site) -> Iterator[Finding]:
    if site.agent is None:
        if site.lock_holder is None:
            what = f"no agent runs: {site.agent_problem}, and its lock is free"
            fix = f"is the node in the DaemonSet's selector? kubectl get pods -A -o wide; {_LOOK_AT_AGENT}"
        else:
            what = f"process {site.lock_holder} holds the agent's lock, but does not answer: {site.agent_problem}"
            fix = f"it starts or ends at this moment, or hangs: look again, then {_RESTART_AGENT}"
        yield found("agent", site.node_name, what, fix)
    elif not runs(site):
        what = f"a daemon of `aliquot up` (pid {part(site.agent, 'daemon', 'pid')}) has the cards, so the agent cannot"
        yield found("agent", site.node_name, what, "aliquot down; the agent's DaemonSet starts it then")
    elif (waits_for := part(site.agent, "agent", "waits_for")) is not None:
        yield found("agent", site.node_name, f"is not ready: {waits_for}", f"if it stays so: {_LOOK_AT_AGENT}")
    else:
        count, pods = len(site.agent["cards"]), len(site.agent["tenants"])
        pid = part(site.agent, "daemon", "pid")
        yield ok(
            "agent", f"pid {pid} is ready: {count} card{'s' * (count != 1)}, {pods} Pod{'s' * (pods != 1)} on them"
        )


# --- the host --------------------------------------------------------------------------------------------------------


def _database(site: Site) -> Iterator[Finding]:
    problem, path = site.database_problem, str(site.places.database)
    if problem is None:
        yield ok("database", f"{path} is whole")
    elif runs(site):
        fix = f"{_RESTART_AGENT}. It is made anew from the API server and the kubelet"
        yield found("database", path, problem, fix)
    else:
        fix = "nothing is lost: the next agent makes it from the API server and the kubelet; if it was moved, --dbfile"
        yield found("database", path, problem, f"{fix} of the agent and of this command must be the same")


def _shim(site: Site) -> Iterator[Finding]:
    if site.shim_problem is not None:
        what = f"new containers would start without it, or not at all: {site.shim_problem}"
        fix = f"{_RESTART_AGENT}; it installs the shim at its start"
        yield found("shim", str(site.places.database.parent / "shim"), what, fix)
    else:
        yield ok("shim", "is installed, and for this machine's architecture")
    for line in site.preloaded.split():
        if "aliquot" in line:
            what = f"names {line}: every program of the *host* loads it, or complains that it cannot"
            fix = f"take that line out of the host's {site.places.preload}: containers have a file of their own"
            yield found("shim", str(site.places.preload), what, fix)


def _disks(site: Site) -> Iterator[Finding]:
    for disk in site.disks:
        few = disk.inodes is not None and disk.inodes < _LEAST_INODES
        if disk.free < _LEAST_FREE or few:
            left = f"{disk.inodes} files" if few else f"{disk.free >> 20} MiB"
            what = f"its disk is full ({left} left): no container with a card can start"
            yield found("disk", disk.path, what, f"free some space there: df -h {disk.path}; df -i {disk.path}")
        if disk.path == str(site.places.run) and disk.kind not in ("tmpfs", "ramfs", ""):
            what = f"is on {disk.kind}, not on tmpfs: what it holds outlives a reboot, and is swept out only then"
            fix = "mount the host's /run/aliquot there"
            yield Finding("disk", Level.NOTE, (disk.path,), what, fix)


# --- the cards -------------------------------------------------------------------------------------------------------


def _driver(site: Site) -> Iterator[Finding]:
    if site.nvml_problem is not None:
        what = f"no card can be used: {site.nvml_problem}"
        fix = "does nvidia-smi work on the node? In the agent's container: NVIDIA_VISIBLE_DEVICES=all with NVIDIA's"
        fix += " runtime, or libnvidia-ml.so.1 and /dev/nvidiactl mounted; a driver that was updated needs a reboot"
        yield found("driver", site.node_name, what, fix)
    elif site.nvml_cards == ():
        what = "NVML tells of no card on this machine"
        yield found("driver", site.node_name, what, "lspci | grep -i nvidia; the kernel's log: dmesg | grep -i nvrm")


def _cards(site: Site) -> Iterator[Finding]:
    if site.agent is None:
        return
    out = [card for card in site.agent["cards"] if not card.get("healthy", True)]
    for card in out:
        what = f"card {card['index']} ({card['uuid']}) is out: {card.get('why_out') or 'it does not say why'}"
        fix = (
            "its Pods run on, new ones avoid it. nvidia-smi --gpu-reset or a reboot brings it back; dmesg tells of Xids"
        )
        yield found("cards", site.node_name, what, fix)
    numbers = {card["uuid"]: card["index"] for card in site.agent["cards"]}
    for each in site.agent["findings"]:
        who = "" if each["pid"] is None else f"process {each['pid']} "
        what = f"on card {numbers.get(each['uuid'], each['uuid'])}: {who}{each['text']}"
        fix = "end it, or run it as a Pod that asks for its card" if each["pid"] is not None else _LOOK_AT_AGENT
        yield found("processes", site.node_name, what, fix)
    if not out:
        count = len(site.agent["cards"])
        yield ok("cards", f"{'all ' * (count > 1)}{count} of this node {'are' if count != 1 else 'is'} well")


def _resources(site: Site, node: Json, told: Node, rules: Rules) -> Iterator[Finding]:
    """What the labels ask for, against what the kubelet has accepted."""
    wanted = adverts(told, rules)
    if isinstance(wanted, Invalid):
        fix = f"correct it: kubectl edit node {site.node_name}; kubectl describe node shows the same as an event"
        yield found("resources", site.node_name, f"cannot be advertised: {wanted.sentence()}", fix)
        return
    registered = part(site.agent, "agent", "resources") or {}
    missing = False
    for resource in (each.resource for each in wanted):
        if part(registered, resource, "registered") is False:
            missing = True
            what = f"{resource} is asked for by the node's labels, but the kubelet has not accepted it from the agent"
            fix = f"the kubelet's log tells why (journalctl -u kubelet | grep {resource}); then {_RESTART_AGENT}"
            yield found("resources", site.node_name, what, fix)
        elif not _allocatable(node, resource):
            missing = True
            what = f"{resource} is asked for by the node's labels, but the Node does not advertise it"
            fix = f"if the agent runs and is ready, {_RESTART_AGENT}; else see to that first"
            yield found("resources", site.node_name, what, fix)
    if wanted and not missing:
        yield ok("resources", f"{', '.join(each.resource for each in wanted)}: accepted by the kubelet")
    elif not wanted:
        what = "asks for nothing of ours by its labels: its cards are not offered to anybody"
        fix = f"kubectl label node NODE {qgpu.ENABLE_LABEL}=enable, or a label of the other dialects"
        yield Finding("resources", Level.NOTE, (site.node_name,), what, fix)


def _allocatable(node: Json, resource: str) -> int:
    try:
        return parse_count(part(node, "status", "allocatable", resource))
    except QuantityError:
        return 0


def _inventory(site: Site, node: Json, told: Node) -> Iterator[Finding]:
    """What the scheduler is told, against what the driver tells."""
    here = cards_here(site)
    if here is None:
        return
    if part(node, "metadata", "annotations", native.INVENTORY) is None:
        what = f"has no annotation {native.INVENTORY}: the scheduler has to guess at its cards"
        fix = (
            "may the agent patch nodes/status? `kubectl auth can-i patch nodes/status --as` its account tells; its log"
        )
        yield found("inventory", site.node_name, what, f"{fix} says what it was refused")
        return
    differs = _difference(told.cards, here)
    if differs is not None:
        what = f"its annotation {native.INVENTORY} tells of {differs}"
        yield found("inventory", site.node_name, what, _RESTART_AGENT)
    else:
        yield ok("inventory", "the Node tells the cards that the driver tells")


def _difference(told: Iterable[Card], here: Iterable[Card]) -> str | None:
    """How they differ, beside their health, which changes from moment to moment."""
    there = {card.uuid: card for card in told}
    if there.keys() != {card.uuid for card in here}:
        return f"{_names(there.values())}, but the driver of {_names(here)}"
    for card in here:
        known = there[card.uuid]
        if (known.index, known.memory_mib) != (card.index, card.memory_mib):
            tells = f"{card.uuid} as card {known.index} with {known.memory_mib} MiB"
            return f"{tells}, but the driver as card {card.index} with {card.memory_mib} MiB"
    return None


def cards_here(site: Site) -> tuple[Card, ...] | None:
    """The cards, as the agent tells them, or the driver where no agent runs; None: nobody does."""
    if site.agent is None:
        return site.nvml_cards or None
    return tuple(
        Card(each["index"], each["memory_bytes"] >> 20, each["uuid"], each["model"]) for each in site.agent["cards"]
    )


def _names(cards: Iterable[Card]) -> str:
    return ", ".join(sorted(card.uuid or f"card {card.index}" for card in cards)) or "none"


# --- the runtime -----------------------------------------------------------------------------------------------------


def _cdi(site: Site, node: Json | None) -> Iterator[Finding]:
    runtime = str(part(node, "status", "nodeInfo", "containerRuntimeVersion") or "")
    if site.places.cdi is None or (runtime and not reads_cdi(runtime) and not runs(site)):
        what = "the agent does without CDI: containers get their environment from the scheduler's webhook"
        fix = f"{runtime or 'the runtime'} is why; containerd 2 and CRI-O have CDI by themselves. --cdi on of the agent"
        yield Finding(
            "cdi", Level.NOTE, (site.node_name,), what, f"{fix} where an older containerd has enable_cdi = true"
        )
        return
    if site.cdi_problem is not None:
        what = f"no container with a card can start: {site.cdi_problem}"
        fix = "make it, mount it writable into the agent, and have it among the runtime's cdi_spec_dirs"
        yield found("cdi", str(site.places.cdi), what, fix)
    elif runtime and not reads_cdi(runtime):
        yield _without_cdi(site, runtime)
    else:
        yield ok("cdi", f"{site.places.cdi} is there, for {runtime or 'the runtime'}")


def _without_cdi(site: Site, runtime: str) -> Finding:
    name, _, version = runtime.partition("://")
    if name == "containerd" and version.removeprefix("v").startswith("1.7."):
        what = f"{runtime} reads CDI only where it is told to, which cannot be seen from here"
        fix = "its config.toml must say enable_cdi = true; or start the agent with --cdi off"
        return Finding("cdi", Level.NOTE, (site.node_name,), what, fix)
    what = f"{runtime} has no CDI, though the agent was told to go by it: containers start without their cards"
    fix = "start the agent with --cdi off, and the scheduler with --webhook-port and --env-by-annotation"
    return found("cdi", site.node_name, what, fix)
