"""Our own objects in a cluster, without Helm: the rendered file, edited by what an installation was asked for. Pure.

    tailored   the objects of install.yaml for a namespace, a mode, an image, ...; what the chart would render
    Record     what was installed, by which options, and what stood there before: ConfigMap `aliquot-installation`

`tests/dialects/test_deployment.py` holds `tailored` to the file, `tests/e2e/ship/test_install.py` to the chart.
"""

from __future__ import annotations

import base64
import copy
import gzip
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from aliquot.dialects import gpushare, qgpu, t9k
from aliquot.dialects.wire import schedulerconfig
from aliquot.model.refusal import Invalid

Json = dict[str, Any]

NAMESPACE = "aliquot-system"
RECORD = "aliquot-installation"
DEPLOYMENT, DAEMON_SET, WEBHOOK = "aliquot-scheduler", "aliquot-agent", "aliquot"
MANAGER = "aliquot"  # who the label says manages the objects
FIELD_MANAGER = "aliquot-install"  # not the scheduler's: what that applies, an upgrade must not take away

NAME_LABEL = "app.kubernetes.io/name"
VERSION_LABEL = "app.kubernetes.io/version"
COMPONENT_LABEL = "app.kubernetes.io/component"
MANAGED_LABEL = "app.kubernetes.io/managed-by"
SELECTOR = f"{NAME_LABEL}=aliquot"

MODES = ("all", *schedulerconfig.DIALECTS)
# What `--nodes` puts on a node, by mode, where nobody has chosen yet.
MODE_LABELS: Mapping[str, Mapping[str, str]] = {
    "all": {qgpu.ENABLE_LABEL: "enable"},
    qgpu.DIALECT: {qgpu.ENABLE_LABEL: "enable"},
    t9k.DIALECT: {t9k.ACCELERATOR_LABEL: "nvidia-gpu", t9k.MODE_LABEL: "sgn"},
    gpushare.DIALECT: {gpushare.NODE_LABEL: "true"},
}
_NODE_LABELS = {
    qgpu.DIALECT: qgpu.ENABLE_LABEL,
    t9k.DIALECT: t9k.ACCELERATOR_LABEL,
    gpushare.DIALECT: gpushare.NODE_LABEL,
}

_EXAMPLES = {
    qgpu.DIALECT: {qgpu.CORE: "50", qgpu.MEMORY: "4"},
    t9k.DIALECT: {t9k.PERCENT: "25"},
    gpushare.DIALECT: {gpushare.MEMORY: "4"},
}
_CONFIG = "config.yaml"
_CHECKSUM = "checksum/kube-scheduler"
_KUBE_SCHEDULER = "kube-scheduler"
_CONFIG_SINCE = (1, 25)  # the oldest Kubernetes that reads the configuration as it is written here
_BESIDE = "http://127.0.0.1:12345/aliquot"  # they share a Pod
_MONITORING = "monitoring.coreos.com/"
_DASHBOARD = "grafana_dashboard"  # the label by which Grafana finds it
_CDI, _DRIVER = "cdi", "driver-cdi"  # volumes of the agent
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Options:
    """What an installation is asked for."""

    image: str
    kube_scheduler_image: str
    namespace: str = NAMESPACE
    mode: str = "all"
    replicas: int = 2
    simulate: str | None = None
    pull_secrets: tuple[str, ...] = ()
    runtime_class: str | None = None  # of the agents, which need the driver
    memory_unit: str = "GiB"  # of gpushare's amounts
    driver_folder: str | None = None  # where the driver's own CDI file is, beside the usual place
    node_selector: Mapping[str, str] = field(default_factory=dict)  # of the agents, beside the mode's labels
    webhook_failure: str = "fail"
    policies: bool = True  # whether it knows ValidatingAdmissionPolicies
    monitoring: bool = False  # whether the cluster knows what Prometheus' operator reads


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """Which object: enough to find it again."""

    api: str
    kind: str
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Where the API server has it."""
        root = f"/api/{self.api}" if "/" not in self.api else f"/apis/{self.api}"
        where = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{root}{where}/{plural(self.kind)}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def plural(kind: str) -> str:
    """The kind as a path has it: none of ours is irregular beyond this."""
    low = kind.lower()
    return f"{low[:-1]}ies" if low.endswith("y") else f"{low}es" if low.endswith("s") else f"{low}s"


def identity(obj: Json) -> Identity:
    """Of one of our own objects."""
    metadata = obj["metadata"]
    return Identity(obj["apiVersion"], obj["kind"], metadata.get("namespace", ""), metadata["name"])


# RBAC before those who need it, agents before the scheduler that will count on them; away in the opposite order.
_ORDER = (
    "Namespace", "PriorityClass", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding",
    "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ConfigMap", "Secret", "Lease", "Service",
    "NetworkPolicy", "PodDisruptionBudget", "MutatingWebhookConfiguration", "DaemonSet", "Deployment",
)  # fmt: skip


def in_order(objects: Iterable[Json]) -> list[Json]:
    """As they are to be applied; kinds we do not know come after RBAC and before programs."""
    known = {kind: at for at, kind in enumerate(_ORDER)}
    return sorted(objects, key=lambda each: known.get(each["kind"], _ORDER.index("Service")))


# --- what is asked for -----------------------------------------------------------------------------------------------


def tailored(objects: Iterable[Json], options: Options, version: str) -> list[Json]:
    """The rendered objects as these options want them, in the order in which they are applied."""
    wanted = (each for each in objects if _is_wanted(each, options))
    found = in_order(_moved(copy.deepcopy(each), options.namespace) for each in wanted)
    config = next(each for each in found if each["kind"] == "ConfigMap" and _CONFIG in each.get("data", {}))
    config["data"][_CONFIG] = _scheduler_config(options)
    for each in found:
        _label(each, version)
        if each["kind"] == "Deployment":
            _edit_scheduler(each, options, config["data"][_CONFIG])
        elif each["kind"] == "DaemonSet":
            _edit_agent(each, options)
        elif each["kind"] == "ServiceAccount" and options.pull_secrets:
            each["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
        elif each["kind"] == "ClusterRole" and gpushare.DIALECT not in _dialects(options):
            # Agents write to Pods for gpushare's tools alone.
            each["rules"] = [
                rule for rule in each["rules"] if each["metadata"]["name"] != DAEMON_SET or not _marks(rule)
            ]
    return found


def _is_wanted(obj: Json, options: Options) -> bool:
    """What the chart leaves out too: what the cluster does not know, and rights that only gpushare's mode needs."""
    monitoring = obj["apiVersion"].startswith(_MONITORING) or _DASHBOARD in obj["metadata"].get("labels", {})
    of_gpushare = obj["metadata"].get("namespace") == gpushare.CONFIG_NAMESPACE
    return (
        (options.monitoring or not monitoring)
        and (options.policies or not obj["kind"].startswith("ValidatingAdmissionPolicy"))
        and (gpushare.DIALECT in _dialects(options) or not of_gpushare)
    )


