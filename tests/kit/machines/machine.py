"""A machine without GPUs: paper cards, an arbiter that only remembers, and a daemon on top.

`python tests/kit/machines/machine.py 2x24` is that daemon, with 2x8x24 one of two nodes of eight cards.
It lives in ALIQUOT_HOME. `Machine` starts and asks it, as a user would.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from aliquot.adapters.host.control import AnswerError, ask
from aliquot.adapters.host.home import Home, own_home
from aliquot.arbiter.timeline import Record
from aliquot.model.cardstate.control import CardControl
from aliquot.model.device import Card
from aliquot.model.residency import Residency
from aliquot.model.status.machine import HardwareStatus
from aliquot.model.tenant import Finding, SharingRules, Standing, Tenant
from aliquot.model.usage import Stretch

GIB = 1 << 30


def cards(count: int = 1, gib: int = 24) -> tuple[Card, ...]:
    return tuple(Card(index, gib * 1024, uuid=f"GPU-{index}", model="Paper 1000") for index in range(count))


class PaperNvml:
    """NVML with idle cards."""

    def __init__(self, there: tuple[Card, ...]) -> None:
        self._cards = there

    def cards(self) -> tuple[Card, ...]:
        return self._cards

    def memory(self, uuid: str) -> tuple[int, int]:
        return 0, next(card.memory_mib << 20 for card in self._cards if card.uuid == uuid)

    def hardware(self, uuid: str) -> HardwareStatus | None:
        return HardwareStatus(temperature_celsius=36.0)

    def utilisation(self, uuid: str) -> float | None:
        return 0.0


class PaperArbiter:
    """Records its calls; returns what the test has set."""

    def __init__(self, rules: SharingRules | None = None) -> None:
        self.tenants: dict[str, tuple[Tenant, Path]] = {}
        self.rules = rules
        self.living: set[str] = set()
        self.standing: list[Standing] = []
        self.found: list[Finding] = []
        self.running = False
        self.moves: list[tuple[str, bool]] = []  # tenants that were asked to leave (True) or to return
        self.why_not: str | None = None  # the answer to the next request to move

    def keep_trace(self, wanted: bool) -> None: ...

    def records(self) -> dict[str, list[Record]]:
        return {}

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def add(self, tenant: Tenant, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        (directory / "page").open("ab").close()
        self.tenants[tenant.id] = (tenant, directory)

    def change(self, tenant: Tenant) -> None:
        self.tenants[tenant.id] = (tenant, self.tenants[tenant.id][1])

    def remove(self, tenant_id: str) -> None:
        self.tenants.pop(tenant_id, None)

    def configure(self, rules: SharingRules) -> None:
        self.rules = rules

    def standings(self) -> list[Standing]:
        return self.standing

    def take_stretches(self) -> tuple[dict[str, Stretch], dict[str, Tenant]]:
        return {}, {}

    def findings(self) -> list[Finding]:
        return self.found

    def controls(self) -> dict[str, CardControl]:
        return {}

    def connected(self, tenant_id: str) -> bool:
        return tenant_id in self.living

    def alive(self, tenant_id: str, seconds: float) -> bool:
        return tenant_id in self.living

    def request_move(self, tenant_id: str, *, leave: bool) -> str | None:
        self.moves.append((tenant_id, leave))
        return self.why_not

    def residencies(self, tenant_id: str) -> list[Residency]:
        there = [standing.residency for standing in self.standing if standing.tenant == tenant_id]
        return [residency for residency in there if residency is not None]


ALIQUOT = (sys.executable, "-P", "-m", "aliquot")
FOREVER = ("sleep", "600")
PATIENCE = 60.0  # for anything that must happen at all; how fast is the benchmarks' business


def eventually(what: Callable[[], Any]) -> Any:
    """The first true result of `what`."""
    deadline = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


def processes_of(name: str) -> set[int]:
    """The processes that carry the name of a run, found without the daemon."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"ALIQUOT_NAME={name}\0".encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
        except OSError:
            continue
    return found


