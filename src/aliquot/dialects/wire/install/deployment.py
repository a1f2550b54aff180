"""Our objects in a cluster, without Helm: install.yaml adapted to the options of an installation. Pure.

`tailor_objects` produces what the chart would render for a namespace, a mode, an image, ... Tests compare it with the
file (tests/dialects/wire/install/test_deployment.py) and with the chart (tests/e2e/ship/test_install.py).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

import msgspec

from aliquot.dialects import gpushare, hami, kai, qgpu, rules, t9k
from aliquot.dialects.wire import schedulerconfig, workloads
from aliquot.model.decoding.openjson import JsonObject, JsonView

NAMESPACE = "aliquot-system"
RECORD = "aliquot-installation"
DEPLOYMENT, DAEMON_SET, WEBHOOK = "aliquot-scheduler", "aliquot-agent", "aliquot"
SIMULATED_CARDS = "aliquot-simulated-cards"  # a DaemonSet, with --simulate
MANAGER = "aliquot"  # value of the label managed-by
FIELD_MANAGER = "aliquot-install"  # not the scheduler's: an upgrade must not remove what the scheduler applies

NAME_LABEL = "app.kubernetes.io/name"
VERSION_LABEL = "app.kubernetes.io/version"
COMPONENT_LABEL = "app.kubernetes.io/component"
MANAGED_LABEL = "app.kubernetes.io/managed-by"
SELECTOR = f"{NAME_LABEL}=aliquot"

MODES = ("all", *schedulerconfig.DIALECTS, "all+hami", "all+kai", "all+hami+kai")
# The labels that `--nodes` sets, by mode, unless the node has them already.
MODE_LABELS: Mapping[str, Mapping[str, str]] = {
    "all": {qgpu.ENABLE_LABEL: "enable"},
    qgpu.DIALECT: {qgpu.ENABLE_LABEL: "enable"},
    t9k.DIALECT: {t9k.ACCELERATOR_LABEL: "nvidia-gpu", t9k.MODE_LABEL: "sgn"},
    gpushare.DIALECT: {gpushare.NODE_LABEL: "true"},
    hami.DIALECT: {hami.LABEL: "true"},
    kai.DIALECT: {kai.LABEL: "true"},
    **{mode: {qgpu.ENABLE_LABEL: "enable"} for mode in ("all+hami", "all+kai", "all+hami+kai")},
}
_NODE_LABELS = {
    qgpu.DIALECT: qgpu.ENABLE_LABEL,
    t9k.DIALECT: t9k.ACCELERATOR_LABEL,
    gpushare.DIALECT: gpushare.NODE_LABEL,
    hami.DIALECT: hami.LABEL,
    kai.DIALECT: kai.LABEL,
}

_EXAMPLES = {
    qgpu.DIALECT: {qgpu.CORE: "50", qgpu.MEMORY: "4"},
    t9k.DIALECT: {t9k.PERCENT: "25"},
    gpushare.DIALECT: {gpushare.MEMORY: "4"},
    hami.DIALECT: {hami.CARDS: "1", hami.MEMORY: "4000"},
    kai.DIALECT: {},
}
_SYSTEM = "kube-system"  # its critical Pods are let in without a quota
_CONFIG = "config.yaml"
_CHECKSUM = "checksum/kube-scheduler"
_KUBE_SCHEDULER = "kube-scheduler"
_CONFIG_SINCE = (1, 25)  # the oldest Kubernetes that reads this form of the configuration
_EXTENDER = "http://127.0.0.1:12345/aliquot"  # in the same Pod
_MONITORING = "monitoring.coreos.com/"
_DASHBOARD = "grafana_dashboard"  # the label by which Grafana finds it
_CDI, _DRIVER = "cdi", "driver-cdi"  # volumes of the agent


@dataclass(frozen=True, slots=True)
class Options:
    """The options of an installation."""

    image: str
    kube_scheduler_image: str
    namespace: str = NAMESPACE
    mode: str = "all"
    replicas: int = 2
    simulate: str | None = None
    pull_secrets: tuple[str, ...] = ()
    runtime_class: str | None = None  # of the agents, which need the driver
    memory_unit: str = "GiB"  # of gpushare's amounts
    driver_folder: str | None = None  # where the driver's own CDI file is, in addition to the usual folder
    node_selector: Mapping[str, str] = field(default_factory=dict)  # of the agents, in addition to the mode's labels
    webhook_failure: str = "fail"
    policies: bool = True  # whether the cluster knows ValidatingAdmissionPolicies
    env_by_annotation: bool = False  # for kubelets that drop the CDI names of device plugins
    pops_from_backoff: bool = True  # whether kube-scheduler knows the gate SchedulerPopFromBackoffQ
    monitoring: bool = False  # whether the cluster knows the resources of the Prometheus operator


class OptionChanges(TypedDict, total=False):
    """Values for fields of Options; None, or not there: as it is."""

    image: str | None
    kube_scheduler_image: str | None
    mode: str | None
    replicas: int | None
    simulate: str | None
    pull_secrets: tuple[str, ...]
    runtime_class: str | None
    memory_unit: str | None
    driver_folder: str | None
    node_selector: Mapping[str, str]
    webhook_failure: str | None
    policies: bool
    env_by_annotation: bool
    pops_from_backoff: bool
    monitoring: bool


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """Which object."""

    api: str
    kind: str
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Its URL path at the API server."""
        root = f"/api/{self.api}" if "/" not in self.api else f"/apis/{self.api}"
        scope = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{root}{scope}/{plural(self.kind)}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def plural(kind: str) -> str:
    """The plural for the path; covers all kinds that we use."""
    low = kind.lower()
    return f"{low[:-1]}ies" if low.endswith("y") else f"{low}es" if low.endswith("s") else f"{low}s"


