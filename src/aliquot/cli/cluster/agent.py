"""`aliquot agent`: the command line of the agent."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, Unpack

import click

from aliquot.adapters.host.home import SYSTEM_STATE, Home
from aliquot.cli.client import Delay
from aliquot.cli.errors import InputError
from aliquot.cli.options.control import control_mode, control_option
from aliquot.cli.options.dialects import HELP as DIALECTS_HELP
from aliquot.cli.options.dialects import parse_dialects
from aliquot.cli.options.elastic import Factor, HostPool, check_host_pool
from aliquot.cli.options.enforcement import check_enforcement, enforce_options, kill_after
from aliquot.cli.options.node import node_name, nodename_option, run_dir_option
from aliquot.cli.simulated import parse_simulation, with_stand_ins

if TYPE_CHECKING:
    from aliquot.adapters.gpu.player import Playing
    from aliquot.adapters.kubernetes.kubeconfig import Server
    from aliquot.services.agent.hostaccess import HostAccess

log = logging.getLogger(__name__)

NO_CARD = (
    "no usable NVIDIA GPU on this node ({why}). Does the container see the driver (NVIDIA_VISIBLE_DEVICES=all with "
    "NVIDIA's runtime, or its libraries mounted)? To try it without GPUs: --simulate 4x16GiB"
)

_LONGEST_RUN_DIR = (
    54  # a socket path has 107 bytes: also /t/, the Pod's UID, and /.sock. with a process ID while it is created
)


class Xids(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """Xids: error numbers of the driver."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[int]:
        if isinstance(value, frozenset):
            return value
        words = [word.strip() for word in value.split(",")] if value.strip() else []
        if not all(re.fullmatch("[0-9]{1,4}", word) for word in words):
            allowed = "numbers separated by commas, for example 94,63 (the agent's log and events name them)"
            self.fail(f"{value} is not allowed: {allowed}", param, ctx)
        return frozenset(map(int, words))


class AgentGiven(TypedDict):
    """The options of the command line."""

    nodename: str | None
    kubeconfig: Path | None
    dbfile: Path
    run_dir: Path
    kubelet_dir: Path
    cdi: str
    cdi_dir: Path
    driver: str
    dialects: str | None
    memory_unit: str
    release_delay: float | str  # seconds, or auto
    enforce: str | None
    enforce_grace: float | None
    control: str | None
    host_pool: int
    oversubscribe: float
    together: bool
    ignore_xids: frozenset[int]
    simulate: str | None
    port: int
    keep_usage: int
    metrics_names: str
    bind_address: str
    log_level: str
    served: NotRequired[frozenset[str]]  # as `dialects` says
    host_access: NotRequired[HostAccess]


def _enforcement(command: Any) -> Any:
    for option in reversed(enforce_options("report")):
        command = option(command)
    return command


