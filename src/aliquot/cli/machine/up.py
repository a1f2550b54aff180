"""`aliquot up` and `aliquot down`: start and stop the daemon of this machine."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click

from aliquot.adapters.host.home import (
    NAME_VARIABLE,
    SIM_VARIABLE,
    TENANT_VARIABLE,
    Home,
    HomeError,
    homes,
    own_home,
)
from aliquot.cli.amounts import SIMULATED, AmountError, Cards, parse_memory
from aliquot.cli.client import Delay, NoDaemonRunsError, ask, read_status
from aliquot.cli.errors import InputError
from aliquot.cli.machine.running import dashboard_words, differences, flags_of
from aliquot.cli.options.control import control_mode, control_option
from aliquot.cli.options.dashboard import parse_listen
from aliquot.cli.options.elastic import HostPool, check_host_pool
from aliquot.cli.options.enforcement import check_enforcement, enforce_options, kill_after
from aliquot.cli.simulated import or_no_player, parse_simulation, with_stand_ins
from aliquot.wording.amounts import memory

if TYPE_CHECKING:
    from aliquot.model.status.machine import Status
    from aliquot.services.proof.startup import Mode

POLICY_CHOICES = ("best-effort", "fixed-share", "burst-share")
NO_CARD = (
    "no usable NVIDIA GPU ({why}). To try aliquot without one: "
    "`aliquot run --simulate -- COMMAND` or `aliquot up --simulate 2x24GiB`"
)


class LogLimit(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """An amount of bytes; 0: without a limit."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else 0 if value.strip() == "0" else parse_memory(value) << 20
        except AmountError:
            self.fail(f"{value} is not allowed: 1MiB or more, as in 64MiB or 2GiB; 0: no limit", param, ctx)


_OPTIONS = (
    click.option(
        "--policy", type=click.Choice(POLICY_CHOICES), help="How tenants share a card  [default: as set last]"
    ),
    click.option(
        "--release-delay",
        type=Delay(),
        help="How long an idle card stays reserved for online work: auto (learned from its gaps), a time such as "
        "100ms, or 0 to release it at once  [default: as set last, at first auto]",
    ),
    *enforce_options("as set last, at first report"),
    control_option("as set last, at first auto"),
    click.option(
        "--simulate",
        metavar="[SPEC]",
        is_flag=False,
        flag_value=SIMULATED,
        help=f"Simulate cards: {SIMULATED} (also without SPEC), or 2x8x24GiB for two nodes of eight cards",
    ),
    click.option(
        "--host-pool",
        type=HostPool(),
        help="Host memory for what does not fit on the cards, taken when needed; 0: nothing is parked  "
        "[default: as set last, at first a quarter of the machine's]",
    ),
    click.option(
        "--log-limit",
        type=LogLimit(),
        help="Largest size of the log of each run, of each container and of the daemon; 0: no limit  "
        "[default: as set last, at first 64MiB]",
    ),
    click.option(
        "--keep-usage",
        type=click.IntRange(1, 3650),
        metavar="DAYS",
        help="Days for which `aliquot usage` keeps hours  [default: as set last, at first 30]",
    ),
    click.option(
        "--metrics-names",
        type=click.Choice(["aliquot", "qgpu"]),
        help="qgpu: also the metrics of qGPU's exporter, under its names  [default: as set last, at first aliquot]",
    ),
    click.option(
        "--listen",
        metavar="[ADDRESS:]PORT",
        help="Address of the dashboard and the Prometheus metrics; 0: none  "
        "[default: as set last, at first 127.0.0.1:9478]",
    ),
    click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        help="File with the token; required if --listen is reachable from other machines",
    ),
)


class UpOptions(TypedDict):
    """Those of the daemon itself; None: not given."""

    policy: str | None
    release_delay: float | str | None
    host_pool: int | None
    log_limit: int | None
    keep_usage: int | None
    metrics_names: str | None
    control: str | None
    enforce: str | None
    enforce_grace: float | None


