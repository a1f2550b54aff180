"""`aliquot run -f`: runs the containers of a Pod as processes of the caller, each with its own slice.

Init containers come first, each is waited for. A Pod of one container becomes it, as `aliquot run` becomes its command;
several run beside each other, and this process waits for all.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.cli.run.request import BAD_INPUT, INTERRUPTED, RunError, print_error
from aliquot.dialects import QgpuRules, Rules
from aliquot.dialects.podruns import Ask, PodRun, PodRuns, makes_pods, runs_of
from aliquot.model.claim import Role
from aliquot.model.decoding.openjson import JsonObject

if TYPE_CHECKING:
    from aliquot.cli.manifests import Manifest

RunCommand = Callable[[dict[str, str] | None, list[str]], int]  # options of `aliquot run`, and the command
_OF_THE_POD = ("--memory", "--core", "--gpus", "--class", "--latency", "--park", "--together")
_PASSED_ON = ("--no-wait", "--timeout", "--simulate")  # to every run
_RULES = ("seed", "2026")
_OUTPUTS = ("table", "json")
_MOST_SAID = 5  # invalid fields of a Pod
_LONGEST_NAME = 63  # of a run
KUBERNETES = "for Deployments, Jobs and the like use Kubernetes, on one machine k3s (docs/k3s.md)"


def run_pod(options: dict[str, str], command: list[str], run: RunCommand) -> int:
    """The exit code. Does not return if the Pod has one container, and it starts. `run` becomes a command. Raises
    RunError."""
    _check_options(options, command)
    runs, notes = read_pod_runs(options["--filename"], options.get("--name"), options.get("--rules", "seed"))
    for note in notes:
        print_error(note)
    passed = {flag: options[flag] for flag in _PASSED_ON if flag in options}
    as_json = options.get("--output") == "json"
    if "--dry-run" in options:
        print(_json(runs, passed) if as_json else "\n".join(_shell_line(run, passed) for run in runs))
        return 0
    _check_folders(runs)
    if "--detach" not in options:
        return _in_foreground(runs, passed, run)
    code = _in_background(runs, passed, run, quiet=as_json)
    if as_json and not code:
        print(_json(runs, passed))
    return code


def _check_options(options: dict[str, str], command: list[str]) -> None:
    if command:
        raise RunError(f"-f: the Pod has the command: omit {shlex.join(command)}")
    for flag in _OF_THE_POD:
        if flag in options:
            raise RunError(f"{flag}: not with -f: the Pod says it")
    for flag, allowed in (("--rules", _RULES), ("--output", _OUTPUTS)):
        if options.get(flag, allowed[0]) not in allowed:
            raise RunError(f"{flag}: {options[flag]} is not allowed: {' or '.join(allowed)}")
    if options.get("--output") == "json" and "--dry-run" not in options and "--detach" not in options:
        raise RunError("-o json: add --dry-run or --detach: stdout belongs to the Pod's command")


# --- the manifest ------------------------------------------------------------------------------------------------


def read_pod_runs(path: str, name: str | None, rules: str) -> tuple[list[PodRun], list[str]]:
    """The runs of the Pods in the file, and notes. Raises RunError with file and line."""
    from aliquot.cli.errors import InputError
    from aliquot.cli.manifests import read_manifests

    try:
        manifests = read_manifests(Path(path))
        pods = [manifest for manifest in manifests if manifest.value.get("kind") == "Pod"]
        others = [manifest for manifest in manifests if manifest not in pods]
        for manifest in others:
            if "kind" not in manifest.value or makes_pods(manifest.value):
                raise manifest.error(_refused(manifest.value))
        if not pods:
            raise InputError(f"{path}: has no Pod")
        if name is not None and len(pods) > 1:
            raise InputError(f"--name: {name} is not allowed: {path} has several Pods, and each has its own name")
        skipped = ", ".join(f"{other.value['kind']} {_named(other.value)}" for other in others)
        runs: list[PodRun] = []
        notes = [f"skipped: {skipped}"] if others else []
        for pod in pods:
            found = _runs_of(pod, name, rules)
            runs += found.runs
            notes += [f"{_named(pod.value)}: {note}" for note in found.notes]
        return runs, notes
    except InputError as error:
        raise RunError(error.format_message(), BAD_INPUT) from error


def _runs_of(pod: Manifest, name: str | None, rules: str) -> PodRuns:
    found = runs_of(pod.value, name, socket.gethostname(), Rules(QgpuRules(rules)))
    if not isinstance(found, PodRuns):
        more = f"; and {len(found) - _MOST_SAID} more" if len(found) > _MOST_SAID else ""
        raise pod.error("; ".join(broken.sentence() for broken in found[:_MOST_SAID]) + more)
    for run in found.runs:
        if len(run.name) > _LONGEST_NAME:
            raise pod.error(f"metadata.name: {run.name} is too long for a run: use --name")
    return found


def _refused(manifest: JsonObject) -> str:
    if "kind" not in manifest:
        return "kind is missing: a Pod is wanted"
    return f"{manifest['kind']} {_named(manifest)}: `aliquot run -f` runs only Pods; {KUBERNETES}"


def _named(manifest: JsonObject) -> str:
    metadata = manifest.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return str(name or "(no name)")


# --- the runs ------------------------------------------------------------------------------------------------------


def options_of(run: PodRun) -> dict[str, str]:
    """The options of `aliquot run` that ask for the same."""
    return {"--name": run.name, **(_asked(run.ask) if run.ask is not None else {})}


def _asked(ask: Ask) -> dict[str, str]:
    found: dict[str, str] = {}
    if ask.app_class != "normal":
        found["--class"] = ask.app_class
    if ask.gpus != 1:
        found["--gpus"] = "all" if ask.gpus is None else str(ask.gpus)
    if ask.core is not None:
        found["--core"] = str(ask.core)
    if ask.memory_percent is not None:
        found["--memory"] = f"{ask.memory_percent:.9g}%"
    elif ask.memory_mib is not None:
        gib, rest = divmod(ask.memory_mib, 1024)
        found["--memory"] = f"{ask.memory_mib}MiB" if rest else str(gib)
    if ask.park_after is not None:
        found["--park"] = f"{ask.park_after:g}s"
    if ask.latency is not None:
        found["--latency"] = f"{ask.latency * 1000:g}ms"
    if ask.group:
        found["--together"] = ask.group
    return found


def _shell_line(run: PodRun, passed: dict[str, str]) -> str:
    """The run as a line for a shell."""
    words = [f"{name}={value}" for name, value in run.env.items()]
    words = ["env", *words] if words else []
    if run.ask is not None:
        flags = [word for flag, value in {**options_of(run), **passed}.items() for word in (flag, value) if word]
        words += ["aliquot", "run", *flags, "--"]
    line = shlex.join([*words, *run.command])
    return line if run.folder is None else f"(cd {shlex.quote(run.folder)} && {line})"


def _json(runs: Sequence[PodRun], passed: dict[str, str]) -> str:
    return json.dumps({"runs": [_described(run, passed) for run in runs]}, indent=2)


def _described(run: PodRun, passed: dict[str, str]) -> dict[str, Any]:
    return {
        "name": run.name,
        "container": run.container,
        "role": run.role.value,
        "request": None if run.ask is None else _requested(run.ask),
        "command": list(run.command),
        "env": run.env,
        "folder": run.folder,
        "shell": _shell_line(run, passed),
    }


def _requested(ask: Ask) -> dict[str, Any]:
    return {
        "class": ask.app_class,
        "gpus": "all" if ask.gpus is None else ask.gpus,
        "memory_mib": ask.memory_mib,
        "memory_percent": ask.memory_percent,
        "core": ask.core,
        "park_seconds": ask.park_after,
        "latency_seconds": ask.latency,
        "together": ask.group or None,
    }


def _check_folders(runs: Sequence[PodRun]) -> None:
    for run in runs:
        if run.folder is not None and not os.path.isdir(run.folder):
            raise RunError(f"{run.path}.workingDir: {run.folder} is not allowed: a folder of this machine")


def _in_foreground(runs: Sequence[PodRun], passed: dict[str, str], run_command: RunCommand) -> int:
    """A Pod of one main container becomes it. Of several, the exit code is the first that is not 0."""
    with _Children() as children:
        for at, run in enumerate(runs):
            become = partial(_become, run, passed, run_command)
            if run.role is Role.INIT:
                _run_first(children, run, become)
            elif at == len(runs) - 1 and not children.started:
                children.forget()
                return become()
            else:
                children.start(run, become)
        return children.wait_for_main()


def _in_background(runs: Sequence[PodRun], passed: dict[str, str], run_command: RunCommand, *, quiet: bool) -> int:
    """Init containers in the foreground, then each container as with --detach."""
    for run in runs:
        if run.ask is None and run.role is not Role.INIT:
            raise RunError(f"container {run.container} requests no card: with --detach only containers with cards run")
    with _Children() as children:
        for run in runs:
            if run.role is Role.INIT:
                _run_first(children, run, partial(_become, run, passed, run_command))
                continue
            code = children.run(run, partial(_become, run, {**passed, "--detach": ""}, run_command, quiet=quiet))
            if code:
                return code
    return 0


def _run_first(children: _Children, run: PodRun, become: Callable[[], int]) -> None:
    code = children.run(run, become)
    if code:
        raise RunError(f"init container {run.container} ended with exit code {code}: nothing after it is run", code)


def _become(run: PodRun, passed: dict[str, str], run_command: RunCommand, *, quiet: bool = False) -> int:
    """Run the container in this process. Returns only with --detach. Raises RunError."""
    if quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if run.folder is not None:
        os.chdir(run.folder)
    os.environ.update(run.env)
    return run_command(None if run.ask is None else {**options_of(run), **passed}, list(run.command))


class _Children:
    """The processes of the containers. SIGTERM and SIGHUP go to all of them; Ctrl-C reaches them by the terminal."""

    def __init__(self) -> None:
        self._living: dict[int, PodRun] = {}
        self._before: dict[int, Any] = {}

    @property
    def started(self) -> bool:
        """Whether some run."""
        return bool(self._living)

    def __enter__(self) -> _Children:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                self._before[number] = signal.signal(number, self._pass_on)
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()

    def forget(self) -> None:
        """Signals do again what they did."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def start(self, run: PodRun, become: Callable[[], int]) -> int:
        """Start the container in a child; its pid."""
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            self.forget()
            code = 1
            try:
                code = become()
            except RunError as error:
                print_error(f"{run.container}: {error}")
                code = error.code
            except KeyboardInterrupt:
                code = INTERRUPTED
            finally:
                sys.stdout.flush()
                os._exit(code)
        self._living[pid] = run
        return pid

    def run(self, run: PodRun, become: Callable[[], int]) -> int:
        """Start it and wait; its exit code."""
        return self._wait(self.start(run, become))

    def wait_for_main(self) -> int:
        """The exit code of the first container that failed, once all are over; sidecars end with the last of them."""
        codes = [self._wait(pid) for pid, run in list(self._living.items()) if run.role is Role.MAIN]
        self._signal(signal.SIGTERM)
        for pid in list(self._living):
            self._wait(pid)
        return next((code for code in codes if code), 0)

    def _wait(self, pid: int) -> int:
        interrupted = False
        while True:
            try:
                status = os.waitpid(pid, 0)[1]
            except KeyboardInterrupt:  # the children got it too, and decide
                interrupted = True
                continue
            del self._living[pid]
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code
            if interrupted and not code:
                raise KeyboardInterrupt
            return code

    def _pass_on(self, number: int, _frame: object) -> None:
        self._signal(number)

    def _signal(self, number: int) -> None:
        for pid in self._living:
            os.kill(pid, number)
