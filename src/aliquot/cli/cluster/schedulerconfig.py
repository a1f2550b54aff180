"""`aliquot manifests`: prints configuration for the cluster's version. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from aliquot.adapters.kubernetes.kubectl import Kubectl
from aliquot.cli.errors import InputError
from aliquot.cli.options.kubectl import kubectl_options, reach
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.text import printable_json

if TYPE_CHECKING:
    from aliquot.dialects.wire.schedulerconfig import KubeSchedulerSettings

_PORT, _TLS_PORT = 12345, 12348
_TLS_FOLDER, _SECOND_TLS_FOLDER = "/etc/kubernetes/aliquot", "/etc/kube-scheduler/tls"
_PATH = "/aliquot"


@click.group()
def manifests() -> None:
    """Print configuration files for the cluster."""


@manifests.command("scheduler-config")
@click.option("--kubernetes", "version", help="Version of Kubernetes, e.g. 1.36  [default: the cluster's]")
@click.option(
    "--url",
    help="Address of `aliquot scheduler` for kube-scheduler: http://HOST:PORT on the same host or in the same Pod,"
    f" https://HOST:PORT for its --tls-port  [default: http://127.0.0.1:{_PORT}; with --second, https and the Service"
    " aliquot-scheduler]",
)
@click.option(
    "--tls-folder",
    metavar="FOLDER",
    help="Where kube-scheduler finds ca.crt, client.crt and client.key for https  [default:"
    f" {_TLS_FOLDER}; with --second, {_SECOND_TLS_FOLDER}]",
)
@click.option(
    "--dialect",
    type=click.Choice(["all", "qgpu", "t9k", "gpushare", "hami", "kai", "all+hami", "all+kai", "all+hami+kai"]),
    default="all",
    show_default=True,
    help="all: every one but hami and kai",
)
@click.option(
    "--second/--in-place",
    help="Configure a second kube-scheduler, for managed control planes, or the cluster's own  [default: in-place]",
)
@click.option("--policy/--no-policy", default=None, help="Print Policy JSON  [default: for 1.22 and older]")
@click.option(
    "--nodes-to-score",
    "percentage",
    type=click.IntRange(0, 100),
    metavar="PERCENT",
    help="Share of nodes to score per Pod  [default: kube-scheduler's own]",
)
@click.option("--scheduler-kubeconfig", help="Kubeconfig of kube-scheduler  [default: kubeadm's; none with --second]")
@click.option(
    "--lease-namespace",
    default="kube-system",
    show_default=True,
    help="Namespace of the second kube-scheduler and its Lease",
)
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
@kubectl_options
def scheduler_config(
    version: str | None,
    url: str | None,
    tls_folder: str | None,
    dialect: str,
    second: bool,
    policy: bool | None,
    percentage: int | None,
    scheduler_kubeconfig: str | None,
    lease_namespace: str,
    output: str,
    kubectl: Kubectl,
) -> None:
    """Print the configuration that makes kube-scheduler use aliquot for GPU Pods.

    \b
    aliquot manifests scheduler-config --kubernetes 1.36 > aliquot-scheduler-config.yaml
    """
    from aliquot.dialects.wire import schedulerconfig as wire
    from aliquot.model.refusal import Invalid

    parsed = wire.parse_version(_version(kubectl) if version is None else version)
    if isinstance(parsed, Invalid):
        raise InputError(f"--kubernetes: {parsed.sentence()}")
    reads, api = wire.reads_policy(parsed), wire.config_api(parsed)
    as_policy = reads if policy is None else policy
    shown = ".".join(map(str, parsed))
    if as_policy and not reads:
        raise InputError(
            f"--policy: kube-scheduler {shown} does not support Policy; 1.22 was the last version that did"
        )
    if not as_policy and api is None:
        raise InputError(
            f"--no-policy: kube-scheduler {shown} supports only Policy; KubeSchedulerConfiguration needs 1.19"
        )
    if parsed < wire.OLDEST_NODES:
        click.echo(_OLD_NODES.format(version=shown, oldest=".".join(map(str, wire.OLDEST_NODES))), err=True)
    service = f"https://aliquot-scheduler.{lease_namespace}.svc:{_TLS_PORT}"
    prefix = _url(url or (service if second else f"http://127.0.0.1:{_PORT}"))
    secure = prefix.startswith("https://")
    if tls_folder is not None and not (secure and tls_folder.startswith("/")):
        raise InputError(f'--tls-folder: "{tls_folder}" is not allowed: an absolute path, with --url https://HOST:PORT')
    settings = wire.KubeSchedulerSettings(
        version=parsed,
        url=prefix,
        tls_folder=(tls_folder or (_SECOND_TLS_FOLDER if second else _TLS_FOLDER)) if secure else None,
        dialects=wire.dialects_of(dialect),
        second=second,
        percentage=percentage,
        kubeconfig=scheduler_kubeconfig or (None if second else "/etc/kubernetes/scheduler.conf"),
        lease_namespace=lease_namespace,
    )
    config = wire.render_policy(settings) if as_policy else wire.render_config(settings)
    if output == "json" or as_policy:  # JSON has no comments: print the instructions for a Policy to stderr
        if as_policy:
            click.echo(
                _POLICY_SECOND.format(name=wire.SCHEDULER_NAME, lease=wire.SECOND_LEASE)
                if second
                else _POLICY_IN_PLACE,
                err=True,
            )
            if secure:
                click.echo(_CLIENT_FILES.format(folder=settings.tls_folder).rstrip(), err=True)
        import msgspec

        click.echo(printable_json(msgspec.json.format(msgspec.json.encode(config), indent=2).decode()))
    else:
        click.echo(_as_yaml(settings, config), nl=False)


def _version(kubectl: Kubectl) -> str:
    version = reach(lambda: kubectl.get("/version"))
    return str(version.get("gitVersion")) if isinstance(version, dict) else ""


def _url(text: str) -> str:
    """The prefix of the verbs. A given path is kept: we serve the peers' prefixes too."""
    parts = urlsplit(text)
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 80) and not parts.query
    except ValueError:  # the port is not a number
        usable = False
    if not usable:
        allowed = f"http://HOST:PORT or https://HOST:PORT, for example http://127.0.0.1:{_PORT}"
        raise InputError(f'--url: "{text}" is not allowed: {allowed}')
    return text.rstrip("/") if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}{_PATH}"


