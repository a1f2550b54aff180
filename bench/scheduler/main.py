"""The order of things: one control plane, every extender in turn, the small cluster first and then the large one."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.pace import sentence
from bench.scheduler import report
from bench.scheduler.calls import Verbs
from bench.scheduler.claims import through_claims
from bench.scheduler.contestants import Contestant, Running, ours, peer
from bench.scheduler.ground import Ground, client_of
from bench.scheduler.kube import through_kube_scheduler
from bench.scheduler.load import busy_machine
from bench.scheduler.neighbours import Neighbours, settle
from bench.scheduler.trials import Numbers, cold_start, latency, throughput
from bench.scheduler.waiting import waiting

TRIALS = {
    "latency": "filter and prioritize, one caller, the small cluster",
    "throughput": "filter + prioritize + bind by several streams, the small cluster",
    "kube": "Pods through a real kube-scheduler, the small cluster",
    "claims": "Pods with ResourceClaims through a real kube-scheduler, the small cluster",
    "waiting": "CPU of the API server while Pods wait, the small cluster",
    "large": "cold start, filter and prioritize with every name, memory: the large cluster",
    "huge": "cold start, the huge cluster; only with --only, it takes ten minutes to make",
}
PLAIN = "kube-scheduler alone"
BUSY = "ours, busy machine"
_BUSY = 0.1  # of all cores: more than that, and the figures are not worth much


def _options(doc: str | None, argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    number = parser.add_argument
    number("--nodes", type=int, default=1_000, help="of the small cluster")
    number("--large-nodes", type=int, default=5_000, help="of the large one")
    number("--huge-nodes", type=int, default=15_000, help="of the huge one")
    number("--cards", type=int, default=8, help="of a node")
    number("--names", type=int, default=420, help="in a call; kube-scheduler sends 420 of 1,000")
    number("--streams", type=int, default=8)
    number("--pods", type=int, default=1_000, help="for filter + prioritize + bind")
    number("--kube-pods", type=int, default=500, help="through kube-scheduler")
    number("--calls", type=int, default=1_000, help="of each verb, for its latency")
    number("--seconds", type=float, default=30.0, help="that a slow extender may take for one trial")
    parser.add_argument("--only", default="", metavar="NAME,...", help="some trials; --list tells them")
    parser.add_argument("--quiet-only", action="store_true", help="no second column with other programs beside")
    parser.add_argument("--list", action="store_true", help="the trials, and nothing is run")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=[VAR=VALUE ...] COMMAND")
    parser.add_argument("--no-ours", action="store_true", help="the peers alone")
    parser.add_argument("--ours-flags", default="", help="more words for `aliquot scheduler`")
    parser.add_argument("--filter-path", default="/gpushare-scheduler/filter", help="of the peers, and of --url")
    parser.add_argument("--prioritize-path", default="", help="[default: the peers have none]")
    parser.add_argument("--bind-path", default="/gpushare-scheduler/bind")
    parser.add_argument("--whole-nodes", action="store_true", help="whole Nodes in the calls to the peers, not names")
    parser.add_argument("--resource", default="aliyun.com/gpu-mem", help="GPU memory in GiB, of nodes and Pods")
    parser.add_argument("--count-resource", default="aliyun.com/gpu-count", help="cards, of nodes")
    parser.add_argument("--url", default="", help="an extender that runs already, on the API server of --kubeconfig")
    parser.add_argument("--pid", type=int, help="its process, where its CPU and memory are wanted")
    parser.add_argument("--kubeconfig", type=Path, help="an API server that is there, in place of one of our own")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    parser.add_argument("--out", type=Path, help="the JSON into this file too")
    options = parser.parse_args(argv)
    unknown = sorted({name for name in options.only.split(",") if name} - TRIALS.keys())
    if unknown:
        parser.error(f"--only: no trial is called {', '.join(unknown)}; allowed: {', '.join(TRIALS)}")
    if options.url and not options.kubeconfig:
        parser.error("--url needs --kubeconfig: the API server that the extender looks at")
    return options


def contestants(options: argparse.Namespace) -> list[Contestant]:
    verbs = Verbs(
        filter=options.filter_path,
        prioritize=options.prioritize_path or None,
        bind=options.bind_path,
        whole_nodes=options.whole_nodes,
    )
    if options.url:
        return [Contestant(name="given", verbs=verbs, url=options.url, pid=options.pid)]
    own = [] if options.no_ours else [ours(options.ours_flags.split())]
    return own + [peer(text, verbs) for text in options.peer]


class Bench:
    """The trials that were asked for, one after the other."""

    def __init__(self, options: argparse.Namespace, ground: Ground, folder: Path) -> None:
        self._options, self._ground, self._folder = options, ground, folder
        wanted = options.only.split(",") if options.only else [name for name in TRIALS if name != "huge"]
        self.trials = [name for name in TRIALS if name in wanted]
        self.results: dict[str, Numbers] = {}

    def run(self, field: list[Contestant]) -> None:
        options, ground = self._options, self._ground
        for contestant in field:
            self.results[contestant.name] = {}
        if set(self.trials) - {"large", "huge"}:
            ground.grow(options.nodes)
        for contestant in field:
            self._small(contestant, contestant.name, ("latency", "throughput", "kube", "waiting"))
        if "kube" in self.trials and ground.plane is not None:
            settle(ground.say)
            ground.say(f"{PLAIN}: {options.kube_pods} Pods")
            self.results[PLAIN] = {}
            self._guard(PLAIN, lambda: self._through(None))
            self._compare(field)
        if "claims" in self.trials and ground.plane is not None:
            settle(ground.say)
            self.results.setdefault(PLAIN, {})
            if "kube_pods_per_s" not in self.results[PLAIN]:
                ground.say(f"{PLAIN}: {options.kube_pods} Pods")
                self._guard(PLAIN, lambda: self._through(None))
            ground.say(f"{PLAIN}: {options.kube_pods} Pods with claims")
            self._guard(PLAIN, self._claims)
            found = self.results[PLAIN]
            if found.get("kube_pods_per_s") and "claims_pods_per_s" in found:
                found["claims_ratio"] = found["claims_pods_per_s"] / found["kube_pods_per_s"]
        if field[0].ours and not options.quiet_only and {"latency", "throughput"} & set(self.trials):
            ground.say("the same with other programs beside")
            self.results[BUSY] = {}
            with busy_machine():
                self._small(field[0], BUSY, ("latency", "throughput"))
        if "large" in self.trials:
            ground.grow(options.large_nodes)
            for contestant in field:
                self._guard(contestant.name, partial(self._large, contestant))
        if "huge" in self.trials:
            ground.grow(options.huge_nodes)
            for contestant in field:
                self._guard(contestant.name, partial(self._huge, contestant))
        for found in self.results.values():
            counts = [value for key, value in found.items() if key in ("wrongs", "kube_wrongs")]
            if counts:
                found["all_wrongs"] = sum(counts)

    def _compare(self, field: list[Contestant]) -> None:
        """Through kube-scheduler, over the same without an extender."""
        plain = self.results[PLAIN]
        for contestant in field:
            found = self.results[contestant.name]
            for key, ratio in (("kube_pods_per_s", "kube_ratio"), ("kube_before_pods_per_s", "kube_before_ratio")):
                if key in found and plain.get(key):
                    found[ratio] = found[key] / plain[key]

    def _small(self, contestant: Contestant, column: str, trials: Sequence[str]) -> None:
        options, ground = self._options, self._ground
        for trial in (name for name in self.trials if name in trials):
            if trial in ("kube", "waiting") and ground.plane is None:
                continue
            if column != BUSY:
                settle(ground.say)
            ground.say(f"{column}: {TRIALS[trial]}")

            def measure(trial: str = trial) -> Numbers:
                with self._running(contestant) as running:
                    if trial == "latency":
                        return latency(
                            running,
                            ground,
                            names=options.names,
                            calls=options.calls,
                            seconds=options.seconds,
                            label="small",
                        )
                    if trial == "throughput":
                        return throughput(
                            running,
                            ground,
                            names=options.names,
                            pods=options.pods,
                            streams=options.streams,
                            seconds=options.seconds,
                        )
                    if trial == "waiting":
                        return waiting(running, ground, seconds=options.seconds / 2, resource=options.resource)
                    return self._through(running)

            self._guard(column, measure)

    def _through(self, running: Running | None) -> Numbers:
        options = self._options
        return through_kube_scheduler(
            running, self._ground, pods=options.kube_pods, seconds=2 * options.seconds, resource=options.resource
        )

    def _claims(self) -> Numbers:
        options = self._options
        return through_claims(
            self._ground,
            pods=options.kube_pods,
            seconds=4 * options.seconds,
            resource=options.resource,
            count_resource=options.count_resource,
        )

    def _large(self, contestant: Contestant) -> Numbers:
        options, ground = self._options, self._ground
        settle(ground.say)
        ground.say(f"{contestant.name}: cold start")
        running, found = cold_start(contestant, ground, self._folder, seconds=4 * options.seconds)
        self.results[contestant.name] |= found  # kept, even where it breaks down over what comes now
        try:
            ground.say(f"{contestant.name}: {found.get('cold_s', 0):.2f} s; filter and prioritize with all names")
            names = len(ground.nodes)
            calls = latency(running, ground, names=names, calls=200, seconds=options.seconds, label="large")
            memory = running.memory_mb()
        finally:
            running.stop()
        memory_figures = {"memory_mb": memory["VmRSS"], "memory_peak_mb": memory["VmHWM"]} if memory else {}
        return {**calls, **memory_figures}

    def _huge(self, contestant: Contestant) -> Numbers:
        settle(self._ground.say)
        running, found = cold_start(contestant, self._ground, self._folder, seconds=4 * self._options.seconds)
        running.stop()
        return {key.replace("cold_", "cold_huge_"): value for key, value in found.items()}

    @contextmanager
    def _running(self, contestant: Contestant) -> Iterator[Running]:
        running = contestant.start(self._ground.kubeconfig, self._folder)
        try:
            running.wait_ready()
            yield running
        finally:
            running.stop()

    def _guard(self, name: str, measure: Callable[[], Numbers]) -> None:
        """A peer that breaks down is reported, and the others go on."""
        neighbours = Neighbours()
        try:
            self.results[name] |= measure()
            if self._options.url:  # what is measured is no child of ours, and would count as another
                return
            if (share := neighbours.share()) > _BUSY:
                self._ground.say(f"{name}: other programs took {share:.0%} of the machine meanwhile; measure again")
            self.results[name]["others"] = max(share, self.results[name].get("others", 0.0))
            self.results[name]["stolen"] = max(neighbours.stolen(), self.results[name].get("stolen", 0.0))
        except (OSError, RuntimeError, TimeoutError) as error:
            self._ground.say(f"{name}: {error}")
            self.results[name]["failed"] = 1
            self._ground.clear()


def main(doc: str | None, argv: list[str] | None = None) -> int:
    """Measure, print; exit 1 when a limit is missed."""
    options = _options(doc, argv)
    if options.list:
        print("\n".join(f"{name:<12}{what}" for name, what in TRIALS.items()))
        return 0
    try:
        field = contestants(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"  {time.monotonic() - began:5.0f} s  {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="aliquot-bench-") as name, _ground(options, Path(name), tell) as ground:
        bench = Bench(options, ground, Path(name))
        bench.run(field)
    rows = report.figures(
        options.nodes, options.large_nodes, options.names, options.streams, options.kube_pods, options.huge_nodes
    )
    mine = field[0].name
    about = report.machine()
    whole = report.as_json(rows, bench.results, {**about, "seconds": round(time.monotonic() - began)})
    if options.out:
        options.out.write_text(whole + "\n")
    print(whole if options.output == "json" else report.render(rows, bench.results, mine))
    failed = [f"{name} broke down" for name, found in bench.results.items() if name == mine and "failed" in found]
    short = report.missed(rows, bench.results, mine) + failed
    print("\n".join(short) if short else "all limits held", file=sys.stderr)
    print(sentence(about["python_start_ms"]), file=sys.stderr)
    return 1 if short else 0


@contextmanager
def _ground(options: argparse.Namespace, folder: Path, tell: Callable[[str], None]) -> Iterator[Ground]:
    more = {"cards": options.cards, "resource": options.resource, "count_resource": options.count_resource}
    if options.kubeconfig:
        ground = Ground(client_of(options.kubeconfig, folder), options.kubeconfig, None, tell=tell, **more)
        try:
            yield ground
        finally:
            ground.remove()
        return
    from testbed.plane import ControlPlane

    tell("a control plane starts")
    with ControlPlane() as plane:
        yield Ground(plane.api, plane.kubeconfig, plane, tell=tell, **more)