@click.command()
@nodename_option
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="[default: $KUBECONFIG, else the Pod's service account, else ~/.kube/config]",
)
@click.option(
    "--dbfile",
    type=click.Path(path_type=Path, dir_okay=False, readable=False),
    default=Path(SYSTEM_STATE, "state.db"),
    show_default=True,
    help="Database that survives restarts; the shim is stored beside it",
)
@run_dir_option("Folder of the Pods' sockets; the same path on the host and in this container")
@click.option(
    "--kubelet-dir",
    type=click.Path(path_type=Path, file_okay=False, readable=False),
    default=Path("/var/lib/kubelet"),
    show_default=True,
    help="Folder of the kubelet, with device-plugins and pod-resources",
)
@click.option(
    "--cdi",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Inject cards by CDI; off: by mounts and the scheduler's --env-by-annotation, for runtimes without CDI; "
    "auto: decide by the versions of runtime and kubelet",
)
@click.option(
    "--cdi-dir",
    type=click.Path(path_type=Path, file_okay=False, readable=False),
    default=Path("/var/run/cdi"),
    show_default=True,
    help="One of the runtime's cdi_spec_dirs",
)
@click.option(
    "--driver",
    type=click.Choice(["auto", "runtime", "cdi"]),
    default="auto",
    show_default=True,
    help="Add NVIDIA's driver to containers by NVIDIA's container runtime, or from the CDI file of "
    "`nvidia-ctk cdi generate`; auto: from the file, if it exists",
)
@click.option("--dialects", metavar="NAME[,NAME]", help=DIALECTS_HELP)
@click.option(
    "--memory-unit",
    type=click.Choice(["GiB", "MiB"]),
    default="GiB",
    show_default=True,
    help="Unit of aliyun.com/gpu-mem in this cluster",
)
@click.option(
    "--release-delay",
    type=Delay(),
    default="100ms",
    show_default=True,
    help="How long online work keeps a card after its last kernel; 0: release it at once; auto: learned from its gaps",
)
@_enforcement
@control_option("auto")
@click.option(
    "--host-pool",
    type=HostPool(),
    default="0",
    show_default=True,
    help="Host memory of the agent for what does not fit on the cards, taken when needed; 0: nothing is parked",
)
@click.option(
    "--oversubscribe",
    type=Factor(),
    default="1.0",
    show_default=True,
    help="Memory booked on a card, in times of what it has, on nodes without the label aliquot.dev/oversubscribe",
)
@click.option(
    "--together",
    is_flag=True,
    help="Let Pods of one group (annotation aliquot.dev/together) run side by side, by an MPS server of their own; in "
    "a container, only if that is privileged",
)
@click.option(
    "--ignore-xids",
    type=Xids(),
    default="",
    help="Xids that do not mark a card unhealthy, e.g. 94,63, in addition to those caused by programs",
)
@click.option(
    "--simulate",
    metavar="SPEC",
    envvar="ALIQUOT_SIMULATE",
    show_envvar=True,
    help="Simulate cards instead of using real ones, e.g. 4x16GiB",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9479,
    show_default=True,
    help="Port of /metrics, /readyz and /livez; 0: none",
)
@click.option(
    "--keep-usage",
    type=click.IntRange(1, 3650),
    default=30,
    show_default=True,
    metavar="DAYS",
    help="Days for which hours of usage are kept",
)
@click.option(
    "--metrics-names",
    type=click.Choice(["aliquot", "qgpu"]),
    default="aliquot",
    show_default=True,
    help="qgpu: also the metrics of qGPU's exporter, under its names",
)
@click.option("--bind-address", default="0.0.0.0", show_default=True, help="Address to listen on")  # noqa: S104
@click.option("--log-level", type=click.Choice(["debug", "info", "warning"]), default="info", show_default=True)
def agent(**given: Unpack[AgentGiven]) -> None:
    """Run the agent of one node of a Kubernetes cluster.

    It advertises the node's cards to the kubelet and the scheduler, injects the granted cards into containers, and
    enforces the limits of Pods on memory and compute. The labels of the node decide what it offers, and may change at
    any time. The agent can be restarted at any time; running Pods do not notice.

    \b
    aliquot agent --nodename gpu-7
    aliquot agent --simulate 4x16GiB        try it on a node without GPUs
    qgpu-manager --nodename=gpu-7 --dbfile=/var/lib/qgpu/meta.db     the same, by the vendor's name
    """
    given["served"] = parse_dialects(given["dialects"])
    _serve(given)


def _serve(given: AgentGiven) -> None:
    from aliquot.adapters.gpu import player
    from aliquot.adapters.gpu.nvml import NvmlError
    from aliquot.adapters.host.home import HomeError
    from aliquot.adapters.host.logs import start_logging
    from aliquot.adapters.storage.cdifolder import CdiError
    from aliquot.adapters.storage.database import StoreError
    from aliquot.adapters.storage.shims import ShimError
    from aliquot.services.daemon import home as daemon_home

    home = Home(str(given["run_dir"].absolute()), str(given["dbfile"].absolute().parent))
    spec = parse_simulation(given["simulate"])
    check_enforcement(given["enforce"], given["enforce_grace"])
    check_host_pool(given["host_pool"], simulated=given["simulate"] is not None)
    if spec is not None and spec.nodes > 1:
        raise InputError(f"--simulate: {given['simulate']} is not allowed: an agent has one node, for example 4x16GiB")
    server = _find_server(given["kubeconfig"])  # before anything is created
    if len(os.fsencode(home.run)) > _LONGEST_RUN_DIR:
        raise InputError(
            f"--run-dir: {home.run} is too long for the paths of sockets: at most {_LONGEST_RUN_DIR} bytes"
        )
    try:
        home = _access_host(given, home)
        daemon_home.check_mounted([home.run, home.state])
        for folder, mode in ((home.run, 0o755), (home.tenants, 0o700), (f"{home.run}/a", 0o700)):
            advice = "choose another folder, for the agent only, with --run-dir"
            daemon_home.make_folder(folder, mode, advice=advice, for_root=True)
        if not os.path.exists(home.state):  # an existing folder keeps its mode: the database may be anywhere
            advice = "choose another folder with --dbfile"
            daemon_home.make_folder(home.state, 0o755, advice=advice, for_root=True)
        lock = daemon_home.take_lock(home)
        try:
            playing = None if spec is None else with_stand_ins(home, spec, node=node_name(given["nodename"]))
            start_logging(given["log_level"])
            _log_start(given)
            _run(given, home, server, playing)
        finally:
            os.close(lock)
    except NvmlError as error:
        raise InputError(NO_CARD.format(why=error)) from error
    except daemon_home.AlreadyRunningError as error:
        raise InputError(f"{error}: stop it first; a node runs one agent or one `aliquot up`", code=1) from error
    except (daemon_home.StartError, StoreError, ShimError, CdiError, HomeError, player.PlayerError) as error:
        raise InputError(str(error)) from error


