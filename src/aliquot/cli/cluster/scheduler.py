"""`aliquot scheduler`: the command line of the scheduler extender."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aliquot.cli.errors import InputError
from aliquot.cli.options.dashboard import parse_listen
from aliquot.cli.options.dialects import HELP as DIALECTS_HELP
from aliquot.cli.options.dialects import parse_dialects
from aliquot.cli.options.webhook import SchedulerOptions, webhook_settings
from aliquot.placement import POLICY_NAMES

if TYPE_CHECKING:
    from aliquot.services.dashboard.access import Listen
    from aliquot.services.scheduler.ports.verbstls import VerbsTls
    from aliquot.services.scheduler.settings import Settings

log = logging.getLogger(__name__)

_EXPOSED = (
    "anybody who reaches this port can have waiting GPU Pods bound, so no Pod is evicted for another one;"
    " --tls-port admits client certificates only"
)
_DEFAULT_PORT = 12345
_DEFAULT_DASHBOARD = 12346
EVERYWHERE = "0.0.0.0"  # noqa: S104
_LOOPBACK = "127.0.0.1"


@click.command()
@click.option(
    "--priority", type=click.Choice(POLICY_NAMES), help="Policy for choosing nodes and cards  [default: binpack]"
)
@click.option("--port", type=click.IntRange(1, 65535), help="Port for kube-scheduler  [default: $PORT, else 12345]")
@click.option(
    "--bind-address",
    help="Address to listen on  [default: 127.0.0.1 for --port, all addresses for the other ports]",
)
@click.option(
    "--tls-port",
    type=click.IntRange(0, 65535),
    help="Port for kube-schedulers and replicas elsewhere, who need a client certificate; 0: none  [default: 0]",
)
@click.option(
    "--insecure-verbs/--no-insecure-verbs",
    default=None,
    help="Let --port listen off loopback, without TLS: anybody who reaches it can have Pods bound  [default: off]",
)
@click.option("--drop-in", is_flag=True, default=None, hidden=True)  # started by a vendor's name
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Port of /metrics, /livez, /readyz and /aliquot/status; 0: none  [default: 12347]",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="[default: $KUBECONFIG, else the Pod's service account, else ~/.kube/config]",
)
@click.option(
    "--config", type=click.Path(path_type=Path), help="YAML file with these options; the command line overrides it"
)
@click.option(
    "--shortlist",
    type=click.IntRange(0, 65535),
    help="Return at most this many fitting nodes for the first attempt of a Pod, the best by --priority; 0: all, and"
    " kube-scheduler's soft preferences count  [default: 0]",
)
@click.option("--dialects", metavar="NAME[,NAME]", help=DIALECTS_HELP)
@click.option("--rules", type=click.Choice(["seed", "2026"]), help="Version of qGPU's rules  [default: seed]")
@click.option(
    "--memory-unit",
    type=click.Choice(["auto", "GiB", "MiB"]),
    help="Unit of aliyun.com/gpu-mem; auto: derive it from what the nodes advertise  [default: auto]",
)
@click.option(
    "--leader-elect/--no-leader-elect", default=None, help="Elect the instance that binds with a Lease  [default: on]"
)
@click.option("--lease-namespace", help="[default: $POD_NAMESPACE, else kube-system]")
@click.option("--lease-name", help="[default: aliquot-scheduler]")
@click.option("--advertise", metavar="HOST:PORT", help="Address for other instances  [default: detected]")
@click.option(
    "--keep-nodes/--no-keep-nodes", default=None, help="Maintain taints, labels and conditions of nodes  [default: on]"
)
@click.option(
    "--preemption/--no-preemption",
    default=None,
    help="Evict Pods of lower priority where a card is short, though their node is not; never while --port listens off"
    " loopback  [default: on]",
)
@click.option(
    "--webhook-port",
    type=click.IntRange(0, 65535),
    help="Port of the admission webhook (TLS); 0: no webhook  [default: 0]",
)
@click.option(
    "--webhook-service",
    metavar="NAMESPACE/NAME",
    help="Service of the webhook  [default: aliquot-webhook in the namespace of the Lease]",
)
@click.option(
    "--webhook-slots/--no-webhook-slots",
    default=None,
    help="Services NAME-0 and NAME-1 select one replica each, by a label that it sets on its Pod  [default: off]",
)
@click.option(
    "--webhook-url", metavar="https://HOST:PORT", help="Address of the webhook for the API server, instead of a Service"
)
@click.option(
    "--webhook-failure",
    type=click.Choice(["ignore", "fail"]),
    help="While the webhook is down, accept GPU Pods unchecked or refuse them  [default: ignore]",
)
@click.option(
    "--webhook-client-ca",
    type=click.Path(path_type=Path),
    help="File with the authorities of API servers' client certificates: the webhook then answers no other client",
)
@click.option(
    "--webhook-client-names",
    metavar="NAME[,NAME]",
    help="Common or DNS names of those certificates, required with --webhook-client-ca",
)
@click.option(
    "--scheduler-name",
    metavar="NAME[,DIALECT=NAME]",
    help="schedulerName that the webhook sets on GPU Pods, or on those of one dialect",
)
@click.option(
    "--env-by-annotation/--no-env-by-annotation",
    default=None,
    help="Make containers read their environment from annotations, for runtimes without CDI  [default: off]",
)
@click.option(
    "--dashboard",
    metavar="[ADDRESS:]PORT",
    help="Address of the dashboard; 0: no dashboard  [default: 127.0.0.1:12346]",
)
@click.option(
    "--dashboard-token-file",
    type=click.Path(path_type=Path),
    help="File with the token for the dashboard, required if --dashboard is not a loopback address",
)
@click.option(
    "--agent-port",
    type=click.IntRange(0, 65535),
    help="Port of the agents, which the dashboard queries for live usage; 0: do not query  [default: 9479]",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning"]), help="[default: info]")
def scheduler(**given: Any) -> None:
    """Run the scheduler extender of a Kubernetes cluster.

    kube-scheduler calls it for Pods of all dialects: to filter and score nodes, and to bind the Pods to their
    cards. `aliquot manifests scheduler-config` prints the configuration for kube-scheduler.

    \b
    aliquot scheduler --kubeconfig ~/.kube/config
    qgpu-scheduler --priority=binpack        the same, by the vendor's name; reads $PORT
    """
    import asyncio

    from aliquot.adapters.host.logs import start_logging
    from aliquot.adapters.kubernetes.kubeconfig import KubeConfigError, find_server
    from aliquot.services.scheduler.starting import run_scheduler

    options = _merged(given)
    log_level = options.pop("log_level", "info")
    kubeconfig = options.pop("kubeconfig", None)
    try:
        server = find_server(None if kubeconfig is None else Path(kubeconfig))
    except KubeConfigError as error:
        _settings(options)  # what is wrong there comes first
        raise InputError(str(error)) from error
    start_logging(log_level)
    made: list[Settings] = []

    def settings() -> Settings:
        made.append(_settings(options))
        address = made[0].bind_address
        if not _is_loopback(address):
            log.warning("verbs_without_tls", extra={"data": {"address": address, "effect": _EXPOSED}})
        return made[0]

    try:
        asyncio.run(run_scheduler(server, settings))
    except OSError as error:
        if not made:
            raise
        raise InputError(_taken(made[0], error)) from error


def _taken(settings: Settings, error: OSError) -> str:
    more = [settings.webhook.port] if settings.webhook else []
    more += [settings.tls.port] if settings.tls else []
    more += [] if settings.metrics.usual or not settings.metrics.port else [settings.metrics.port]
    more += [] if settings.dashboard.usual or not settings.dashboard.port else [settings.dashboard.port]
    ports = " and ".join(map(str, [settings.port, *more]))
    return f"cannot listen on {settings.bind_address}:{ports}: {error.strerror or error}; choose another --port"


def _merged(given: dict[str, Any]) -> SchedulerOptions:
    """The command line overrides the file, the file overrides the environment."""
    path = given.pop("config")
    options: Any = {} if path is None else _read(path)  # click and _checked have checked the values
    options |= {name: value for name, value in given.items() if value is not None}
    if "port" not in options:
        options["port"] = _environment_port()
    if options.pop("drop_in", False) and "bind_address" not in options and not options.get("tls_port"):
        options |= {"bind_address": EVERYWHERE, "insecure_verbs": True}  # as the vendor's program does
    options.setdefault("lease_namespace", os.environ.get("POD_NAMESPACE") or "kube-system")
    merged: SchedulerOptions = options
    return merged


def _environment_port() -> int:
    text = os.environ.get("PORT", "")
    if not text:
        return _DEFAULT_PORT
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 0 < int(text) < 65536:
        raise InputError(f'$PORT: "{text}" is not allowed: a number from 1 to 65535')
    return int(text)


def _read(path: Path) -> SchedulerOptions:
    """Read a file of the same options, spelled with - or _. Raises InputError."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # not UTF-8, an invalid date, nested too deep
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict | None):
        raise InputError(f"{path}: must be a mapping of options, for example `priority: spread`")
    known = {str(option.name): option for option in scheduler.params if option.name not in ("config", "drop_in")}
    options: Any = {}  # of the names and types that the parameters have
    for key, value in (found or {}).items():
        name = str(key).replace("-", "_")
        if name not in known:
            allowed = ", ".join(sorted(known)).replace("_", "-")
            raise InputError(f"{path}: {key}: unknown option; allowed: {allowed}")
        try:
            options[name] = _checked(known[name], value)
        except ValueError as error:
            raise InputError(f'{path}: {key}: "{value}" is not allowed: {error}') from error
    given: SchedulerOptions = options
    return given