def up_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of the daemon, for `up` and for the unit that calls it."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def check_up_options(
    simulate: str | None,
    listen: str | None,
    token_file: Path | None,
    enforce: str | None,
    enforce_grace: float | None,
    host_pool: int | None = None,
    **_others: object,
) -> None:
    """Raises InputError for what the daemon would refuse."""
    check_host_pool(host_pool, simulated=simulate is not None)
    check_enforcement(enforce, enforce_grace)
    parse_simulation(simulate)
    parse_listen(listen, token_file, option="--listen")


def up_words(
    policy: str | None,
    release_delay: float | str | None,
    simulate: str | None,
    listen: str | None,
    token_file: Path | str | None,
    enforce: str | None = None,
    enforce_grace: float | None = None,
    log_limit: int | None = None,
    host_pool: int | None = None,
    keep_usage: int | None = None,
    metrics_names: str | None = None,
    control: str | None = None,
) -> list[str]:
    """The same options as words of a command line."""
    words = []
    for flag, value in (
        ("--policy", policy),
        ("--simulate", simulate),
        ("--listen", listen),
        ("--token-file", None if token_file is None else os.path.abspath(token_file)),
        ("--release-delay", f"{release_delay * 1000:g}ms" if isinstance(release_delay, float) else release_delay),
        ("--log-limit", None if log_limit is None else f"{log_limit >> 20}MiB" if log_limit else "0"),
        ("--host-pool", None if host_pool is None else f"{host_pool}MiB" if host_pool else "0"),
        ("--keep-usage", keep_usage),
        ("--metrics-names", metrics_names),
        ("--control", control),
        ("--enforce", enforce),
        ("--enforce-grace", None if enforce_grace is None else f"{enforce_grace * 1000:g}ms"),
    ):
        words += [] if value is None else [flag, str(value)]
    return words


@click.command()
@click.option("-d", "--detach", is_flag=True, help="Run in the background; return when it is ready")
@up_options
def up(
    detach: bool, simulate: str | None, listen: str | None, token_file: Path | None, **options: Unpack[UpOptions]
) -> None:
    """Start the daemon of this machine.

    There is one per machine; `aliquot run` starts it if needed. With -d it is fine that one runs already with the
    options that are given; one with others is an error. If it is killed, tenants keep running and the next
    daemon adopts them. SIGTERM and `aliquot down` stop it; no tenant stays paused.

    \b
    aliquot up -d
    aliquot up --policy fixed-share
    aliquot up --simulate 2x24GiB -d
    """
    check_up_options(simulate, listen, token_file, **options)
    if detach:
        _in_background(up_words(simulate=simulate, listen=listen, token_file=token_file, **options))
        return
    for name in (TENANT_VARIABLE, NAME_VARIABLE):  # what it starts is not the run's
        os.environ.pop(name, None)
    home = own_home()
    if home not in homes()[:1]:
        _check_no_system_daemon(homes()[0])
    with or_no_player(home) as came_up:
        _serve(home, options, simulate, listen, token_file, came_up)


@click.command()
def down() -> None:
    """Stop the daemon of this machine.

    Tenants keep running unpaused and with their memory limits; the next daemon adopts them. Memory that is parked stays
    in the host's memory, and its tenants wait for the next daemon. Simulated cards end, and with them everything that
    runs on them. Without a daemon it names the runs that a killed one left behind.

    \b
    aliquot down
    """
    from aliquot.adapters.gpu import player
    from aliquot.adapters.host.process import processes
    from aliquot.cli.machine.leftbehind import left_behind, left_behind_words

    playing = next(filter(None, map(player.known, homes())), None)
    simulated = playing is not None
    try:
        answer = ask({"op": "down"})
    except NoDaemonRunsError:
        ended = [player.end(home) for home in homes()]
        click.echo("no daemon runs; simulated cards stopped" if simulated or any(ended) else "no daemon runs")
        if names := left_behind(own_home()):
            click.echo(left_behind_words(names, None if playing is None else playing.spec))
        return
    pid = answer.get("pid")
    started = None if pid is None else processes.start_time(pid)
    deadline = time.monotonic() + 10
    while processes.lives(pid, started):
        if time.monotonic() > deadline:
            raise InputError(f"the daemon (pid {pid}) has not ended yet")
        time.sleep(0.02)
    ended = [player.end(home) for home in homes()]
    simulated = simulated or any(ended)
    names = answer.get("tenants", [])
    click.echo("daemon stopped")
    if names and not simulated:
        click.echo(f"{', '.join(names)}: still running; the next `aliquot up` or `aliquot run` adopts them")
    elif names:
        click.echo(f"{', '.join(names)}: lost {'its' if len(names) == 1 else 'their'} simulated cards")
    if answer.get("parked"):
        from aliquot.wording.parking import left_parked_words

        click.echo(left_parked_words(answer["parked"]))


