"""Not a test of the suite: programs that the shim has never seen, on a real card. One command, at most four minutes:

    python tests/shim/on_card_programs.py --out out/programs

Each program of programs/ runs as it is; then on a slice (`aliquot run --core --memory`); then on one from which its
memory leaves the card in the middle (`--park`, `aliquot park`). What it prints and how it ends must be the same.
A difference is tried again: what differs once only is "flaky". The end of the output tells all there is to know; out/
has all of it. `--only REGEX` runs some. Needs nvcc for the programs in CUDA; without it only the others run.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shim.on_card_list import ALIQUOT, QUOTA, ROOT, Program, build, cuda_programs, other_programs, torch_programs

WORKERS = 14
STAY = ("ipc", "torch.shared_tensors")  # memory that may leave is not shared with other processes
SIMULATED = re.compile(
    r"contexts|devices|dl_|bash|odd|static|interposed|visible|ulimit|closed_stdio|wiped|nobody"
)  # without cudart


@dataclass(slots=True)
class Run:
    """One run: what it printed, how it ended. `note`: what became of the move."""

    out: str
    err: str
    code: int | str
    seconds: float
    note: str = ""

    def outcome(self) -> tuple[str, int | str]:
        return self.out, self.code


class Bench:
    """A daemon, and programs beside it."""

    def __init__(self, folder: Path, simulate: str | None, deadline: float) -> None:
        self.folder, self.simulate, self.deadline = folder, simulate, deadline
        self.home = folder / "home"
        path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.env = {**os.environ, "PYTHONPATH": path, "ALIQUOT_HOME": str(self.home), "PYTHONUNBUFFERED": "1"}
        for name in ("LD_PRELOAD", "ALIQUOT_TENANT"):
            self.env.pop(name, None)
        self.plain = dict(self.env)
        if simulate:
            self.plain["LD_LIBRARY_PATH"] = str(ROOT / "src" / "aliquot" / "lib" / "simgpu")
            self.plain["ALIQUOT_SIMGPU"] = str(self.home / "player" / "sock")
        self.count = 0
        self.lock = threading.Lock()

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def up(self) -> None:
        self.home.mkdir()
        words = [*ALIQUOT, "up", "--policy", "burst-share", "--listen", "0", "--host-pool", "24GiB"]
        words += ["--simulate", self.simulate] if self.simulate else []
        log = (self.folder / "daemon.log").open("wb")
        self.daemon = subprocess.Popen(words, env=self.env, stdout=log, stderr=log, start_new_session=True)
        limit = time.monotonic() + 40
        while time.monotonic() < limit:
            if not subprocess.run([*ALIQUOT, "ps"], env=self.env, capture_output=True, check=False).returncode:
                time.sleep(0.0 if self.simulate else 3.0)  # it tries its control while the card is idle
                return
            time.sleep(0.3)
        raise SystemExit("no daemon: " + (self.folder / "daemon.log").read_text()[-2000:])

    def down(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([*ALIQUOT, "down"], env=self.env, capture_output=True, timeout=15, check=False)
        end(self.daemon)
        sys.path.insert(0, str(ROOT))
        sys.path.insert(0, str(ROOT / "src"))
        with contextlib.suppress(Exception):  # what is kept in memory of the host goes at once, and not in a minute
            from bench.gpu.parking.program import _end_pool

            from aliquot.adapters.host.home import POOLS, pool_name

            _end_pool(Path(POOLS, pool_name(str(self.home), os.geteuid())))

    def run(self, program: Program, way: str) -> Run:
        with self.lock:
            self.count += 1
            name = f"run-{self.count}"
        folder = self.folder / name
        folder.mkdir()
        env = {**(self.plain if way == "plain" else self.env), **program.env, "PROGRAM_FOLDER": str(folder)}
        words = program.command
        seconds = program.seconds
        if way != "plain":
            env["PROGRAM_QUOTA"] = str(QUOTA)
            share = ["--core", "5"] if way == "limited" else ["--park", "600s"]
            words = [*ALIQUOT, "run", "--name", name, "--memory", f"{QUOTA >> 20}MiB", *share, "--", *words]
        if way == "moved":
            env["PROGRAM_MOMENT"] = str(folder / "moment")
            seconds += 25
        began = time.monotonic()
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            process = subprocess.Popen(
                words, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
        note = self.move(process, name, folder, seconds) if way == "moved" else ""
        code: int | str
        try:
            code = process.wait(max(0.1, min(seconds - (time.monotonic() - began), self.left())))
        except subprocess.TimeoutExpired:
            code = "timeout" + self.stuck(process)
        end(process)
        said, complained = ((folder / part).read_text(errors="replace") for part in ("out", "err"))
        shutil.rmtree(folder, ignore_errors=True)
        return Run(said, complained, code, round(time.monotonic() - began, 1), note)

    def stuck(self, process: subprocess.Popen[bytes]) -> str:
        """Where its threads wait."""
        found: Counter[str] = Counter()
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{process.pid}/task").iterdir():
                found[f"{(task / 'comm').read_text().strip()}:{(task / 'wchan').read_text().strip()}"] += 1
        return " " + ", ".join(f"{count}x {where}" for where, count in found.most_common(5))

    def move(self, process: subprocess.Popen[bytes], name: str, folder: Path, seconds: float) -> str:
        """Wait until it has come to the moment, and let its memory leave. What came of it."""
        limit = time.monotonic() + min(seconds, self.left())
        while not (folder / "moment.at").exists():
            if process.poll() is not None or time.monotonic() > limit:
                return "no moment"
            time.sleep(0.02)
        note, most = "not parked in time", max(1.0, min(20.0, self.left()))
        with contextlib.suppress(subprocess.TimeoutExpired):
            words = [*ALIQUOT, "park", name, "--timeout", "12s"]
            done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=most, check=False)
            text = (done.stdout + done.stderr).strip().splitlines()
            note = ("" if done.returncode == 0 else "refused: ") + (text[-1] if text else "parked")
        (folder / "moment.go").touch()
        return note.replace(name, "NAME")


def end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)


def differs(plain: Run, other: Run) -> str:
    """How it differs; empty: not at all."""
    if plain.outcome() == other.outcome():
        return ""
    lines = list(difflib.unified_diff(plain.out.splitlines(), other.out.splitlines(), lineterm="", n=1))[2:]
    code = "" if plain.code == other.code else f"exit {plain.code} -> {other.code}; "
    return code + " | ".join(lines[:14])


def judge(bench: Bench, program: Program) -> dict[str, Any]:
    """The program in all its ways."""
    result: dict[str, Any] = {"name": program.name, "verdict": "same", "ways": {}}
    plain = None
    for way in program.ways:
        if bench.left() < 8:
            result["verdict"] = result["verdict"] if result["verdict"] == "differs" else "not run"
            break
        run = bench.run(program, way)
        found: dict[str, Any] = {"code": run.code, "seconds": run.seconds, "note": run.note}
        ours = [line for line in run.err.splitlines() if line.lower().startswith("aliquot")]
        found["ours"] = ours[:5]
        if way == "plain":
            plain = run
            result["out"] = run.out[-1500:]
            if run.code not in (0,):
                result["err"] = run.err[-600:]
        elif plain is not None and (difference := differs(plain, run)):
            found["difference"], found["err"] = difference, run.err.strip()[-700:]
            result["verdict"] = "differs"
            if bench.left() > program.seconds:  # by chance?
                again, plain_again = bench.run(program, way), bench.run(program, "plain")
                found["again"] = differs(plain_again, again)
                if not found["again"]:
                    result["verdict"] = "flaky"
        result["ways"][way] = found
    return result


def short(text: str, most: int) -> str:
    text = text.strip()
    return text if len(text) <= most else text[: most * 2 // 3] + " ... " + text[-most // 3 :]


def report(results: list[dict[str, Any]], unbuilt: list[str], took: float) -> str:
    """What fits on a screen: names by verdict, moves, then every failure."""
    by: dict[str, list[str]] = {}
    for one in results:
        by.setdefault(one["verdict"], []).append(one["name"])
    notes = Counter(re.sub(r"\d+(\.\d+)?", "N", one["ways"].get("moved", {}).get("note", "")) for one in results)
    ours = Counter(line for one in results for way in one["ways"].values() for line in way.get("ours", []))
    # ended by itself, and not because the program is made to
    odd = [
        f"{one['name']}={one['ways']['plain']['code']}"
        for one in results
        if one["ways"].get("plain", {}).get("code") in (1, 90, 99, 127)
        or "timeout" in str(one["ways"].get("plain", {}))
    ]
    lines = [f"{len(results)} programs in {took:.0f} s: " + ", ".join(f"{len(v)} {k}" for k, v in by.items())]
    lines += [f"  same: {short(' '.join(by.get('same', [])), 1500)}"]
    lines += [f"  {kind}: {short(' '.join(names), 500)}" for kind, names in by.items() if kind != "same"]
    lines += [f"  did not work without the shim either: {short(' '.join(odd), 500)}"]
    lines += ["moves: " + short("; ".join(f"{count}x {note}" for note, count in notes.most_common(12) if note), 900)]
    refused = [
        f"{one['name']}: {note}"
        for one in results
        if (note := one["ways"].get("moved", {}).get("note", "")).startswith(("refused", "not parked"))
    ]
    lines += [f"  {short(line, 140)}" for line in refused[:10]]
    lines += ["said by the shim: " + short("; ".join(f"{n}x {text}" for text, n in ours.most_common(6)), 700)]
    lines += [f"not built: {short(one, 300)}" for one in unbuilt]
    bad = [
        (one["name"], way, found)
        for verdict in ("differs", "flaky")
        for one in results
        if one["verdict"] == verdict
        for way, found in one["ways"].items()
        if "difference" in found
    ]
    room = max(160, (9300 - sum(map(len, lines))) // max(1, len(bad)))
    for name, way, found in bad:
        head = f"== {name} [{way}] {found['note']}" + ("" if found.get("again", "?") else " (once only)")
        lines += [short(head, 120), "   " + short(found["difference"], room * 3 // 5 - 60)]
        lines += ["   stderr: " + short(found["err"].replace("\n", " / "), room * 2 // 5 - 60)] if found["err"] else []
    return "\n".join(lines)


def uuid_of_card() -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        text = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False).stdout
        if found := re.findall(r"UUID: (GPU-[0-9a-f-]+)", text):
            return str(found[0])
    return "GPU-00000000-0000-0000-0000-000000000000"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "programs")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=215.0, help="for all programs together")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--simulate", help="as of `aliquot up`; few of the programs run there")
    parser.add_argument("--binaries", type=Path, help="built before")
    asked = parser.parse_args()
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="alqp"))
    folder.chmod(0o755)  # another user shall find the programs
    binaries = asked.binaries or folder / "bin"
    unbuilt: list[str] = []
    if asked.binaries is None:
        binaries.mkdir()
        unbuilt = build(binaries)
        print(f"built in {time.monotonic() - began:.0f} s", flush=True)
    programs = [*torch_programs(), *cuda_programs(binaries), *other_programs(binaries, uuid_of_card())]
    programs = [one for one in programs if re.search(asked.only, one.name)]
    programs.sort(key=lambda one: "." in one.name.removeprefix("torch."))  # variants of others come last
    for program in programs:
        program.ways = program.ways[:2] if program.name in STAY else program.ways
    # what was not built, or is not installed, is not run
    programs = [one for one in programs if shutil.which(one.command[0]) or Path(one.command[0]).exists()]
    if asked.simulate:
        programs = [one for one in programs if SIMULATED.search(one.name) and not one.name.startswith("torch")]
    bench = Bench(folder, asked.simulate, began + asked.seconds)
    bench.up()
    results: list[dict[str, Any]] = []
    asked.out.mkdir(parents=True, exist_ok=True)

    def tell() -> None:
        order = {program.name: at for at, program in enumerate(programs)}
        found = sorted(results, key=lambda one: order[one["name"]])
        text = report(found, unbuilt, time.monotonic() - began)
        (asked.out / "programs.json").write_text(json.dumps({"unbuilt": unbuilt, "results": found}, indent=1))
        (asked.out / "programs.txt").write_text(text + "\n")
        with contextlib.suppress(OSError):
            shutil.copy(folder / "daemon.log", asked.out / "daemon.log")
        print(text, flush=True)

    def give_up() -> None:
        tell()
        print("the bench itself did not end in time", flush=True)
        os._exit(3)

    watchdog = threading.Timer(asked.seconds + 45, give_up)
    watchdog.daemon = True
    watchdog.start()

    def one(program: Program) -> None:
        try:
            result = judge(bench, program)
        except Exception as error:  # the others go on
            result = {"name": program.name, "verdict": f"the bench failed: {error!r}", "ways": {}}
        results.append(result)
        if result["verdict"] not in ("same", "not run"):
            print(f"{result['verdict']}: {result['name']}", file=sys.stderr, flush=True)

    try:
        with ThreadPoolExecutor(asked.workers) as pool:
            list(pool.map(one, programs))
    finally:
        bench.down()
    watchdog.cancel()
    tell()
    shutil.rmtree(folder, ignore_errors=True)
    return int(any(found["verdict"] not in ("same", "flaky") for found in results))


if __name__ == "__main__":
    sys.exit(main())
