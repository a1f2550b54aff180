"""Does the node's agent run, and does it have what it needs of kubelet, runtime, driver and host: a Site in, findings
out. Whether Pods hold what they were granted is checked in holdings.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace
from msgspec.structs import replace as replace_fields

from aliquot import dialects
from aliquot.dialects import Rules, gpushare, native, qgpu
from aliquot.dialects.wire.advertising import adverts
from aliquot.dialects.wire.cdi import passes_cdi, reads_cdi
from aliquot.dialects.wire.objects import NodeInfo, NodeObject, NodeStatus
from aliquot.model.cardstate.control import INERT
from aliquot.model.device import Card
from aliquot.model.node import Node
from aliquot.model.numbers.quantity import QuantityError, parse_count
from aliquot.model.refusal import Invalid
from aliquot.model.tenant import FindingKind
from aliquot.services.doctor.findings import Finding, Level, found, ok, with_memory
from aliquot.services.doctor.site import Site
from aliquot.wording.amounts import memory, unlike
from aliquot.wording.control import control_words

_ANEW = "what was in it is asked of the API server and the kubelet again, so that nothing is lost"
_LEAST_FREE = 16 << 20  # bytes
_LEAST_INODES = 16
_SEE_LOG = "kubectl logs of the agent's Pod on this node"
_BY_HAND = "end it, or run it as a Pod that asks for its card"
_ON_A_CARD = {
    FindingKind.TRESPASSER: "find out how its Pod reaches that card; if it is privileged, it sees all cards",
    FindingKind.UNREGISTERED: "its share is not enforced: link its program dynamically, and do not change LD_PRELOAD",
    FindingKind.SLICE: "find out which other program sets time slices on this node",
    FindingKind.REFUSED: "its share is less exact from now on, until its process ends: did the driver change?",
    FindingKind.INERT: "shares hold between kernels only: use a driver that is listed as measured in docs/hardware.md",
    FindingKind.STRANGER: "end it, or run it as a Pod that asks for its card: the scheduler books the card without it",
    FindingKind.OVERUSE: "ask for more in its Pod, or end the Pod; --enforce kill of the agent ends such processes",
    FindingKind.ENDED: "ask for more memory in its Pod, or find out how its program got past the limit",
    FindingKind.PAGE: "create its Pod again: kubectl delete pod",
}


def agent_findings(site: Site, node: NodeObject | Invalid | None, rules: Rules) -> Iterator[Finding]:
    """All that is wrong with the agent and what it stands on. `node` is its Node; None: it could not be seen."""
    yield from _kubelet(site)
    yield from _agent(site)
    yield from _database(site)
    yield from _shim(site)
    yield from _disks(site)
    yield from _driver(site)
    yield from _cards(site)
    parsed = dialects.parse_node(node, rules) if isinstance(node, NodeObject) else None
    if isinstance(node, NodeObject) and isinstance(parsed, Node):  # a broken one is a finding of nodes.py
        yield from _resources(site, node, rules)
        yield from _inventory(site, node, parsed)
    yield from _cdi(site, node)


def bystander(site: Site, node: NodeObject | Invalid | None, rules: Rules) -> bool:
    """Whether this machine neither has an agent nor asks for one: people run the doctor there too."""
    parsed = dialects.parse_node(node, rules) if isinstance(node, NodeObject) else None
    traces = site.agent or site.lock_holder or site.nvml_cards or site.specs or site.folders
    return isinstance(parsed, Node) and not parsed.offers and not traces


def restarting(site: Site) -> str:
    """How the agent of this node is started anew."""
    find = f"kubectl get pods -A --field-selector spec.nodeName={site.node_name} names its Pod"
    return f"restart the agent ({find}, kubectl delete pod ends it, its DaemonSet starts another; other Pods continue)"


def runs(site: Site) -> bool:
    """Whether an agent answers; a daemon of `aliquot up` is none."""
    return site.agent is not None and bool(site.agent.agent)


# --- who is there ----------------------------------------------------------------------------------------------------


def _kubelet(site: Site) -> Iterator[Finding]:
    if site.kubelet_problem is not None:
        what = f"{site.kubelet_problem}: the kubelet does not run, so that no Pod starts here"
        yield found("kubelet", site.node_name, what, "systemctl status kubelet; journalctl -u kubelet shows why")
    elif site.held_problem is not None:
        what = f"does not say which Pod has which devices, so that no container with a card starts: {site.held_problem}"
        fix = f"mount {site.places.kubelet}/pod-resources into the agent; is the kubelet older than 1.23?"
        yield found("kubelet", site.node_name, what, fix)
    else:
        containers = len(site.held or ())
        yield ok("kubelet", f"runs, and reports {containers:,} container{'s' * (containers != 1)} with devices")


def _agent(site: Site) -> Iterator[Finding]:
    if site.agent is None:
        if site.lock_holder is None:
            what = f"no agent runs: {site.agent_problem}, and its lock is free"
            fix = f"kubectl get pods -A --field-selector spec.nodeName={site.node_name}: if its Pod is there, kubectl"
            fix += " logs --previous shows why it ended; if not, the nodeSelector of its DaemonSet leaves this node out"
        else:
            what = f"process {site.lock_holder} holds the agent's lock, but does not answer ({site.agent_problem})"
            fix = f"it starts, ends or hangs: run the doctor again; if it persists, {restarting(site)}"
        yield found("agent", site.node_name, what, fix)
    elif not runs(site):
        what = f"a daemon of `aliquot up` (pid {site.agent.daemon.pid}) has the cards, so the agent cannot"
        yield found("agent", site.node_name, what, "aliquot down; the agent's DaemonSet starts it then")
    elif site.agent.agent and (waits_for := site.agent.agent.waits_for) is not None:
        fix = f"run the doctor again; if it persists, {_SEE_LOG} shows why"
        fix = fix if site.kubelet_problem is None else "fix the kubelet first, as above"
        yield found("agent", site.node_name, f"is not ready: {waits_for}", fix)
    else:
        count, pods, pid = len(site.agent.cards), len(site.agent.tenants), site.agent.daemon.pid
        yield ok(
            "agent", f"pid {pid} is ready: {count} card{'s' * (count != 1)}, {pods} Pod{'s' * (pods != 1)} on them"
        )
    for note in site.agent.agent.notes if site.agent and site.agent.agent else ():
        yield Finding("agent", Level.NOTE, (site.node_name,), note)


# --- the host --------------------------------------------------------------------------------------------------------


def _database(site: Site) -> Iterator[Finding]:
    problem, path = site.database_problem, str(site.places.database)
    if problem is None:
        yield ok("database", f"{path} is whole")
    elif site.database_foreign:
        fix = "move it away, or give the agent another --dbfile: it does not write to this file"
        yield found("database", path, problem, fix)
    elif runs(site):
        yield found("database", path, problem, f"{restarting(site)}; {_ANEW}")
    else:
        fix = f"start the agent; {_ANEW}. If the agent has another --dbfile, give this command the same one"
        yield found("database", path, problem, fix)


def _shim(site: Site) -> Iterator[Finding]:
    if site.shim_problem is not None:
        what = f"no container with a card can start: {site.shim_problem}"
        fix = f"{restarting(site)}; it installs the shim when it starts"
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
            left = f"{disk.inodes} files" if few else memory(disk.free >> 20)
            what = f"its disk is full ({left} left): no container with a card can start"
            yield found("disk", disk.path, what, f"free some there: df {'-i' if few else '-h'} {disk.path}")
        if disk.path == str(site.places.run) and disk.kind not in ("tmpfs", "ramfs", ""):
            what = f"is on {disk.kind}, not on tmpfs: what is there stays over a reboot, until the agent starts again"
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
        what = "NVML reports no card on this machine"
        yield found("driver", site.node_name, what, "lspci | grep -i nvidia; the kernel's log: dmesg | grep -i nvrm")


def _cards(site: Site) -> Iterator[Finding]:
    if site.agent is None:
        return
    out = [card for card in site.agent.cards if card.healthy is False]
    for card in out:
        what = f"card {card.index} ({card.uuid}) is out: {card.why_out or 'no reason given'}"
        fix = "its Pods keep running, new ones avoid it. nvidia-smi --gpu-reset or a reboot helps; dmesg shows Xids"
        yield found("cards", site.node_name, what, fix)
    yield from _on_cards(site, {card.uuid for card in out})
    by_words: dict[str, list[str]] = {}
    for card in site.agent.cards:
        if card.control and card.control.reason not in INERT:  # that is among what the agent found
            by_words.setdefault(control_words(card.control), []).append(str(card.index))
    for words, numbers in by_words.items():
        yield ok("control", f"card{'s' * (len(numbers) > 1)} {', '.join(numbers)}: {words}")
    if not out:
        count = len(site.agent.cards)
        yield ok("cards", f"{'all ' * (count > 1)}{count} of this node {'are' if count != 1 else 'is'} well")


def _on_cards(site: Site, out: set[str]) -> Iterator[Finding]:
    """What the agent found on the cards that should not be there. A card that is out need not answer."""
    numbers = {card.uuid: card.index for card in site.agent.cards} if site.agent else {}
    for finding in site.agent.findings if site.agent else ():
        if finding.kind is FindingKind.SILENT and finding.uuid in out:
            continue
        who = "" if finding.pid is None else f"process {finding.pid} "
        what = f"on card {numbers.get(finding.uuid, finding.uuid)}: {who}{finding.text}{with_memory(finding)}"
        by_hand = _BY_HAND if finding.pid is not None else f"{_SEE_LOG} shows more"
        fix = _ON_A_CARD.get(finding.kind, by_hand) if finding.kind else by_hand
        yield found("processes", site.node_name, what, fix)


def _resources(site: Site, node: NodeObject, rules: Rules) -> Iterator[Finding]:
    """The resources that the labels ask for, against those that the kubelet accepted and the Node advertises."""
    here = cards_here(site)
    if here is None and not _has_inventory(node):
        return  # a finding of its own
    # As the agent does it: what the Node advertises is its doing, or left of a plugin that was here before.
    bare = replace_fields(node, status=NodeStatus())
    if here is not None:
        bare.metadata = replace_fields(node.metadata, annotations=dialects.render_inventory(here))
    parsed = dialects.parse_node(bare, rules)
    if not isinstance(parsed, Node):
        return  # a finding of nodes.py
    marked = native.counts(node.metadata.annotations or {}, gpushare.MEMORY)
    wanted = adverts(replace(parsed, cards=parsed.cards if here is None else here), rules, marked=marked)
    if isinstance(wanted, Invalid):
        fix = f"correct it: kubectl edit node {site.node_name}; kubectl describe node shows the same as an event"
        yield found("resources", site.node_name, f"cannot be advertised: {wanted.sentence()}", fix)
        return
    names = [advert.resource for advert in wanted if not advert.counted]
    if not names:
        what = "has no label that makes Aliquot share its cards: no Pod can use them"
        fix = f"kubectl label node NODE {qgpu.ENABLE_LABEL}=enable, or a label of the other dialects"
        yield Finding("resources", Level.NOTE, (site.node_name,), what, fix)
        return
    yield from _advertised(site, node, names)
    yield from _counted(site, node, [advert.resource for advert in wanted if advert.counted])


def _counted(site: Site, node: NodeObject, names: list[str]) -> Iterator[Finding]:
    """The resources whose amounts the agent itself writes into the Node's status."""
    absent = [name for name in names if runs(site) and not _allocatable(node, name)]
    if absent:
        what = f"{', '.join(absent)}: more than the kubelet handles as devices, and the agent has not counted it yet"
        fix = f"run the doctor again; if it persists, kubectl describe node {site.node_name} (CannotAdvertise) or"
        yield found("resources", site.node_name, what, f"{fix} {_SEE_LOG} shows why")
    elif names and runs(site):
        yield ok("resources", f"{', '.join(names)}: counted by the agent in the Node's status")


