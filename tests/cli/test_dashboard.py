"""`aliquot dashboard`: where to look."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.gpu import player
from aliquot.adapters.host.home import Home
from kit.machines.machine import ALIQUOT, Machine, paper
from kit.running.ports import free_port

_KUBECTL = """#!{python} -SE
import sys, time
print(" ".join(sys.argv[1:]), file=sys.stderr, flush=True)
print("Forwarding from 127.0.0.1:45678 -> 12346", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def shown() -> Iterator[tuple[Machine, int]]:
    """A machine of paper with a dashboard."""
    port = free_port()
    machine = Machine([sys.executable, str(Path(paper.__code__.co_filename)), "--listen", str(port), "2x24"])
    machine.up()
    yield machine, port
    machine.close()


def test_dashboard_prints_the_address_of_this_machine(shown: tuple[Machine, int]) -> None:
    machine, port = shown
    assert machine.aliquot("dashboard").stdout == f"http://127.0.0.1:{port}/\n"


def test_dashboard_of_a_daemon_without_one_says_how_to_start_it(machine: Machine) -> None:
    done = machine.aliquot("dashboard")
    assert done.returncode == 2
    assert "aliquot up -d --listen PORT" in done.stderr


def test_dashboard_state_has_runs(shown: tuple[Machine, int]) -> None:
    machine, port = shown
    name = machine.detach("--name", "m", "--memory", "2", "--", "sleep", "600")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/state") as answer:
        state = json.load(answer)
    assert state["kind"] == "machine"
    assert name in [tenant["key"] for tenant in state["live"]["nodes"][0]["cards"][0]["tenants"]]
    machine.clear()


def test_dashboard_events_continue(shown: tuple[Machine, int]) -> None:
    _, port = shown
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/events", timeout=10) as answer:
        names = [line for line in (answer.readline() for _ in range(12)) if line.startswith(b"event: ")]
    assert names[0] == b"event: state\n"
    assert b"event: tick\n" in names


def test_up_reports_a_dashboard_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        machine = Machine([*ALIQUOT, "up", "--simulate", "1x8GiB", "--listen", str(port)])
        try:
            with pytest.raises(AssertionError, match=f"--listen: 127.0.0.1:{port}: Address already in use"):
                machine.up()
            assert player.playing(Home(str(machine.home), str(machine.home))) is None  # other cards may come
        finally:
            machine.aliquot("down")
            machine.close()


def test_a_daemon_that_cannot_come_up_leaves_the_cards_that_were_there(tmp_path: Path) -> None:
    machine = Machine([*ALIQUOT, "up", "--simulate", "1x8GiB", "--listen", "0"])
    home = Home(str(machine.home), str(machine.home))
    try:
        machine.up()
        machine.kill()
        before = player.playing(home)
        assert before is not None
        with socket.create_server(("127.0.0.1", 0)) as taken:
            again = machine.aliquot("up", "--listen", str(taken.getsockname()[1]))
        assert "Address already in use" in again.stderr
        assert player.playing(home) == before
    finally:
        machine.aliquot("down")
        shutil.rmtree(machine.home)


def test_dashboard_with_token_prints_how_to_get_in(tmp_path: Path) -> None:
    token, port = tmp_path / "token", free_port()
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    words = ["--simulate", "1x8GiB", "--listen", f"0.0.0.0:{port}", "--token-file", str(token)]
    machine = Machine([*ALIQUOT, "up", *words])
    try:
        machine.up()
        said = machine.aliquot("dashboard")
        assert said.stdout == f"http://127.0.0.1:{port}/\n"
        assert (
            f"the page asks for the token in {token}: open http://127.0.0.1:{port}/?token=$(cat {token}) once"
            in said.stderr
        )
        assert f"from other machines: http://{socket.gethostname()}:{port}/" in said.stderr
        assert "0123456789abcdef" not in json.dumps(machine.status())
    finally:
        machine.aliquot("down")
        machine.close()


def test_a_daemon_without_a_dashboard_loads_no_http_server(machine: Machine) -> None:
    assert machine.daemon is not None
    assert "aiohttp" not in Path(f"/proc/{machine.daemon.pid}/maps").read_text()


def test_daemon_loads_http_server_with_the_first_visitor(shown: tuple[Machine, int]) -> None:
    machine, port = shown
    urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").close()
    assert machine.daemon is not None
    assert "aiohttp" in Path(f"/proc/{machine.daemon.pid}/maps").read_text()


def test_dashboard_of_a_cluster_uses_port_forward(tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(_KUBECTL.format(python=sys.executable))
    kubectl.chmod(0o755)
    words = [*ALIQUOT, "dashboard", "--context=lab", "--namespace", "gpu"]
    environment = {**os.environ, "KUBECTL": str(kubectl)}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "http://127.0.0.1:45678/\n"
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert "port-forward --namespace=gpu --address=127.0.0.1 deployment/aliquot-scheduler :12346 --context=lab" in said


def test_dashboard_ends_when_port_forward_fails(tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho 'error: no such deployment' >&2\nexit 1\n")
    kubectl.chmod(0o755)
    environment = {**os.environ, "KUBECTL": str(kubectl)}
    done = subprocess.run(
        [*ALIQUOT, "dashboard", "--cluster"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "no such deployment" in done.stderr
    assert "--target" in done.stderr
