"""What `aliquot install` and `aliquot upgrade` may be told, and what of it is refused before anything is asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

import aliquot
from aliquot.cli.client import Duration
from aliquot.cli.errors import InputError

_MODE = click.Choice(["all", "qgpu", "t9k", "gpushare"])
_OUTPUT = click.Choice(["text", "json", "yaml"])
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")  # of an object
_FOLDER = re.compile(r"(/(?!\.\.?(/|\Z))[^/\s:]+)+\Z")
_LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_SELECTOR = re.compile(rf"(?P<key>([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_LABEL})=(?P<value>({_LABEL})?)\Z")
_MOUNTED = ("/var/run/cdi", "/run/cdi")

# As they are called here and in the record of an installation.
_AS_GIVEN = (
    "mode", "replicas", "simulate", "runtime_class", "memory_unit", "driver_folder", "webhook_failure",
)  # fmt: skip


def shared(*, fresh: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options that both have; an upgrade keeps what it is not told."""

    def unless(given: str, kept: str = "as it is") -> str:
        return f"  [default: {given if fresh else kept}]"

    options = (*_of_the_cluster(unless, fresh=fresh), *_of_the_agents(unless), *_of_the_command())

    def added(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return added


def _of_the_cluster(unless: Callable[..., str], *, fresh: bool) -> Iterable[Callable[..., Any]]:
    beside = unless("that of the cluster's own, where its Pods are seen")
    ours = unless("aliquot/aliquot:VERSION", "this version, from where it came before")
    where = "Made where missing" if fresh else "Where it is installed"
    return (
        click.option("--mode", type=_MODE, help="Which dialects are served" + unless("all")),
        click.option("-n", "--namespace", default="aliquot-system", show_default=True, help=where),
        click.option("--image", help="Ours, with your registry before it" + ours),
        click.option(
            "--image-pull-secret",
            "pull_secrets",
            metavar="NAME",
            multiple=True,
            help="A Secret in that namespace by which images are pulled; may be given several times" + unless("none"),
        ),
        click.option("--kube-scheduler-image", help="Of the kube-scheduler beside ours" + beside),
        click.option("--replicas", type=click.IntRange(1, 9), help="Of the scheduler" + unless("2")),
        click.option(
            "--webhook-failure",
            type=click.Choice(["ignore", "fail"]),
            help="What becomes of GPU Pods while no replica answers: taken unchecked, or refused" + unless("fail"),
        ),
    )


def _of_the_agents(unless: Callable[..., str]) -> Iterable[Callable[..., Any]]:
    return (
        click.option("--nodes", metavar="N1,N2", default="", help="Label these for the mode, where they have none"),
        click.option(
            "--node-selector",
            metavar="KEY=VALUE",
            multiple=True,
            help="Agents only on nodes with this label, too; may be given several times" + unless("none"),
        ),
        click.option(
            "--runtime-class",
            metavar="NAME",
            help="Of the agents: nvidia, where NVIDIA's runtime is not the default one" + unless("none"),
        ),
        click.option(
            "--driver-folder",
            metavar="DIR",
            help="/etc/cdi, where `nvidia-ctk cdi generate` wrote there; /var/run/cdi is looked into anyway"
            + unless("none"),
        ),
        click.option("--memory-unit", type=click.Choice(["GiB", "MiB"]), help="Of aliyun.com/gpu-mem" + unless("GiB")),
        click.option(
            "--simulate", metavar="SPEC", help="Simulated cards instead of real ones, as in 4x16GiB" + unless("none")
        ),
    )


def _of_the_command() -> Iterable[Callable[..., Any]]:
    return (
        click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing"),
        click.option("--wait/--no-wait", default=True, help="Until all is ready, and verified  [default: wait]"),
        click.option("--rollback/--no-rollback", default=True, help="Go back where it does not come up  [default]"),
        click.option("--beside-others", is_flag=True, help="Although another product gives the same cards away"),
        click.option("--timeout", type=Duration(), default="5m", show_default=True),
        click.option("-o", "--output", type=_OUTPUT, default="text", show_default=True, help="yaml: for --dry-run"),
        click.option("--kubeconfig", type=click.Path(path_type=Path), help="As for kubectl"),
        click.option("--context", "kube_context", help="As for kubectl"),
    )


def check(given: dict[str, Any]) -> None:
    """Raises InputError on what could not be."""
    _hold("--namespace", given["namespace"], _NAMESPACE, 'a-z, 0-9 and "-", 63 at most')
    if given["output"] == "yaml" and not given["dry_run"]:
        raise InputError("-o yaml prints the objects and goes with --dry-run; without it: text, or json")
    name = 'a name: a-z, 0-9, "-" and ".", 253 at most'
    for secret in filter(None, given["pull_secrets"]):
        _hold("--image-pull-secret", secret, _NAME, name)
    for text in filter(None, given["node_selector"]):
        _hold("--node-selector", text, _SELECTOR, "KEY=VALUE, a label of nodes, as in pool=gpu")
    if given["runtime_class"]:
        _hold("--runtime-class", given["runtime_class"], _NAME, name)
    if given["driver_folder"]:
        _hold(
            "--driver-folder", given["driver_folder"], _FOLDER, "a folder of the nodes, from its root on, as /etc/cdi"
        )
        if given["driver_folder"] in _MOUNTED:
            raise InputError(f"--driver-folder: {given['driver_folder']} is looked into anyway: leave it out")
    if given["simulate"]:
        from aliquot.cli.simulated import parse_simulation

        parse_simulation(given["simulate"])


def _hold(option: str, text: str, pattern: re.Pattern[str], allowed: str) -> None:
    if not pattern.match(text):
        raise InputError(f'{option}: "{text}" is not allowed: {allowed}')


def asked(given: dict[str, Any]) -> dict[str, Any]:
    """What the installation is asked for; None where nothing was said, so that it stays."""
    wanted = {key: given[key] for key in _AS_GIVEN}
    wanted |= {key: given[key] or None for key in ("image", "kube_scheduler_image")}  # which it cannot do without
    if given["pull_secrets"]:
        wanted["pull_secrets"] = tuple(filter(None, given["pull_secrets"]))
    if given["node_selector"]:
        wanted["node_selector"] = dict(text.split("=", 1) for text in filter(None, given["node_selector"]))
    return wanted


def rendered() -> list[dict[str, Any]]:
    """The objects that `helm template` makes of the chart, as this package carries them."""
    import yaml

    text = (Path(aliquot.__file__).parent / "manifests" / "install.yaml").read_text()
    return [each for each in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if each]