def _dialects(options: Options) -> tuple[str, ...]:
    return tuple(schedulerconfig.DIALECTS) if options.mode == "all" else (options.mode,)


def _moved(value: Any, namespace: str) -> Any:
    """With the namespace in every place where the file has its own."""
    if isinstance(value, dict):
        return {key: _moved(each, namespace) for key, each in value.items()}
    if isinstance(value, list):
        return [_moved(each, namespace) for each in value]
    return value.replace(NAMESPACE, namespace) if isinstance(value, str) else value  # in expressions too


def _marks(rule: Json) -> bool:
    return (rule["resources"], rule["verbs"]) == (["pods"], ["patch"])


def _label(obj: Json, version: str) -> None:
    metadatas = [obj["metadata"], obj.get("spec", {}).get("template", {}).get("metadata", {})]
    for labels in (metadata["labels"] for metadata in metadatas if NAME_LABEL in metadata.get("labels", {})):
        labels[VERSION_LABEL], labels[MANAGED_LABEL] = version, MANAGER


def _scheduler_config(options: Options) -> str:
    """The kube-scheduler beside ours: its profiles and the resources it asks us about are of the mode. JSON is YAML."""
    made = schedulerconfig.Wiring(version=_CONFIG_SINCE, url=_BESIDE, dialects=_dialects(options), second=True)
    config = schedulerconfig.render_config(made)
    config["leaderElection"]["resourceNamespace"] = options.namespace
    return msgspec.json.format(msgspec.json.encode(config), indent=2).decode()


def _edit_scheduler(deployment: Json, options: Options, config: str) -> None:
    spec = deployment["spec"]
    spec["replicas"] = options.replicas
    spec["template"]["metadata"]["annotations"][_CHECKSUM] = hashlib.sha256(config.encode()).hexdigest()
    names = "aliquot-scheduler" + (",t9k=t9k-scheduler" if t9k.DIALECT in _dialects(options) else "")
    changes = {
        "--dialects": ",".join(_dialects(options)),
        "--scheduler-name": names,
        "--webhook-failure": options.webhook_failure,
    }
    for container in _containers(spec):
        if container["name"] == _KUBE_SCHEDULER:
            container["image"] = options.kube_scheduler_image
        else:
            container["image"] = options.image
            container["args"] = [_changed(word, changes) for word in container.get("args", ())]


