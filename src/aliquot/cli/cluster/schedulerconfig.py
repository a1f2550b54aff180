"""`aliquot manifests`: files for the cluster, made for its version. Nothing is changed anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from aliquot.adapters.kubernetes.kubectl import Kubectl
from aliquot.cli.errors import InputError
from aliquot.cli.kubectloptions import kubectl_options, reach

if TYPE_CHECKING:
    from aliquot.dialects.wire.schedulerconfig import Wiring

_PORT = 12345
_PATH = "/aliquot"


@click.group()
def manifests() -> None:
    """Print files for the cluster: how kube-scheduler is told of us."""


@manifests.command("scheduler-config")
@click.option("--kubernetes", "version", help="Its version, as 1.36; asked of the cluster where it is not given")
@click.option(
    "--url",
    help=f"Where kube-scheduler reaches `aliquot scheduler`: http://HOST:PORT  [default: 127.0.0.1:{_PORT} in place,"
    f" the Service of that name with --second]",
)
@click.option("--dialect", type=click.Choice(["all", "qgpu", "t9k", "gpushare"]), default="all", show_default=True)
@click.option(
    "--second/--in-place",
    help="A second kube-scheduler, for control planes that are managed by others; or the cluster's own  [default]",
)
@click.option("--policy/--no-policy", default=None, help="Policy JSON, the default for 1.22 and older")
@click.option(
    "--nodes-to-score",
    "percentage",
    type=click.IntRange(0, 100),
    metavar="PERCENT",
    help="How many of the nodes are scored for a Pod; 0 leaves it to kube-scheduler  [default: 100 with --second]",
)
@click.option(
    "--scheduler-kubeconfig", help="With which kube-scheduler logs in  [default: kubeadm's; none if --second]"
)
@click.option(
    "--lease-namespace", default="kube-system", show_default=True, help="Where the second one runs, and has its Lease"
)
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
@kubectl_options
def scheduler_config(
    version: str | None,
    url: str | None,
    dialect: str,
    second: bool,
    policy: bool | None,
    percentage: int | None,
    scheduler_kubeconfig: str | None,
    lease_namespace: str,
    output: str,
    kubectl: Kubectl,
) -> None:
    """Print the configuration that makes kube-scheduler ask us where GPU Pods go.

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
        raise InputError(f"--policy: kube-scheduler {shown} reads no Policy; 1.22 was the last that did")
    if not as_policy and api is None:
        raise InputError(
            f"--no-policy: kube-scheduler {shown} reads nothing else; KubeSchedulerConfiguration is of 1.19"
        )
    made = wire.Wiring(
        version=parsed,
        url=_url(url or f"http://{f'aliquot-scheduler.{lease_namespace}.svc' if second else '127.0.0.1'}:{_PORT}"),
        dialects=tuple(wire.DIALECTS) if dialect == "all" else (dialect,),
        second=second,
        percentage=percentage,
        kubeconfig=scheduler_kubeconfig or (None if second else "/etc/kubernetes/scheduler.conf"),
        lease_namespace=lease_namespace,
    )
    config = wire.render_policy(made) if as_policy else wire.render_config(made)
    if output == "json" or as_policy:  # the Policy file is JSON, which has no comments: how to use it goes to stderr
        if as_policy:
            click.echo(
                _POLICY_SECOND.format(name=wire.SCHEDULER_NAME, lease=wire.SECOND_LEASE)
                if second
                else _POLICY_IN_PLACE,
                err=True,
            )
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(config), indent=2).decode())
    else:
        click.echo(_as_yaml(made, config), nl=False)


def _version(kubectl: Kubectl) -> str:
    said = reach(lambda: kubectl.get("/version"))
    return str(said.get("gitVersion")) if isinstance(said, dict) else ""


def _url(text: str) -> str:
    """The prefix of the verbs. A path that is given stays: the peers' prefixes are served too."""
    parts = urlsplit(text)
    try:
        usable = parts.scheme == "http" and parts.hostname and (parts.port or 80) and not parts.query
    except ValueError:  # a port that is no number
        usable = False
    if not usable:
        raise InputError(f'--url: "{text}" is not allowed: http://HOST:PORT, as http://127.0.0.1:{_PORT}')
    return text.rstrip("/") if parts.path.strip("/") else f"http://{parts.netloc}{_PATH}"


# --- YAML with the reasons beside it ---------------------------------------------------------------------------------

_IN_PLACE = """\
KubeSchedulerConfiguration for kube-scheduler {version}: Pods that ask for these resources are placed by aliquot.

Where it goes, on every control plane node that kubeadm set up:
  1. save this file as /etc/kubernetes/aliquot-scheduler-config.yaml
  2. in /etc/kubernetes/manifests/kube-scheduler.yaml add to the command
       - --config=/etc/kubernetes/aliquot-scheduler-config.yaml
     and, so that the container sees the file, to volumeMounts and volumes
       - {{name: aliquot, mountPath: /etc/kubernetes/aliquot-scheduler-config.yaml, readOnly: true}}
       - {{name: aliquot, hostPath: {{path: /etc/kubernetes/aliquot-scheduler-config.yaml, type: File}}}}
  3. the kubelet restarts kube-scheduler by itself; `aliquot doctor` tells whether it asks us.
kube-scheduler runs in the host's network, where names of Services are not known: urlPrefix is an address that answers
on that node, of an `aliquot scheduler` there (its --bind-address and --port) or of a NodePort.
"""

