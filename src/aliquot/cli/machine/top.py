"""`aliquot top`: what each card and each tenant does at this moment."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from aliquot.adapters.host.users import user_name
from aliquot.cli.client import Watch, ask, parse_status, read_status
from aliquot.cli.machine.cells import compute, latency_words, paused_time
from aliquot.cli.tables import bar, narrowed, printable, table, terminal_width
from aliquot.model.residency import Where
from aliquot.model.status.machine import CardStatus, FindingStatus, ShareStatus, Status, TenantStatus
from aliquot.wording.amounts import count, duration, memory, release_delay
from aliquot.wording.control import control_words
from aliquot.wording.parking import residency_words
from aliquot.wording.shortage import reason
from aliquot.wording.states import state_words

_DROPPABLE = (
    "",
    "LEVEL",
    "PAUSED",
    "CORE",
    "CLASS",
    "USER",
    "REFUSED",
    "PARKED",
    "LATENCY",
    "TOGETHER",
)  # on a narrow terminal, in this order
_RIGHT = ("CORE", "SHARE", "PAUSED", "REFUSED")
_BAR = 10
_AWAY = "no daemon runs: waiting for it to come back\n"
_MANY = 4  # cards; with more, those without tenants are summed up


@click.command()
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--once", is_flag=True, help="Print once and exit; implied by -o json, TERM=dumb and without a terminal")
@click.option("-n", "looks", metavar="COUNT", type=click.IntRange(1), help="Print so often and exit; -n 1 is --once")
@click.option(
    "-d",
    "--every",
    "interval",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 60),
    default=1.0,
    show_default=True,
    help="Seconds between updates",
)
def top(output: str, once: bool, looks: int | None, interval: float) -> None:
    """Show live usage of every card and tenant. Press q or Ctrl-C to quit.

    \b
    SHARE      part of the card's time over the last second
    CORE       compute that was promised; of an offline tenant, of what others leave
    LEVEL      hardware (cut off in mid-kernel) or gate (held before the next kernel)
    PAUSED     time that online work took from an offline tenant, in all
    USER       shown where tenants of several users are on the cards
    REFUSED    allocations past the memory limit; shown where there were any
    PARKED     memory in the host's pool, and moves out and in; shown where memory has moved
    LATENCY    what may be added to requests, and seconds in which it was more; shown where a run has --latency
    TOGETHER   the group with which it runs side by side; shown where a run has --together
    STATE      running, idle, paused (with the online tenant that has the card), waiting (for its turn)

    \b
    aliquot top
    aliquot top --once
    aliquot top -n 5 -d 2
    aliquot top -o json
    """
    redrawn = output == "table" and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if redrawn and not once and looks is None:
        _live(parse_status(ask({"op": "status"})), interval)
        return
    for number in range(1 if once else looks or 1):
        if number:
            time.sleep(interval)
        answer = ask({"op": "status"})
        click.echo(json.dumps(answer, indent=2) if output == "json" else view(parse_status(answer), terminal_width()))


def view(status: Status, width: int | None = None) -> str:
    """The whole of it, as text, for a terminal of that width."""
    node, simulated = status.daemon.node, status.daemon.simulated
    kill_after = status.rules.kill_after_seconds
    lines = [
        (f"node {node}, " if node else "")
        + f"policy {status.rules.policy}, release delay {release_delay(status.rules.release_delay_seconds)}"
        + (f", simulated cards {simulated}" if simulated else "")
        + _pool_words(status)
        + ("" if kill_after is None else f", ends processes over their memory limit after {duration(kill_after)}")
    ]
    if status.agent and status.agent.waits_for:
        lines.append(f"not ready: {status.agent.waits_for}")
    refused = any(share.refused_allocations for tenant in status.tenants for share in tenant.cards)
    several = len({card.node for card in status.cards}) > 1
    users = {tenant.uid for tenant in status.tenants if isinstance(tenant.uid, int)}
    moved = any(share.residency and share.residency.moves for tenant in status.tenants for share in tenant.cards)
    promised = any(tenant.latency_seconds is not None for tenant in status.tenants)
    grouped = any(tenant.together for tenant in status.tenants)
    head = _head(shared=len(users) > 1, refused=refused, moved=moved, promised=promised, grouped=grouped)
    empty = _empty(status) if len(status.cards) > _MANY else []
    for card in status.cards:
        if card in empty:
            continue
        lines += ["", _card_line(card, several)]
        rows = [
            _row(tenant, share, head) for tenant in status.tenants for share in tenant.cards if share.uuid == card.uuid
        ]
        if rows:
            columns, cells = narrowed(head, rows, width, _DROPPABLE)
            lines.append(table(columns, cells, frozenset(at for at, name in enumerate(columns) if name in _RIGHT)))
    lines += ["", *_empty_lines(empty, several)] if empty else []
    waiting = list(_waiting(status))
    lines += ["", *waiting] if waiting else []
    advice = list(_advice(status))
    lines += ["", *advice] if advice else []
    if status.findings:
        lines.append("")
        lines += [_finding(finding, status.cards) for finding in status.findings]
    # Names of processes and cards, and reasons, come from others: they are shown, but must not steer the terminal.
    return "\n".join(printable(line) for block in lines for line in block.split("\n"))


def _waiting(status: Status) -> Iterator[str]:
    for entry in status.queue:
        yield f"waiting {entry.position}: {entry.name}: {reason(entry)}"


def _advice(status: Status) -> Iterator[str]:
    """Runs of one owner that take turns token by token would get more side by side."""
    turns: dict[tuple[str, int | str | None], list[str]] = {}
    for tenant in status.tenants:
        for share in tenant.cards:
            if share.takes_turns and tenant.together is None:
                turns.setdefault((share.uuid, tenant.uid), []).append(tenant.name)
    for names in dict.fromkeys(tuple(names) for names in turns.values() if len(names) > 1):
        who = " and ".join(names)
        yield f"{who} take turns token by token: started with --together NAME each gets more of the card"


def _empty(status: Status) -> list[CardStatus]:
    """Cards without tenants, findings or use."""
    taken = {share.uuid for tenant in status.tenants for share in tenant.cards}
    taken |= {finding.uuid for finding in status.findings}
    return [card for card in status.cards if card.uuid not in taken and not card.is_out and not card.utilisation]


def _empty_lines(cards: list[CardStatus], several: bool) -> Iterator[str]:
    """Alike cards of a node in one line."""
    alike: dict[tuple[str, str, int], list[str]] = {}
    for card in cards:
        node = f"{card.node} " if several else ""
        alike.setdefault((node, card.model, card.memory_mib), []).append(str(card.index))
    for (node, model, size), numbers in alike.items():
        of_each = " each" if len(numbers) > 1 else ""
        which = f"card{'s' * bool(of_each)} {', '.join(numbers)}"
        yield f"{node}{which}  {model}, {memory(size)}{of_each}, no tenants"


def _finding(finding: FindingStatus, cards: list[CardStatus]) -> str:
    where = next((f"card {card.index}" for card in cards if card.uuid == finding.uuid), finding.uuid)
    process = "" if finding.pid is None else f"process {finding.pid} "
    if process and finding.memory_bytes:
        process += f"({memory(finding.memory_bytes >> 20)}) "
    return f"found on {where}: {process}{finding.text}"


def _card_line(card: CardStatus, several: bool) -> str:
    """`several`: there is more than one node, as on simulated ones."""
    words = [f"{f'{card.node} ' if several else ''}card {card.index}  {card.model}"]
    if card.utilisation is not None:
        words.append(f"busy {card.utilisation:.0%}")
    used, total = card.memory_used_bytes, memory(card.memory_mib)
    words.append(total if used is None else f"{memory(used >> 20)} of {total} in use")
    if card.memory_unregistered_bytes:
        words.append(f"{memory(card.memory_unregistered_bytes >> 20)} by processes that nothing limits")
    promised = f" and {card.core_booked:g}% of compute" if card.core_booked else ""
    most = f" of {memory(int(card.memory_mib * card.oversubscribe))}" if card.oversubscribe != 1 else ""
    words.append(f"{memory(card.memory_booked_bytes >> 20)}{most}{promised} booked")
    if card.control:
        words.append(control_words(card.control))
    if card.is_out:
        words.append(f"OUT: {printable(card.why_out or 'no reason given')}")
    return ", ".join(words)


def _pool_words(status: Status) -> str:
    if not status.pool or not (status.pool.booked_bytes or status.pool.used_bytes):
        return ""
    used, booked, size = (
        memory(amount >> 20) for amount in (status.pool.used_bytes, status.pool.booked_bytes, status.pool.bytes)
    )
    return f", host pool {used} in use, {booked} of {size} booked"


def _head(*, shared: bool, refused: bool, moved: bool, promised: bool, grouped: bool) -> tuple[str, ...]:
    user, refusals = ("USER",) if shared else (), ("REFUSED",) if refused else ()
    parked, latency = ("PARKED",) if moved else (), ("LATENCY",) if promised else ()
    together = ("TOGETHER",) if grouped else ()
    return (
        "NAME", *user, *together, "CLASS", "CORE", "SHARE", "", "MEMORY", *parked, "LEVEL", "PAUSED", *latency,
        *refusals, "STATE",
    )  # fmt: skip


def _parked(share: ShareStatus) -> str:
    residency = share.residency
    if residency is None or not (residency.parked_bytes or residency.moves):
        return "-"
    return f"{memory(residency.parked_bytes >> 20)}, {count(residency.moves, 'move')}"


def _state(share: ShareStatus) -> str:
    """Where the memory is says more than what the tenant does without it."""
    residency, state = share.residency, state_words(share.state, share.paused_by)
    if residency is None:
        return state
    words = residency_words(residency.where, residency.why)
    if not words:
        return state
    return words if residency.where is not Where.RESIDENT else f"{state}; {words}"


def _row(tenant: TenantStatus, share: ShareStatus, head: tuple[str, ...]) -> tuple[str, ...]:
    return (
        tenant.name,
        *([user_name(tenant.uid) if isinstance(tenant.uid, int) else "-"] if "USER" in head else []),
        *([tenant.together or "-"] if "TOGETHER" in head else []),
        tenant.app_class,
        compute(share),
        "-" if share.share is None else f"{share.share:6.1%}",  # a fixed width: nothing moves from look to look
        ("" if share.share is None else bar(share.share, _BAR)).ljust(_BAR),
        f"{memory(share.used_mib)} / {memory(share.limit_mib)}{' OVER' if share.memory_over_bytes else ''}",
        *([_parked(share)] if "PARKED" in head else []),
        share.level,
        paused_time(share),
        *([latency_words(tenant, [share])] if "LATENCY" in head else []),
        *([str(share.refused_allocations)] if "REFUSED" in head else []),
        _state(share),  # the last: nothing moves when it becomes longer
    )


def _live(status: Status, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)

    def shown(status: Status, note: str = "") -> Text:
        return Text(fitted(note + view(status, console.width), console.height), no_wrap=True, overflow="ellipsis")

    watch = Watch()
    with _keys() as left, Live(shown(status), console=console, screen=True, auto_refresh=False) as live:
        while not left(interval):
            now = watch.look(read_status)
            status = now or status
            live.update(shown(status, "" if now else _AWAY), refresh=True)


def fitted(text: str, height: int) -> str:
    """What does not fit on the screen is counted in its last line."""
    lines = text.splitlines()
    more = len(lines) - height + 1
    return text if more <= 1 else "\n".join([*lines[: height - 1], f"... {more} more lines: aliquot top --once"])


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """A function that waits so many seconds, and returns whether q was pressed meanwhile."""
    if not sys.stdin.isatty():
        yield _asleep
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def left(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0:
            if not select.select([keyboard], [], [], rest)[0]:
                break
            pressed = os.read(keyboard, 64)
            if not pressed or b"q" in pressed.lower():  # nothing at all: the terminal is gone
                return True
        return False

    try:
        tty.setcbreak(keyboard)
        yield left
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _asleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False
