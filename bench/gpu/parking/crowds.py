"""More tenants than the card holds: turns, room for online work, and nothing lost when programs are killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from bench.gpu import words
from bench.gpu.children import ChildError
from bench.gpu.kernellog import xids
from bench.gpu.lab import Lab
from bench.gpu.parking.program import Crowd, Program, crowded, gib, quota, until
from bench.gpu.report import Row
from bench.gpu.stage import latency
from bench.gpu.words import Ask

POOL_GIB = 62  # half of the memory of the machine with the H200: what its tmpfs has
ONLINE_GIB, MOST_ROOM, MOST_LATENCY = 40, 2.0, 1.5
CROWD_GIB, MOVES, CROWD_SECONDS, MOST_AWAY = 60, 100, 300.0, 60.0
OWN_TURNS = 40.0  # seconds of their own turns; then one after the other rests, which ends its turn, for the moves
TURN_GIB, TURN_SECONDS, LEAST_TURNS = 60, 120.0, 0.9
KILLS, KILL_SECONDS = 50, 240.0


def online(lab: Lab) -> list[Row]:
    """A server answers requests meanwhile; its memory is small and stays."""
    size, seconds = gib(lab, ONLINE_GIB), 6.0
    alone = lab.alone_latency("1ms", "10ms")
    with crowded(lab, POOL_GIB) as crowd:
        offline = [crowd.begin(f"offline-{at}", gib(lab, 44)) for at in range(3)]
        for program in offline:
            program.ready()
        crowd.warm()
        server = crowd.stage.server(Ask(name="server", app_class="online", core=0), "1ms", "10ms", seconds)
        crowd.stage.ready(server)
        server.start(time.monotonic() + 0.3)
        ask = Ask(name="online", app_class="online", core=0, memory=quota(lab, size))
        # It only fills its memory: kernels of another online tenant would delay the requests as they always do.
        (crowd.stage.folder / "online.hold").touch()
        newcomer = crowd.begin("online", size, ask=ask)
        filled = newcomer.ready()
        served = latency(server.result(seconds + 60))
        results = [program.finish() for program in (newcomer, *offline)]
    ratio, wrong = served["p99"] / alone["p99"], _wrong(lab, results[1:], results[:1])
    return [
        Row(
            what=f"online allocates {size} GiB of a full card; p99 of 1 ms requests meanwhile, over alone",
            must=f"<= {MOST_ROOM:g} s; <= {MOST_LATENCY}; nothing wrong",
            measured=f"{filled:.2f} s; {ratio:.2f}; {wrong} wrong",
            ok=filled <= MOST_ROOM and ratio <= MOST_LATENCY and not wrong,
            numbers={"filled": filled, "served": served, "alone": alone, "results": results},
        )
    ]


def crowd(lab: Lab) -> list[Row]:
    """Turns of their own take their time: each is long enough that moving costs a tenth."""
    size, wanted = gib(lab, CROWD_GIB), MOVES if lab.simulate is None else 2
    before = xids()
    with crowded(lab, POOL_GIB) as node:
        programs = {f"t{at}": node.begin(f"t{at}", size) for at in range(3)}
        for program in programs.values():
            program.ready()
        began, moves, rests = time.monotonic(), 0, 0
        resting: Program | None = None
        while moves < wanted and time.monotonic() < began + CROWD_SECONDS:
            time.sleep(0.1)
            there = {name: node.residency(name) for name in programs}
            left = sum(found.get("moves", 0) for found in there.values())
            moves = 2 * left - sum(found.get("where") != "resident" for found in there.values())  # out, and back
            resident = [name for name, found in there.items() if found.get("where") == "resident"]
            if resting is not None and resting.name not in resident:  # it left, and now wants to return
                resting.unhold()
                resting = None
            elif resting is None and resident and time.monotonic() > began + (0 if lab.simulate else OWN_TURNS):
                resting, rests = programs[resident[rests % len(resident)]], rests + 1
                resting.hold()
        took = time.monotonic() - began
        if resting is not None:
            resting.unhold()
        gap = max(program.longest_gap(time.monotonic()) for program in programs.values())
        results = _ends(list(programs.values()))
    wrong = sum(result["wrong"] for result in results)
    complaints = (xids() or 0) - (before or 0)
    return [
        Row(
            what=f"three tenants of {size} GiB, {moves} moves out or back in {took:.0f} s: wrong; away; Xid",
            must=f"{wanted} moves; 0; <= {MOST_AWAY:g} s; 0",
            measured=f"{wrong}; {gap:.1f} s; {complaints}",
            ok=moves >= wanted and not wrong and gap <= MOST_AWAY and not complaints,
            numbers={"moves": moves, "rests": rests, "seconds": took, "results": results},
        )
    ]


def turns(lab: Lab) -> list[Row]:
    """Two fit on the H200, so another tenant holds memory that stays."""
    size, seconds = gib(lab, TURN_GIB), TURN_SECONDS if lab.simulate is None else 6.0
    with crowded(lab, POOL_GIB) as node:
        held = gib(lab, 40)
        holder = node.begin("holder", held, ask=Ask(name="holder", core=0, memory=quota(lab, held)))
        holder.ready()
        holder.hold()
        first = node.begin("first", size)
        first.ready()
        node.warm()
        alone = _rate([first], min(20.0, seconds))
        second = node.begin("second", size)
        second.ready()
        together = _rate([first, second], seconds)
        moves = sum(node.residency(name).get("moves", 0) for name in ("first", "second"))
        (node.stage.folder / "holder.hold").unlink()
        results = _ends([first, second, holder])
    wrong = _wrong(lab, results[:2], results[2:])
    return [
        Row(
            what=f"two tenants of {size} GiB that take turns, over one alone; moves in {seconds:.0f} s",
            must=f">= {LEAST_TURNS}; nothing wrong",
            measured=f"{together / alone:.3f}; {moves} moves; {wrong} wrong" if alone else "no step",
            ok=bool(alone) and together / alone >= LEAST_TURNS and not wrong,
            numbers={"alone": alone, "together": together, "moves": moves, "results": results},
        )
    ]


def _rate(programs: list[Program], seconds: float) -> float:
    began = time.monotonic()
    time.sleep(seconds)
    return sum(program.rate(began, began + seconds) for program in programs)


def _wrong(lab: Lab, parkable: list[dict[str, Any]], others: list[dict[str, Any]]) -> int:
    """Wrong pieces. On a simulated card large memory has contents only where it may leave."""
    return sum(result["wrong"] for result in (*parkable, *(others if lab.simulate is None else ())))


def _ends(programs: list[Program]) -> list[dict[str, Any]]:
    """All are asked before the first is waited for: they may still wait for their turn."""
    for program in programs:
        program.stop()
    return [program.finish(180) for program in programs]


def kills(lab: Lab) -> list[Row]:
    """kill -9 of mover, daemon and tenants at random."""
    wanted, chance = KILLS if lab.simulate is None else 3, random.Random(20261117)
    size = gib(lab, 40)
    done = {"mover": 0, "daemon": 0, "tenant": 0}
    with crowded(lab, 44) as node:
        programs = {f"t{at}": node.begin(f"t{at}", size) for at in range(4)}
        for program in programs.values():
            program.ready()
        limit, number = time.monotonic() + KILL_SECONDS, len(programs)
        while sum(done.values()) < wanted and time.monotonic() < limit:
            time.sleep(chance.uniform(0.5, 2.5))
            what = chance.choice(["mover", "mover", "daemon", "tenant"])
            if not _kill(node, what, programs, chance):
                continue
            done[what] += 1
            if what == "tenant":
                programs[f"t{number}"] = node.begin(f"t{number}", size)
                number += 1
        results, dead = [], []
        for program in programs.values():
            program.stop()
        for program in programs.values():
            try:
                results.append(program.finish(180))
            except ChildError as error:
                dead.append(f"{program.name}: {error}")
        with contextlib.suppress(ChildError):
            until(lambda: not node.parked_files() and not node.node.tenants(), 60, "nothing is left")
        left = [*node.parked_files(), *(str(tenant.get("name")) for tenant in node.node.tenants())]
    wrong = sum(result["wrong"] for result in results)
    return [
        Row(
            what=f"{sum(done.values())} kill -9 of mover, daemon, tenants: wrong; lost; left in pool or books",
            must=f"{wanted}: 0; 0; 0",
            measured=f"{wrong}; {len(dead)}; {len(left)}",
            ok=sum(done.values()) >= wanted and not (wrong or dead or left),
            numbers={"kills": done, "results": results, "dead": dead, "left": left},
        )
    ]


def _kill(node: Crowd, what: str, programs: dict[str, Program], chance: random.Random) -> bool:
    """False: there is none to kill now. A tenant that is killed is forgotten."""
    if what == "tenant":
        ready = [name for name, program in programs.items() if program.child.alive() and program.steps()]
        if len(ready) < 3:  # the others have to be left to fight for the card
            return False
        programs.pop(chance.choice(ready)).child.kill()
        return True
    pid = words.daemon_pid(node.node.folder) if what == "daemon" else _mover(node.node.folder)
    if pid is None:
        return False
    os.kill(pid, signal.SIGKILL)
    if what == "daemon":
        node.node.up()
    return True


def _mover(home: Path) -> int | None:
    """By its home in the environment: other daemons may have theirs."""
    here = f"ALIQUOT_HOME={home}".encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                entry.name.isdigit()
                and b"aliquot.services.mover.main" in (entry / "cmdline").read_bytes()
                and here in (entry / "environ").read_bytes().split(b"\0")
            ):
                return int(entry.name)
    return None
