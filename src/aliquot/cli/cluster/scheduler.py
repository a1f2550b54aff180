"""`aliquot scheduler`: the scheduler extender of a cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aliquot.cli.cluster.dialectoption import HELP as DIALECTS_HELP
from aliquot.cli.cluster.dialectoption import parse_dialects
from aliquot.cli.dashboardoptions import parse_listen
from aliquot.cli.errors import InputError
from aliquot.placement import POLICY_NAMES

if TYPE_CHECKING:
    from aliquot.services.scheduler.service import Settings
    from aliquot.services.scheduler.webhook import WebhookSettings

_DEFAULT_PORT = 12345
_DEFAULT_DASHBOARD = 12346


@click.command()
@click.option("--priority", type=click.Choice(POLICY_NAMES), help="How nodes and cards are chosen  [default: binpack]")
@click.option("--port", type=click.IntRange(1, 65535), help="Where kube-scheduler calls  [default: $PORT, else 12345]")
@click.option("--bind-address", help="The address to listen on  [default: 0.0.0.0]")
@click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="Else $KUBECONFIG, the Pod's account, ~/.kube/config"
)
@click.option("--config", type=click.Path(path_type=Path), help="A YAML file with these options; the command line wins")
@click.option(
    "--shortlist",
    type=click.IntRange(0, 65535),
    help="How many of the nodes that fit are told when a Pod is first asked about; 0: all  [default: 1, the best]",
)
@click.option("--dialects", metavar="NAME[,NAME]", help=DIALECTS_HELP)
@click.option("--rules", type=click.Choice(["seed", "2026"]), help="Whose rules hold for qGPU  [default: seed]")
@click.option(
    "--memory-unit",
    type=click.Choice(["auto", "GiB", "MiB"]),
    help="The unit of aliyun.com/gpu-mem; auto goes by what the nodes advertise  [default: auto]",
)
@click.option("--leader-elect/--no-leader-elect", default=None, help="Whether a Lease decides who binds  [default: on]")
@click.option("--lease-namespace", help="[default: $POD_NAMESPACE, else kube-system]")
@click.option("--lease-name", help="[default: aliquot-scheduler]")
@click.option("--advertise", metavar="HOST:PORT", help="Where other instances reach this one  [default: found out]")
@click.option(
    "--keep-nodes/--no-keep-nodes", default=None, help="Taints, labels and conditions of nodes  [default: on]"
)
@click.option(
    "--webhook-port", type=click.IntRange(0, 65535), help="The admission webhook, over TLS; 0: none  [default: 0]"
)
@click.option(
    "--webhook-service", metavar="NAMESPACE/NAME", help="Its Service  [default: aliquot-webhook by the Lease]"
)
@click.option("--webhook-url", metavar="https://HOST:PORT", help="Where the API server reaches it without a Service")
@click.option(
    "--webhook-failure",
    type=click.Choice(["ignore", "fail"]),
    help="What becomes of Pods while it is away: taken unchecked, or refused  [default: ignore]",
)
@click.option(
    "--scheduler-name",
    metavar="NAME[,DIALECT=NAME]",
    help="Has the webhook give Pods of ours this schedulerName, or those of one dialect another",
)
@click.option(
    "--env-by-annotation/--no-env-by-annotation",
    default=None,
    help="Has containers read their environment from annotations, for runtimes without CDI  [default: off]",
)
@click.option(
    "--dashboard",
    metavar="[ADDRESS:]PORT",
    help="Where people look at the cluster; 0: none  [default: 127.0.0.1:12346]",
)
@click.option(
    "--dashboard-token-file",
    type=click.Path(path_type=Path),
    help="The token that is asked for where others reach --dashboard",
)
@click.option(
    "--agent-port",
    type=click.IntRange(0, 65535),
    help="Where the dashboard asks nodes' agents what their cards do; 0: not at all  [default: 9479]",
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning"]), help="[default: info]")
def scheduler(**given: Any) -> None:
    """The scheduler extender of a Kubernetes cluster.

    kube-scheduler asks it where Pods of the three dialects fit, which node is best, and has it bind them to their
    cards. `aliquot manifests scheduler-config` prints the configuration that makes kube-scheduler ask.

    \b
    aliquot scheduler --kubeconfig ~/.kube/config
    qgpu-scheduler --priority=binpack        the same, by the name in the vendor's manifests; PORT is heeded
    """
    import asyncio

    load_aiohttp()
    from aliquot.adapters.host.logs import start_logging
    from aliquot.adapters.kubernetes.kube import KubeConfigError, find_server
    from aliquot.services.scheduler.service import Scheduler

    options = _merged(given)
    log_level = options.pop("log_level", "info")
    kubeconfig = options.pop("kubeconfig", None)
    settings = _settings(options)
    try:
        server = find_server(None if kubeconfig is None else Path(kubeconfig))
    except KubeConfigError as error:
        raise InputError(str(error)) from error
    start_logging(log_level)
    try:
        asyncio.run(Scheduler(server, settings).run())
    except OSError as error:
        more = [settings.webhook.port] if settings.webhook else []
        more += [] if settings.dashboard.usual or not settings.dashboard.port else [settings.dashboard.port]
        ports = " and ".join(map(str, [settings.port, *more]))
        raise InputError(
            f"cannot listen on {settings.bind_address}:{ports}: {error.strerror or error}; name another --port"
        ) from error


def load_aiohttp() -> None:
    """Loading it reads the machine's certificate authorities twice, 150 ms of a start of 1.5 s, for connections that we
    never make: ours to the API server bring their own (adapters/kubernetes/kubeconfig.py)."""
    kept = {name: os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")}
    os.environ.update(dict.fromkeys(kept, os.devnull))
    try:
        import aiohttp  # noqa: F401  # for whoever imports it next
    finally:
        for name, value in kept.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _merged(given: dict[str, Any]) -> dict[str, Any]:
    """The command line over the file over the environment."""
    path = given.pop("config")
    options = {} if path is None else _read(path)
    options |= {name: value for name, value in given.items() if value is not None}
    if "port" not in options:
        options["port"] = _port_of_environment()
    options.setdefault("lease_namespace", os.environ.get("POD_NAMESPACE") or "kube-system")
    return options


def _port_of_environment() -> int:
    text = os.environ.get("PORT", "")
    if not text:
        return _DEFAULT_PORT
    if not text.isascii() or not text.isdigit() or len(text) > 5 or not 0 < int(text) < 65536:
        raise InputError(f'$PORT: "{text}" is not allowed: a number from 1 to 65535')
    return int(text)


# What a file may say, and of which kind it must be: a port, or 0 too; one of some words; a number or text; any text.
_KINDS: dict[str, object] = {
    "priority": POLICY_NAMES,
    "port": int,
    "bind_address": None,
    "kubeconfig": None,
    "shortlist": (int, 0),
    "dialects": None,
    "rules": ("seed", "2026"),
    "memory_unit": ("auto", "GiB", "MiB"),
    "leader_elect": bool,
    "lease_namespace": None,
    "lease_name": None,
    "advertise": None,
    "keep_nodes": bool,
    "webhook_port": (int, 0),
    "webhook_service": None,
    "webhook_url": None,
    "webhook_failure": ("ignore", "fail"),
    "scheduler_name": None,
    "env_by_annotation": bool,
    "dashboard": str,
    "dashboard_token_file": None,
    "agent_port": (int, 0),
    "log_level": ("debug", "info", "warning"),
}


def _read(path: Path) -> dict[str, Any]:
    """A file of the same options, words joined by - or _. Raises InputError for what it does not know."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # not UTF-8, a date that is none, nested too deep
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict | None):
        raise InputError(f"{path}: a mapping of options is wanted, as `priority: spread`")
    options: dict[str, Any] = {}
    for key, value in (found or {}).items():
        name = str(key).replace("-", "_")
        if name not in _KINDS:
            allowed = ", ".join(sorted(_KINDS)).replace("_", "-")
            raise InputError(f"{path}: {key}: no such option; allowed: {allowed}")
        options[name] = _checked(path, str(key), value, _KINDS[name])
    return options


