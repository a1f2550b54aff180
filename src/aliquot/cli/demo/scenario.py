"""Runs the parts of the demo; the fifth is in crowd.py. promises.py decides whether a promise was held."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aliquot.cli.demo import promises
from aliquot.cli.demo.crowd import crowd
from aliquot.cli.demo.output import Output, Row, bars, command, heading, note
from aliquot.cli.demo.processes import DemoError, Sandbox, Tenant
from aliquot.cli.demo.promises import Bounds, Pace, Promise, microseconds
from aliquot.cli.pods.submit import PASSED_ON
from aliquot.cli.yamlvalues import parse_yaml
from aliquot.model.status.burn import BurnResult
from aliquot.model.status.machine import PodStatus, ShareStatus, Status, TenantStatus
from aliquot.wording.amounts import memory

PODS = Path(__file__).parent / "pods.yaml"
QUOTAS = (("alpha", 50), ("beta", 30), ("gamma", 20))
POLICIES = (
    ("best-effort", "all that have work get the same, whatever their quota"),
    ("burst-share", "by quota; time that one leaves unused goes to the others"),
    ("fixed-share", "by quota and never more, even when the card is idle"),
)
RESTING = (
    ("fixed-share", "its share stays unused"),
    ("burst-share", "its share goes to the others"),
)
RELEASE_DELAY = 0.1
_LOOK = 0.25  # seconds between checks
_LOAD_US, _TRAIN_US, _REQUEST_US = 1_000.0, 20_000.0, 1_000.0
_DISAGREE = 0.05  # difference between the daemon's and the tenant's measurement that is worth a line
_ENDED = ("Succeeded", "Failed")
_DAY = 86_400
_POD_PATIENCE = 15.0  # seconds until every Pod runs or has a reason
_NOTEBOOK = "notebook"  # holds most of a card in the first part
_ROOM = (
    2048 + 1024,
    0.2,
)  # what it leaves: MiB, and a part of the card. Two Pods of pods.yaml fit beside it, not three


@dataclass(slots=True)
class Scenario:
    """The parameters of the demo and its results so far."""

    sandbox: Sandbox
    output: Output
    pace: Pace
    bounds: Bounds
    began: float
    outcome: list[Promise] = field(default_factory=list)
    first_share: float | None = None  # seconds from the beginning
    slice_mib: int = 2048

    def run(self) -> None:
        """Run all parts."""
        self.output.line("Measuring the speed of an idle card ...")
        self.sandbox.calibrate()
        cards = self.sandbox.status().cards
        self.slice_mib = min(2048, cards[0].memory_mib // 8)
        self._dialects()
        others = self.sandbox.block_cards(all_but=1)
        self._policies(others)
        self._classes()
        self._memory()
        crowd(self)
        self.output.finish()

    # --- one: placement ----------------------------------------------------------------------------------------------

    def _dialects(self) -> None:
        heading(self.output, 1, "Three Pods, written for three vendors: which card does each one get?")
        self._fill_a_card()
        self._note(f"free memory: {_free(self.sandbox.status())}")
        self._command(f"aliquot apply -f {PODS.name}")
        apply_pods(self.sandbox)
        pods = settled_pods(self.sandbox)
        for pod in pods:
            where = ", ".join(f"card {share.index}" for share in pod.cards) or "no card yet"
            self._note(f"{pod.name} -> {where}")
            for sentence in [pod.reason] if pod.reason else pod.why:
                self._note(sentence, 1)
        self._note(f"free memory now: {_free(self.sandbox.status())}")
        self.watch(self.pace.read)
        running = [pod for pod in pods if pod.phase == "Running"]
        reasons = [f"{pod.name}: {pod.reason or pod.phase}" for pod in pods if pod not in running]
        self.outcome.append(promises.placed(wanted=3, running=len(running), reasons=reasons))
        for pod in pods:
            request = {"op": "delete", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "grace": 1.0}
            self.sandbox.ask(request)
        self.sandbox.end_if_running(_NOTEBOOK)

    def _fill_a_card(self) -> None:
        """Where there are two cards, book most of one: otherwise they would be alike, and there would be no choice."""
        cards = self.sandbox.status().cards
        fixed, part = _ROOM
        held = cards[0].memory_mib - fixed - int(part * cards[0].memory_mib)
        held = held // 1024 * 1024
        if len(cards) < 2 or held < 1024:
            return
        self._command(f"aliquot run -d --name {_NOTEBOOK} {_typed(held)} -- sleep infinity")
        self.sandbox.occupy(_NOTEBOOK, held)

    # --- two: policies -----------------------------------------------------------------------------------------------

    def _policies(self, others: int) -> None:
        quotas = ", ".join(f"{quota}%" for _, quota in QUOTAS)
        heading(self.output, 2, f"One card, three busy programs with quotas of {quotas}")
        if others:
            self._note(f"(only one card is used from here on; {_cards(others)} set aside)")
        for name, quota in QUOTAS:
            self._command(f"aliquot run -d --name {name} --core {quota} {self._typed} -- aliquot burn load")
        tenants = [
            self.sandbox.begin(
                name, ["--core", str(quota), *self._slice], ["load"], kernel_us=_LOAD_US, stays=name == QUOTAS[-1][0]
            )
            for name, quota in QUOTAS
        ]
        for tenant in tenants:
            tenant.wait_until_working()
        for policy, words in POLICIES:
            self.sandbox.policy(policy)
            self._note(f"{policy}: {words}")
            self._shares(policy, tenants, self.pace.shares)
        if self.pace.idle is not None:
            tenants[-1].rest()
            for policy, words in RESTING:
                self.sandbox.policy(policy)
                self._note(f"{policy}, {tenants[-1].name} is idle: {words}")
                self._shares(policy, tenants, self.pace.idle, idle=len(tenants) - 1)
        self.sandbox.policy("best-effort")
        for tenant in tenants[:-1]:
            tenant.finish()
        self.sandbox.end(tenants[-1].name)

    def _shares(self, policy: str, tenants: Sequence[Tenant], seconds: float, idle: int | None = None) -> None:
        """Measure the shares by the tenants' own counts, print and judge them."""
        self.watch(self.pace.settle)
        begin = time.monotonic()
        reported = self.watch(seconds)
        end = time.monotonic()
        found = [tenant.counter().share(begin, end, tenant.kernel_us) for tenant in tenants]
        rows = [Row(name, f"quota {quota}%", share) for (name, quota), share in zip(QUOTAS, found, strict=True)]
        bars(self.output, rows)
        for tenant, share in zip(tenants, found, strict=True):
            by_daemon = reported.get(tenant.name)
            if by_daemon is not None and abs(by_daemon - share) > _DISAGREE:
                self._note(f"({tenant.name}: the daemon measured {by_daemon:.1%})", 1)
        quotas = [quota / 100 for _, quota in QUOTAS]
        self.outcome.append(promises.shares(policy, quotas, found, self.bounds, idle))

    # --- three: online and offline -----------------------------------------------------------------------------------

    def _classes(self) -> None:
        heading(self.output, 3, "A training job uses an idle card; a server takes it back at once")
        self.sandbox.policy(release_delay=0.0)
        alone = _latencies(self._serve(self.pace.alone))
        self._note(f"the server alone: {_latency(alone)}")
        self._command(f"aliquot run -d --name train --class offline {self._typed} -- aliquot burn load")
        train = self.sandbox.begin(
            "train", ["--class", "offline", *self._slice], ["load", "--check"], kernel_us=_TRAIN_US
        )
        train.wait_until_working()
        pid = self._tenant("train").pid
        self.watch(self.pace.settle / 2)
        begin = time.monotonic()
        self.watch(self.pace.whole)
        share = train.counter().share(begin, time.monotonic(), _TRAIN_US)
        bars(self.output, [Row("train", "offline", share)])
        self.outcome.append(promises.whole(share, self.bounds))
        self._in_gaps(train, alone)
        self._kept_off(train, alone)
        same = self._tenant("train").pid == pid == train.pid
        ended = train.finish()
        self.outcome.append(
            promises.nothing_lost(right=ended.right is True, same_process=same, kernels=train.counter().done)
        )

    def _in_gaps(self, train: Tenant, alone: promises.Latency) -> None:
        """Release delay 0: every request preempts an offline kernel."""
        self._command(f"aliquot run --class online {self._typed} -- aliquot burn serve --kernel 1ms --period 10ms")
        self._note("release delay 0: the job runs between requests, which interrupt it")
        served = self._serve(self.pace.gaps)
        begin, end = served.begin, served.begin + served.seconds
        share = train.counter().share(begin, end, _TRAIN_US)
        latency = _latencies(served)
        bars(self.output, [Row("serve", "online", served.share), Row("train", "offline", share)])
        self._note(f"beside the job: {_latency(latency)}", 1)
        self.outcome.append(promises.added(alone, latency, self.bounds, delay="0", requests=served.requests or 0))

    def _kept_off(self, train: Tenant, alone: promises.Latency) -> None:
        """Release delay 100 ms: the server has the card to itself; offline work resumes when requests stop."""
        self.sandbox.policy(release_delay=RELEASE_DELAY)
        self._note("release delay 100 ms (qGPU's): the job is paused during requests")
        before = self._share("train")
        server = self._server(_DAY)
        server.wait_until_working()
        self.watch(self.pace.settle / 2)
        begin = time.monotonic()
        self.watch(self.pace.kept)
        server.wait_for_work()
        with server.stopped():  # no more requests, but the server still runs: only the delay counts now
            served = server.counter()
            end = served.last or begin
            self.watch(max(self.pace.after, 5 * RELEASE_DELAY))
            counter, after = train.counter(), self._share("train")
            server.ask_to_end()
        ended = server.result()
        latency = _latencies(ended)
        share = counter.completed(begin, end, _TRAIN_US)
        online = served.share(begin, end, _REQUEST_US)
        bars(self.output, [Row("serve", "online", online), Row("train", "offline", share)])
        times = after.preemptions - before.preemptions
        paused = after.paused_seconds - before.paused_seconds
        self._note(f"beside the job: {_latency(latency)}", 1)
        self._note(f"train was interrupted {_times(times)} and paused for {paused:.1f} s", 1)
        self.outcome.append(promises.added(alone, latency, self.bounds, delay="100 ms", requests=ended.requests or 0))
        self.outcome.append(promises.kept_off(share, self.bounds))
        on = counter.first_after(end)
        gone = None if on is None else on - end
        self.outcome.append(promises.resumed(gone, delay=RELEASE_DELAY, bounds=self.bounds))
        if gone is not None:
            self._note(f"{1000 * gone:.0f} ms after the last request, train had finished its next kernel", 1)

    def _serve(self, seconds: float) -> BurnResult:
        server = self._server(seconds)
        self.watch(seconds + 30, until=lambda: server.over)
        return server.result()

    def _server(self, seconds: float) -> Tenant:
        words = ["serve", "--period", "10ms", "--seconds", f"{seconds:.3f}"]
        return self.sandbox.begin("serve", ["--class", "online", *self._slice], words, kernel_us=_REQUEST_US)

    # --- four: memory ------------------------------------------------------------------------------------------------

    def _memory(self) -> None:
        heading(self.output, 4, "A program asks for more memory than its quota")
        quota, asked = self.slice_mib, self.slice_mib * 3 // 2
        words = ("run", "--memory", f"{quota}MiB", "--", "aliquot", "burn", "load", "--memory", f"{asked}MiB")
        self._command(f"aliquot {' '.join(words)}")
        done = self.sandbox.tried(*words, "--seconds", "0.1")
        answer = (done.stderr.strip().splitlines() or ["it was granted"])[-1]
        self._note(answer)
        self.outcome.append(
            promises.memory(
                refused=done.returncode == 1 and "quota" in answer, asked=memory(asked), quota=memory(quota)
            )
        )

    # --- observation -------------------------------------------------------------------------------------------------

    def _note(self, text: str, level: int = 0) -> None:
        note(self.output, text, level)

    def _command(self, text: str) -> None:
        command(self.output, text)

    @property
    def _slice(self) -> list[str]:
        return ["--memory", f"{self.slice_mib}MiB"]

    @property
    def _typed(self) -> str:
        return _typed(self.slice_mib)

    def watch(self, seconds: float, until: Callable[[], bool] | None = None) -> dict[str, float]:
        """Show the shares for that long, or until a condition holds. Returns the daemon's mean shares."""
        end = time.monotonic() + seconds
        sums: dict[str, list[float]] = {}
        while (left := end - time.monotonic()) > 0 and not (until is not None and until()):
            rows = rows_of(self.sandbox.status())
            for row in rows:
                if row.share is not None:
                    sums.setdefault(row.name, []).append(row.share)
                if self.first_share is None and row.share:
                    self.first_share = time.monotonic() - self.began
            self.output.show(rows)
            time.sleep(min(left, _LOOK / 2 if until else _LOOK))
        self.output.show(())
        return {name: sum(values) / len(values) for name, values in sums.items()}

    def _tenant(self, name: str) -> TenantStatus:
        for tenant in self.sandbox.status().tenants:
            if tenant.name == name:
                return tenant
        raise DemoError(f"{name} has ended")

    def _share(self, name: str) -> ShareStatus:
        return self._tenant(name).cards[0]


