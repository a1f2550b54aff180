"""`aliquot service`: a systemd unit for the daemon of this machine, so that it starts at boot."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from aliquot.adapters.host import systemd
from aliquot.adapters.host.control import AnswerError, ControlError, NoDaemonError, ask
from aliquot.adapters.host.home import own_home
from aliquot.adapters.host.process import ourselves
from aliquot.cli.client import parse_answer
from aliquot.cli.errors import InputError, SuggestingGroup
from aliquot.cli.machine.up import check_up_options, up_options, up_words
from aliquot.model.status.machine import DaemonStatus

NAME = "aliquot.service"
SYSTEM_FOLDER = "/etc/systemd/system"
_DENIED, _FAILED, _NOT_RUNNING, _NOT_INSTALLED = 77, 1, 3, 4  # the last two as `systemctl status` has them

_UNIT = """\
# Written by `aliquot service install`, which overwrites it; `systemctl edit aliquot` keeps changes beside it.
[Unit]
Description=Aliquot shares the GPUs of this machine
After=local-fs.target nvidia-persistenced.service
StartLimitIntervalSec=120
StartLimitBurst=20

[Service]
Type=notify
{environment}ExecStart={command}
WorkingDirectory=/
Restart=on-failure
RestartSec=2
# Pods and simulated cards are in this unit too, and outlive a daemon: the next daemon adopts them.
KillMode=process
TimeoutStartSec=90
TimeoutStopSec=30
LimitNOFILE=524288
TasksMax=infinity
{hardening}
[Install]
WantedBy={target}
"""
# What is set here holds for Pods too, which are processes of their users. So nothing that hides files or devices:
# ProtectClock, for example, allows no device but clocks.
_HARDENING = """\
LockPersonality=yes
ProtectKernelLogs=yes
CapabilityBoundingSet=~CAP_AUDIT_CONTROL CAP_BLOCK_SUSPEND CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_SYS_BOOT CAP_SYS_TIME \
CAP_WAKE_ALARM
"""


@click.group(cls=SuggestingGroup)
def service() -> None:
    """Start the daemon of this machine at boot, with systemd."""


@service.command()
@click.option("--user", is_flag=True, help="A unit of your own, without root: for a daemon that serves only you")
@click.option("--print", "only_print", is_flag=True, help="Print the unit; write and start nothing")
@up_options
def install(user: bool, only_print: bool, **options: Any) -> None:
    """Write the unit, enable and start it.

    The options after `install` are those of `aliquot up`. Without systemd (in a container, for example) the unit is
    written, and the commands to run later are printed. Run it again to change the options: those that are not given
    stay as they were set last.

    \b
    sudo aliquot service install --policy burst-share
    aliquot service install --user
    aliquot service install --print
    """
    check_up_options(**options)
    text = unit(up_words(**options), user=user)
    if only_print:
        click.echo(text, nl=False)
        return
    path = _path(user)
    _check_root(user, "install the unit of the machine")
    active = systemd.runs(user=user) and systemd.systemctl(["is-active", "--quiet", NAME], user=user)[0] == 0
    if systemd.runs(user=user) and not active:
        _check_no_daemon()
    _write(path, text)
    click.echo(f"wrote {path}")
    commands = [["daemon-reload"], ["enable", NAME], ["restart", NAME]]
    if not systemd.runs(user=user):
        prefix = f"systemctl {'--user ' if user else ''}"
        later = " && ".join(prefix + " ".join(words) for words in commands)
        click.echo(f"systemd does not run here, so nothing was started. Where it runs: {later}")
        return
    for words in commands:
        _systemctl(words, user)
    click.echo(f"{NAME} is enabled and runs; its log: journalctl {'--user ' if user else ''}-u {NAME}")
    if user:
        click.echo("it ends with your last session, unless root runs: loginctl enable-linger $USER")


@service.command()
@click.option("--user", is_flag=True, help="Your own unit")
def uninstall(user: bool) -> None:
    """Stop the daemon, disable the unit and remove it.

    Runs and Pods go on, and the next daemon adopts them. Simulated cards stay until `aliquot down`.
    """
    path = _path(user)
    _check_root(user, "remove the unit of the machine")
    if not path.exists():
        click.echo(f"{path} is not there: nothing to remove")
        return
    if systemd.runs(user=user):
        _systemctl(["disable", "--now", NAME], user)
    try:
        path.unlink()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", code=_FAILED) from error
    if systemd.runs(user=user):
        _systemctl(["daemon-reload"], user)
    click.echo(f"removed {path}")


@service.command()
@click.option("--user", is_flag=True, help="Your own unit")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def status(user: bool, output: str) -> None:
    """Show whether the unit is installed, enabled and running.

    Exit code 0 if the daemon runs, 3 if not, 4 if the unit is not installed.
    """
    path = _path(user)
    answers = systemd.runs(user=user)
    daemon = _daemon()
    found: dict[str, Any] = {
        "unit": str(path),
        "installed": path.exists(),
        "systemd": answers,
        "enabled": _word("is-enabled", user) if answers else None,
        "active": _word("is-active", user) if answers else None,
        "daemon": daemon and {"pid": daemon.pid, "version": daemon.version or None, "home": daemon.home or None},
    }
    if output == "json":
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo(f"unit     {path}{'' if found['installed'] else ': not installed (aliquot service install)'}")
        click.echo(f"systemd  {found['enabled']}, {found['active']}" if answers else "systemd  does not run here")
        runs = "does not run" if daemon is None else f"runs: pid {daemon.pid}, version {daemon.version}"
        click.echo(f"daemon   {runs}")
    code = _NOT_INSTALLED if not found["installed"] else _NOT_RUNNING if daemon is None else 0
    raise click.exceptions.Exit(code)


def unit(words: list[str], *, user: bool) -> str:
    """The unit's text. `words`: the options of `aliquot up`."""
    home = os.environ.get("ALIQUOT_HOME")
    environment = "" if not home else f"Environment={_quoted(f'ALIQUOT_HOME={own_home().run}')}\n"
    if any(sign in sys.executable for sign in "\"'\\"):
        raise InputError(f"systemd starts no program whose path has quotes or backslashes: {sys.executable}")
    options = " ".join(_quoted(word).replace("$", "$$") for word in ourselves.aliquot("up", *words)[1:])
    return _UNIT.format(
        environment=environment,
        command=f"{_quoted(sys.executable)} {options}",
        hardening="" if user else _HARDENING,  # a user's systemd may not drop capabilities
        target="default.target" if user else "multi-user.target",
    )