def _checked(path: Path, key: str, value: object, kind: object) -> object:
    least = 1
    if isinstance(kind, tuple) and kind[0] is int:
        kind, least = kind
    if isinstance(kind, tuple):
        if str(value) not in kind:
            raise InputError(f'{path}: {key}: "{value}" is not allowed: one of {", ".join(kind)}')
        return str(value)
    if kind is bool and not isinstance(value, bool):
        raise InputError(f'{path}: {key}: "{value}" is not allowed: true or false')
    if kind is int and (isinstance(value, bool) or not isinstance(value, int) or not least <= value < 65536):
        raise InputError(f'{path}: {key}: "{value}" is not allowed: a number from {least} to 65535')
    if kind is str and isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # a port without an address is a number in YAML
    if kind in (None, str) and not isinstance(value, str):
        raise InputError(f'{path}: {key}: "{value}" is not allowed: text')
    return value


def _settings(options: dict[str, Any]) -> Settings:
    from aliquot.dialects import MemoryUnit, QgpuRules
    from aliquot.services.dashboard.access import Listen
    from aliquot.services.scheduler.service import Settings

    unit = options.pop("memory_unit", "auto")
    rules = options.pop("rules", "seed")
    served = parse_dialects(options.pop("dialects", None))
    webhook = _webhook(options, served)
    token_file = options.pop("dashboard_token_file", None)
    where = parse_listen(
        options.pop("dashboard", None), None if token_file is None else Path(token_file), option="--dashboard"
    )
    return Settings(
        served=served,
        rules=QgpuRules(rules),
        memory_unit=None if unit == "auto" else MemoryUnit(unit),
        webhook=webhook,
        dashboard=where or Listen("127.0.0.1", _DEFAULT_DASHBOARD, usual=True),
        **options,
    )


