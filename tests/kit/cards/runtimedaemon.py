"""The arbiter's daemon over simulated cards, as a process: `python -m kit.cards.runtimedaemon` under libsimrm.

It does what it is told on standard input, one JSON object a line, and ends with it; each is answered in a line. With
`--pods` tenants are Pods: a process is of the one that it, or an ancestor of it, was said to be in (`belongs`)."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from aliquot.adapters.gpu import player
from aliquot.adapters.gpu.nvml import Nvml
from aliquot.adapters.host.process import processes
from aliquot.model.cardstate.control import FORCED, PROVEN, CardControl
from aliquot.model.claim import AppClass
from aliquot.model.node import Isolation
from aliquot.model.tenant import Allotment, SharingRules, Tenant
from aliquot.services.mover.client import MoverClient
from aliquot.services.proof.startup import ControlPlan, Mode, plan_control
from aliquot.services.runtime.arbiterd import Arbiterd


class Server:
    """One method for each command."""

    def __init__(self) -> None:
        nvml = Nvml()
        cards = nvml.cards()
        self.uuid = cards[0].uuid
        self.pods: dict[int, str] | None = {} if "--pods" in sys.argv else None
        whose = None if self.pods is None else self._whose
        mover = None
        if "--pool" in sys.argv:
            folder = Path(sys.argv[sys.argv.index("--pool") + 1])
            mover = MoverClient(folder, 0, os.environ, log_file=folder.with_suffix(".log"))
        mode = os.environ.get("CONTROL", "unproven")
        plan = ControlPlan({self.uuid: {"proven": PROVEN, "forced": FORCED}.get(mode, CardControl())}, None)
        if mode in set(Mode):
            folder = Path(os.environ["STATE"])
            plan = plan_control(
                Mode(mode), cards, nvml, state=folder, run=folder, shim=player.shim(), simulated=True
            )  # fmt: skip
        self.arbiter = Arbiterd(
            cards,
            rules=SharingRules(),
            nvml=nvml,
            simulated=True,
            whose=whose,
            mover=mover,
            **plan._asdict(),
        )
        self.arbiter.start()

    def configure(self, policy: str, release_delay: float, oversubscribe: float = 1.0, host_pool: int = 0) -> None:
        rules = SharingRules(Isolation(policy), release_delay, oversubscribe=oversubscribe, host_pool=host_pool)
        self.arbiter.configure(rules)

    def request_move(self, name: str, leave: bool) -> str | None:
        return self.arbiter.request_move(name, leave=leave)

    def arrivals(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(arrival) for arrival in self.arbiter.take_arrivals()]

    def mover(self) -> int | None:
        state = None if self.arbiter.parking is None else self.arbiter.parking.mover.state
        return None if state is None else state.pid

    def add(
        self, name: str, folder: str, app_class: str, core: int | None, memory: int, park_after: float | None = None
    ) -> None:
        allotment = Allotment(self.uuid, memory, None if core is None else 10 * core)
        uid = os.getuid() if self.pods is None else None
        self.arbiter.add(
            Tenant(name, name, AppClass(app_class), (allotment,), uid, park_after=park_after), Path(folder)
        )

    def belongs(self, pid: int, name: str) -> None:
        assert self.pods is not None
        self.pods[pid] = name

    def _whose(self, pid: int) -> str | None:
        pods = self.pods or {}
        return next((pods[ancestor] for ancestor in processes.ancestors(pid) if ancestor in pods), None)

    def remove(self, name: str) -> None:
        self.arbiter.remove(name)

    def control(self) -> list[str | None]:
        found = self.arbiter.controls()[self.uuid]
        return [found.level, found.reason]

    def findings(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(finding) for finding in self.arbiter.findings()]

    def standings(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(standing) for standing in self.arbiter.standings()]


def main() -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    server = Server()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(getattr(server, order.pop("do"))(**order)), flush=True)
    server.arbiter.stop()


if __name__ == "__main__":
    main()