def _checked(option: click.Parameter, value: object) -> object:
    """The value of an option in the file. Raises ValueError with what is allowed."""
    kind, is_number = option.type, isinstance(value, int) and not isinstance(value, bool)
    if isinstance(kind, click.Choice):
        if str(value) not in kind.choices:
            raise ValueError(f"one of {', '.join(kind.choices)}")
        return str(value)
    if isinstance(kind, click.types.BoolParamType):
        if not isinstance(value, bool):
            raise ValueError("true or false")
    elif isinstance(kind, click.IntRange):
        if not (is_number and isinstance(value, int) and kind.min is not None and kind.min <= value < 65536):
            raise ValueError(f"a number from {kind.min} to 65535")
    elif option.name == "dashboard" and is_number:
        return str(value)  # a port without an address is a number in YAML
    elif not isinstance(value, str):
        raise ValueError("text")
    return value


def _settings(options: SchedulerOptions) -> Settings:
    from aliquot.dialects import MemoryUnit, QgpuRules
    from aliquot.services.dashboard.access import Listen
    from aliquot.services.scheduler.settings import Settings

    unit = options.pop("memory_unit", "auto")
    rules = options.pop("rules", "seed")
    served = parse_dialects(options.pop("dialects", None))
    webhook, tls = webhook_settings(options, served), _tls(options)
    token_file = options.pop("dashboard_token_file", None)
    listen = parse_listen(
        options.pop("dashboard", None), None if token_file is None else Path(token_file), option="--dashboard"
    )
    metrics, bind_address = _metrics(options), _verbs_address(options, tls)
    others: Any = options  # named as the settings are
    return Settings(
        metrics=metrics,
        bind_address=bind_address,
        tls=tls,
        served=served,
        rules=QgpuRules(rules),
        memory_unit=None if unit == "auto" else MemoryUnit(unit),
        webhook=webhook,
        dashboard=listen or Listen("127.0.0.1", _DEFAULT_DASHBOARD, usual=True),
        **others,
    )