def _advertised(site: Site, node: NodeObject, names: list[str]) -> Iterator[Finding]:
    resources = site.agent.agent.resources if site.agent and site.agent.agent else {}
    registered = {name for name, resource in resources.items() if resource.registered}
    refused = [name for name in names if runs(site) and name not in registered]
    # Where no agent runs, nothing is advertised; nodes.py reports that of any node.
    absent = [name for name in names if runs(site) and name not in refused and not _allocatable(node, name)]
    asked = "asked for by the node's labels"
    if refused and site.kubelet_problem is None:
        what = f"{', '.join(refused)}: {asked}, but the kubelet has not accepted it from the agent"
        fix = f"run the doctor again; if it persists, journalctl -u kubelet | grep {refused[0]} shows why"
        yield found("resources", site.node_name, what, fix)
    if absent:
        what = f"{', '.join(absent)}: {asked}, but the Node advertises none"
        fix = "the kubelet reports every 10 s: run the doctor again; if it persists, journalctl -u kubelet shows why"
        yield found("resources", site.node_name, what, fix)
    if runs(site) and not refused and not absent:
        yield ok("resources", f"{', '.join(names)}: accepted by the kubelet")


def _allocatable(node: NodeObject, resource: str) -> int:
    try:
        return parse_count((node.status.allocatable or {}).get(resource))
    except QuantityError:
        return 0


