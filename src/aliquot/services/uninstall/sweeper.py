"""The Pod that removes our files from one node, and with which image and folders it runs there. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from aliquot.adapters.host.home import POOLS
from aliquot.dialects.wire.leftovers import KUBELET, had_agent, parse_left_behind
from aliquot.dialects.wire.ownobjects import COMPONENT_LABEL, MANAGED_LABEL, MANAGER, NAME_LABEL
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.numbers.quantity import QuantityError, parse_quantity
from aliquot.model.refusal import Invalid

COMPONENT = "sweep"
LABELS = {NAME_LABEL: "aliquot", COMPONENT_LABEL: COMPONENT, MANAGED_LABEL: MANAGER}
_OUR_LABELS = "app.kubernetes.io/"
_HOST = "/host"
# Policies and quotas may want them. A request of 0 fits on a full node: no scheduler has looked for room.
_RESOURCES: JsonObject = {"requests": {"cpu": "0", "memory": "0"}, "limits": {"memory": "256Mi"}}
_AMOUNTS = {"cpu": "100m", "memory": "256Mi"}  # where request and limit must both be there
# What a LimitRange says of a Pod: "minimum cpu usage per Container is 10m, but request is 0".
_BOUND = re.compile(
    r"(?:minimum|maximum) (cpu|memory) usage per (?:Container|Pod) is (\w[\w.]*?)"
    r"(?:, but (request|limit) is|\.\s+No (request|limit) )"
)
_RATIO = re.compile(r"(cpu|memory) max limit to request ratio per (?:Container|Pod) ")
_MOUNTS = ("/run", "/var/run", "/var/lib", POOLS)  # a folder is removed from its parent; each may be a link of the host


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """How sweepers run: like the agents."""

    image: str
    kubelet: str = KUBELET
    pull_secrets: tuple[JsonView, ...] = ()
    pull_policy: str = "IfNotPresent"
    selinux: Mapping[str, str] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)  # in addition to ours: a cluster's policies may want them
    resources: JsonView = field(default_factory=lambda: _RESOURCES)
    image_known: bool = False  # from --image or from what is installed, not a default


def agent_settings(daemons: JsonObject, image: str | None, secrets: tuple[JsonView, ...]) -> SweepSettings:
    """As the agents' DaemonSet runs them; `image` overrides theirs."""
    template = daemons["spec"]["template"]
    inner, labels = template["spec"], (template.get("metadata") or {}).get("labels") or {}
    container = inner["containers"][0]
    folders = [word.partition("=")[2] for word in container.get("args", ()) if word.startswith("--kubelet-dir=")]
    return SweepSettings(
        image or container["image"],
        (folders or [KUBELET])[0],
        (*secrets, *(inner.get("imagePullSecrets") or ())),
        container.get("imagePullPolicy", "IfNotPresent"),
        (inner.get("securityContext") or {}).get("seLinuxOptions"),
        {key: value for key, value in labels.items() if not key.startswith(_OUR_LABELS)},
        image_known=True,
    )


def settings_for(node: JsonObject, settings: SweepSettings) -> SweepSettings | str:
    """The settings for this node, or why there are none.

    Before Kubernetes 1.30 an agent may write annotations of any Node. So we use the image of a mark only if no other
    source names one: then no agent has an account any more, and marks of earlier agents were rewritten.
    """
    left = parse_left_behind(node)
    if left is None or had_agent(node):
        return settings
    if isinstance(left, Invalid):
        why = f"node {node['metadata']['name']}: {left.sentence()}; or pass the image to clean it with as --image"
        return settings if settings.image_known else why
    image = settings.image if settings.image_known else left.image
    labels = settings.labels or {key: text for key, text in left.labels.items() if not key.startswith(_OUR_LABELS)}
    return replace(settings, image=image, kubelet=left.kubelet, selinux=settings.selinux or left.selinux, labels=labels)


def within_limit_range(settings: SweepSettings, refusal: str) -> SweepSettings | None:
    """With resources as the namespace's LimitRange wants them, by the words in which it refused a sweeper; None if it
    was not that. Nothing more is read: Helm's hook has no right to read LimitRanges."""
    resources = {side: dict(settings.resources.get(side) or {}) for side in ("requests", "limits")}
    for resource, amount, *sides in _BOUND.findall(refusal):
        resources[f"{''.join(sides)}s"][resource] = amount
    for resource in _RATIO.findall(refusal):
        wanted = (resources["limits"].get(resource), resources["requests"].get(resource), _AMOUNTS[resource])
        amount = next(amount for amount in wanted if amount not in (None, "0"))
        resources["requests"][resource] = resources["limits"][resource] = amount
    for resource, request in resources["requests"].items():
        limit = resources["limits"].get(resource)
        try:
            if limit is not None and parse_quantity(limit) < parse_quantity(request):
                resources["limits"][resource] = request
        except QuantityError:
            return None
    return None if resources == settings.resources else replace(settings, resources=resources)


def needs_sweep(node: JsonObject) -> bool:
    """Whether an agent was there, or files were left behind."""
    return parse_left_behind(node) is not None or had_agent(node)


def is_ready(node: JsonObject) -> bool:
    """Whether its kubelet can start a Pod."""
    conditions = node["status"].get("conditions") or ()
    return [condition["status"] for condition in conditions if condition["type"] == "Ready"] == ["True"]


def render_sweeper(namespace: str, node: str, settings: SweepSettings, *, keep_running: bool) -> JsonObject:
    """The Pod. It bypasses schedulers and taints, and needs no account."""
    args = ["uninstall", "--this-node", f"--host-root={_HOST}", f"--kubelet-dir={settings.kubelet}"]
    names = {folder: folder.strip("/").replace("/", "-") for folder in _MOUNTS}
    if not settings.kubelet.startswith("/var/lib/"):
        names[settings.kubelet] = "kubelet"
    container = {
        "name": "sweep",
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "args": [*args, *(["--keep-running"] if keep_running else [])],
        "resources": settings.resources,
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": name, "mountPath": f"{_HOST}{folder}"} for folder, name in names.items()],
    }
    spec = {
        "nodeName": node,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "imagePullSecrets": list(settings.pull_secrets),
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {
            "seccompProfile": {"type": "RuntimeDefault"},
            **({"seLinuxOptions": settings.selinux} if settings.selinux else {}),
        },
        "containers": [container],
        "volumes": [
            {"name": name, "hostPath": {"path": folder, "type": "Directory"}} for folder, name in names.items()
        ],
    }
    metadata = {
        "name": f"aliquot-sweep-{node}"[:253],
        "namespace": namespace,
        "labels": {**settings.labels, **LABELS, "sidecar.istio.io/inject": "false"},  # a sidecar would run on
        "annotations": {"linkerd.io/inject": "disabled"},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