def _check_no_system_daemon(machine: Home) -> None:
    """Two daemons would book the same cards twice."""
    from aliquot.adapters.host.control import Connection, ControlError, NoDaemonError

    try:
        Connection(machine.control, obeys=False).close()
    except NoDaemonError:
        return
    except ControlError as error:  # one runs, and does not talk to us
        raise InputError(f"the system's daemon runs already: {error}") from error
    raise InputError(f"the system's daemon runs already ({machine.run}): see `aliquot ps`")


def _in_background(words: list[str]) -> None:
    from aliquot.adapters.host.control import ControlError, NoDaemonError, connect
    from aliquot.cli.run.autostart import StartError, start

    try:
        connect(homes(), obeys=False)[0].close()
    except NoDaemonError:
        pass
    except ControlError as error:
        raise InputError(str(error)) from error
    else:
        _check_options(words)
        return
    try:
        start(words)[0].close()
    except StartError as error:
        raise InputError(str(error), code=error.code) from error
    _print_ready("ready", read_status())


def _check_options(words: list[str]) -> None:
    """The daemon that runs is the one that was asked for, or it is named what differs."""
    status = read_status()
    daemon = status.daemon
    found = f"a daemon already runs for {daemon.home}: pid {daemon.pid}"
    if daemon.node:
        raise InputError(f"{found}: it is the agent of node {daemon.node}", code=1)
    if others := list(differences(flags_of(words), status)):
        by_policy = all(text.startswith(("--policy ", "--release-delay ")) for text in others)
        change = "change it with `aliquot policy`" if by_policy else "for other options stop it with `aliquot down`"
        raise InputError(f"{found}, without {', '.join(others)}; {change}", code=1)
    _print_ready("already running", status)


def _print_ready(what: str, status: Status) -> None:
    kinds = Counter(f"{card.model} {memory(card.memory_mib)}" for card in status.cards)
    cards = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
    nodes = len(status.nodes or [])
    cards += f" on {nodes} nodes" if nodes > 1 else ""
    where = dashboard_words(status.daemon)
    click.echo(f"aliquot: {what}: pid {status.daemon.pid}; {cards}; {where}", err=True)


