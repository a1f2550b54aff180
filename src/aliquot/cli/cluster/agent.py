"""`aliquot agent`: the agent of one node of a cluster."""

from __future__ import annotations

import logging
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aliquot.adapters.host.home import SYSTEM_RUN, SYSTEM_STATE, Home
from aliquot.cli.client import Duration, check_delay
from aliquot.cli.cluster.dialectoption import HELP as DIALECTS_HELP
from aliquot.cli.cluster.dialectoption import parse_dialects
from aliquot.cli.errors import InputError
from aliquot.cli.simulated import parse_simulation, with_stand_ins

if TYPE_CHECKING:
    from aliquot.adapters.gpu.player import Playing
    from aliquot.adapters.kubernetes.kubeconfig import Server

log = logging.getLogger(__name__)

NO_CARD = (
    "no NVIDIA GPU can be used on this node ({why}). Does the container see the driver (NVIDIA_VISIBLE_DEVICES=all "
    "with NVIDIA's runtime, or its libraries mounted)? To try it without cards: --simulate 4x16GiB"
)

_LONGEST_RUN_DIR = 54  # a socket's name has 107: /t/, the Pod's UID, and its draft's /.sock. with a process's number


class Xids(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on
    """Numbers of the driver's errors."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[int]:
        if isinstance(value, frozenset):
            return value
        words = [word.strip() for word in value.split(",")] if value.strip() else []
        if not all(re.fullmatch("[0-9]{1,4}", word) for word in words):
            allowed = "numbers of Xids, separated by commas, as in 94,63 (the agent's log and events name them)"
            self.fail(f"{value} is not allowed: {allowed}", param, ctx)
        return frozenset(map(int, words))


@click.command()
@click.option("--nodename", metavar="NAME", help="The name of the Node  [default: $NODE_NAME, else the host's name]")
@click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="Else $KUBECONFIG, the Pod's account, ~/.kube/config"
)
@click.option(
    "--dbfile",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path(SYSTEM_STATE, "state.db"),
    show_default=True,
    help="What must outlive a restart; the shim is kept beside it",
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(SYSTEM_RUN),
    show_default=True,
    help="Where the Pods' sockets are, on the host and in here alike",
)
@click.option(
    "--kubelet-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/var/lib/kubelet"),
    show_default=True,
    help="With device-plugins and pod-resources in it",
)
@click.option(
    "--cdi",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="How containers are given their cards; off: by mounts and the webhook's --env-by-annotation, for runtimes "
    "without CDI; auto goes by the versions of runtime and kubelet",
)
@click.option(
    "--cdi-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("/var/run/cdi"),
    show_default=True,
    help="One of the runtime's cdi_spec_dirs",
)
@click.option(
    "--driver",
    type=click.Choice(["auto", "runtime", "cdi"]),
    default="auto",
    show_default=True,
    help="Who brings NVIDIA's driver into containers: NVIDIA's container runtime, or we, from the file that "
    "`nvidia-ctk cdi generate` wrote; auto: the file, where there is one",
)
@click.option("--dialects", metavar="NAME[,NAME]", help=DIALECTS_HELP)
@click.option(
    "--memory-unit",
    type=click.Choice(["GiB", "MiB"]),
    default="GiB",
    show_default=True,
    help="The unit of aliyun.com/gpu-mem in this cluster",
)
@click.option(
    "--release-delay",
    type=Duration(),
    default="100ms",
    show_default=True,
    help="How long online work keeps a card that it left idle; 0 hands gaps back at once",
)
@click.option(
    "--ignore-xids",
    type=Xids(),
    default="",
    help="Errors of the driver that take no card out on this node, as in 94,63, beside those that are a program's own",
)
@click.option(
    "--simulate",
    metavar="SPEC",
    envvar="ALIQUOT_SIMULATE",
    show_envvar=True,
    help="Simulated cards instead of real ones, as in 4x16GiB",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9479, show_default=True, help="/metrics, /readyz, /livez; 0: none"
)
@click.option("--bind-address", default="0.0.0.0", show_default=True, help="The address to listen on")  # noqa: S104
@click.option("--log-level", type=click.Choice(["debug", "info", "warning"]), default="info", show_default=True)
def agent(**given: Any) -> None:
    """The agent of one node of a Kubernetes cluster.

    It tells the kubelet and the scheduler of the node's cards, gives each container the cards that its Pod was granted,
    and holds Pods to their memory and their share. What the node offers is by its labels, and may change at any time.
    Killed and started again it goes on where it was; running Pods do not notice.

    \b
    aliquot agent --nodename gpu-7
    aliquot agent --simulate 4x16GiB        try it on a node without cards
    qgpu-manager --nodename=gpu-7 --dbfile=/var/lib/qgpu/meta.db     the same, by the name in the vendor's manifests
    """
    check_delay(given["release_delay"])
    given["served"] = parse_dialects(given["dialects"])
    _serve(given)


def _serve(given: dict[str, Any]) -> None:
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
    if spec is not None and spec.nodes > 1:
        raise InputError(f"--simulate: {given['simulate']} is not allowed: an agent is one node's, as in 4x16GiB")
    server = _find_server(given["kubeconfig"])  # before anything is made, or cards are simulated
    if len(os.fsencode(home.run)) > _LONGEST_RUN_DIR:
        raise InputError(f"--run-dir: {home.run} is too long: {_LONGEST_RUN_DIR} bytes at most, for sockets are in it")
    as_root = "run it as root, or " if os.geteuid() else ""
    try:
        home = _move_in(given, home)
        daemon_home.check_mounted([home.run, home.state])
        for folder, mode in ((home.run, 0o755), (home.tenants, 0o700), (f"{home.run}/a", 0o700)):
            advice = f"{as_root}name another with --run-dir, one that is the agent's alone"
            daemon_home.make_folder(folder, mode, advice=advice)
        if not os.path.exists(home.state):  # else it is somebody's, who chose its mode: the database may be anywhere
            daemon_home.make_folder(home.state, 0o755, advice=f"{as_root}name another with --dbfile")
        lock = daemon_home.take_lock(home)
        try:
            playing = None if spec is None else with_stand_ins(home, spec)
            start_logging(given["log_level"])
            _tell_beginnings(given)
            _run(given, home, server, playing)
        finally:
            os.close(lock)
    except NvmlError as error:
        raise InputError(NO_CARD.format(why=error)) from error
    except daemon_home.AlreadyRunningError as error:
        raise InputError(f"{error}: stop it first, a node has one agent, or one `aliquot up`", code=1) from error
    except (daemon_home.StartError, StoreError, ShimError, CdiError, HomeError, player.PlayerError) as error:
        raise InputError(str(error)) from error


def _move_in(given: dict[str, Any], home: Home) -> Home:
    """The same home at its host paths, with missing host folders mounted. Raises StartError."""
    from aliquot.services.agent.hostaccess import acquire_host_access

    cdi = str(given["cdi_dir"].absolute())
    folders = [home.run, home.state, *([] if given["cdi"] == "off" else [cdi])]
    host_access = given["host_access"] = acquire_host_access(
        folders, given["kubelet_dir"] / "device-plugins" / "kubelet.sock"
    )
    given["cdi_dir"] = Path(host_access.name(cdi))
    given["dbfile"] = Path(host_access.name(home.state), given["dbfile"].name)
    return Home(host_access.name(home.run), host_access.name(home.state))


def _tell_beginnings(given: dict[str, Any]) -> None:
    """What was not as it was written, and done otherwise."""
    from aliquot.adapters.kubernetes.kubeconfig import passed_over

    given["host_access"].log()
    missing = [] if given["kubeconfig"] is not None else passed_over()
    if missing:
        told = {"missing": [str(each) for each in missing]}
        log.info("what $KUBECONFIG names is not there: the Pod's own account is used", extra={"data": told})


def _find_server(kubeconfig: Path | None) -> Server:
    from aliquot.adapters.kubernetes.kubeconfig import KubeConfigError, find_server

    try:
        return find_server(kubeconfig)
    except KubeConfigError as error:
        raise InputError(str(error)) from error


def _run(given: dict[str, Any], home: Home, server: Server, playing: Playing | None) -> None:
    from aliquot.cli.cluster.scheduler import load_aiohttp

    load_aiohttp()
    from aliquot.dialects import MemoryUnit, Rules
    from aliquot.services.agent.assembly import run_agent
    from aliquot.services.agent.hostaccess import OWN_IDS
    from aliquot.services.agent.service import Settings

    settings = Settings(
        node_name=given["nodename"] or os.environ.get("NODE_NAME") or socket.gethostname().lower(),
        tenants=Path(home.tenants),
        links=Path(home.run, "a"),
        cdi={"auto": None, "on": True, "off": False}[given["cdi"]],
        cdi_folder=given["cdi_dir"],
        kubelet=given["kubelet_dir"],
        rules=Rules(gpushare_unit=MemoryUnit(given["memory_unit"]), served=given["served"]),
        release_delay=given["release_delay"],
        port=given["port"],
        bind_address=given["bind_address"],
        control=Path(home.control),
        simulated=None if playing is None else playing.spec,
        notes=(OWN_IDS,) if given["host_access"].processes and playing is None else (),
    )
    try:
        run_agent(
            server,
            settings,
            database=given["dbfile"].absolute(),
            playing=playing,
            driver=given["driver"],
            ignored_xids=given["ignore_xids"],
        )
    except OSError as error:
        if error.strerror is None:
            raise
        if error.filename is not None:
            raise InputError(f"{error.filename}: {error.strerror}") from error
        where = f"{settings.bind_address}:{settings.port}"
        raise InputError(
            f"cannot listen on {where}: {error.strerror}; name another --port or --bind-address"
        ) from error
