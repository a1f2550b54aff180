"""`aliquot doctor` on one machine without Kubernetes: judges what machinesite.py saw. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from aliquot.model.cardstate.control import ControlLevel, ControlReason
from aliquot.model.status.machine import CardStatus
from aliquot.model.tenant import FindingKind
from aliquot.model.tenant import Level as Control
from aliquot.services.doctor.findings import Finding, Level, found, ok, with_memory
from aliquot.services.doctor.machinesite import PORT, Entry, MachineSite
from aliquot.wording.amounts import count, memory
from aliquot.wording.control import control_words

_LEAST_FREE = 64 << 20
_LEAST_INODES = 256
_RESTART = "aliquot down && aliquot up -d, or systemctl restart aliquot; runs go on, and the new daemon adopts them"
_START_IT = "aliquot top shows who; start such programs with aliquot run"
_GATED = "shares hold between kernels only: use a driver that docs/hardware.md lists as measured"
_ON_A_CARD = {
    FindingKind.OVERUSE: "ask for more with --memory, or stop it; aliquot up --enforce kill ends such processes",
    FindingKind.ENDED: "ask for more with --memory, or find out how its program got past the limit",
}
_SIMULATE = "without a card: aliquot up --simulate 2x24GiB"


def machine_findings(site: MachineSite) -> Iterator[Finding]:
    """A line for each check, in the order in which things depend on each other."""
    yield from _driver(site)
    yield from _shim(site)
    yield from _daemon(site)
    yield from _folders(site)
    yield from _port(site)
    yield from _cards(site)


def _driver(site: MachineSite) -> Iterator[Finding]:
    if site.status is not None and site.status.daemon.simulated:
        yield ok("driver", f"not needed: the daemon simulates cards ({site.status.daemon.simulated})")
        return
    if site.driver is None:
        what = "NVIDIA's driver is not loaded: /proc/driver/nvidia/version is not there"
        yield found(
            "driver", "kernel", what, f"install the driver (nvidia-smi must work), or modprobe nvidia; {_SIMULATE}"
        )
    elif site.device_problem is not None:
        fix = "root runs nvidia-modprobe, or adds you to the group of /dev/nvidia*"
        yield found("driver", "devices", f"driver {site.driver} is loaded, but {site.device_problem}", fix)
    else:
        yield ok("driver", f"NVIDIA's driver {site.driver}")
    if site.nvml_problem is not None:
        fix = "does nvidia-smi work? After an update of the driver reboot, or load the new modules"
        yield found("nvml", "libnvidia-ml.so.1", site.nvml_problem, f"{fix}; {_SIMULATE}")
    elif not site.nvml_cards:
        yield found("nvml", "libnvidia-ml.so.1", "reports no card", "lspci | grep -i nvidia; dmesg | grep -i nvrm")
    else:
        yield ok("nvml", f"reports {count(site.nvml_cards, 'card')}")


def _shim(site: MachineSite) -> Iterator[Finding]:
    again = "install aliquot again (in the repository: make native)"
    if site.shim_problem is not None:
        what = f"cannot be loaded: {site.shim_problem}. Programs would run without a memory limit"
        yield found("shim", site.shim, what, again)
    elif site.shim_version != site.wanted_version:
        what = f"is of version {site.shim_version or '?'}, and this aliquot needs version {site.wanted_version}"
        yield found("shim", site.shim, what, again)
    elif site.shim_hidden is not None and _of_root(site):
        what = f"other users cannot reach it: {site.shim_hidden} is closed to them"
        fix = "install aliquot where all users can read it, as in /opt/aliquot (docs/shared-server.md)"
        yield found("shim", site.shim, what, fix)
    else:
        yield ok("shim", f"{site.shim} loads, version {site.shim_version}")


def _of_root(site: MachineSite) -> bool:
    """Whether the daemon serves all users."""
    return (site.status.daemon.uid if site.status is not None else site.uid) == 0


def _daemon(site: MachineSite) -> Iterator[Finding]:
    if site.no_daemon:
        what = f"none runs for {site.home.run}"
        fix = "`aliquot run` starts one; by hand: aliquot up -d; at boot: aliquot service install"
        yield Finding("daemon", Level.NOTE, (), what, fix)
        return
    if site.status is None:
        fix = f"if it hangs: kill -9 $(cat {site.home.lock}), then aliquot up -d; tenants keep running"
        yield found("daemon", site.home.control, f"{site.daemon_problem}", fix)
        return
    daemon = site.status.daemon
    if daemon.version != site.version:
        what = f"is version {daemon.version}, and this program is {site.version}"
        yield found("daemon", f"pid {daemon.pid}", what, _RESTART)
    else:
        yield ok("daemon", f"pid {daemon.pid}, version {daemon.version}, in {site.home.run}")
    if _of_root(site) and site.socket_mode is not None and site.socket_mode & 0o666 != 0o666:
        what = f"has mode {site.socket_mode:04o}: other users cannot connect"
        yield found("daemon", site.home.control, what, f"chmod 666 {site.home.control}")


def _folders(site: MachineSite) -> Iterator[Finding]:
    if site.home_problem is not None:
        yield found("folders", site.home.run, site.home_problem, "set ALIQUOT_HOME to a shorter path")
    if site.unmakeable is not None:
        yield found("folders", site.home.state, site.unmakeable, "set ALIQUOT_HOME to a folder that you own")
        return
    owner = site.status.daemon.uid if site.status is not None else site.uid
    wrong = [finding for entry in site.entries for finding in _entry(entry, owner)]
    yield from wrong
    if not wrong and site.home_problem is None:
        folders = [entry for entry in site.entries if entry.is_folder]
        least = min((entry.free for entry in folders), default=0)
        names = ", ".join(dict.fromkeys((site.home.run, site.home.state)))
        what = f"{names}: {memory(least >> 20)} free" if folders else f"{names}: not made yet"
        yield ok("folders", what)


def _entry(entry: Entry, owner: object) -> Iterator[Finding]:
    if isinstance(owner, int) and entry.uid != owner:
        what = f"belongs to user {entry.uid}, and the daemon is user {owner}'s"
        yield found("folders", entry.path, what, f"chown {owner} {entry.path}, or set ALIQUOT_HOME to another folder")
        return
    right = 0o711 if entry.is_folder else 0o600
    if entry.mode & (0o022 if entry.is_folder else 0o077):
        what = f"has mode {entry.mode:04o}: other users can {'change' if entry.mode & 0o022 else 'read'} it"
        yield found("folders", entry.path, what, f"chmod {right:o} {entry.path}")
    if not entry.is_folder:
        return
    if entry.mode & 0o700 != 0o700:
        what = f"has mode {entry.mode:04o}: its owner cannot write there"
        yield found("folders", entry.path, what, f"chmod {right:o} {entry.path}")
    if entry.read_only:
        yield found("folders", entry.path, "is on a read-only disk", "mount it writable, or set ALIQUOT_HOME")
    few = entry.inodes is not None and entry.inodes < _LEAST_INODES
    if entry.free < _LEAST_FREE or few:
        left = f"room for {entry.inodes} files" if few else memory(entry.free >> 20)
        what = f"its disk is nearly full ({left} left): no run can start then"
        yield found("folders", entry.path, what, f"make room: df {'-i' if few else '-h'} {entry.path}")


def _port(site: MachineSite) -> Iterator[Finding]:
    if site.status is None:
        if site.port_problem is not None and site.no_daemon:
            fix = "choose another port: aliquot up -d --listen 9500, or 0 for no dashboard"
            yield Finding("port", Level.NOTE, (), f"the dashboard's usual port is taken: {site.port_problem}", fix)
        return
    url = site.status.daemon.dashboard
    if site.port_problem is not None:
        yield found("port", "dashboard", site.port_problem, _RESTART)
    elif url:
        yield ok("port", f"the dashboard answers on {url}")
    else:
        what = f"the daemon has no dashboard: port {PORT} was taken, or it was started with --listen 0"
        fix = "to have one: aliquot down && aliquot up -d --listen 9500"
        yield Finding("port", Level.NOTE, (), what, fix)


def _unproven(card: CardStatus) -> tuple[str, str]:
    """What is known of the control of a card that no program uses, and what to do to know more."""
    if not card.control:
        fix = "start one, as aliquot run -d --memory 1 -- aliquot burn load --seconds 60, and look again"
        return "not known until a program uses the card", fix
    if card.control.reason is not ControlReason.NOT_TRIED:
        return control_words(card.control), "docs/hardware.md says how control is proven; aliquot probe tries it"
    if card.tenants or card.utilisation:
        return "is proven as soon as the card is idle for a second", "nothing to do: shares are kept meanwhile"
    again = "look again in a few seconds; if it stays so, the daemon's log says why (control_trial)"
    return "is being proven: two small programs of our own compete on the idle card for a second or two", again


def _cards(site: MachineSite) -> Iterator[Finding]:
    """Cards that are out, and how shares are enforced."""
    if site.status is None:
        return
    for card in site.status.cards:
        name = f"card {card.index}"
        if card.is_out:
            yield found(
                "cards", name, f"is not offered: {card.why_out or 'no reason given'}", "nvidia-smi -q shows its state"
            )
        levels = {share.level for tenant in site.status.tenants for share in tenant.cards if share.uuid == card.uuid}
        if card.control and card.control.level is ControlLevel.PROVEN and Control.GATE not in levels:
            yield ok("control", f"{name}: {control_words(card.control)}")
        elif card.control and card.control.level is ControlLevel.GATE:
            words = control_words(card.control)
            chosen = card.control.reason is ControlReason.FORCED
            yield ok("control", f"{name}: {words}") if chosen else found("control", name, words, _GATED)
        elif Control.GATE in levels:
            what = "the driver refuses control, or MPS runs: shares are enforced only between kernels"
            fix = "stop MPS; use the open kernel modules, driver 580 or later (docs/preemption.md)"
            yield found("control", name, what, fix)
        elif Control.HARDWARE in levels:
            yield ok("control", f"{name}: by the hardware, within a kernel")
        else:
            what, fix = _unproven(card)
            yield Finding("control", Level.NOTE, (name,), what, fix)
    for finding in (one for one in site.status.findings if one.kind is not FindingKind.INERT):
        about = finding.uuid if finding.pid is None else f"pid {finding.pid}"
        fix = _ON_A_CARD.get(finding.kind, _START_IT) if finding.kind else _START_IT
        yield found("cards", about, finding.text + with_memory(finding), fix)
