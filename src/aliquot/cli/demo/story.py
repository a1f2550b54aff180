"""The five parts of the demo, in order; promises.py decides whether a promise was held."""

from __future__ import annotations

import json
import shutil
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aliquot.cli.demo import promises
from aliquot.cli.demo.promises import Bounds, Promise, microseconds
from aliquot.cli.demo.sandbox import IDLE, DemoError, Sandbox, Tenant
from aliquot.cli.tables import bar, printable, table
from aliquot.model.residency import Where
from aliquot.wording.amounts import memory
from aliquot.wording.shortage import reason

if TYPE_CHECKING:
    from aliquot.model.status.burn import BurnResult
    from aliquot.model.status.machine import ResidencyStatus, ShareStatus, TenantStatus

PODS = Path(__file__).parent / "pods.yaml"
DELAY = 0.1  # seconds: qGPU's release delay
DAY = "86400"
_PODS = ("qgpu", "t9k", "gpushare")  # their names
_QUOTAS = {"alpha": 50, "beta": 30, "gamma": 20}
_BEST, _BURST, _FIXED = "best-effort", "burst-share", "fixed-share"
_POLICIES = (
    (_BEST, "all that have work get the same, whatever their quota"),
    (_BURST, "by quota; time that one leaves unused goes to the others"),
    (_FIXED, "by quota and never more, even when the card is idle"),
)
_RESTING = ((_FIXED, "its share stays unused"), (_BURST, "its share goes to the others"))
_SLEEPER, _JOBS = "notebook", ("train-1", "train-2")
_LOAD_US, _TRAIN_US, _REQUEST_US = 1_000.0, 20_000.0, 1_000.0
_INDENT, _WIDTH, _BAR = "     ", 80, 30
_LOOK, _SHOWN = 0.25, 2.4  # seconds between looks, and between lines that show them
_PATIENCE = 45.0  # seconds until memory has moved
# Of the fifth part: two programs fit on the card, three do not. Smaller cards have no room for contexts beside two;
# real memory has to be copied, and the host to have it. On a large card another program holds the rest.
_PART, _LEAST_MIB, _MOST_REAL_MIB, _FITTING = 0.4, 3072, 8192, 2.6
_CONTEXT_MIB = 512


class Printed:
    """Lines of at most 80 columns; on stderr if stdout is for data."""

    def __init__(self, *, err: bool = False) -> None:
        self._err = err

    def line(self, text: str = "", **style: object) -> None:
        """One line as it is."""
        click.echo(click.style(printable(text), **style) if style else printable(text), err=self._err)  # type: ignore[arg-type]

    def text(self, text: str, indent: str = "", hanging: str = "") -> None:
        """A text, wrapped."""
        width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns)
        first, rest = indent, indent + hanging
        for line in textwrap.wrap(
            printable(text), width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
        ):
            self.line(line)

    def note(self, text: str, level: int = 0) -> None:
        """A text below a heading."""
        self.text(text, _INDENT + level * "  ", "  ")

    def heading(self, number: int, title: str) -> None:
        """The title of a part."""
        self.line()
        self.line(f"{number}/5  {title}", bold=True)

    def command(self, *words: str) -> None:
        """A command of ours. A long one continues after a backslash, so that it can be pasted."""
        lines = textwrap.wrap(" ".join(("$ aliquot", *words)), _WIDTH - 12, break_on_hyphens=False)
        for line in [f"{line} \\" for line in lines[:-1]] + lines[-1:]:
            self.line(f"{_INDENT}{line}" if line.startswith("$") else f"{_INDENT}    {line}", fg="cyan")

    def bars(self, rows: Iterable[tuple[str, str, float]]) -> None:
        """Names, notes and shares."""
        shown = [(name, about, f"{share:6.1%}", bar(share, _BAR)) for name, about, share in rows]
        for line in table(shown[0], shown[1:], frozenset({2})).splitlines():
            self.line(f"{_INDENT}  {line}")