_SECOND = """\
KubeSchedulerConfiguration for a second kube-scheduler {version} beside the cluster's own: Pods choose it by
spec.schedulerName ({names}); the webhook can do that for them.

Run it as a Deployment in {namespace}: command `kube-scheduler --config=FILE`, this file from a ConfigMap, the image
of the cluster's version, and a ServiceAccount bound to the ClusterRoles system:kube-scheduler and
system:volume-scheduler and to a Role in {namespace} that may get, create and update the Lease {lease}
(the ClusterRole knows only the Lease kube-scheduler). `aliquot doctor` tells whether it asks us.
"""

_POLICY_IN_PLACE = """\
Save this as /etc/kubernetes/scheduler-policy-config.json; in /etc/kubernetes/manifests/kube-scheduler.yaml add to the
command --policy-config-file=/etc/kubernetes/scheduler-policy-config.json, and a hostPath volume that shows the file to
the container. kube-scheduler's --config and this flag do not go together."""

_POLICY_SECOND = """\
Start the second kube-scheduler with --policy-config-file=FILE --scheduler-name={name}
--leader-elect-resource-name={lease}. With a Policy it serves one schedulerName only; --no-policy serves several, from
1.19 on."""

# Over the first line that begins so.
_COMMENTS = {
    "kubeconfig:": "With --config, kube-scheduler ignores its --kubeconfig flag: the login stands here.",
    "qps:": "A refused Pod is a write of its status; the default of 50 a second makes hundreds of waiting Pods slow.",
    "podInitialBackoffSeconds:": "A Pod that was refused is tried again when something changes in the cluster, but not"
    " before its back-off is over, which by default grows to 10 s. An extender cannot say which change matters, so GPU"
    " that comes free would wait that long for its Pod. An answer of ours takes a millisecond: one second is enough.",
    "percentageOfNodesToScore:": "All nodes are looked at for each Pod. Otherwise kube-scheduler offers us a part of"
    " them, another one each time (420 of 1,000, 500 of 5,000), and Pods cannot be packed onto the fullest card.",
    "profiles:": "percentageOfNodesToScore: 100 would pack better on more than 100 nodes; it is left out because it"
    " slows down the other Pods of the cluster too (--nodes-to-score 100 adds it).",
    "- urlPrefix:": "One extender for all dialects: only one may bind.",
    "preemptVerb:": "Whom to evict is asked too: only those whose leaving frees the card that is needed.",
    "weight:": "A point of ours counts 1,000, and we give 0 to 10; all of kube-scheduler's own plugins together come to"
    " 1,200 at most. So the cards decide where a Pod goes, and the others break ties.",
    "nodeCacheCapable:": "Names of nodes travel instead of whole nodes: 158 kB instead of 58 MB for 5,000 of them.",
    "ignorable:": "While we are away GPU Pods wait. Bound without us, they would run on cards that nobody chose.",
    "managedResources:": "Pods that ask for any of these come to us, all others do not. kube-scheduler goes on counting"
    " the resources per node (ignoredByScheduler: false) because the kubelet does too: a node that does not advertise a"
    " resource, or has none left, would only fail the Pod there, and we are asked about fewer nodes.",
}
_OF_COUNT = (
    "A count of cards, which kube-scheduler uses up even though the cards are shared: prefer the Pod's annotation of"
    " the same name to a limit in its container."
)


def _as_yaml(made: Wiring, config: dict[str, Any]) -> str:
    import yaml

    from aliquot.dialects.gpushare import COUNT
    from aliquot.dialects.wire.schedulerconfig import SECOND_LEASE

    head = (_SECOND if made.second else _IN_PLACE).format(
        version=".".join(map(str, made.version)),
        names=", ".join(made.scheduler_names),
        lease=SECOND_LEASE,
        namespace=made.lease_namespace,
    )
    lines = [f"# {line}".rstrip() for line in head.splitlines()]  # its steps are indented as they should be
    unsaid = {**_COMMENTS, f"- name: {COUNT}": _OF_COUNT}
    if "percentageOfNodesToScore" in config:
        del unsaid["profiles:"]
    for line in yaml.safe_dump(config, sort_keys=False, width=1000).splitlines():
        indent, text = line[: len(line) - len(line.lstrip())], line.lstrip()
        key = next((key for key in unsaid if text.startswith(key)), None)
        comment = unsaid.pop(key) if key else ""
        lines += [f"{indent}# {part}" for part in _folded(comment, 110 - len(indent))]
        lines.append(line)
    return "\n".join(lines) + "\n"


def _folded(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width) if text else []