def _webhook(options: dict[str, Any], served: frozenset[str]) -> WebhookSettings | None:
    """The webhook's part of the options, taken out of them. Raises InputError for what goes not together."""
    from aliquot.dialects.wire.admission import AdmissionSettings
    from aliquot.dialects.wire.webhooks import FailurePolicy, ServiceRef
    from aliquot.services.scheduler.webhook import WebhookSettings

    port = options.pop("webhook_port", 0)
    service, url = options.pop("webhook_service", None), options.pop("webhook_url", None)
    failure = options.pop("webhook_failure", "ignore")
    name, by_annotation = options.pop("scheduler_name", None), options.pop("env_by_annotation", False)
    if not port:
        for option, value in (
            ("--webhook-service", service),
            ("--webhook-url", url),
            ("--scheduler-name", name),
            ("--env-by-annotation", by_annotation),
        ):
            if value:
                raise InputError(f"{option} is what the webhook does, and that is off: give it a --webhook-port")
        return None
    namespace = options["lease_namespace"]
    if url is not None and service is not None:
        raise InputError("--webhook-service and --webhook-url both say where the webhook is: leave one out")
    if url is not None and not url.startswith("https://"):
        raise InputError(f'--webhook-url: "{url}" is not allowed: https://HOST:PORT')
    space, slash, called = (service or f"{namespace}/aliquot-webhook").partition("/")
    if not (space and slash and called):
        raise InputError(f'--webhook-service: "{service}" is not allowed: NAMESPACE/NAME')
    return WebhookSettings(
        port=port,
        where=url or ServiceRef(namespace=space, name=called),
        **({"bind_address": options["bind_address"]} if "bind_address" in options else {}),
        namespace=namespace,
        served=served,
        failure_policy=FailurePolicy.FAIL if failure == "fail" else FailurePolicy.IGNORE,
        admission=AdmissionSettings(*_scheduler_names(name or ""), env_by_field_ref=by_annotation),
    )


def _scheduler_names(text: str) -> tuple[str | None, dict[str, str]]:
    """The name for all, and those for the Pods of one dialect. Raises InputError."""
    from aliquot.dialects.wire.schedulerconfig import DIALECTS

    parts = [part.partition("=") for part in text.split(",") if part]
    plain = [name for name, equals, _ in parts if not equals]
    named = {dialect: name for dialect, equals, name in parts if equals}
    if len(plain) > 1 or not all(named.values()) or not named.keys() <= DIALECTS.keys():
        allowed = f"NAME, or DIALECT=NAME with one of {', '.join(DIALECTS)}, with commas between"
        raise InputError(f'--scheduler-name: "{text}" is not allowed: {allowed}')
    return (plain[0] if plain else None), named