def _inventory(site: Site, node: NodeObject, parsed: Node) -> Iterator[Finding]:
    """The cards of the Node's annotation, against the driver's."""
    here = cards_here(site)
    if not _has_inventory(node):
        what = f"has no annotation {native.INVENTORY}: the scheduler does not know its cards"
        fix = "the agent writes it: fix the agent first, as above"
        if runs(site):
            fix = "may the agent patch nodes/status? kubectl auth can-i patch nodes/status --as=system:serviceaccount:"
            fix += f"NAMESPACE:ACCOUNT of its Pod shows; {_SEE_LOG} says what it was refused"
        yield found("inventory", site.node_name, what, fix)
        return
    if here is None:
        return
    differs = _difference(parsed.cards, here)
    if differs is not None:
        what = f"its annotation {native.INVENTORY} has {differs}"
        fix = restarting(site) if runs(site) else "the agent corrects it: fix the agent first, as above"
        yield found("inventory", site.node_name, what, fix)
    else:
        yield ok("inventory", "the Node has the cards that the driver reports")


def _has_inventory(node: NodeObject) -> bool:
    return native.INVENTORY in (node.metadata.annotations or {})


def _difference(annotated: Iterable[Card], here: Iterable[Card]) -> str | None:
    """How they differ, beside their health, which changes from moment to moment."""
    there = {card.uuid: card for card in annotated}
    if there.keys() != {card.uuid for card in here}:
        return f"{_names(there.values())}, but the driver of {_names(here)}"
    for card in here:
        known = there[card.uuid]
        if (known.index, known.memory_mib) != (card.index, card.memory_mib):
            listed, has = unlike(known.memory_mib, card.memory_mib)
            return f"{card.uuid} as card {known.index} with {listed}, but the driver as card {card.index} with {has}"
    return None


