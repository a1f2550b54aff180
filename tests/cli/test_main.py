"""The command itself, as a shell sees it: exit codes, one line on stderr, a prompt `--help`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kit.running.terminal import shown_on_terminal
from kit.values.manifests import gpushare_node, gpushare_pod, replicas

COMMAND = (sys.executable, "-c", "from aliquot.cli.main import main; main()")


def aliquot(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False, **more)  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Pods of which some fit, and a cluster of two hundred nodes."""
    (tmp_path / "pods.json").write_text(json.dumps(replicas(40, gpushare_pod("", 17))))
    nodes = [gpushare_node(f"n{at}", *[16] * 8) for at in range(200)]
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": nodes}))
    return ["-f", str(tmp_path / "pods.json"), "--cluster", str(tmp_path / "cluster.json")]


def test_aliquot_without_arguments_shows_help() -> None:
    shown = aliquot()
    assert shown.returncode == 0
    assert "explain" in shown.stdout
    assert "simulate" in shown.stdout


def test_help_loads_nothing_heavy() -> None:
    code = "import sys, aliquot.cli.main; print(*({'numpy', 'yaml', 'msgspec', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


@pytest.mark.parametrize(
    "arguments", [["explain"], ["explode"], ["simulate", "--policy", "best"], ["simulate", "--seed", "x"], ["--what"]]
)
def test_usage_error_is_one_line_and_exits_2(arguments: list[str]) -> None:
    result = aliquot(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("aliquot: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["explode"], ["ps", "--what"]])
def test_usage_error_is_one_line_with_click_8_1_too(arguments: list[str]) -> None:
    """It has no NoArgsIsHelpError."""
    code = "import click; vars(click.exceptions).pop('NoArgsIsHelpError', None); " + COMMAND[2]
    result = subprocess.run([*COMMAND[:2], code, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("aliquot: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["ps", "-w"],
            "No such option '-w': `aliquot top` is live; `watch aliquot ps` repeats this list (see aliquot ps",
        ),
        (["ps", "--json"], "No such option '--json': use -o json (see aliquot ps"),
        (["top", "-b"], "No such option '-b': use --once (see aliquot top"),
        (
            ["dashboard", "-o", "json"],
            "No such option '-o': it prints nothing but the address on stdout (see aliquot d",
        ),
        (["stop", "-9", "x"], "No such option '-9': use --timeout 0: SIGKILL at once (see aliquot stop"),
        (["-v"], "No such option '-v': use --version (see aliquot --help)"),
        (["ps", "--what"], "No such option '--what' (see aliquot ps --help)"),
        (["logs"], "Missing argument 'NAME' (see aliquot logs --help)"),
    ],
)
def test_unknown_option_names_what_to_use_instead(arguments: list[str], sentence: str) -> None:
    assert aliquot(*arguments).stderr.replace("option: ", "option ").startswith(f"aliquot: {sentence}")


def test_misspelled_command_suggests_another() -> None:
    assert aliquot("stpo", "x").stderr == 'aliquot: No such command "stpo"; did you mean stop? (see aliquot --help)\n'
    assert "?" not in aliquot("xyzzy").stderr


def test_word_of_another_tool_names_the_command_to_use() -> None:
    assert aliquot("status").stderr == (
        'aliquot: No such command "status": `aliquot ps` lists runs, `aliquot top` shows every card '
        "(see aliquot --help)\n"
    )
    for word in ("ls", "kill", "start"):
        assert f'No such command "{word}": `aliquot ' in aliquot(word).stderr
    for word in ("install", "upgrade"):
        assert "use `helm upgrade --install`" in aliquot(word, "--image", "x").stderr
    for word in ("apply", "create", "scale"):
        said = aliquot(word, "-f", "x").stderr
        assert "`aliquot run -f POD.yaml` runs a Pod's containers; for Deployments and the like use k3s" in said
    assert "--version" in aliquot("version").stderr
    assert "`aliquot policy set fixed-share`" in aliquot("policy", "fixed-share").stderr


@pytest.mark.parametrize("group", ["service", "manifests"])
def test_group_without_a_command_shows_its_help(group: str) -> None:
    result = aliquot(group)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Usage: aliquot {group} ")
    assert "\nCommands:\n" in result.stderr


def test_option_without_its_value_names_the_help_of_its_command() -> None:
    assert aliquot("logs", "x", "--tail").stderr.endswith("(see aliquot logs --help)\n")
    assert aliquot("service", "install", "--policy").stderr.endswith("(see aliquot service install --help)\n")


def test_completion_script_completes_commands_in_bash(tmp_path: Path) -> None:
    program = tmp_path / "aliquot"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    typed = f'COMP_WORDS=(aliquot compl); COMP_CWORD=1; _aliquot_completion {program}; echo "${{COMPREPLY[*]}}"'
    script = f"{aliquot('completion', 'bash').stdout}\n{typed}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("completion\n", "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_script_of_other_shells_calls_aliquot(shell: str) -> None:
    assert f"_ALIQUOT_COMPLETE={shell}_complete" in aliquot("completion", shell).stdout


def test_explain_of_unfitting_pods_exits_1(files: list[str]) -> None:
    assert aliquot("explain", *files).returncode == 1


def test_broken_pipe_exits_141(files: list[str]) -> None:
    with subprocess.Popen([*COMMAND, "explain", *files, "-o", "json"], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "[\n"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(30) == 141


def test_full_disk_is_reported(files: list[str]) -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run([*COMMAND, "explain", *files], stdout=full, stderr=-1, text=True, check=False)
    assert (result.returncode, result.stderr) == (2, "aliquot: output: No space left on device\n")


@pytest.mark.parametrize(
    ("command", "module"), [("ps", "aliquot.cli.main"), ("ps", "msgspec"), ("run", "aliquot.cli.run.request")]
)
def test_interrupt_during_imports_exits_130(command: str, module: str) -> None:
    code = f"""
import sys
class Interrupted:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
sys.argv = ["aliquot", {command!r}]
from aliquot.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("command", ["run", "up", "scheduler"])
def test_python_without_the_functions_of_linux_is_named(command: str) -> None:
    code = f"""
import os, sys
del os.pidfd_open
sys.argv = ["aliquot", {command!r}, "--help"]
from aliquot.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        f"aliquot: `aliquot {command}` needs os.pidfd_open, which this Python lacks ({sys.executable}): install Aliquot"
        " with your distribution's python3, or with a newer Python of uv or conda\n"
    )


def test_interrupt_exits_130(tmp_path: Path) -> None:
    fifo = tmp_path / "pods"
    os.mkfifo(fifo)  # nobody writes: it waits there until it is interrupted
    command = [*COMMAND, "explain", "-f", str(fifo), "--cluster", "x"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process, fifo.open("w"):  # opens when the command does
        process.send_signal(signal.SIGINT)
        _, result = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in result) == (130, False)


def test_progress_bar_only_on_terminal() -> None:
    arguments = ["simulate", "--generate", "20x8", "--policy", "binpack"]
    assert aliquot(*arguments).stderr == ""
    assert "binpack" in shown_on_terminal([*COMMAND, *arguments], {**os.environ, "TERM": "xterm"})[0]


def test_ascii_terminal() -> None:
    shown = aliquot("simulate", "--generate", "2x2", env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert (shown.returncode, shown.stderr) == (0, "")