def apply_pods(sandbox: Sandbox) -> None:
    """Same as `aliquot apply -f pods.yaml`."""
    objects = [document.value for document in parse_yaml(PODS.read_bytes())]
    environment = {
        name: value for name, value in sandbox.environment.items() if name in PASSED_ON or name.startswith("ALIQUOT_")
    }
    sandbox.ask({"op": "apply", "objects": objects, "cwd": str(sandbox.home), "env": environment, "dry_run": False})


def settled_pods(sandbox: Sandbox) -> list[PodStatus]:
    """The Pods, once every one runs or has a reason."""
    deadline = time.monotonic() + _POD_PATIENCE
    while True:
        pods = sandbox.status().pods or []
        waiting = [pod for pod in pods if pod.phase not in ("Running", *_ENDED) and not pod.reason]
        if not waiting or time.monotonic() > deadline:
            return pods
        time.sleep(_LOOK / 5)


def keep_running(sandbox: Sandbox) -> None:
    """Start something to watch: an offline job and a bursty server; with a second card, the Pods too."""
    for tenant in sandbox.status().tenants:
        sandbox.end(tenant.name)
    sandbox.policy("best-effort", RELEASE_DELAY)
    cards = sandbox.status().cards
    share = 0.5
    if len(cards) > 1:
        sandbox.block_cards(all_but=2)
        apply_pods(sandbox)
        settled_pods(sandbox)
        share = 0.79  # a Pod has 20% of the first card: the job goes to the second, and the server joins it there
    online = ("--class", "online", "--memory", "256MiB")
    bursts = "while :; do aliquot burn serve --kernel 4ms --seconds 4; sleep 4; done"
    sandbox.command("run", "-d", "--name", "serve", *online, "--", "sh", "-c", bursts)
    offline = ("--class", "offline", "--memory", f"{int(share * (cards[0].memory_mib))}MiB")
    load = ("aliquot", "burn", "load", "--kernel", "20ms", "--seconds", str(_DAY))
    sandbox.command("run", "-d", "--name", "train", *offline, "--", *load)


def rows_of(status: Status) -> list[Row]:
    """The tenants of the demo and their shares."""
    return [
        Row(
            tenant.name,
            tenant.app_class if share.core is None else f"{tenant.app_class} {share.core:g}%",
            share.share,
        )
        for tenant in status.tenants
        for share in tenant.cards
        if not tenant.name.startswith("elsewhere-")
    ]


def _free(status: Status) -> str:
    """The free memory of the cards; on several nodes, of the first node's."""
    cards = [card for card in status.cards if card.node == status.cards[0].node]
    return ", ".join(f"card {card.index}: {memory(card.free_mib)}" for card in cards)


def _typed(mib: int) -> str:
    """The option as people type it."""
    gib, rest = divmod(mib, 1024)
    return f"--memory {mib}MiB" if rest else f"--memory {gib}"


def _cards(count: int) -> str:
    return "the other one is" if count == 1 else f"the other {count} are"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _latencies(result: BurnResult) -> promises.Latency:
    """The latencies that the server measured."""
    if not result.latency_us:
        raise DemoError("the server finished no request")
    return result.latency_us


def _latency(found: promises.Latency) -> str:
    return f"half of the requests within {microseconds(found['p50'])}, 99% within {microseconds(found['p99'])}"