# --- YAML with comments ----------------------------------------------------------------------------------------------

_IN_PLACE = """\
KubeSchedulerConfiguration for kube-scheduler {version}: aliquot places the Pods that request these resources.

On every control plane node that kubeadm set up:
  1. save this file as /etc/kubernetes/aliquot-scheduler-config.yaml
  2. in /etc/kubernetes/manifests/kube-scheduler.yaml add to the command
       - --config=/etc/kubernetes/aliquot-scheduler-config.yaml
     and, so that the container can read the file, to volumeMounts and volumes
       - {{name: aliquot, mountPath: /etc/kubernetes/aliquot-scheduler-config.yaml, readOnly: true}}
       - {{name: aliquot, hostPath: {{path: /etc/kubernetes/aliquot-scheduler-config.yaml, type: File}}}}
  3. the kubelet restarts kube-scheduler by itself; check with `aliquot doctor`.
kube-scheduler runs in the host's network, which cannot resolve Services: urlPrefix must be an address that is
reachable from that node. https with a client certificate (`--url https://HOST:PORT`, the --tls-port of `aliquot
scheduler`) is safe on any network. http is not: anybody who reaches that port can have GPU Pods bound.
"""

_SECOND = """\
KubeSchedulerConfiguration for a second kube-scheduler {version} in addition to the cluster's own: Pods select it by
spec.schedulerName ({names}), which the webhook can set.

Run it as a Deployment in {namespace}: command `kube-scheduler --config=FILE`, this file from a ConfigMap, the image
of the cluster's version, and a ServiceAccount bound to the ClusterRoles system:kube-scheduler and
system:volume-scheduler and to a Role in {namespace} that may get, create and update the Lease {lease}
(the ClusterRole covers only the Lease kube-scheduler). Check with `aliquot doctor`.
"""

_CLIENT_FILES = """\
The extender admits only holders of its client certificate. Before kube-scheduler starts with this file, put it into
{folder}; NAMESPACE is that of `aliquot scheduler`, aliquot-system with the chart:
  mkdir -p -m 0700 {folder} && cd {folder}
  for key in ca.crt client.crt client.key; do
    kubectl get secret aliquot-extender-tls -n NAMESPACE \\
      -o go-template="{{{{index .data \\"$key\\" | base64decode}}}}" > $key; done
and mount that folder in kube-scheduler's container, read-only, by the same path. A Pod mounts the Secret itself.
"""

_POLICY_IN_PLACE = """\
Save this as /etc/kubernetes/scheduler-policy-config.json; in /etc/kubernetes/manifests/kube-scheduler.yaml add to the
command --policy-config-file=/etc/kubernetes/scheduler-policy-config.json, and a hostPath volume with the file.
kube-scheduler's --config and this flag exclude each other."""

_POLICY_SECOND = """\
Start the second kube-scheduler with --policy-config-file=FILE --scheduler-name={name}
--leader-elect-resource-name={lease}. With a Policy it serves one schedulerName only; --no-policy serves several, from
1.19 on."""