class Story:
    """The parameters of the demo and its results so far."""

    def __init__(self, sandbox: Sandbox, out: Printed, seconds: float, bounds: Bounds, began: float) -> None:
        self.sandbox, self.out, self.bounds = sandbox, out, bounds
        self.pace = promises.pace(seconds)
        self.outcome: list[Promise] = []
        self.first_share: float | None = None  # seconds from the beginning
        self._began = self._shown = began
        self._slice: tuple[str, ...] = ()

    def run(self) -> None:
        """Run all parts."""
        self.out.line("Measuring the speed of an idle card ...")
        measured = self.sandbox.command("run", "--", "aliquot", "burn", "calibrate", "-o", "json")
        self.sandbox.environment["ALIQUOT_BURN_RATE"] = str(json.loads(measured)["iterations_per_us"])
        slice_mib = min(2048, self.sandbox.status().cards[0].memory_mib // 8)
        self._slice = ("--memory", _typed(slice_mib))
        self._dialects()
        others = self._set_aside()
        self._policies(others)
        self._classes()
        self._memory(slice_mib)
        self._crowd()

    # --- one: placement ----------------------------------------------------------------------------------------------

    def _dialects(self) -> None:
        self.out.heading(1, "Three Pods, written for three vendors: which card does each one get?")
        filled = self._fill_a_card()
        self.out.note(f"free memory: {self._free()}")
        self._do("run", "-d", "-f", str(PODS), shown=f"run -d -f {PODS.name}")
        status = self.sandbox.status()
        for tenant in status.tenants:
            for share in tenant.cards if tenant.name in _PODS else ():
                compute = "" if share.core is None else f" and {share.core:g}% of the compute"
                self.out.note(f"{tenant.name} -> card {share.index}: {memory(share.limit_mib)}{compute}")
        waiting = [f"{entry.name}: {reason(entry)}" for entry in status.queue]
        for line in waiting:
            self.out.note(line)
        self.out.note(f"free memory now: {self._free()}")
        self._watch(self.pace["read"])
        names = [tenant.name for tenant in status.tenants if tenant.name in _PODS]
        self.outcome.append(promises.placed(wanted=len(_PODS), running=len(names), reasons=waiting))
        for name in names:
            self.sandbox.ask({"op": "stop", "name": name, "timeout": 1.0})
        if filled:
            self.sandbox.ask({"op": "stop", "name": _SLEEPER, "timeout": 1.0})

    def _fill_a_card(self) -> bool:
        """Where there are two cards, book most of one: otherwise they would be alike, and there would be no choice. Two
        of the Pods still fit on it, not three."""
        cards = self.sandbox.status().cards
        held = int(0.8 * cards[0].memory_mib - 3072) // 1024
        if len(cards) < 2 or held < 1:
            return False
        shown = f"run -d --name {_SLEEPER} --memory {held} -- sleep infinity"
        self._do("run", "-d", "--name", _SLEEPER, "--memory", f"{held}", "--", *IDLE, shown=shown)
        return True

    def _free(self) -> str:
        """The free memory of the cards; on several nodes, of the first node's."""
        cards = self.sandbox.status().cards
        return ", ".join(f"card {card.index}: {memory(card.free_mib)}" for card in cards if card.node == cards[0].node)

    def _set_aside(self) -> int:
        """Book all cards but one, of the smallest node. Returns how many."""
        nodes = [card.node for card in self.sandbox.status().cards]
        sizes = sorted(map(nodes.count, dict.fromkeys(nodes)), reverse=True)  # a larger one then fits only one node
        sizes[-1] -= 1
        for size in filter(None, sizes):
            self.sandbox.command("run", "-d", "--gpus", str(size), "--", *IDLE)
        return sum(sizes)

    # --- two: policies -----------------------------------------------------------------------------------------------

    def _policies(self, others: int) -> None:
        self.out.heading(
            2, f"One card, three busy programs with quotas of {', '.join(f'{q}%' for q in _QUOTAS.values())}"
        )
        if others:
            set_aside = "the other one is" if others == 1 else f"the other {others} are"
            self.out.note(f"(only one card is used from here on; {set_aside} set aside)")
        tenants = [
            self._begin(name, ["--core", str(quota), *self._slice], ["load"], _LOAD_US)
            for name, quota in _QUOTAS.items()
        ]
        for tenant in tenants:
            tenant.wait_until_working()
        for policy, words in _POLICIES:
            self._shares(policy, words, tenants, self.pace["shares"])
        if self.pace["idle"]:
            with tenants[-1].stopped():
                for policy, words in _RESTING:
                    self._shares(policy, f"gamma is idle: {words}", tenants, self.pace["idle"], idle=2)
        self.sandbox.ask({"op": "policy", "policy": _BEST})
        for tenant in tenants:
            tenant.finish()

    def _shares(
        self, policy: str, words: str, tenants: Sequence[Tenant], seconds: float, idle: int | None = None
    ) -> None:
        """Measure the shares by the tenants' own counts, print and judge them."""
        self.sandbox.ask({"op": "policy", "policy": policy})
        self.out.note(f"{policy}: {words}" if idle is None else f"{policy}, {words}")
        self._watch(promises.SETTLE)
        begin = time.monotonic()
        self._watch(seconds)
        end = time.monotonic()
        shares = [tenant.counter().share(begin, end, tenant.kernel_us) for tenant in tenants]
        self.out.bars(
            (name, f"quota {quota}%", share) for (name, quota), share in zip(_QUOTAS.items(), shares, strict=True)
        )
        quotas = [quota / 100 for quota in _QUOTAS.values()]
        self.outcome.append(promises.shares(policy, quotas, shares, self.bounds, idle))

    # --- three: online and offline -----------------------------------------------------------------------------------

    def _classes(self) -> None:
        self.out.heading(3, "A training job uses an idle card; a server takes it back at once")
        self.sandbox.ask({"op": "policy", "release_delay": 0.0})
        alone = _latencies(self._serve(self.pace["alone"]))
        self.out.note(f"the server alone: {_latency(alone)}")
        train = self._begin("train", ["--class", "offline", *self._slice], ["load", "--check"], _TRAIN_US)
        train.wait_until_working()
        pid = self._tenant("train").pid
        self._watch(promises.SETTLE / 2)
        begin = time.monotonic()
        self._watch(self.pace["whole"])
        share = train.counter().share(begin, time.monotonic(), _TRAIN_US)
        self.out.bars([("train", "offline", share)])
        self.outcome.append(promises.whole(share, self.bounds))
        self._in_gaps(train, alone)
        self._kept_off(train, alone)
        same = self._tenant("train").pid == pid == train.pid
        right = train.finish().right is True
        self.outcome.append(promises.nothing_lost(right=right, same_process=same, kernels=train.counter().done))

    def _in_gaps(self, train: Tenant, alone: promises.Latency) -> None:
        """Release delay 0: every request preempts an offline kernel."""
        self.out.note("release delay 0: the job runs between requests, which interrupt it")
        served = self._serve(self.pace["gaps"], shown=True)
        share = train.counter().share(served.begin, served.begin + served.seconds, _TRAIN_US)
        self._beside(served, alone, served.share, share, delay="0")

    def _kept_off(self, train: Tenant, alone: promises.Latency) -> None:
        """Release delay 100 ms: the server has the card to itself; offline work resumes when requests stop."""
        self._do("policy", "release-delay", "100ms")
        self.out.note("release delay 100 ms (qGPU's): the job is paused during requests")
        before = self._share("train")
        server = self._server(DAY)
        server.wait_until_working()
        self._watch(promises.SETTLE / 2)
        begin = time.monotonic()
        self._watch(self.pace["kept"])
        server.wait_for_work()
        with server.stopped():  # no more requests, but the server still runs: only the delay counts now
            served = server.counter()
            end = served.last or begin
            self._watch(max(self.pace["after"], 5 * DELAY))
            counter, after = train.counter(), self._share("train")
        share = counter.completed(begin, end, _TRAIN_US)
        self._beside(server.finish(), alone, served.share(begin, end, _REQUEST_US), share, delay="100 ms")
        times = after.preemptions - before.preemptions
        paused = after.paused_seconds - before.paused_seconds
        self.out.note(f"train was interrupted {times} time{'s' * (times != 1)} and paused for {paused:.1f} s", 1)
        self.outcome.append(promises.kept_off(share, self.bounds))
        first = counter.first_after(end)
        gone = None if first is None else first - end
        self.outcome.append(promises.resumed(gone, delay=DELAY, bounds=self.bounds))
        if gone is not None:
            self.out.note(f"{1000 * gone:.0f} ms after the last request, train had finished its next kernel", 1)

    def _beside(
        self, served: BurnResult, alone: promises.Latency, online: float, offline: float, *, delay: str
    ) -> None:
        latency = _latencies(served)
        self.out.bars([("serve", "online", online), ("train", "offline", offline)])
        self.out.note(f"beside the job: {_latency(latency)}", 1)
        requests = served.requests or 0
        self.outcome.append(promises.added(alone, latency, self.bounds, delay=delay, requests=requests))

    def _serve(self, seconds: float, *, shown: bool = False) -> BurnResult:
        server = self._server(f"{seconds:.3f}", shown=shown)
        self._watch(seconds + _PATIENCE, until=lambda: server.over)
        return server.result()

    def _server(self, seconds: str, *, shown: bool = False) -> Tenant:
        options, words = ["--class", "online", *self._slice], ["serve", "--period", "10ms", "--seconds", seconds]
        return self._begin("serve", options, words, _REQUEST_US, shown=shown)

    # --- four: memory ------------------------------------------------------------------------------------------------

    def _memory(self, quota: int) -> None:
        self.out.heading(4, "A program asks for more memory than its quota")
        asked = quota * 3 // 2
        words = ("run", "--memory", f"{quota}MiB", "--", "aliquot", "burn", "load", "--memory", f"{asked}MiB")
        self.out.command(*words)
        done = self.sandbox.tried(*words, "--seconds", "0.1")
        answer = (done.stderr.strip().splitlines() or ["it was granted"])[-1]
        self.out.note(answer)
        refused = done.returncode == 1 and "quota" in answer
        self.outcome.append(promises.memory(refused=refused, asked=memory(asked), quota=memory(quota)))

    # --- five: more memory than the card has -------------------------------------------------------------------------

    def _crowd(self) -> None:
        """One program sleeps, and its memory leaves for others; it wakes, and has it back."""
        self.out.heading(5, "Three programs on a card that holds two; one sleeps and wakes")
        status = self.sandbox.status()
        card = max(status.cards, key=lambda card: card.free_mib).memory_mib
        size = size_mib(card, status.pool.bytes >> 20 if status.pool else 0, real=self.bounds is promises.REAL)
        if not size:
            self.out.note("left out: the card, or the host's memory for what leaves it, is too small")
            return
        self._do("policy", "oversubscribe", "1.5")
        rest = card - int(_FITTING * size)
        if 3 * size < card:
            self.out.note(f"(another program has {memory(rest)} of this large card)")
            held = ["serve", "--memory", f"{rest}MiB", "--period", "500ms"]
            self._begin("rest", ["--memory", f"{rest + 1024}MiB"], held, _LOAD_US, shown=False)
        slice_ = ("--memory", f"{size + _CONTEXT_MIB}MiB")
        start = self.sandbox.home / "demo" / "wake"
        asleep = ["serve", "--memory", f"{size}MiB", "--period", "20ms", "--start-file", str(start), "--warmup", "0ms"]
        sleeper = self._begin(_SLEEPER, [*slice_, "--park", "1s"], [*asleep, "--check"], _LOAD_US)
        self._until(sleeper, lambda there: there.resident_bytes >= size << 20)
        jobs = []
        for name in _JOBS:
            load = ["load", "--memory", f"{size}MiB", "--check"]
            jobs.append(self._begin(name, ["--class", "offline", *slice_], load, _LOAD_US))
            jobs[-1].wait_until_working()
        there = self._until(sleeper, lambda there: there.where is Where.PARKED)
        parked, three = memory(there.parked_bytes >> 20), (sleeper, *jobs)
        self.out.note(f"{_SLEEPER} sleeps: {parked} of it are in the host's memory, and both jobs run")
        self._watch(self.pace["read"])
        run = not any(tenant.over for tenant in three)
        self.outcome.append(promises.crowded(size=memory(size), card=memory(card), parked=parked, held=run))
        woken = self._wake(sleeper, start)
        gone = next((name for name in _JOBS if (found := self._residency(name)) and found.parked_bytes), None)
        left = f", and {gone} left the card for it" if gone else ""
        self.out.note("it does not wake" if woken is None else f"it wakes: its first kernel took {woken:.2f} s{left}")
        self.outcome.append(promises.woken(woken, size=memory(size), bounds=self.bounds))
        self._watch(self.pace["read"])
        right = [tenant.finish().right is True for tenant in three]
        self.outcome.append(promises.memory_kept(right=all(right), kernels=sum(each.counter().done for each in three)))

    def _wake(self, sleeper: Tenant, start: Path) -> float | None:
        """Seconds from its first call to the end of its first kernel."""
        begin = time.monotonic()
        start.touch()
        while time.monotonic() < begin + _PATIENCE and not sleeper.over:
            first = sleeper.counter().first_after(begin) if sleeper.has_worked else None
            if first is not None:
                return first - begin
        return None

    def _residency(self, name: str) -> ResidencyStatus | None:
        tenants = self.sandbox.status().tenants
        shares = (share.residency for tenant in tenants if tenant.name == name for share in tenant.cards)
        return next((there for there in shares if there), None)

    def _until(self, tenant: Tenant, holds: Callable[[ResidencyStatus], bool]) -> ResidencyStatus:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline and not tenant.over:
            there = self._residency(tenant.name)
            if there is not None and holds(there):
                return there
            time.sleep(_LOOK / 10)
        raise DemoError(f"the memory of {tenant.name} does not move")

    # --- after the demo ----------------------------------------------------------------------------------------------

    def keep_running(self) -> None:
        """Something to watch: an offline job, and a server that is busy every few seconds."""
        options = ("--class", "offline", *self._slice)
        self.sandbox.command(
            "run", "-d", "--name", "train", *options, "--", "aliquot", "burn", "load", "--seconds", DAY
        )
        bursts = "while :; do aliquot burn serve --kernel 4ms --seconds 4; sleep 4; done"
        options = ("--class", "online", *self._slice)
        self.sandbox.command("run", "-d", "--name", "serve", *options, "--", "sh", "-c", bursts)

    # --- what every part uses ----------------------------------------------------------------------------------------

    def _do(self, *words: str, shown: str | None = None) -> None:
        """Print a command, and run it."""
        self.out.command(*([shown] if shown else words))
        self.sandbox.command(*words)

    def _begin(
        self, name: str, options: Sequence[str], burn: Sequence[str], kernel_us: float, *, shown: bool = True
    ) -> Tenant:
        """Print how a tenant is started, without the options that only the demo needs, and start it."""
        if shown:
            self.out.command("run", "-d", "--name", name, *options, "--", "aliquot", "burn", burn[0])
        return self.sandbox.begin(name, options, burn, kernel_us)

    def _watch(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Show the shares now and then for that long, or until a condition holds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not until():
            tenants = self.sandbox.status().tenants
            on_cards = ((tenant.name, share) for tenant in tenants for share in tenant.cards)
            shares = {name: share.share or 0.0 for name, share in on_cards if not share.exclusive}
            now = time.monotonic()
            if self.first_share is None and any(shares.values()):
                self.first_share = now - self._began
            if shares and now > self._shown + _SHOWN:
                self._shown = now
                said = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
                self.out.note(f"{now - self._began:.0f} s: {said}", 1)
            time.sleep(min(left, _LOOK))

    def _tenant(self, name: str) -> TenantStatus:
        for tenant in self.sandbox.status().tenants:
            if tenant.name == name:
                return tenant
        raise DemoError(f"{name} has ended")

    def _share(self, name: str) -> ShareStatus:
        return self._tenant(name).cards[0]


def size_mib(card_mib: int, pool_mib: int, *, real: bool) -> int:
    """Memory of each of the three programs; 0: the card or the pool is too small."""
    size = min(int(_PART * card_mib), pool_mib, _MOST_REAL_MIB if real else card_mib) // 1024 * 1024
    return size if size >= _LEAST_MIB else 0


def _typed(mib: int) -> str:
    """As people type it."""
    return f"{mib}MiB" if mib % 1024 else str(mib // 1024)


def _latencies(result: BurnResult) -> promises.Latency:
    """The latencies that the server measured."""
    if not result.latency_us:
        raise DemoError("the server finished no request")
    return result.latency_us


def _latency(latency: promises.Latency) -> str:
    return f"half of the requests within {microseconds(latency['p50'])}, 99% within {microseconds(latency['p99'])}"
