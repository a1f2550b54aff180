"""`aliquot up`: the daemon of this machine, by hand; `aliquot down`: its end."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aliquot.adapters.host.home import SIM_VARIABLE, Home, HomeError, homes, own_home
from aliquot.cli.amounts import Cards
from aliquot.cli.client import Duration, NoDaemonRunsError, ask, check_delay, read_status
from aliquot.cli.dashboardoptions import parse_listen
from aliquot.cli.errors import InputError
from aliquot.cli.simulated import or_no_player, parse_simulation, with_stand_ins
from aliquot.wording.amounts import memory

if TYPE_CHECKING:
    from aliquot.services.dashboard.access import Listen

POLICY_CHOICES = ("best-effort", "fixed-share", "burst-share")
NO_CARD = (
    "no NVIDIA GPU can be used here ({why}). To try it without one: "
    "`aliquot run --simulate -- COMMAND`, `aliquot apply --simulate -f FILE`, or `aliquot up --simulate 2x24GiB`"
)


@click.command()
@click.option("-d", "--detach", is_flag=True, help="In the background; returns when it is ready")
@click.option("--policy", type=click.Choice(POLICY_CHOICES), help="How tenants share a card  [default: as last set]")
@click.option(
    "--release-delay",
    type=Duration(),
    help="How long online work keeps a card that it left idle: 100ms, or 0 to hand gaps back at once  "
    "[default: as last set]",
)
@click.option(
    "--simulate",
    metavar="SPEC",
    help="Simulated cards instead of real ones, as in 2x24GiB, or 2x8x24GiB for two nodes of eight",
)
@click.option(
    "--listen",
    metavar="[ADDRESS:]PORT",
    help="The dashboard, and metrics for Prometheus; 0: none  [default: 127.0.0.1:9478]",
)
@click.option(
    "--token-file", type=click.Path(path_type=Path), help="The token that is asked for where others reach --listen"
)
def up(
    detach: bool,
    policy: str | None,
    release_delay: float | None,
    simulate: str | None,
    listen: str | None,
    token_file: Path | None,
) -> None:
    """Start the daemon of this machine.

    There is one per machine; `aliquot run` starts it when it is needed. It survives being killed: tenants run on, and
    the next daemon takes them up again. With SIGTERM or `aliquot down` it ends and leaves nobody paused.

    \b
    aliquot up -d
    aliquot up --policy fixed-share
    aliquot up --simulate 2x24GiB -d
    """
    if release_delay is not None:
        check_delay(release_delay)
    spec = parse_simulation(simulate)
    where = parse_listen(listen, token_file, option="--listen")
    if detach:
        _in_background(policy, release_delay, simulate, listen, token_file)
        return
    home = own_home()
    if home not in homes()[:1]:
        _none_for_the_machine(homes()[0])
    with or_no_player(home) as came_up:
        _serve(home, policy, release_delay, spec, where, came_up)


@click.command()
def down() -> None:
    """End the daemon.

    Tenants run on, nobody stays paused, and their memory limits hold; the next daemon takes them up again. Simulated
    cards end too, and with them whatever runs on them.
    """
    from aliquot.adapters.gpu import player
    from aliquot.adapters.host import processes

    said: dict[str, Any] = {}
    simulated = any(player.playing(home) for home in homes())
    try:
        said = ask({"op": "down"})
    except NoDaemonRunsError:
        if not simulated:
            click.echo("no daemon runs: there is nothing to end")
            return
    pid = said.get("pid")
    deadline = time.monotonic() + 10
    while pid is not None and processes.lives(pid, None):
        if time.monotonic() > deadline:
            raise InputError(f"the daemon (pid {pid}) was told to end, and has not yet")
        time.sleep(0.02)
    for home in homes():
        player.end(home)
    names = said.get("tenants", [])
    click.echo("the daemon has ended" if pid is not None else "no daemon ran; the simulated cards have ended")
    if names and not simulated:
        click.echo(f"{', '.join(names)}: running on; the next `aliquot up` or `aliquot run` takes them up again")
    elif names:
        click.echo(f"{', '.join(names)}: left without their simulated cards")


def _none_for_the_machine(machine: Home) -> None:
    """Two daemons would book the same cards twice."""
    from aliquot.adapters.host.control import Connection, ControlError, NoDaemonError

    try:
        Connection(machine.control).close()
    except (NoDaemonError, ControlError):
        return
    raise InputError(f"the daemon of the machine runs already ({machine.run}): `aliquot ps` shows it")


def _in_background(
    policy: str | None, delay: float | None, simulate: str | None, listen: str | None, token_file: Path | None
) -> None:
    from aliquot.adapters.host.control import ControlError, NoDaemonError, connect
    from aliquot.cli.run.autostart import StartError, start

    arguments = []
    token = None if token_file is None else token_file.absolute()
    for flag, value in (
        ("--policy", policy),
        ("--simulate", simulate),
        ("--listen", listen),
        ("--token-file", token),
    ):
        arguments += [] if value is None else [flag, str(value)]
    arguments += [] if delay is None else ["--release-delay", f"{delay * 1000:g}ms"]
    try:
        connect(homes())[0].close()
    except NoDaemonError:
        pass
    except ControlError as error:
        raise InputError(str(error)) from error
    else:
        about = ask({"op": "hello"})
        raise _already(f"a daemon runs already for {about['home']}: pid {about['pid']}")
    try:
        start(arguments)[0].close()
    except StartError as error:
        raise InputError(str(error), code=error.code) from error
    status = read_status()
    kinds = Counter(f"{card.model} {memory(card.memory_mib)}" for card in status.cards)
    cards = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    nodes = len(status.nodes or [])
    cards += f" on {nodes} nodes" if nodes > 1 else ""
    url = status.daemon.dashboard
    where = f"dashboard on {url}" if url else "no dashboard"
    if not url and listen is None:
        where += ": the usual port is taken (--listen chooses another)"
    click.echo(f"aliquot: ready: pid {status.daemon.pid}; {cards}; {where}", err=True)


def _serve(
    home: Home,
    policy: str | None,
    delay: float | None,
    spec: Cards | None,
    where: Listen | None,
    came_up: Callable[[], None],
) -> None:
    from aliquot.adapters.gpu import player
    from aliquot.adapters.gpu.nvml import Nvml, NvmlError
    from aliquot.adapters.host.logs import start_text_logging
    from aliquot.adapters.storage.store import StoreError
    from aliquot.model.node import Isolation
    from aliquot.services.daemon import home as daemon_home
    from aliquot.services.machine import service

    # A log file needs the time; a terminal shows it as it happens, and systemd's journal writes its own.
    to_file = not sys.stderr.isatty() and "JOURNAL_STREAM" not in os.environ
    start_text_logging(with_time=to_file)

    def on_ready(text: str) -> None:
        came_up()
        click.echo(f"aliquot: {text}", err=True)

    playing = player.playing(home)
    if spec is None and playing is not None:  # the home is simulated until `aliquot down`
        spec = Cards(playing.cards, playing.memory_mib, playing.nodes)
    try:
        daemon_home.make_home(home)
        os.close(daemon_home.take_lock(home))  # whoever runs says so before anything else is tried
        if spec is not None:
            playing = with_stand_ins(home, spec)
        if not os.path.exists(player.shim()):
            raise InputError(f"{player.shim()} is not there: build it with `make native`")
        nvml = Nvml()
        libraries = player.preloadable(home)
        front = {"LD_PRELOAD": [f"{libraries}/libaliquot.so"]}
        if playing is not None:
            front["LD_PRELOAD"].append(f"{libraries}/simgpu/libsimrm.so")
            front["LD_LIBRARY_PATH"] = [f"{libraries}/simgpu"]
        setup = service.Setup(
            home=home,
            nvml=nvml,
            make_arbiter=_arbiter(nvml, simulated=playing is not None),
            on_ready=on_ready,
            environment={} if playing is None else {SIM_VARIABLE: playing.socket},
            front=front,
            policy=None if policy is None else Isolation(policy),
            release_delay=delay,
            simulated=None if playing is None else playing.spec,
            nodes=1 if playing is None else playing.nodes,
            listen=where or service.USUAL,
        )
        service.run_daemon(setup)
    except NvmlError as error:
        raise InputError(NO_CARD.format(why=error)) from error
    except daemon_home.AlreadyRunningError as error:
        raise _already(str(error)) from error
    except (daemon_home.StartError, StoreError, HomeError, player.PlayerError) as error:
        raise InputError(str(error)) from error
    except OSError as error:  # a full disk, say
        raise InputError(f"{error.filename or home.state}: {error.strerror or error}") from error


def _arbiter(nvml: Any, *, simulated: bool) -> Any:
    def make(cards: Any, rules: Any) -> Any:
        from aliquot.services.runtime.arbiterd import Arbiterd

        return Arbiterd(cards, rules=rules, nvml=nvml, simulated=simulated)

    return make


def _already(text: str) -> InputError:
    return InputError(text, code=1)