_OLD_NODES = """\
Nodes of Kubernetes {version} are not supported: `aliquot agent` and the chart need {oldest} or later. With this file
aliquot only chooses nodes and cards; another device plugin (gpushare's) must hand them to the containers. To use the
agent, upgrade the cluster: docs/install.md has the versions that are tested."""

# Comments, placed above the first line that starts with the key.
_COMMENTS = {
    "kubeconfig:": "With --config, kube-scheduler ignores its --kubeconfig flag: the kubeconfig is set here.",
    "qps:": "Refusing a Pod writes its status; the default of 50 per second is slow for hundreds of pending Pods.",
    "podInitialBackoffSeconds:": "kube-scheduler retries a refused Pod when something changes in the cluster, but not"
    " before its back-off is over, which grows to 10 s by default. An extender cannot say which change matters, so a"
    " free GPU would wait that long for its Pod. We answer within a millisecond: one second is enough. From 1.33 on,"
    " start kube-scheduler with --feature-gates=SchedulerPopFromBackoffQ=false too: while idle it ignores the back-off,"
    " and tries refused Pods at every change of any Pod.",
    "percentageOfNodesToScore:": "Consider all nodes for each Pod. Otherwise kube-scheduler offers us a different"
    " part of them each time (420 of 1,000, 500 of 5,000), and Pods cannot be packed onto the fullest card.",
    "profiles:": "percentageOfNodesToScore is left to kube-scheduler: with 100 it examines every node for every Pod,"
    " which places half as many Pods per second and packs at most 0.07 points denser (--nodes-to-score 100 adds it).",
    "- urlPrefix:": "One extender for all dialects: only one may bind.",
    "preemptVerb:": "We also choose the victims of a preemption: only Pods that free the needed card.",
    "nodeCacheCapable:": "Send names instead of whole nodes: 158 kB instead of 58 MB for 5,000 nodes.",
    "tlsConfig:": "serverName is the name in the extender's certificate, whatever its address.",
    "ignorable:": "GPU Pods wait while aliquot is down. Bound without it, they run on cards it did not choose.",
    "managedResources:": "kube-scheduler calls Aliquot only for Pods that request one of these. It still counts the"
    " resources per node (ignoredByScheduler: false), as the kubelet does: a node that does not advertise a resource,"
    " or has none left, would only fail the Pod, and we are asked about fewer nodes.",
}
_WEIGHTS = {
    "weight:": "At 1 our choice adds at most 20 points: preferred affinity (200), the spread of replicas (200) and the"
    " taints (300) come first, but CPU and memory (200) do too. At 10 and more it outvotes most of them.",
}
_OWN_WEIGHTS = {
    "plugins:": "In the usual proportion, times a million: what a Pod prefers, where its other replicas are and where"
    " its image is come first. Then our order of the nodes, a thousand for each rank. CPU and memory break ties.",
    "prioritizeVerb:": "Ranks of 0 to 999. With weight 10,000 our order would count as much as a plugin of weight"
    " 1,000,000, with 101,000 more than all of them.",
}
_OF_COUNT = (
    "A number of cards, which kube-scheduler counts as used although the cards are shared: prefer the Pod's annotation"
    " of the same name to a limit of the container."
)


def _as_yaml(settings: KubeSchedulerSettings, config: JsonObject) -> str:
    import yaml

    from aliquot.dialects.gpushare import COUNT
    from aliquot.dialects.wire.schedulerconfig import SECOND_LEASE

    head = (_SECOND if settings.second else _IN_PLACE).format(
        version=".".join(map(str, settings.version)),
        names=", ".join(settings.scheduler_names),
        lease=SECOND_LEASE,
        namespace=settings.lease_namespace,
    )
    if settings.tls_folder is not None:
        head += _CLIENT_FILES.format(folder=settings.tls_folder)
    lines = [f"# {line}".rstrip() for line in head.splitlines()]  # not wrapped: its steps are indented
    weights = _OWN_WEIGHTS if settings.own else _WEIGHTS
    comments = {**_COMMENTS, **weights, f"- name: {COUNT}": _OF_COUNT}
    if "percentageOfNodesToScore" in config:
        del comments["profiles:"]
    for line in yaml.safe_dump(config, sort_keys=False, width=1000).splitlines():
        indent, text = line[: len(line) - len(line.lstrip())], line.lstrip()
        key = next((key for key in comments if text.startswith(key)), None)
        comment = comments.pop(key) if key else ""
        lines += [f"{indent}# {part}" for part in _folded(comment, 110 - len(indent))]
        lines.append(line)
    return "\n".join(lines) + "\n"


def _folded(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width) if text else []