class Machine:
    """A home of its own, short enough for sockets, and the daemon in it."""

    def __init__(self, daemon: Sequence[str]) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="alq"))
        self.environment = {**os.environ, "ALIQUOT_HOME": str(self.home)}
        self._command = daemon
        self.daemon: subprocess.Popen[str] | None = None

    def up(self) -> str:
        """Start the daemon; its line that says that it is ready."""
        self.daemon = subprocess.Popen(
            [*self._command], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.daemon.stdout is not None
        said = []
        for line in self.daemon.stdout:
            said.append(line)
            if "ready: " in line:
                return line
        raise AssertionError("".join(said))

    def kill(self, number: int = signal.SIGKILL) -> int:
        """End the daemon; its exit code."""
        assert self.daemon is not None
        self.daemon.send_signal(number)
        self.daemon.communicate(timeout=PATIENCE)
        return self.daemon.returncode

    def aliquot(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """One command, to its end."""
        more.setdefault("env", self.environment)
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [*ALIQUOT, *words], capture_output=True, text=True, timeout=60, check=False, **more
        )
        return done

    def detach(self, *words: str) -> str:
        """A run in the background; its name."""
        said = self.aliquot("run", "-d", *words)
        assert said.returncode == 0, said.stderr
        return said.stdout.strip()

    @contextlib.contextmanager
    def begin(self, *words: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
        """One command that goes on; whatever becomes of the test, it does not outlive it."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        with subprocess.Popen([*ALIQUOT, *words], env=self.environment, text=True, **pipes) as process:
            try:
                yield process
            finally:
                process.kill()

    def status(self) -> dict[str, Any]:
        """As `top -o json` shows it, without the time that a command takes."""
        return ask([Home(str(self.home), str(self.home))], {"op": "status"}, PATIENCE)

    def names(self) -> list[str]:
        """The names of the tenants that run."""
        return [tenant["name"] for tenant in self.status()["tenants"]]

    def clear(self) -> None:
        """Stop all runs, active or queued. Returns when nothing is booked."""
        home = [Home(str(self.home), str(self.home))]
        there = self.status()
        for entry in [*there["queue"], *there["tenants"]]:
            with contextlib.suppress(AnswerError):  # it ended by itself meanwhile
                ask(home, {"op": "stop", "name": entry["name"], "timeout": 0}, PATIENCE)
        after = self.status()
        assert [after["tenants"], after["queue"], sum(card["memory_booked_bytes"] for card in after["cards"])] == [
            [],
            [],
            0,
        ]

    def close(self) -> None:
        """The daemon ends, and the home with it."""
        if self.daemon is not None:
            self.kill(signal.SIGTERM)
        shutil.rmtree(self.home, ignore_errors=True)


def paper(spec: str = "2x24") -> Machine:
    """A machine with such cards, of paper."""
    return Machine([sys.executable, __file__, spec])


def main() -> None:
    """The daemon, over paper cards."""
    from aliquot.services.dashboard.access import NO_DASHBOARD, Listen
    from aliquot.services.machine.service import Setup, run_daemon

    logging.basicConfig(level=logging.INFO, format="aliquot: %(message)s", stream=sys.stderr)
    *nodes, count, gib = map(int, sys.argv[-1].split("x"))

    def make(_: Sequence[Card], rules: SharingRules) -> PaperArbiter:
        return PaperArbiter(rules)

    run_daemon(
        Setup(
            home=own_home(),
            nvml=PaperNvml(cards(count * math.prod(nodes), gib)),
            make_arbiter=make,
            on_ready=lambda text: print(text, flush=True),
            environment={},
            front={"LD_PRELOAD": []},
            listen=NO_DASHBOARD if "--listen" not in sys.argv else Listen("127.0.0.1", int(sys.argv[2])),
            nodes=math.prod(nodes),
        )
    )


if __name__ == "__main__":
    main()