def identity(obj: JsonObject) -> Identity:
    """The identity of one of our objects."""
    metadata = obj["metadata"]
    return Identity(obj["apiVersion"], obj["kind"], metadata.get("namespace", ""), metadata["name"])


# RBAC before the programs that need it, agents before the scheduler that relies on them; deleted in reverse order.
_ORDER = (
    "Namespace", "PriorityClass", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding",
    "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ConfigMap", "Secret", "Lease", "Service",
    "NetworkPolicy", "PodDisruptionBudget", "MutatingWebhookConfiguration", "DaemonSet", "Deployment",
)  # fmt: skip


def in_order(objects: Iterable[JsonObject]) -> list[JsonObject]:
    """Sorted for applying; unknown kinds come after RBAC and before programs."""
    position = {kind: index for index, kind in enumerate(_ORDER)}
    return sorted(objects, key=lambda obj: position.get(obj["kind"], position["Service"]))


def tailor_objects(objects: Iterable[JsonObject], options: Options, version: str) -> list[JsonObject]:
    """The rendered objects adapted to the options, in the order to apply them."""
    wanted = [obj for obj in objects if _is_wanted(obj, options)]
    if options.simulate:
        wanted += [_simulated_cards(obj, options.simulate) for obj in wanted if obj["kind"] == "DaemonSet"]
    result = in_order(_in_namespace(copy.deepcopy(obj), options.namespace) for obj in wanted)
    config = next(obj for obj in result if obj["kind"] == "ConfigMap" and _CONFIG in obj.get("data", {}))
    config["data"][_CONFIG] = _scheduler_config(options)
    serves_gpushare = gpushare.DIALECT in _dialects(options)
    for obj in result:
        _label(obj, version)
        if obj["kind"] == "Deployment":
            _edit_scheduler(obj, options, config["data"][_CONFIG])
        elif obj["kind"] == "DaemonSet":
            _edit_agent(obj, options)
        elif obj["kind"] == "ServiceAccount" and options.pull_secrets:
            obj["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
        elif identity(obj).name == DAEMON_SET and obj["kind"] == "ClusterRole" and not serves_gpushare:
            obj["rules"] = [rule for rule in obj["rules"] if not _patches_pods(rule)]
    return result


def _is_wanted(obj: JsonObject, options: Options) -> bool:
    """Leaves out what the chart leaves out: unknown resources, and permissions that only gpushare's mode needs."""
    monitoring = obj["apiVersion"].startswith(_MONITORING) or _DASHBOARD in obj["metadata"].get("labels", {})
    of_gpushare = obj["metadata"].get("namespace") == gpushare.CONFIG_NAMESPACE
    return (
        (options.monitoring or not monitoring)
        and (options.policies or not obj["kind"].startswith("ValidatingAdmissionPolicy"))
        and (gpushare.DIALECT in _dialects(options) or not of_gpushare)
        and (obj["kind"] != "ResourceQuota" or options.namespace != _SYSTEM)
    )


def _dialects(options: Options) -> tuple[str, ...]:
    return schedulerconfig.dialects_of(options.mode)


def _in_namespace(value: Any, namespace: str) -> Any:
    """With the namespace in every place where the file has the default one."""
    if isinstance(value, dict):
        return {key: _in_namespace(item, namespace) for key, item in value.items()}
    if isinstance(value, list):
        return [_in_namespace(item, namespace) for item in value]
    return value.replace(NAMESPACE, namespace) if isinstance(value, str) else value  # in expressions too


def _patches_pods(rule: JsonObject) -> bool:
    """Agents write to Pods only for gpushare's tools."""
    return (rule["resources"], rule["verbs"]) == (["pods"], ["patch"])


def _label(obj: JsonObject, version: str) -> None:
    metadatas = [obj["metadata"], obj.get("spec", {}).get("template", {}).get("metadata", {})]
    for labels in (metadata["labels"] for metadata in metadatas if NAME_LABEL in metadata.get("labels", {})):
        labels[VERSION_LABEL], labels[MANAGED_LABEL] = version, MANAGER


def _scheduler_config(options: Options) -> str:
    """For our own kube-scheduler: profiles and extended resources of the mode. JSON is YAML."""
    settings = schedulerconfig.KubeSchedulerSettings(
        version=_CONFIG_SINCE, url=_EXTENDER, dialects=_dialects(options), second=True
    )
    config = schedulerconfig.render_config(settings)
    config["leaderElection"]["resourceNamespace"] = options.namespace
    return msgspec.json.format(msgspec.json.encode(config), indent=2).decode()


def _edit_scheduler(deployment: JsonObject, options: Options, config: str) -> None:
    spec = deployment["spec"]
    spec["replicas"] = options.replicas
    spec["template"]["metadata"]["annotations"][_CHECKSUM] = hashlib.sha256(config.encode()).hexdigest()
    names = "aliquot-scheduler" + (",t9k=t9k-scheduler" if t9k.DIALECT in _dialects(options) else "")
    changes = {
        "--dialects": ",".join(_dialects(options)),
        "--scheduler-name": names,
        "--webhook-failure": options.webhook_failure,
    }
    if options.memory_unit == gpushare.MemoryUnit.MIB:  # else it derives the unit from the nodes there are
        changes["--memory-unit"] = options.memory_unit
    for container in workloads.containers(deployment):
        if container["name"] == _KUBE_SCHEDULER:
            container["image"] = options.kube_scheduler_image
            if not options.pops_from_backoff:
                container["command"] = [
                    word for word in container["command"] if not word.startswith("--feature-gates=")
                ]
        else:
            container["image"] = options.image
            container["args"] = [_replaced(word, changes) for word in container.get("args", ())]
            container["args"] += ["--env-by-annotation"] * options.env_by_annotation


def _edit_agent(daemons: JsonObject, options: Options) -> None:
    spec = daemons["spec"]
    changes = {"--dialects": ",".join(_dialects(options)), "--memory-unit": options.memory_unit}
    for container in workloads.containers(daemons):
        container["image"] = options.image
        args = [_replaced(word, changes) for word in container.get("args", ())]
        if options.simulate and args[:1] == ["agent"]:
            args.insert(-1, f"--simulate={options.simulate}")
        container["args"] = args
    inner = spec["template"]["spec"]
    if options.runtime_class and identity(daemons).name == DAEMON_SET:
        inner["runtimeClassName"] = options.runtime_class
    if options.node_selector:
        inner["nodeSelector"] = dict(options.node_selector)
    if options.driver_folder and identity(daemons).name == DAEMON_SET:
        _mount_driver(inner, options.driver_folder)
    required = inner["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = {term["matchExpressions"][0]["key"]: term for term in required["nodeSelectorTerms"]}
    ours, serves_gpushare = set(_NODE_LABELS.values()), gpushare.DIALECT in _dialects(options)
    labelled = dict(terms)
    for label in map(_NODE_LABELS.get, rules.ON_REQUEST):  # the file has none of these
        labelled[label] = copy.deepcopy(terms[gpushare.NODE_LABEL])
        labelled[label]["matchExpressions"][0] |= {"key": label, "values": ["true"]}
    required["nodeSelectorTerms"] = [
        *(labelled[_NODE_LABELS[dialect]] for dialect in _dialects(options)),
        *(term for key, term in terms.items() if key not in ours and (key != gpushare.ACK_LABEL or serves_gpushare)),
    ]


def _simulated_cards(agents: JsonObject, cards: str) -> JsonObject:
    """The DaemonSet of the chart's simulated-cards.yaml, on the nodes of the agents."""
    daemons = copy.deepcopy(agents)
    spec, inner = daemons["spec"], daemons["spec"]["template"]["spec"]
    daemons["metadata"]["name"] = SIMULATED_CARDS
    spec["updateStrategy"] = {"type": "OnDelete"}
    spec["template"]["metadata"].pop("annotations")
    for labels in (
        daemons["metadata"]["labels"],
        spec["selector"]["matchLabels"],
        spec["template"]["metadata"]["labels"],
    ):
        labels[COMPONENT_LABEL] = "simulated-cards"
    for name in ("initContainers", "hostNetwork", "dnsPolicy"):
        inner.pop(name)
    agent = inner["containers"][0]
    inner["automountServiceAccountToken"] = False
    inner["terminationGracePeriodSeconds"] = 1
    inner["containers"] = [
        {
            "name": "cards",
            "image": agent["image"],
            "imagePullPolicy": agent["imagePullPolicy"],
            "args": ["simulated-cards", "--nodename=$(NODE_NAME)", cards],
            "env": [variable for variable in agent["env"] if variable["name"] == "NODE_NAME"],
            "resources": {"requests": {"cpu": "250m", "memory": "32Mi"}},
            "securityContext": agent["securityContext"],
            "volumeMounts": [mount for mount in agent["volumeMounts"] if mount["name"] == "run"],
        }
    ]
    inner["volumes"] = [volume for volume in inner["volumes"] if volume["name"] == "run"]
    return daemons


def cards_without_agents(nodes: Iterable[str], pull_secrets: Iterable[JsonView]) -> JsonObject:
    """The merge patch by which the DaemonSet of simulated cards stays on these nodes when the rest is uninstalled: it
    then depends neither on labels of the nodes nor on the agents' account, which has `pull_secrets`."""
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in sorted(set(nodes))
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    spec = {
        "serviceAccountName": "default",
        "imagePullSecrets": [dict(secret) for secret in pull_secrets],
        "affinity": {"nodeAffinity": required},
    }
    return {"spec": {"template": {"spec": spec}}}


def _mount_driver(inner: JsonObject, folder: str) -> None:
    """Right after the folder of CDI specs that is always mounted, as in the chart."""
    mount = {"name": _DRIVER, "mountPath": folder, "readOnly": True}
    volume = {"name": _DRIVER, "hostPath": {"path": folder, "type": "Directory"}}
    for entries, added in ((inner["containers"][0]["volumeMounts"], mount), (inner["volumes"], volume)):
        entries.insert(1 + [entry["name"] for entry in entries].index(_CDI), added)


def _replaced(word: str, changes: Mapping[str, str]) -> str:
    flag, _, _ = word.partition("=")
    return f"{flag}={changes[flag]}" if flag in changes and "=" in word else word


def label_arguments(mode: str) -> str:
    """The labels that put a node into the mode, as arguments of `kubectl label`."""
    return " ".join(f"{key}={value}" for key, value in MODE_LABELS[mode].items())


def example_pod(mode: str) -> str:
    """A Pod on a part of a card, as JSON. IMAGE stands for an image with nvidia-smi."""
    container = {
        "name": "main",
        "image": "IMAGE",
        "command": ["nvidia-smi", "-L"],
        "resources": {"limits": _EXAMPLES[qgpu.DIALECT if rules.ALL in mode else mode]},
    }
    spec = {"restartPolicy": "Never", "containers": [container]}
    of_kai = {"annotations": {kai.MEMORY: "4000"}} if mode == kai.DIALECT else {}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "first", **of_kai}, "spec": spec}
    return msgspec.json.encode(pod).decode()