def cards_here(site: Site) -> tuple[Card, ...] | None:
    """The cards by the agent, or by the driver where no agent runs; None where neither answers."""
    if site.agent is None:
        return site.nvml_cards or None
    return tuple(Card(card.index, card.memory_mib, card.uuid, card.model) for card in site.agent.cards)


def _names(cards: Iterable[Card]) -> str:
    return ", ".join(sorted(card.uuid or f"card {card.index}" for card in cards)) or "none"


# --- the runtime -----------------------------------------------------------------------------------------------------


def _cdi(site: Site, node: NodeObject | Invalid | None) -> Iterator[Finding]:
    info = (node.status.node_info if isinstance(node, NodeObject) else None) or NodeInfo()
    runtime, kubelet = info.container_runtime_version, info.kubelet_version
    without = runtime if runtime and not reads_cdi(runtime) else ""
    without = without or (f"kubelet {kubelet}" if kubelet and not passes_cdi(kubelet) else "")
    if site.places.cdi is None or (without and not runs(site)):
        what = "the agent does without CDI: containers get their environment from the scheduler's webhook"
        fix = "an option of the agent says so; if that is not intended, use --cdi auto"
        if without:
            fix = f"{without} is why; containerd 2, CRI-O, and kubelets from 1.29 on have CDI by themselves."
            fix += " --cdi on of the agent where CDI was switched on in older ones"
        yield Finding("cdi", Level.NOTE, (site.node_name,), what, fix)
    elif site.cdi_problem is not None:
        what = f"no container with a card can start: {site.cdi_problem}"
        fix = "mount it writable, on the host and into the agent's container"
        if not site.cdi_there:
            fix = (
                f"mkdir -p {site.places.cdi} on the host (one of the runtime's cdi_spec_dirs), then {restarting(site)}"
            )
        yield found("cdi", str(site.places.cdi), what, fix)
    elif without:
        yield _without_cdi(site, without)
    else:
        yield ok("cdi", f"{site.places.cdi} is there, for {runtime or 'the runtime'}")


_ONLY_IF_TOLD = {  # by how a version begins
    "containerd://1.7.": "config.toml of containerd must say enable_cdi = true",
    "containerd://v1.7.": "config.toml of containerd must say enable_cdi = true",
    "kubelet v1.28.": "the kubelet must have its feature gate DevicePluginCDIDevices",
}


def _without_cdi(site: Site, who: str) -> Finding:
    needs = next((needs for version, needs in _ONLY_IF_TOLD.items() if who.startswith(version)), None)
    if needs is not None:
        what = f"{who} uses CDI only if it is configured to, which cannot be seen from here"
        return Finding("cdi", Level.NOTE, (site.node_name,), what, f"{needs}; or start the agent with --cdi off")
    what = f"{who} has no CDI, though an option of the agent asks for it: containers start without their cards"
    fix = "start the agent with --cdi off, and the scheduler with --webhook-port and --env-by-annotation"
    return found("cdi", site.node_name, what, fix)
