"""The sessions on docs/one-machine.md and in examples/seeds show what the commands print on simulated cards."""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.machines.machine import PATIENCE, Machine

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "one-machine.md").read_text()
SEEDS = (ROOT / "examples" / "seeds" / "README.md").read_text()

# What differs from run to run.
_VARIABLE = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME"),
    (r"\b\d+s\b", "AGE"),
    (r"\bpid \d+", "PID"),
    (r"\b[\d.]+% of the card's time", "SHARE of the card's time"),
    (r"\b\d+ MiB of", "USED of"),
    (r"\bnode-\d\b", "NODE"),
)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.chdir(ROOT)
    machine = Machine([])
    machine.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    yield machine
    machine.aliquot("delete", "all", "--all")
    machine.aliquot("down")
    machine.close()


def commands(page: str, first: str) -> list[tuple[str, str]]:
    """The commands and their output, of the console block that starts with this command."""
    found = re.search(rf"```console\n\$ ({re.escape(first)}.*?)```", page, re.DOTALL)
    assert found, f"no session starts with {first}"
    blocks = found[1].split("\n$ ")
    return [(block.partition("\n")[0], block.partition("\n")[2]) for block in blocks]


def run(machine: Machine, command: str) -> str:
    output = ""
    for part in command.partition("#")[0].split("&&"):
        done = machine.aliquot(*shlex.split(part)[1:])
        output += done.stderr + done.stdout
    return output


def comparable(machine: Machine, text: str) -> list[str]:
    """The lines without what varies, in any order: Pods start in parallel, and may skip a phase."""
    text = text.replace(str(machine.home), "/var/lib/aliquot").replace(socket.gethostname(), "box")
    for pattern, name in _VARIABLE:
        text = re.sub(pattern, name, text)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return sorted(line for line in lines if line and not re.search(r": (Pending|Starting on .*)$", line))


def check(machine: Machine, session: list[tuple[str, str]]) -> None:
    for command, shown in session:
        printed = run(machine, command)
        if shown.strip() in ("", "..."):
            continue
        wanted, deadline = comparable(machine, shown), time.monotonic() + PATIENCE
        while not command.startswith("aliquot apply") and time.monotonic() < deadline:  # until all have started
            if comparable(machine, printed) == wanted:
                break
            time.sleep(0.1)
            printed = run(machine, command)
        assert comparable(machine, printed) == wanted, command


def test_page_shows_what_apply_get_and_describe_print(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check(machine, commands(PAGE, "aliquot apply --simulate 2x24GiB"))
    check(machine, commands(PAGE, "aliquot describe pod"))

    container = "{name: main, command: [sleep], resources: {limits: {tke.cloud.tencent.com/qgpu-memory: 1.5}}}"
    pod = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: fraction}}\nspec: {{containers: [{container}]}}\n"
    (tmp_path / "bad.yaml").write_text(pod)
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir(tmp_path)
        check(machine, commands(PAGE, "aliquot apply -f bad.yaml"))

    check(machine, commands(PAGE, "aliquot delete all --all"))


def test_readme_of_the_seeds_shows_what_get_prints(machine: Machine) -> None:
    check(machine, commands(SEEDS, "aliquot apply --simulate 2x8x24GiB"))
