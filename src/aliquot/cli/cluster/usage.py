"""`kubectl aliquot usage`: who used how much of the cluster's cards, added up over the agents of all nodes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import click
import msgspec

from aliquot.adapters.kubernetes.kubectl import PODS, Kubectl, KubectlError
from aliquot.cli.errors import InputError
from aliquot.cli.options.kubectl import kubectl_options, reach
from aliquot.cli.tables import terminal_width
from aliquot.cli.usagerows import render, usage_options
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.status.usage import UsageReport

_SELECTOR = "app.kubernetes.io/name=aliquot,app.kubernetes.io/component=agent"
_AT_ONCE = 8


@click.command()
@click.argument("node", required=False)
@usage_options
@kubectl_options
def usage(node: str | None, since: float, by: str | None, output: str, kubectl: Kubectl) -> None:
    """Show who used how much of the cluster's cards, or of one node's.

    Every agent keeps the hours of its own node; this asks all of them through the API server (pods/proxy). A node whose
    agent does not answer is named, and the command ends with code 1.

    \b
    kubectl aliquot usage --since 7d --by namespace
    kubectl aliquot usage NODE -o csv
    """
    began = max(0.0, time.time() - since)
    agents = reach(lambda: kubectl.items(PODS, "Pod", labelSelector=_SELECTOR))
    agents = [pod for pod in agents if node in (None, _node(pod)) and pod.get("status", {}).get("phase") == "Running"]
    if not agents:
        where = "" if node is None else f" on node {node}"
        raise InputError(f"no agent runs{where}: `kubectl aliquot doctor` says why")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(lambda pod: _ask(kubectl, pod, began), agents))
    reports = [answer for answer in answers if isinstance(answer, UsageReport)]
    if reports:
        click.echo(render(reports, by or "pod", output, terminal_width()))
    silent = [f"{_node(pod)}: {answer}" for pod, answer in zip(agents, answers, strict=True) if isinstance(answer, str)]
    if silent:
        raise InputError("not counted: " + "; ".join(silent), code=1)


def _node(pod: JsonObject) -> str:
    return str(pod.get("spec", {}).get("nodeName", ""))


def _ask(kubectl: Kubectl, pod: JsonObject, since: float) -> UsageReport | str:
    """The node's bill, or why it is missing."""
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{quote(metadata['namespace'])}/pods/http:{quote(metadata['name'])}:{_port(pod)}/proxy"
    try:
        return msgspec.convert(kubectl.get(f"{path}/api/v1/usage", since=f"{since:.0f}"), UsageReport)
    except (KubectlError, msgspec.ValidationError) as error:
        return str(error)


def _port(pod: JsonObject) -> int:
    """The one named `metrics`."""
    for container in pod.get("spec", {}).get("containers", ()):
        for port in container.get("ports") or ():
            if port.get("name") == "metrics":
                return int(port["containerPort"])
    return 9479