def _tls(options: SchedulerOptions) -> VerbsTls | None:
    from aliquot.services.scheduler.ports.verbstls import VerbsTls

    port = options.pop("tls_port", 0)
    if not port:
        return None
    lease: dict[str, Any] = {"lease": options["lease_name"]} if "lease_name" in options else {}
    address = options.get("bind_address", EVERYWHERE)
    return VerbsTls(port=port, bind_address=address, namespace=options["lease_namespace"], **lease)


def _verbs_address(options: SchedulerOptions, tls: VerbsTls | None) -> str:
    """Where the port without TLS listens. Raises InputError for an address that strangers may reach."""
    address, insecure = options.pop("bind_address", _LOOPBACK), options.pop("insecure_verbs", False)
    if insecure or _is_loopback(address):
        return str(address)
    if tls is not None:
        return _LOOPBACK
    raise InputError(
        f'--bind-address: "{address}" is not allowed: anybody who reaches the port could have Pods bound. Omit it, and'
        " have kube-schedulers elsewhere use --tls-port with a client certificate; or add --insecure-verbs if nobody"
        " else reaches that address"
    )


def _is_loopback(address: str) -> bool:
    import ipaddress

    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _metrics(options: SchedulerOptions) -> Listen:
    """The setting of the read-only port. A port that was named must be free."""
    from aliquot.services.dashboard.access import Listen
    from aliquot.services.scheduler.settings import USUAL_METRICS

    address, port = options.get("bind_address", USUAL_METRICS.address), options.pop("metrics_port", None)
    return Listen(address, USUAL_METRICS.port if port is None else port, usual=port is None)
