"""`aliquot scheduler`: the scheduler extender of a cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from aliquot.cli.errors import InputError
from aliquot.placement import POLICY_NAMES

_DEFAULT_PORT = 12345


@click.command()
@click.option("--priority", type=click.Choice(POLICY_NAMES), help="How nodes and cards are chosen  [default: binpack]")
@click.option("--port", type=click.IntRange(1, 65535), help="Where kube-scheduler calls  [default: $PORT, else 12345]")
@click.option("--bind-address", help="The address to listen on  [default: 0.0.0.0]")
@click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="Else $KUBECONFIG, the Pod's account, ~/.kube/config"
)
@click.option("--config", type=click.Path(path_type=Path), help="A YAML file with these options; the command line wins")
@click.option("--rules", type=click.Choice(["seed", "2026"]), help="Whose rules hold for qGPU  [default: seed]")
@click.option(
    "--memory-unit",
    type=click.Choice(["auto", "GiB", "MiB"]),
    help="The unit of aliyun.com/gpu-mem; auto goes by what the nodes advertise  [default: auto]",
)
@click.option("--leader-elect/--no-leader-elect", default=None, help="Whether a Lease decides who binds  [default: on]")
@click.option("--lease-namespace", help="[default: kube-system]")
@click.option("--lease-name", help="[default: aliquot-scheduler]")
@click.option("--advertise", metavar="HOST:PORT", help="Where other instances reach this one  [default: found out]")
@click.option(
    "--keep-nodes/--no-keep-nodes", default=None, help="Taints, labels and conditions of nodes  [default: on]"
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

    from aliquot.adapters.kube import KubeConfigError, find_server
    from aliquot.adapters.logs import start_logging
    from aliquot.services.scheduler import Scheduler

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
        raise InputError(
            f"cannot listen on {settings.bind_address}:{settings.port}: {error.strerror or error}; name another --port"
        ) from error


def _merged(given: dict[str, Any]) -> dict[str, Any]:
    """The command line over the file over the environment."""
    path = given.pop("config")
    options = {} if path is None else _read(path)
    options |= {name: value for name, value in given.items() if value is not None}
    if "port" not in options:
        options["port"] = _port_of_environment()
    return options


def _port_of_environment() -> int:
    text = os.environ.get("PORT", "")
    if not text:
        return _DEFAULT_PORT
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise InputError(f'$PORT: "{text}" is not allowed: a number from 1 to 65535')
    return int(text)


# What a file may say, and of which kind it must be; None: any text.
_KINDS: dict[str, object] = {
    "priority": POLICY_NAMES,
    "port": int,
    "bind_address": None,
    "kubeconfig": None,
    "rules": ("seed", "2026"),
    "memory_unit": ("auto", "GiB", "MiB"),
    "leader_elect": bool,
    "lease_namespace": None,
    "lease_name": None,
    "advertise": None,
    "keep_nodes": bool,
    "log_level": ("debug", "info", "warning"),
}


def _read(path: Path) -> dict[str, Any]:
    """A file of the same options, words joined by - or _. Raises InputError for what it does not know."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict | None):
        raise InputError(f"{path}: a mapping of options is wanted, as `priority: spread`")
    options: dict[str, Any] = {}
    for key, value in (found or {}).items():
        name = str(key).replace("-", "_")
        if name not in _KINDS:
            raise InputError(f"{path}: {key}: no such option; allowed: {', '.join(sorted(_KINDS))}".replace("_", "-"))
        options[name] = _checked(path, str(key), value, _KINDS[name])
    return options


def _checked(path: Path, key: str, value: object, kind: object) -> object:
    if isinstance(kind, tuple):
        if str(value) not in kind:
            raise InputError(f'{path}: {key}: "{value}" is not allowed: one of {", ".join(kind)}')
        return str(value)
    if kind is bool and not isinstance(value, bool):
        raise InputError(f'{path}: {key}: "{value}" is not allowed: true or false')
    if kind is int and (isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 65536):
        raise InputError(f'{path}: {key}: "{value}" is not allowed: a number from 1 to 65535')
    if kind is None and not isinstance(value, str):
        raise InputError(f'{path}: {key}: "{value}" is not allowed: text')
    return value


def _settings(options: dict[str, Any]) -> Any:
    from aliquot.dialects import MemoryUnit, QgpuRules
    from aliquot.services.scheduler import Settings

    unit = options.pop("memory_unit", "auto")
    rules = options.pop("rules", "seed")
    return Settings(rules=QgpuRules(rules), memory_unit=None if unit == "auto" else MemoryUnit(unit), **options)
