"""`aliquot logs`: what of a log is printed, and how. (Which run: test_by_name.py.)"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.adapters.host.logfiles import bound
from aliquot.cli.machine.logs import _Reading, seek_lines
from aliquot.cli.machine.logtext import Escaping
from kit.machines.fakedaemon import FakeDaemon, a_status
from kit.machines.machine import ALIQUOT

Json = dict[str, Any]
UNKNOWN = [{"error": {"kind": "unknown-name", "name": "train", "names": []}}]


@pytest.fixture(autouse=True)
def logged(daemon: FakeDaemon) -> None:
    """The run `train` has a log of three lines; another user's program may have written it."""
    path = daemon.home / "train.log"
    path.write_text("1\n2\n3\n")
    daemon.answers |= {"logs": {"name": "train", "log": str(path), "running": False}, "status": a_status()}


def logs(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ALIQUOT, "logs", *words], capture_output=True, text=True, timeout=30, check=False)


def test_logs_whose_reader_ends_are_quiet(daemon: FakeDaemon) -> None:
    log = daemon.home / "big.log"
    log.write_text("a line\n" * 100_000)
    daemon.answers["logs"] = {"name": "big", "log": str(log), "running": False}
    with subprocess.Popen([*ALIQUOT, "logs", "big"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        reading.stdout.readline()
        reading.stdout.close()
        assert (reading.wait(30), reading.stderr.read()) == (141, b"")


def test_logs_into_a_full_file_blame_the_output(daemon: FakeDaemon) -> None:
    with open("/dev/full", "w") as full:
        said = subprocess.run([*ALIQUOT, "logs", "train"], stdout=full, stderr=subprocess.PIPE, timeout=30)
    assert (said.returncode, said.stderr) == (2, b"aliquot: output: No space left on device\n")


def test_logs_tail() -> None:
    assert logs("train", "--tail", "2").stdout == "2\n3\n"


def test_logs_of_ended_run(daemon: FakeDaemon) -> None:
    (daemon.home / "run.log").write_text("a run\n")
    daemon.answers["logs"] = {"name": "gone", "log": str(daemon.home / "run.log"), "running": False}
    assert logs("gone").stdout == "a run\n"


def test_logs_follow_beside_an_older_daemon_says_how_the_run_ended(daemon: FakeDaemon) -> None:
    """It gives runs no ids."""
    log = daemon.home / "run.log"
    log.write_text("a run\n")
    run = {"name": "train", "log": str(log), "pid": 7}
    ended = {"id": "7", "name": "train", "class": "normal", "uid": 0, "command": ["x"], "started": 1.0, "ended": None}
    ended |= {"exit_code": 3, "signal": None, "log": str(log)}
    answers = iter([{**run, "running": True}])
    daemon.answers["logs"] = lambda request: next(answers, {**run, "running": False, "ended": ended})
    result = logs("train", "-f")
    assert (result.stdout, result.stderr) == ("a run\n", "aliquot: train ended with exit code 3\n")


def test_logs_follow_to_the_end_of_the_run_without_a_daemon(daemon: FakeDaemon) -> None:
    """The daemon was killed and none follows: the output goes on, and ends with its run."""
    log = daemon.home / "run.log"
    log.write_text("first\n")
    with subprocess.Popen(["sleep", "600"]) as process:
        answer = {"name": "train", "log": str(log), "running": True, "id": "7", "pid": process.pid}
        asked = threading.Event()

        def answered(request: Json) -> Json:
            asked.set()
            return answer

        daemon.answers["logs"] = answered
        command = subprocess.Popen([*ALIQUOT, "logs", "-f", "train"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert asked.wait(30)
        time.sleep(0.5)  # until it follows
        daemon.close()
        with log.open("a") as output:
            output.write("last\n")
        time.sleep(1)
        assert command.poll() is None, "its run has not ended"
        process.kill()
    printed, said = command.communicate(timeout=30)
    daemon.listen()  # for what tidies up
    assert (command.returncode, printed) == (0, b"first\nlast\n")
    assert said == b"aliquot: train has ended; its exit code is not known, for no daemon runs\n"


def test_logs_of_unknown_name_say_where_to_look(daemon: FakeDaemon) -> None:
    daemon.answers["logs"] = UNKNOWN
    result = logs("ghost")
    assert result.returncode == 2
    assert result.stderr.endswith(": nothing runs; `aliquot ps -a` lists what has ended\n")


@pytest.mark.parametrize(
    ("put", "result"),
    [(os.mkfifo, "not a regular file"), (lambda at: at.symlink_to("/etc/os-release"), "a symbolic link")],
)
def test_logs_refuses_links_and_pipes(
    daemon: FakeDaemon, tmp_path: Path, put: Callable[[Path], None], result: str
) -> None:
    put(tmp_path / "log")
    daemon.answers["logs"] = {"name": "train", "log": str(tmp_path / "log"), "running": False}
    done = logs("train")
    assert (done.returncode, done.stdout) == (2, "")
    assert result in done.stderr


@pytest.mark.parametrize("text", [b"", b"a", b"a\n", b"a\nb", b"a\nb\n", b"\n\n", b"x" * 200_000 + b"\n" + b"y\n" * 9])
@pytest.mark.parametrize("lines", [0, 1, 2, 5, 100])
def test_seek_lines_matches_full_read(text: bytes, lines: int) -> None:
    log = io.BytesIO(text)
    assert seek_lines(log, lines) == max(0, lines - len(text.splitlines()))
    assert log.read() == b"".join(text.splitlines(keepends=True)[-lines:] if lines else [])


@pytest.mark.parametrize(
    ("tail", "printed"), [(None, "0\n1\n2\n3\n"), (1, "3\n"), (3, "1\n2\n3\n"), (9, "0\n1\n2\n3\n")]
)
def test_logs_begin_with_the_older_part(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], tail: int, printed: str
) -> None:
    path = tmp_path / "x.log"
    path.write_text("2\n3\n")
    Path(f"{path}.1").write_text("0\n1\n")
    with open(path, "rb") as log:
        _Reading(str(path), log).begin(tail)
    assert capfd.readouterr().out == printed


def test_logs_follow_across_cuts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, written = str(tmp_path / "x.log"), ""
    with open(path, "a", buffering=1) as program, open(path, "rb") as log:
        reading = _Reading(path, log)
        reading.begin(None)
        for number in range(3000):
            program.write(f"line {number}\n")
            written += f"line {number}\n"
            if number % 7 == 0:
                reading.go_on()
            if number % 50 == 0:
                bound(path, 2000)
        reading.go_on()
    out = capfd.readouterr()
    assert out.out == written
    assert out.err == ""


def test_logs_follow_says_what_is_lost(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "x.log")
    with open(path, "ab", buffering=0) as program, open(path, "rb") as log:
        program.write(b"x" * 5000 + b"\n")
        reading = _Reading(path, log)
        reading.begin(None)
        bound(path, 2000)
        program.write(b"later\n")
        reading.go_on()
    out = capfd.readouterr()
    assert out.out.endswith("later\n")
    assert out.err == "aliquot: some output is lost: it was written too fast\n"


def test_logs_follow_a_run_that_takes_over_the_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.log"
    path.write_text("long ago\n")
    with open(path, "rb") as log:
        reading = _Reading(str(path), log)
        reading.begin(None)
        path.write_text("new\n")
        reading.go_on()
        reading.go_on()
    assert capfd.readouterr().out == "long ago\nnew\n"


def test_tail_of_a_log_that_is_a_hole_is_found_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """1 TiB without a line took 38 s to search, and any user can make such a log."""
    path = tmp_path / "x.log"
    with open(path, "wb") as log:
        log.truncate(1 << 40)
        log.seek(1 << 40)
        log.write(b"\nlast\n")
    began = time.monotonic()
    with open(path, "rb") as log:
        assert seek_lines(log, 1) == 0
        assert log.read() == b"last\n"
        assert seek_lines(log, 5) == 0
        assert log.tell() == (1 << 40) + 6 - (64 << 20)
    assert time.monotonic() - began < 10
    assert "fewer lines" in capfd.readouterr().err


# --- on a terminal ---------------------------------------------------------------------------------------------------

HOSTILE = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m \x9b5n\x1bc 50%\r\u202eabc\u202c caf\u00e9\n"
SHOWN = "\\x1b]0;title\\x07\\x1b[2J\x1b[31mred\x1b[0m \\x9b5n\\x1bc 50%\r\\u202eabc\\u202c caf\u00e9\n"


def on_a_terminal(*words: str) -> str:
    ours, theirs = pty.openpty()
    try:
        subprocess.run([*ALIQUOT, "logs", *words], stdout=theirs, stderr=subprocess.DEVNULL, timeout=60, check=True)
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(ours, 65536):
                said += piece
        except OSError:  # the end
            pass
    finally:
        os.close(ours)
    return said.decode().replace("\r\n", "\n")


def test_output_of_another_user_steers_no_terminal(daemon: FakeDaemon, tmp_path: Path) -> None:
    """Root reads the logs of all users. One's own are printed as they are, as docker and kubectl do."""
    path = tmp_path / "log"
    path.write_text(HOSTILE)
    daemon.answers["logs"] = {"name": "train", "log": str(path), "running": False}
    assert on_a_terminal("train") == HOSTILE
    if os.geteuid() != 0:
        pytest.skip("only root reads logs of others")
    os.chown(path, 65534, 65534)
    assert on_a_terminal("train") == SHOWN + "\x1b[0m"
    assert on_a_terminal("train", "--raw") == HOSTILE
    assert logs("train").stdout == HOSTILE.replace("\r", "\n")  # text=True reads line ends as one


_OUTPUT = st.lists(
    st.sampled_from(["\x1b", "[", "3", ";", "m", "J", "\x9b", "\u202e", "\u00e9", "a", "\n"]) | st.text()
).map(lambda signs: "".join(signs).encode(errors="surrogatepass"))


@given(_OUTPUT, st.lists(st.integers(0, 40)))
def test_pieces_do_not_change_what_is_shown_and_only_colours_steer(output: bytes, cuts: list[int]) -> None:
    whole = Escaping().shown(output, last=True)
    escaping, shown, at = Escaping(), b"", 0
    for cut in [*sorted(cuts), len(output)]:
        shown += escaping.shown(output[at : max(at, cut)])
        at = max(at, cut)
    assert shown + escaping.shown(b"", last=True) == whole
    rest = re.sub(r"\x1b\[[0-9;:]*m|[\n\t\r]", "", whole.decode())
    assert rest == "" or rest.isprintable()