def _edit_agent(daemons: Json, options: Options) -> None:
    spec = daemons["spec"]
    changes = {"--dialects": ",".join(_dialects(options)), "--memory-unit": options.memory_unit}
    for container in _containers(spec):
        container["image"] = options.image
        args = [_changed(word, changes) for word in container.get("args", ())]
        if options.simulate and args[:1] == ["agent"]:
            args.insert(-1, f"--simulate={options.simulate}")
        container["args"] = args
    inner = spec["template"]["spec"]
    if options.runtime_class:
        inner["runtimeClassName"] = options.runtime_class
    if options.node_selector:
        inner["nodeSelector"] = dict(options.node_selector)
    if options.driver_folder:
        _mount_driver(inner, options.driver_folder)
    wanted = inner["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    others = {label for dialect, label in _NODE_LABELS.items() if dialect not in _dialects(options)}
    wanted["nodeSelectorTerms"] = [
        term for term in wanted["nodeSelectorTerms"] if term["matchExpressions"][0]["key"] not in others
    ]


def _mount_driver(inner: Json, folder: str) -> None:
    """Right after the folder of CDI specs that is mounted anyway, as the chart has it."""
    mount = {"name": _DRIVER, "mountPath": folder, "readOnly": True}
    volume = {"name": _DRIVER, "hostPath": {"path": folder, "type": "Directory"}}
    for found, added in ((inner["containers"][0]["volumeMounts"], mount), (inner["volumes"], volume)):
        found.insert(1 + next(at for at, each in enumerate(found) if each["name"] == _CDI), added)


def _containers(spec: Json) -> Iterator[Json]:
    inner = spec["template"]["spec"]
    yield from (*inner.get("initContainers", ()), *inner["containers"])


def _changed(word: str, changes: Mapping[str, str]) -> str:
    flag, _, _ = word.partition("=")
    return f"{flag}={changes[flag]}" if flag in changes and "=" in word else word


def label(mode: str) -> str:
    """What makes a node one of the mode, as `kubectl label` takes it."""
    return " ".join(f"{key}={value}" for key, value in MODE_LABELS[mode].items())


def example(mode: str) -> str:
    """A Pod on a part of a card. IMAGE is one with NVIDIA's tools in it."""
    container = {
        "name": "main",
        "image": "IMAGE",
        "command": ["nvidia-smi", "-L"],
        "resources": {"limits": _EXAMPLES[qgpu.DIALECT if mode == "all" else mode]},
    }
    spec = {"restartPolicy": "Never", "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "first"}, "spec": spec}
    return msgspec.json.encode(pod).decode()


# --- what was done ---------------------------------------------------------------------------------------------------


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """An installation, as the next command needs to know it. Written before what it tells of is begun."""

    v: int
    version: str
    options: Options
    objects: tuple[Identity, ...]
    packed: str  # the same, whole
    settled: bool = False  # all of it stood, and answered
    applied: bool = False  # all of it was put there, and nobody waited until it stood
    labelled: dict[str, dict[str, str]] = {}  # what we put on nodes
    before: str | None = None  # the record of the installation that this one replaces, with its objects


def pack(objects: Sequence[Json]) -> str:
    """Small enough for a ConfigMap, and the same for the same objects."""
    return base64.b64encode(gzip.compress(msgspec.json.encode(objects), mtime=0)).decode()


def unpack(text: str) -> list[Json]:
    """What `pack` packed."""
    objects: list[Json] = msgspec.json.decode(gzip.decompress(base64.b64decode(text)))
    return objects


def render_record(record: Record) -> Json:
    """The ConfigMap."""
    data = {"record": msgspec.json.encode(record).decode()}
    labels = {NAME_LABEL: "aliquot", MANAGED_LABEL: MANAGER, VERSION_LABEL: record.version}
    metadata = {"name": RECORD, "namespace": record.options.namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def parse_record(obj: object) -> Record | Invalid:
    """What `render_record` wrote, by this release or a later one of its version."""
    field = f'ConfigMap {RECORD}: data["record"]'
    data = obj.get("data") if isinstance(obj, dict) else None
    text = data.get("record") if isinstance(data, dict) else None
    if not isinstance(text, str):
        return Invalid(field, text, "what `aliquot install` writes there")
    try:
        record = msgspec.json.decode(text, type=Record)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return Invalid(field, text, f"what `aliquot install` writes there ({error})")
    return record if record.v == _VERSION else Invalid(field, record.v, f"version {_VERSION}, or the newer program")


def new_record(version: str, options: Options, objects: Sequence[Json], **more: Any) -> Record:
    """Of what is about to be done."""
    return Record(_VERSION, version, options, tuple(identity(each) for each in objects), pack(objects), **more)


def record_before(record: Record) -> Record | None:
    """What to go back to; None: to nothing."""
    return None if record.before is None else msgspec.json.decode(record.before, type=Record)


def seen_to_stand(record: Record) -> Record:
    """One that nobody waited for, and that stands now. What only the one before it had is to go with it, later."""
    before = record_before(record)
    whole = record if before is None else heir(record, before)
    return msgspec.structs.replace(whole, settled=True, before=None)


def heir(record: Record, other: Record) -> Record:
    """The installation answers for what another had made, too: that goes when the next one stands."""
    return msgspec.structs.replace(record, objects=tuple(dict.fromkeys((*record.objects, *other.objects))))


def replacing(record: Record) -> str | None:
    """What a new installation notes of the one that it finds: the last that stood."""
    return (
        msgspec.json.encode(msgspec.structs.replace(record, before=None)).decode() if record.settled else record.before
    )