def _serve(
    home: Home,
    options: UpOptions,
    simulate: str | None,
    listen: str | None,
    token_file: Path | None,
    came_up: Callable[[], None],
) -> None:
    import msgspec

    from aliquot.adapters.gpu import player
    from aliquot.adapters.gpu.nvml import Nvml, NvmlError
    from aliquot.adapters.host.logfiles import USUAL_LIMIT
    from aliquot.adapters.host.logs import start_text_logging
    from aliquot.adapters.host.systemd import notify_ready
    from aliquot.adapters.storage.store import StoreError
    from aliquot.cli.machine.keptoptions import kept_listen, with_given
    from aliquot.model.node import Isolation
    from aliquot.services.daemon import home as daemon_home
    from aliquot.services.machine import service
    from aliquot.services.machine.settings import stored_options
    from aliquot.services.runtime.usage.billing import KEEP_DAYS

    def on_ready(text: str) -> None:
        came_up()
        with contextlib.suppress(OSError):  # the disk of the log is full
            click.echo(f"aliquot: {text}", err=True)
        notify_ready()

    spec, playing = parse_simulation(simulate), player.known(home)
    if spec is None and playing is not None:  # a home stays simulated until `aliquot down`
        spec = Cards(playing.cards, playing.memory_mib, playing.nodes)
    try:
        daemon_home.make_home(home)
        os.close(daemon_home.take_lock(home))  # report a running daemon before anything else
        kept = with_given(stored_options(home.database), {**options, "listen": listen, "token_file": token_file})
        limit = USUAL_LIMIT if kept.log_limit is None else kept.log_limit or None
        # A log file needs timestamps; a terminal does not, and systemd's journal adds its own.
        to_file = not sys.stderr.isatty() and "JOURNAL_STREAM" not in os.environ
        start_text_logging(with_time=to_file, path=home.daemon_log, limit=limit)
        mode = control_mode(options["control"], kept.control)
        flags = flags_of(up_words(simulate=simulate, **{**options, **msgspec.structs.asdict(kept), "control": mode}))
        if spec is not None:
            playing = with_stand_ins(home, spec)
        if not os.path.exists(player.shim()):
            raise InputError(f"{player.shim()} is missing: build it with `make native`")
        nvml = Nvml()
        libraries = player.preloadable(home)
        front = {"LD_PRELOAD": [f"{libraries}/libaliquot.so"]}
        if playing is not None:
            front["LD_PRELOAD"].append(f"{libraries}/simgpu/libsimrm.so")
            front["LD_LIBRARY_PATH"] = [f"{libraries}/simgpu"]
        setup = service.Setup(
            home=home,
            nvml=nvml,
            make_arbiter=_arbiter(nvml, home, front["LD_PRELOAD"][0], simulated=playing is not None, mode=mode),
            on_ready=on_ready,
            environment={} if playing is None else {SIM_VARIABLE: playing.socket},
            front=front,
            policy=None if options["policy"] is None else Isolation(options["policy"]),
            release_delay=options["release_delay"],
            enforce=options["enforce"],
            kill_after=kill_after(options["enforce"], options["enforce_grace"]),
            simulated=None if playing is None else playing.spec,
            stand_ins=None if playing is None else player.simulation(),
            nodes=1 if playing is None else playing.nodes,
            listen=parse_listen(listen, token_file, option="--listen") or kept_listen(kept),
            log_limit=limit,
            host_pool=options["host_pool"],
            usage_days=kept.keep_usage or KEEP_DAYS,
            qgpu_names=kept.metrics_names == "qgpu",
            options=flags,
            kept_options=kept,
        )
        service.run_daemon(setup)
    except NvmlError as error:
        raise InputError(NO_CARD.format(why=error)) from error
    except daemon_home.AlreadyRunningError as error:
        raise _already_running(str(error)) from error
    except (daemon_home.StartError, StoreError, HomeError, player.PlayerError) as error:
        raise InputError(str(error)) from error
    except OSError as error:  # for example a full disk
        raise InputError(f"{error.filename or home.state}: {error.strerror or error}") from error


def _arbiter(nvml: Any, home: Home, shim: str, *, simulated: bool, mode: Mode) -> Any:
    def make(cards: Any, rules: Any) -> Any:
        from aliquot.services.mover.client import MoverClient, pool_folder
        from aliquot.services.proof.startup import plan_control
        from aliquot.services.runtime.arbiterd import Arbiterd

        state = Path(home.state)
        plan = plan_control(mode, cards, nvml, state=state, run=Path(home.run), shim=shim, simulated=simulated)
        mover = MoverClient(pool_folder(state), rules.host_pool, os.environ, log_file=state / "mover.log")
        return Arbiterd(
            cards,
            rules=rules,
            nvml=nvml,
            simulated=simulated,
            mover=mover,
            **plan._asdict(),
        )

    return make


def _already_running(text: str) -> InputError:
    return InputError(f"{text}; for other options stop it with `aliquot down`", code=1)
