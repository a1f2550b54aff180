"""The options of `aliquot install` and `aliquot upgrade`, and their validation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import click

import aliquot
from aliquot.cli.client import Duration
from aliquot.cli.errors import InputError
from aliquot.model.decoding.openjson import JsonObject

if TYPE_CHECKING:
    from aliquot.dialects.wire.install.deployment import OptionChanges

_MODE = click.Choice(["all", "qgpu", "t9k", "gpushare", "hami", "kai", "all+hami", "all+kai", "all+hami+kai"])
_OUTPUT = click.Choice(["text", "json", "yaml"])
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")  # of an object
_IMAGE = re.compile(r"[^\s@]+(@sha256:[0-9a-f]{64})?\Z")
_FOLDER = re.compile(r"(/(?!\.\.?(/|\Z))[^/\s:]+)+\Z")
_LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_SELECTOR = re.compile(rf"(?P<key>([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_LABEL})=(?P<value>({_LABEL})?)\Z")
_MOUNTED = ("/var/run/cdi", "/run/cdi")


class InstallGiven(TypedDict):
    """The options of the command line; None: not given."""

    mode: str | None
    namespace: str
    image: str | None
    pull_secrets: tuple[str, ...]
    kube_scheduler_image: str | None
    replicas: int | None
    webhook_failure: str | None
    nodes: str
    node_selector: tuple[str, ...]
    runtime_class: str | None
    driver_folder: str | None
    memory_unit: str | None
    simulate: str | None
    dry_run: bool
    wait: bool
    rollback: bool
    beside_others: bool
    timeout: float
    output: str
    kubeconfig: Path | None
    kube_context: str | None


def install_options(*, fresh: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Both commands have these options; an upgrade keeps the values that are not given."""

    def default(value: str, kept: str = "unchanged") -> str:
        return f"  [default: {value if fresh else kept}]"

    options = (*_cluster_options(default, fresh=fresh), *_agent_options(default), *_command_options())

    def added(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return added


def _cluster_options(default: Callable[..., str], *, fresh: bool) -> Iterable[Callable[..., Any]]:
    theirs = default("the image of the cluster's own, if its Pods are visible")
    ours = default("aliquot/aliquot:VERSION", "this version, from the same registry")
    namespace = "Created if missing" if fresh else "Where aliquot is installed"
    return (
        click.option("--mode", type=_MODE, help="Serve these dialects" + default("all")),
        click.option("-n", "--namespace", default="aliquot-system", show_default=True, help=namespace),
        click.option(
            "--image", help="Image of aliquot, including your registry: by tag, or by digest (NAME@sha256:...)" + ours
        ),
        click.option(
            "--image-pull-secret",
            "pull_secrets",
            metavar="NAME",
            multiple=True,
            help="Secret in that namespace for pulling images; repeatable" + default("none"),
        ),
        click.option("--kube-scheduler-image", help="Image of the kube-scheduler that runs with aliquot" + theirs),
        click.option("--replicas", type=click.IntRange(1, 9), help="Replicas of the scheduler" + default("2")),
        click.option(
            "--webhook-failure",
            type=click.Choice(["ignore", "fail"]),
            help="While no replica answers, accept GPU Pods unchecked or refuse them" + default("fail"),
        ),
    )


def _agent_options(default: Callable[..., str]) -> Iterable[Callable[..., Any]]:
    return (
        click.option(
            "--nodes", metavar="N1,N2", default="", help="Label these nodes for the mode, unless they are labelled"
        ),
        click.option(
            "--node-selector",
            metavar="KEY=VALUE",
            multiple=True,
            help="Run agents only on nodes that also have this label; repeatable" + default("none"),
        ),
        click.option(
            "--runtime-class",
            metavar="NAME",
            help="RuntimeClass of the agents: nvidia, if NVIDIA's runtime is not the default" + default("none"),
        ),
        click.option(
            "--driver-folder",
            metavar="DIR",
            help="Folder of `nvidia-ctk cdi generate`, e.g. /etc/cdi; /var/run/cdi is always searched"
            + default("none"),
        ),
        click.option(
            "--memory-unit", type=click.Choice(["GiB", "MiB"]), help="Unit of aliyun.com/gpu-mem" + default("GiB")
        ),
        click.option(
            "--simulate",
            metavar="SPEC",
            help="Simulate cards instead of using real ones, e.g. 4x16GiB" + default("none"),
        ),
    )


def _command_options() -> Iterable[Callable[..., Any]]:
    return (
        click.option("--dry-run", is_flag=True, help="Print what would change; change nothing"),
        click.option(
            "--wait/--no-wait", default=True, help="Wait until everything is ready, then verify  [default: wait]"
        ),
        click.option(
            "--rollback/--no-rollback", default=True, help="Roll back if the rollout fails  [default: rollback]"
        ),
        click.option(
            "--beside-others", is_flag=True, help="Continue although another product allocates the same cards"
        ),
        click.option("--timeout", type=Duration(), default="5m", show_default=True),
        click.option(
            "-o", "--output", type=_OUTPUT, default="text", show_default=True, help="yaml only with --dry-run"
        ),
        click.option("--kubeconfig", type=click.Path(path_type=Path), help="As for kubectl"),
        click.option("--context", "kube_context", help="As for kubectl"),
    )


def check(given: InstallGiven) -> None:
    """Validate the options. Raises InputError."""
    _match("--namespace", given["namespace"], _NAMESPACE, 'a-z, 0-9 and "-", at most 63 characters')
    if given["output"] == "yaml" and not given["dry_run"]:
        raise InputError("-o yaml prints the objects and requires --dry-run; otherwise use text or json")
    name = 'a name: a-z, 0-9, "-" and ".", at most 253 characters'
    for secret in filter(None, given["pull_secrets"]):
        _match("--image-pull-secret", secret, _NAME, name)
    if given["image"]:
        allowed = "REPOSITORY:TAG, or REPOSITORY@sha256: and 64 digits of 0-9 and a-f"
        _match("--image", given["image"], _IMAGE, allowed)
    for text in filter(None, given["node_selector"]):
        _match("--node-selector", text, _SELECTOR, "KEY=VALUE, a label of nodes, for example pool=gpu")
    if given["runtime_class"]:
        _match("--runtime-class", given["runtime_class"], _NAME, name)
    if given["driver_folder"]:
        _match(
            "--driver-folder", given["driver_folder"], _FOLDER, "an absolute path on the nodes, for example /etc/cdi"
        )
        if given["driver_folder"] in _MOUNTED:
            raise InputError(f"--driver-folder: {given['driver_folder']} is always searched: omit the option")
    if given["simulate"]:
        from aliquot.cli.simulated import parse_simulation

        parse_simulation(given["simulate"])


def _match(option: str, text: str, pattern: re.Pattern[str], allowed: str) -> None:
    if not pattern.match(text):
        raise InputError(f'{option}: "{text}" is not allowed: {allowed}')


def given_options(given: InstallGiven) -> OptionChanges:
    """As the record of an installation has them; None if an option was not given."""
    wanted: OptionChanges = {
        "mode": given["mode"],
        "replicas": given["replicas"],
        "simulate": given["simulate"],
        "runtime_class": given["runtime_class"],
        "memory_unit": given["memory_unit"],
        "driver_folder": given["driver_folder"],
        "webhook_failure": given["webhook_failure"],
        "image": given["image"] or None,  # cannot be empty
        "kube_scheduler_image": given["kube_scheduler_image"] or None,
    }
    if given["pull_secrets"]:
        wanted["pull_secrets"] = tuple(filter(None, given["pull_secrets"]))
    if given["node_selector"]:
        wanted["node_selector"] = dict(text.split("=", 1) for text in filter(None, given["node_selector"]))
    return wanted


def packaged_objects() -> list[JsonObject]:
    """The objects that `helm template` renders from the chart: in the wheel, or in deploy/ of a checkout."""
    import yaml

    package = Path(aliquot.__file__).parent
    files = (package / "manifests" / "install.yaml", package.parents[1] / "deploy" / "install.yaml")
    text = next((file for file in files if file.exists()), files[0]).read_text()
    return [obj for obj in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if obj]
