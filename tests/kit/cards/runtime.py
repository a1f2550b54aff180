"""A simulated card, the arbiter's daemon over it, and tenants with the shim: each a process of its own, as in life.

What a tenant got of the card is read from the card's own accounts, which are exact however busy this machine is."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aliquot.adapters.gpu import player
from simgpu.rig import ROOT, Player, Tenant, wait_until

GIB = 1 << 30
PATIENCE = 60.0
WINDOWS = 6  # a machine that is too busy for the daemon spoils a window, not all of them


class Load:
    """`aliquot burn` as a process of a tenant, until it is finished."""

    def __init__(self, environment: dict[str, str], words: tuple[str, ...]) -> None:
        self._until = Path(environment["ALIQUOT_TENANT"]).with_suffix(f".until{time.monotonic_ns()}")
        command = [sys.executable, "-P", "-m", "aliquot", "burn", *words, "--iterations-per-us", "1000", "--check"]
        command += ["--until-file", str(self._until), "-o", "json"]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def finish(self) -> dict[str, Any]:
        """It ends in good order; what it tells of itself, results that are checked included."""
        self._until.touch()
        output, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, output
        answer: dict[str, Any] = json.loads(output)
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)


class Node:
    """A card of 24 GiB, the daemon, and who is on the card."""

    def __init__(self, *options: str, pods: bool = False, pool: bool = False, control: str = "proven") -> None:
        self.control = control
        self.folder = Path(tempfile.mkdtemp(prefix="alqrt"))  # short: the path of a socket has 107 bytes
        self._daemon_options = ["--pods"] if pods else []
        self.pool = Path(tempfile.mkdtemp(prefix="alqpool", dir="/dev/shm")) if pool else None
        self._daemon_options += ["--pool", str(self.pool)] if pool else []
        self.player = Player("--memory", str(24 * 1024), *options)
        self.rules: dict[str, Any] = {}
        self.tenants: dict[str, dict[str, Any]] = {}
        self.loads: list[Load] = []
        self._count = 0
        self.daemon = self._start()
        self.configure()

    # --- the daemon --------------------------------------------------------------------------------------------

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "kit.cards.runtimedaemon", *self._daemon_options]
        pipe, environment = (
            subprocess.PIPE,
            self.player.environment() | {"CONTROL": self.control, "STATE": str(self.folder)},
        )
        daemon = subprocess.Popen(command, env=environment, cwd=ROOT / "tests", text=True, stdin=pipe, stdout=pipe)
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == '"ready"\n'
        return daemon

    def kill_daemon(self) -> None:
        """End the daemon as kill -9 does. Nothing starts it again by itself."""
        self.daemon.kill()
        self.daemon.communicate(timeout=PATIENCE)

    def restart_daemon(self) -> None:
        """Start a new daemon, and give it what the one before knew."""
        self.daemon = self._start()
        self.ask("configure", **self.rules)
        for name, tenant in self.tenants.items():
            self.ask("add", name=name, **tenant)

    def ask(self, do: str, **words: Any) -> Any:
        assert self.daemon.stdin is not None
        assert self.daemon.stdout is not None
        self.daemon.stdin.write(json.dumps({"do": do, **words}) + "\n")
        self.daemon.stdin.flush()
        return json.loads(self.daemon.stdout.readline())

    def configure(self, policy: str = "best-effort", release_delay: float = 0.1, **more: Any) -> None:
        self.rules = {"policy": policy, "release_delay": release_delay, **more}
        self.ask("configure", **self.rules)

    def standing(self, name: str) -> dict[str, Any]:
        """How the tenant stands, as of the daemon's last round; nothing before the first."""
        return next((standing for standing in self.ask("standings") if standing["tenant"] == name), {})

    # --- tenants -----------------------------------------------------------------------------------------------

    def tenant(
        self, app_class: str = "normal", core: int | None = None, memory: int = 4 * GIB, park_after: float | None = None
    ) -> str:
        """Add a tenant. Returns its name."""
        self._count += 1
        name = f"{app_class}{self._count}"
        self.tenants[name] = {
            "folder": str(self.folder / name), "app_class": app_class, "core": core, "memory": memory,
            "park_after": park_after,
        }  # fmt: skip
        self.ask("add", name=name, **self.tenants[name])
        return name

    def environment(self, name: str) -> dict[str, str]:
        environment = self.player.environment()
        return environment | {
            "LD_PRELOAD": f"{player.shim()} {environment['LD_PRELOAD']}",
            "ALIQUOT_TENANT": self.tenants[name]["folder"],
        }

    def load(self, name: str, kernel: str = "1ms", *words: str) -> Load:
        """A process of the tenant that keeps the card busy."""
        return self._burn(name, "load", "--kernel", kernel, *words)

    def server(self, name: str) -> Load:
        """A process of the tenant that has 1 ms of work every 20 ms."""
        return self._burn(name, "serve", "--kernel", "1ms", "--period", "20ms")

    def _burn(self, name: str, *words: str) -> Load:
        made = Load(self.environment(name), words)
        self.loads.append(made)
        return made

    def puppet(self, name: str) -> Tenant:
        """A process of the tenant that is idle until it is told what to do (simgpu.programs.Server); it is ready."""
        made = self.player.start("serve", **self.environment(name))
        assert made.hear() == "ready"
        return made

    def until_runs(self, *loads: Load) -> None:
        """Until each is known, has computed, and is no newcomer any more, whom the daemon lets alone for a while."""
        pids = {load.pid for load in loads}

        def known() -> bool:
            return pids <= {pid for standing in self.ask("standings") for pid in standing["processes"]}

        wait_until(known, "they have registered")
        self.goes_on(*pids)
        time.sleep(0.4)

    # --- the card's accounts -----------------------------------------------------------------------------------

    def busy(self, pid: int) -> int:
        """Nanoseconds that the process had the card."""
        return sum(group.busy_ns for group in self.player.card().compute(pid))

    def goes_on(self, *pids: int) -> float:
        """Waits until each of them has got on by 5 ms of work; the seconds that took."""
        before, began = {pid: self.busy(pid) for pid in pids}, time.monotonic()
        wait_until(lambda: all(self.busy(pid) > was + 5_000_000 for pid, was in before.items()), "all of them get on")
        return time.monotonic() - began

    def shares(self, seconds: float, *tenants: tuple[int, ...]) -> list[float]:
        """What each tenant's processes, named by their pids, have of the card in the time to come."""
        before = self.player.card()
        time.sleep(seconds)
        after = self.player.card()

        def busy(pids: tuple[int, ...]) -> int:
            every = [(after.compute(pid), before.compute(pid)) for pid in pids]
            return sum(sum(g.busy_ns for g in new) - sum(g.busy_ns for g in old) for new, old in every)

        return [busy(pids) / (after.now_ns - before.now_ns) for pids in tenants]

    def shares_come_to(
        self, holds: Callable[..., bool], *tenants: tuple[int, ...], seconds: float = 1.0
    ) -> list[float]:
        """The shares of the first of a few windows in which it holds; it fails when it holds in none."""
        seen = []
        for _ in range(WINDOWS):
            seen.append(self.shares(seconds, *tenants))
            if holds(*seen[-1]):
                return seen[-1]
        raise AssertionError(f"shares were {seen}")

    # --- the end -----------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Remove all tenants; the daemon runs, with the rules it began with."""
        self.daemon.send_signal(signal.SIGCONT)  # a test that failed may have left it stopped
        for load in self.loads:
            load.kill()
        for puppet in self.player.tenants:
            puppet.kill()
        self.loads.clear()
        self.player.tenants.clear()
        if self.daemon.poll() is not None:
            self.restart_daemon()
        for name in self.tenants:
            self.ask("remove", name=name)
        self.tenants.clear()
        self.configure()
        wait_until(lambda: self.player.card().used == 0, "the card is empty")

    def close(self) -> None:
        for load in self.loads:
            load.kill()
        self.daemon.send_signal(signal.SIGCONT)
        self.daemon.communicate(timeout=PATIENCE)  # it ends with its standard input
        self.player.__exit__(None, None, None)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.pool is not None:
            shutil.rmtree(self.pool, ignore_errors=True)
            self.pool.with_suffix(".log").unlink(missing_ok=True)


def near(expected: list[float], points: float) -> Callable[..., bool]:
    """Whether shares are as expected, give or take so many points."""
    return lambda *shares: all(abs(a - b) * 100 <= points for a, b in zip(shares, expected, strict=True))