def _quoted(word: str) -> str:
    """The word as systemd reads it back: no specifiers, no splitting."""
    plain = word.replace("%", "%%")
    if plain and all(sign.isalnum() or sign in "/._-=:%+,@$" for sign in plain):
        return plain
    if not plain.isprintable():
        raise InputError(f"{word!r} cannot be written into a unit: it has control characters")
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _path(user: bool) -> Path:
    if not user:
        return Path(SYSTEM_FOLDER, NAME)
    return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "systemd", "user", NAME)


def _check_root(user: bool, what: str) -> None:
    if not user and os.geteuid() != 0:
        raise InputError(f"only root may {what}: use sudo, or --user for a daemon of your own", code=_DENIED)


def _daemon() -> DaemonStatus | None:
    try:
        return parse_answer(ask([own_home()], {"op": "hello"}, 10.0), DaemonStatus)
    except (NoDaemonError, ControlError, AnswerError, TimeoutError):
        return None


def _check_no_daemon() -> None:
    """The unit could not start a second one, and would try again and again."""
    daemon = _daemon()
    if daemon is not None:
        raise InputError(
            f"a daemon already runs for {daemon.home}: pid {daemon.pid}. Stop it with `aliquot down` and "
            "run this again: its runs go on, and the new daemon adopts them",
            code=_FAILED,
        )


def _write(path: Path, text: str) -> None:
    """Whole or not at all: systemd may read it at any time."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(text)
        fresh.chmod(0o644)
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise InputError(f"{path}: {error.strerror}", code=_FAILED) from error


def _systemctl(words: list[str], user: bool) -> None:
    code, said = systemd.systemctl(words, user=user)
    if code != 0:
        log = f"journalctl {'--user ' if user else ''}-u {NAME}"
        raise InputError(f"systemctl {' '.join(words)} failed ({code}): {said}; see {log}", code=_FAILED)


def _word(question: str, user: bool) -> str:
    """Such as enabled, active, failed."""
    lines = systemd.systemctl([question, NAME], user=user)[1].splitlines()
    return lines[0] if lines else "unknown"