def _access_host(given: AgentGiven, home: Home) -> Home:
    """The same home at its host paths, with missing host folders mounted. Raises StartError."""
    from aliquot.services.agent.hostaccess import acquire_host_access

    cdi = str(given["cdi_dir"].absolute())
    folders = [home.run, home.state, *([] if given["cdi"] == "off" else [cdi])]
    host_access = given["host_access"] = acquire_host_access(
        folders, given["kubelet_dir"] / "device-plugins" / "kubelet.sock", cdi=None if given["cdi"] == "on" else cdi
    )
    if any(lack.missing == cdi for lack in host_access.lacking):
        given["cdi"] = "off"
    given["cdi_dir"] = Path(host_access.name(cdi))
    given["dbfile"] = Path(host_access.name(home.state), given["dbfile"].name)
    return Home(host_access.name(home.run), host_access.name(home.state))


def _notes(access: HostAccess, *, real: bool) -> tuple[str, ...]:
    """What the Pod of the agent lacks, for its status."""
    from aliquot.services.agent.hostaccess import OWN_IDS

    lacking = (f"the agent's Pod lacks {lack.missing}: {lack.effect}. Add {lack.add}" for lack in access.lacking)
    return (*lacking, *([OWN_IDS] if access.processes and real else ()))


def _log_start(given: AgentGiven) -> None:
    """Log where the agent deviates from its configuration."""
    from aliquot.adapters.kubernetes.kubeconfig import passed_over

    given["host_access"].log()
    missing = [] if given["kubeconfig"] is not None else passed_over()
    if missing:
        log.info(
            "kubeconfig_missing_using_service_account", extra={"data": {"missing": [str(path) for path in missing]}}
        )


def _find_server(kubeconfig: Path | None) -> Server:
    from aliquot.adapters.kubernetes.kubeconfig import KubeConfigError, find_server

    try:
        return find_server(kubeconfig)
    except KubeConfigError as error:
        raise InputError(str(error)) from error


def _run(given: AgentGiven, home: Home, server: Server, playing: Playing | None) -> None:
    import aliquot.services.daemon.loadaiohttp  # noqa: F401  # before anything else imports aiohttp
    from aliquot.dialects import MemoryUnit, Rules
    from aliquot.services.agent.assembly import run_agent
    from aliquot.services.agent.settings import Settings

    delay = given["release_delay"]
    settings = Settings(
        node_name=node_name(given["nodename"]),
        tenants=Path(home.tenants),
        links=Path(home.run, "a"),
        cdi={"auto": None, "on": True, "off": False}[given["cdi"]],
        cdi_folder=given["cdi_dir"],
        environment_by_file=bool(given["host_access"].lacking),
        kubelet=given["kubelet_dir"],
        rules=Rules(gpushare_unit=MemoryUnit(given["memory_unit"]), served=given["served"]),
        release_delay=None if isinstance(delay, str) else delay,
        kill_after=kill_after(given["enforce"], given["enforce_grace"]),
        host_pool=given["host_pool"],
        oversubscribe=given["oversubscribe"],
        port=given["port"],
        bind_address=given["bind_address"],
        control=Path(home.control),
        simulated=None if playing is None else playing.spec,
        qgpu_names=given["metrics_names"] == "qgpu",
        together=given["together"],
        notes=_notes(given["host_access"], real=playing is None),
    )
    try:
        run_agent(
            server,
            settings,
            database=given["dbfile"].absolute(),
            playing=playing,
            driver=given["driver"],
            ignored_xids=given["ignore_xids"],
            usage_days=given["keep_usage"],
            control=control_mode(given["control"]),
        )
    except OSError as error:
        if error.strerror is None:
            raise
        if error.filename is not None:
            raise InputError(f"{error.filename}: {error.strerror}") from error
        address = f"{settings.bind_address}:{settings.port}"
        raise InputError(
            f"cannot listen on {address}: {error.strerror}; choose another --port or --bind-address"
        ) from error
