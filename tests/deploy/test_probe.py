"""deploy/probe.py, run as the kubelet runs it: against an agent's own door, and against what is none (any more)."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kit.agents.fakeagent import FakeAgent, RunningControl
from kit.values.chart import ROOT, installed

PROBE = ROOT / "deploy" / "probe.py"
FLAGS = PROBE.read_text().splitlines()[0].split()[1]
WAITS = 'the kubelet has not accepted "aliyun.com/gpu-mem" yet'


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path


def begun(run_dir: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, FLAGS, str(PROBE), *words, f"--run-dir={run_dir}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def probed(run_dir: Path, *words: str) -> tuple[int, str]:
    """How it ended, and its one line."""
    with begun(run_dir, *words) as process:
        said, _ = process.communicate(timeout=20)
        return process.returncode, said.strip()


@pytest.fixture
def listener(run_dir: Path) -> Iterator[socket.socket]:
    """A socket where the agent's would be; no process answers."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as made:
        made.bind(str(run_dir / "control.sock"))
        yield made


def test_probe_of_ready_agent_succeeds(run_dir: Path) -> None:
    with RunningControl(f"{run_dir}/control.sock"):
        assert probed(run_dir, "live") == (0, "")
        assert probed(run_dir, "ready") == (0, "")


def test_probe_of_waiting_agent_is_live_and_names_reason(run_dir: Path) -> None:
    with RunningControl(f"{run_dir}/control.sock", FakeAgent(waits_for=WAITS)):
        assert probed(run_dir, "live", "--timeout=1") == (0, "")
        assert probed(run_dir, "ready", "--timeout=1") == (1, WAITS)


def test_probe_waits_for_readiness(run_dir: Path) -> None:
    agent = FakeAgent(waits_for=WAITS)
    with RunningControl(f"{run_dir}/control.sock", agent), begun(run_dir, "ready", "--timeout=15") as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        agent.waits_for = None
        assert process.wait(5) == 0


def test_probe_waits_for_the_socket(run_dir: Path) -> None:
    with begun(run_dir, "live", "--timeout=15") as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        with RunningControl(f"{run_dir}/control.sock"):
            assert process.wait(5) == 0


@pytest.mark.parametrize("what", ["live", "ready"])
def test_probe_of_hanging_agent_fails(run_dir: Path, listener: socket.socket, what: str) -> None:
    listener.listen(8)
    ended, said = probed(run_dir, what, "--timeout=1")
    assert ended == 1
    assert said == f"the agent has {run_dir}/control.sock but does not answer: it hangs, or the node is overloaded"


def test_probe_fails_with_full_backlog(run_dir: Path, listener: socket.socket) -> None:
    """The kernel lets no more in than the agent said it would hear."""
    listener.listen(0)
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as first:
        first.connect(str(run_dir / "control.sock"))
        ended, said = probed(run_dir, "live", "--timeout=1")
    assert (ended, "does not answer" in said) == (1, True)


@pytest.mark.parametrize("what", ["live", "ready"])
def test_probe_fails_on_stale_socket(run_dir: Path, listener: socket.socket, what: str) -> None:
    ended, said = probed(run_dir, what, "--timeout=1")
    assert ended == 1
    assert said.startswith(f"no agent listens at {run_dir}/control.sock")


def test_probe_fails_without_socket(run_dir: Path) -> None:
    ended, said = probed(run_dir, "live", "--timeout=1")
    assert ended == 1
    assert said.startswith(f"no agent listens at {run_dir}/control.sock")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"[]\n", b'{"error": 1}\n'])
def test_probe_fails_on_malformed_answer(run_dir: Path, listener: socket.socket, answer: bytes) -> None:
    listener.listen(8)
    listener.settimeout(10)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(100)
            connection.sendall(answer)
        listener.close()  # the next request finds no listener

    thread = threading.Thread(target=serve)
    thread.start()
    ended, said = probed(run_dir, "ready", "--timeout=1")
    thread.join(10)
    assert ended == 1
    assert "\n" not in said


@pytest.mark.parametrize(
    "words", [(), ("dead",), ("live", "--timeout=soon"), ("live", "--timeout=0"), ("live", "--wait=4"), ("live", "now")]
)
def test_probe_with_unknown_argument_prints_usage(run_dir: Path, words: tuple[str, ...]) -> None:
    ended, said = probed(run_dir, *words)
    assert (ended, said) == (2, "usage: aliquot-probe live|ready [--timeout=SECONDS] [--run-dir=FOLDER]")


def test_probe_is_cheap(run_dir: Path) -> None:
    """`socket` alone, with all that it imports, takes as long as the rest of a probe."""
    with RunningControl(f"{run_dir}/control.sock"):
        command = [sys.executable, FLAGS, "-Ximporttime", str(PROBE), "ready", f"--run-dir={run_dir}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert imported & {"_socket", "socket", "json", "re", "enum", "site", "typing"} <= {"_socket"}


def test_kubelet_timeout_exceeds_probe_timeout() -> None:
    (agent,) = installed().pods()["aliquot-agent"]["containers"]
    for name, what in (("livenessProbe", "live"), ("readinessProbe", "ready")):
        probe = agent[name]
        program, asked, timeout = probe["exec"]["command"]
        assert (program, asked) == ("aliquot-probe", what)
        assert int(timeout.removeprefix("--timeout=")) < probe["timeoutSeconds"] <= probe["periodSeconds"]


def test_liveness_allows_a_hanging_agent_one_minute() -> None:
    """As long as one may take to start: cards without persistence mode, a kubelet that is being restarted."""
    (agent,) = installed().pods()["aliquot-agent"]["containers"]
    probe = agent["livenessProbe"]
    assert (probe["failureThreshold"] - 1) * probe["periodSeconds"] >= 60
