"""The soak: the product from its chart on two real nodes, Pods of all dialects that come and go, programs killed.

Checked all along, and at the end.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from soak import report
from soak.checks import SCHEDULER_PORT, Checks, ask
from soak.churn import SPACE, Churn, Workload
from soak.faults import AGENT, SCHEDULER, Faults, running
from soak.memory import Memory
from testbed.client import Refused
from testbed.cluster import Cluster
from testbed.judges.traces import Traces, traces, until_gone
from testbed.processes import wait_until
from testbed.programs.shipping import NAMESPACE, install, label, uninstall

LABELS = (
    "qgpu-device-enable=enable",
    "mixed-qgpu-enable=enable",
    "gpushare=true",
    "sched.tensorstack.dev/accelerator=nvidia-gpu",
    "sched.tensorstack.dev/node-alloc-mode=sgn",
)
_SPARED = (0.35, 0.8)  # parts of the run, between which the leading scheduler and an agent are not killed
SETTLE = 120.0  # seconds of calm in which everything wanted must run
_SLOW = 30.0
_SAMPLE_EVERY = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    minutes: float = 30.0
    seed: int = 7
    fault_every: float = 7.0  # seconds, on average, from the end of one to the next
    calm_every: float = 180.0
    cards: int = 4
    card_gib: int = 16


class Soak:
    """One run on a cluster that has nothing of ours."""

    def __init__(self, cluster: Cluster, plan: Plan, tell: report.Progress) -> None:
        self.cluster, self.plan, self.tell = cluster, plan, tell
        self.calms: list[float] = []  # seconds until everything ran, each time
        self.slow: list[str] = []  # what did not run after a quarter of that time, and why
        self.lost: list[str] = []
        self.leaked: list[str] = []
        self.stumbles: set[str] = set()  # errors in the product's logs
        self.revived = 0  # times that the cluster's own kube-scheduler had ended by itself
        self.began = time.monotonic()
        cards = plan.cards * len(cluster.nodes)
        self.churn = Churn(cluster.plane, seed=plan.seed, cards=cards, card_gib=plan.card_gib)
        self.faults = Faults(cluster, seed=plan.seed, every=plan.fault_every, clock=self.clock)
        self.memory, self.checks = Memory(cluster), Checks(cluster)

    @property
    def spared(self) -> tuple[float, float]:
        """When one scheduler and one agent are not killed, in seconds."""
        return _SPARED[0] * self.plan.minutes * 60, _SPARED[1] * self.plan.minutes * 60

    def clock(self) -> float:
        return time.monotonic() - self.began

    def run(self) -> report.Results:
        before = traces(self.cluster)
        self.tell.say("installing the chart")
        label(self.cluster, *LABELS)
        # Where nobody answers, Pods wait: let in unseen, they would go to the cluster's own scheduler, past us.
        install(self.cluster, "--set", "webhook.failurePolicy=fail")
        self.cluster.plane.api("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE}})
        self.began = time.monotonic()
        self.churn.start()
        self.faults.start()
        try:
            self._watch()
        finally:
            self.faults.end()
            self.churn.end()
        self._finish(before)
        return report.results(self)

    # While it runs

    def _watch(self) -> None:
        seconds = self.plan.minutes * 60
        next_sample, next_calm = 0.0, self.plan.calm_every
        while (at := self.clock()) < seconds:
            for thread in (self.churn, self.faults):
                if thread.failure is not None:
                    raise RuntimeError(f"{thread.name} stopped") from thread.failure
            self._spare(at)
            self._revive()
            self.checks.look(at)
            if at >= next_sample:
                self.memory.sample(at)
                next_sample = at + _SAMPLE_EVERY
            if at >= next_calm:
                self._calm()
                next_calm = self.clock() + self.plan.calm_every
            self.tell.show(self)
            time.sleep(1.0)

    def _revive(self) -> None:
        """The cluster's own kube-scheduler, as the kubelet of a control plane does with it.

        It ends where, after a time in which it could not watch, a Pod of the same name is on another node ("Scheduler
        cache is corrupted", 1.36).
        """
        own = self.cluster.default_scheduler
        if own is None or own.running:
            return
        with suppress(OSError, RuntimeError):  # no API server in this moment: the next look tries again
            self.cluster.start_default_scheduler()
            self.revived += 1

    def _spare(self, at: float) -> None:
        """For a stretch, one scheduler and one agent live on, so that their memory can be followed."""
        inside = self.spared[0] <= at < self.spared[1]
        if inside and not self.faults.spared:
            agents, leader = running(self.cluster.nodes[0], AGENT), self._leader()
            if agents and leader:
                self.faults.spared = {agents[0], leader}
        if not inside:
            self.faults.spared = set()

    def _leader(self) -> int:
        """The pid of the scheduler that binds; 0: none does just now."""
        with suppress(OSError, Refused, KeyError, StopIteration):
            for pod in self.cluster.pods(NAMESPACE):
                if pod["metadata"]["labels"].get("app.kubernetes.io/component") != "scheduler":
                    continue
                if ask(pod["status"]["podIP"], SCHEDULER_PORT, "/aliquot/status")["leading"]:
                    pids = running(self.cluster.node(pod["spec"]["nodeName"]), SCHEDULER)
                    return next(pid for pid in pids if pod["metadata"]["uid"] in _cgroup(pid))
        return 0

    def _calm(self) -> None:
        """Nothing is killed and nothing is asked for: in a moment all that is wanted runs."""
        self.tell.say("calm")
        self.faults.hold()
        self.churn.hold()
        wanted = dict(self.churn.wanted)
        begun = time.monotonic()
        try:
            wait_until(lambda: not self._missing(wanted), _SLOW, "all that is wanted runs", every=0.5)
        except TimeoutError:
            self.slow += [f"at {self.clock():.0f} s: {pod}" for pod in self.checks.missing(wanted)]
            with suppress(TimeoutError):
                wait_until(lambda: not self._missing(wanted), SETTLE - _SLOW, "all that is wanted runs", every=0.5)
        self.lost += [f"at {self.clock():.0f} s: {pod}" for pod in self.checks.missing(wanted)]
        self.calms.append(time.monotonic() - begun)
        self.stumbles |= set(self.checks.stumbles())
        self.churn.go_on()
        self.faults.go_on()

    def _missing(self, wanted: Mapping[str, Workload]) -> list[str]:
        self._revive()
        self.checks.look(self.clock())
        self.memory.sample(self.clock())
        return self.checks.missing(wanted)

    # At the end

    def _finish(self, before: Traces) -> None:
        self.tell.say("the end: all that is wanted must run")
        self.cluster.heal()
        self._calm()
        self.tell.say("everything is removed: nothing may be left")
        self.churn.remove_all()
        try:
            wait_until(lambda: not self.checks.left(), 60, "nothing is left of the Pods", every=0.5)
        except TimeoutError:
            self.leaked += self.checks.left()
        self.memory.sample(self.clock())
        self.cluster.plane.api("DELETE", f"/api/v1/namespaces/{SPACE}")
        self.tell.say("uninstalling")
        uninstall(self.cluster)
        label(self.cluster, *(f"{label_text.partition('=')[0]}-" for label_text in LABELS))
        self.leaked += [f"after uninstall: {leak}" for leak in until_gone(self.cluster, before, 60)]


def _cgroup(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (default: 30)")
    parser.add_argument("--seed", type=int, default=7, help="decides what is asked for and what is killed, and when")
    parser.add_argument("--fault-every", type=float, default=7.0, help="seconds from one fault to the next, on average")
    parser.add_argument("--json", type=Path, help="all figures and samples, into this file")
    parser.add_argument("--report", type=Path, help="a page of Markdown, into this file; its plot into img/ beside it")
    given = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster is taken down
    calm = 180.0 if given.minutes >= 10 else given.minutes * 20  # three in a short run
    plan = Plan(minutes=given.minutes, seed=given.seed, fault_every=given.fault_every, calm_every=calm)
    with tempfile.TemporaryDirectory(prefix="aliquot-soak-") as folder, report.Progress(plan.minutes) as tell:
        tell.say("starting the cluster")
        with Cluster(Path(folder), cards=plan.cards, memory_gib=plan.card_gib) as cluster:
            found = Soak(cluster, plan, tell).run()
    if given.json:
        given.json.write_text(json.dumps(found.as_json(), indent=1))
    if given.report:
        report.write(found, given.report)
    print(found.summary())
    return 0 if found.good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; nothing was written, and nothing is left")
