"""`aliquot run` becomes the command; it reports what is wrong before anything is booked."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from aliquot.adapters.host.messages import Granted
from aliquot.cli.main import cli
from aliquot.cli.run.command import OPTIONS, help_text
from aliquot.cli.run.execute import environment_of
from aliquot.wording.runoptions import LATENCY_ALLOWED, LATENCY_ONLINE, LATENCY_UNIT
from kit.machines.machine import ALIQUOT, FOREVER, PATIENCE, Machine, eventually


def test_run_exits_with_code_of_command(machine: Machine) -> None:
    result = machine.aliquot("run", "--memory", "1", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (result.returncode, result.stdout, result.stderr) == (7, "out\n", "err\n")


def test_run_execs_the_command(machine: Machine) -> None:
    with machine.begin("run", "--memory", "1", "--", "sh", "-c", "echo $$") as process:
        assert process.communicate(timeout=PATIENCE)[0] == f"{process.pid}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGHUP])
def test_run_signal_ends_command(machine: Machine, number: signal.Signals, request: pytest.FixtureRequest) -> None:
    # Children ignore what we do: tests that nohup began ignore SIGHUP.
    request.addfinalizer(partial(signal.signal, number, signal.signal(number, signal.SIG_DFL)))
    with machine.begin("run", "--memory", "1", "--", "sh", "-c", "echo on; exec sleep 600") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        process.send_signal(number)
        assert process.wait(PATIENCE) == -number


def test_run_command_handles_signal(machine: Machine) -> None:
    script = "trap 'echo caught; exit 3' TERM; echo on; while :; do sleep 0.05; done"
    with machine.begin("run", "--memory", "1", "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        process.terminate()
        assert process.stdout.readline() == "caught\n"
        assert process.wait(PATIENCE) == 3


def test_run_passes_stdin(machine: Machine) -> None:
    result = machine.aliquot("run", "--memory", "1", "--", "wc", "-c", input="12345")
    assert result.stdout.strip() == "5"


def test_run_passes_terminal(machine: Machine) -> None:
    ours, theirs = pty.openpty()
    command = [*ALIQUOT, "run", "--memory", "1", "--", "sh", "-c", "test -t 0 && test -t 1 && stty size </dev/tty"]
    environment = {**machine.environment, "PYTHONWARNINGS": "ignore"}
    code = (
        "import fcntl, os, struct, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        " fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('4H', 33, 77, 0, 0)); os.execv(sys.argv[1], sys.argv[1:])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, *command], stdin=theirs, stdout=theirs, env=environment
    ) as process:
        os.close(theirs)
        assert process.wait(PATIENCE) == 0
        assert os.read(ours, 100).split() == [b"33", b"77"]
    os.close(ours)


def test_run_environment_has_tenant_variables(machine: Machine) -> None:
    before = {**machine.environment, "MINE": "kept", "CUDA_VISIBLE_DEVICES": "7"}
    result = machine.aliquot("run", "--name", "env", "--gpus", "2", "--memory", "1", "--", "env", "-0", env=before)
    after = dict(word.split("=", 1) for word in result.stdout.split("\0") if word)
    assert {name: value for name, value in after.items() if before.get(name) != value} == {
        "ALIQUOT_TENANT": after["ALIQUOT_TENANT"],
        "ALIQUOT_NAME": "env",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1",
        "LD_PRELOAD": "",
    }
    assert Path(after["ALIQUOT_TENANT"]).parent == machine.home / "t"
    assert before.keys() - after.keys() == set()


def test_run_does_not_leak_lc_ctype(machine: Machine) -> None:
    bare = {"PATH": os.environ["PATH"], "ALIQUOT_HOME": str(machine.home)}
    result = machine.aliquot("run", "--memory", "1", "--", "env", env=bare)
    assert "LC_CTYPE" not in result.stdout


def test_run_leaks_no_file_descriptors(machine: Machine) -> None:
    result = machine.aliquot("run", "--memory", "1", "--", "ls", "/proc/self/fd")
    assert result.stdout.split()[:3] == ["0", "1", "2"]
    assert len(result.stdout.split()) == 4  # and the folder itself


def test_run_dashes_are_optional(machine: Machine) -> None:
    result = machine.aliquot("run", "--memory", "1", "echo", "--memory", "--", "x")
    assert result.stdout == "--memory -- x\n"


OF_CORE = "a whole number from 1 to 100, in percent of a card (above 100: --rules 2026)"
OF_MEMORY = (
    "GiB, or with a unit, as in 10, 1.5GiB or 512MiB; G, Gi and GB mean GiB too; at least 1MiB; "
    "or a percentage of each card, as in 25%"
)
OF_NAME = "use at most 63 letters, digits, dots, _ and -; the first is a letter or digit"
OF_TIME = "seconds, or with a unit, as in 90, 100ms, 10s, 5m or 2h"
OF_SIMULATE = (
    "how many cards of how much memory, as in 2x24GiB, or nodes of as many, as in 2x8x24GiB; "
    "at most 64 cards in all, of 1GiB to 1024GiB"
)
REAL = "a daemon with real cards runs already; set ALIQUOT_HOME to start another one"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--core", "0", "--", "true"], 2, f"--core: 0 is not allowed: {OF_CORE}"),
        (["--core", "101", "--", "true"], 2, f"--core: 101 is not allowed: {OF_CORE}"),
        (["--core=x", "--", "true"], 2, f"--core: x is not allowed: {OF_CORE}"),
        (["--memory", "25", "--", "true"], 2, "--memory: 25 GiB is not allowed: at most 24 GiB: the largest card here"),
        (["--memory", "0", "--", "true"], 2, f"--memory: 0 is not allowed: {OF_MEMORY}"),
        (["--memory", "10KB", "--", "true"], 2, f"--memory: 10KB is not allowed: {OF_MEMORY}"),
        (["--class", "urgent", "--", "true"], 2, "--class: urgent is not allowed: online, offline or normal"),
        (["--latency", "2ms", "--", "true"], 2, f"--latency: 2ms is not allowed: {LATENCY_ONLINE}"),
        (["--class=online", "--latency=soon", "true"], 2, f"--latency: soon is not allowed: {LATENCY_ALLOWED}"),
        (["--class=online", "--latency=2", "true"], 2, f"--latency: 2 is not allowed: {LATENCY_UNIT}"),
        (["--class=online", "--latency=1m", "true"], 2, f"--latency: 1m is not allowed: {LATENCY_ALLOWED}"),
        (["--gpus", "3", "--", "true"], 2, "--gpus: 3 is not allowed: at most 2: this machine has no more cards"),
        (["--gpus", "0", "--", "true"], 2, "--gpus: 0 is not allowed: a whole number, at least 1, or all"),
        (["--name", "a/b", "--", "true"], 2, f"--name: a/b is not allowed: {OF_NAME}"),
        (["--timeout", "soon", "--", "true"], 2, f"--timeout: soon is not allowed: {OF_TIME}"),
        (["--simulate", "2x", "--", "true"], 2, f"--simulate: 2x is not allowed: {OF_SIMULATE}"),
        (["--simulate", "--", "true"], 2, f"--simulate: {REAL}"),
        (["--simulate", "-d", "--", "true"], 2, f"--simulate: {REAL}"),
        (["--simulate", "--no-wait", "--", "true"], 2, f"--simulate: {REAL}"),
        (["--simulate", "--memory=2", "--", "true"], 2, f"--simulate: {REAL}"),
        (["--simulate", "foo", "--", "true"], 2, f"--simulate: foo is not allowed: {OF_SIMULATE}"),
        (["--simulate", "24GiB", "true"], 2, f"--simulate: 24GiB is not allowed: {OF_SIMULATE}"),
        (["--simulate", "8", "true"], 2, f"--simulate: 8 is not allowed: {OF_SIMULATE}"),
        (["--detach=yes", "--", "true"], 2, "--detach takes no value: yes"),
        (["--name", "a b", "--", "true"], 2, f'--name: "a b" is not allowed: {OF_NAME}'),
        (["--name", "", "--", "true"], 2, f'--name: "" is not allowed: {OF_NAME}'),
        (
            ["-it", "--", "bash"],
            2,
            "No such option: -it: the command already has your terminal and stdin (see aliquot run --help)",
        ),
        (
            ["--rm", "--", "bash"],
            2,
            "No such option: --rm: nothing remains of a run but its line in `aliquot ps -a` (see aliquot run --help)",
        ),
        (
            ["no-such | wc -l"],
            127,
            "no-such | wc -l: command not found: for a line of the shell use -- sh -c 'no-such | wc -l'",
        ),
        (
            ["SEED=1", "python", "train.py"],
            127,
            "SEED=1: command not found: set variables before aliquot, as in SEED=1 aliquot run ...",
        ),
        (["--what", "--", "true"], 2, "No such option: --what (see aliquot run --help)"),
        (
            ["--cpus", "2", "true"],
            2,
            "No such option: --cpus: processors are not limited; --core is the compute of each card "
            "(see aliquot run --help)",
        ),
        (
            ["--gpu", "0", "--", "true"],
            2,
            "No such option: --gpu: aliquot chooses the card; --gpus is the number of cards (see aliquot run --help)",
        ),
        (["--memry=1", "true"], 2, "No such option: --memry; did you mean --memory? (see aliquot run --help)"),
        (["--memory"], 2, "--memory needs a value: SIZE (see aliquot run --help)"),
        (["--memory", "1", "--"], 2, "the command is missing: aliquot run [OPTIONS] [--] COMMAND [ARGS]..."),
        (["--", "no-such-command"], 127, "no-such-command: command not found"),
        (["--", "./no/such"], 127, "./no/such: command not found"),
        (
            ["--", "/etc/passwd"],
            126,
            "/etc/passwd: not executable: chmod +x it, or name its interpreter, as in python3 or sh",
        ),
        (["--", "/etc"], 126, "/etc: it is a folder"),
    ],
)
def test_run_refuses_bad_input_in_one_line(machine: Machine, words: list[str], code: int, sentence: str) -> None:
    result = machine.aliquot("run", *words)
    assert (result.returncode, result.stdout, result.stderr) == (code, "", f"aliquot: {sentence}\n")
    assert machine.names() == []


def test_run_of_invalid_program_releases_slice(machine: Machine, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense"
    nonsense.write_bytes(b"\0\1\2\3")
    nonsense.chmod(0o755)
    for words in ([], ["-d"]):
        result = machine.aliquot("run", *words, "--", str(nonsense))
        assert (result.returncode, result.stderr) == (126, f"aliquot: {nonsense}: Exec format error\n")
    eventually(lambda: machine.names() == [])


def test_run_of_script_from_a_moved_folder_names_the_interpreter(machine: Machine, tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text("#!/gone/venv/bin/python3\n")
    script.chmod(0o755)
    result = machine.aliquot("run", "--", str(script))
    assert result.returncode == 126
    assert result.stderr.startswith(f"aliquot: {script}: its first line names /gone/venv/bin/python3, which does not")


def test_run_name_is_unique_while_running(machine: Machine) -> None:
    assert machine.detach("--name", "mine", "--memory", "1", "--", *FOREVER) == "mine"
    result = machine.aliquot("run", "--name", "mine", "--memory", "1", "--", "true")
    assert result.returncode == 2
    assert result.stderr == "aliquot: --name: mine is not allowed: another run has this name; `aliquot ps` lists it\n"
    machine.aliquot("stop", "mine")
    assert machine.detach("--name", "mine", "--memory", "1", "--", "true") == "mine"


def test_run_gets_the_name_of_one_that_is_about_to_end(machine: Machine) -> None:
    """As in a loop of a shell: the last processes of a run end a little after the first."""
    for _ in range(3):
        words = ["run", "--name", "again", "--memory", "1", "--", "sh", "-c", "sleep 0.3 & exit 3"]
        result = machine.aliquot(*words)
        assert (result.returncode, result.stderr) == (3, "")


# --- without a daemon --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_run_help_fits_the_terminal(width: int) -> None:
    text = help_text(width)
    whole, _, options = text.partition("Options:")
    assert max(map(len, options.splitlines())) <= width
    assert max(map(len, whole.splitlines())) <= 80
    assert "".join(text.split()) == "".join(help_text().split())


def test_run_loads_nothing_heavy() -> None:
    code = (
        "import sys, aliquot.__main__, aliquot.cli.run.command;"
        "print(*sorted({'click', 'rich', 'numpy', 'asyncio', 'msgspec', 'yaml', 'subprocess', 'dataclasses', 'sqlite3'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_run_help_lists_every_option() -> None:
    for words in (["run", "--help"], ["run", "-h"]):
        result = subprocess.run([*ALIQUOT, *words], capture_output=True, text=True, check=True)
        assert result.stdout.startswith("Usage: aliquot run [OPTIONS] [--] COMMAND [ARGS]...\n")
        assert all(f"  {flag}" in result.stdout for flag, _, _ in OPTIONS)
        assert max(map(len, result.stdout.splitlines())) <= 120


def test_run_help_on_full_disk_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run([*ALIQUOT, "run", "--help"], stdout=full, stderr=-1, text=True, check=False)
    assert (result.returncode, result.stderr) == (2, "aliquot: output: No space left on device\n")


def test_run_finds_aliquot_outside_path(machine: Machine) -> None:
    environment = {**machine.environment, "PATH": "/usr/bin:/bin"}
    result = machine.aliquot("run", "--memory", "1", "--", "aliquot", "--version", env=environment)
    assert (result.returncode, result.stdout[:8]) == (0, "aliquot,")


def test_run_is_in_command_group() -> None:
    result = CliRunner().invoke(cli, ["run", "--core", "0", "--", "true"])
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "/shim.so:/rm.so"),
        ("", "/shim.so:/rm.so"),
        ("/mine.so", "/shim.so:/rm.so:/mine.so"),
        ("/mine.so /yours.so", "/shim.so:/rm.so:/mine.so:/yours.so"),
        ("/rm.so:/mine.so:/shim.so", "/shim.so:/rm.so:/mine.so"),
    ],
)
def test_with_granted_prepends_once(monkeypatch: pytest.MonkeyPatch, before: str | None, after: str) -> None:
    if before is None:
        monkeypatch.delenv("LD_PRELOAD", raising=False)
    else:
        monkeypatch.setenv("LD_PRELOAD", before)
    granted: Granted = {"name": "x", "cards": [], "log": None, "front": {"LD_PRELOAD": ["/shim.so", "/rm.so"]}}
    assert environment_of(granted)["LD_PRELOAD"] == after
