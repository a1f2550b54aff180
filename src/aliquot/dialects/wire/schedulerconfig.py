"""Configuration of kube-scheduler for our extender: KubeSchedulerConfiguration, and Policy for 1.22 and older.

kube-scheduler    what it reads
up to 1.22        Policy (--policy-config-file), which also works on versions too old for the other
1.19 - 1.21       kubescheduler.config.k8s.io/v1beta1
1.22              kubescheduler.config.k8s.io/v1beta2    (until 1.27)
1.23, 1.24        kubescheduler.config.k8s.io/v1beta3    (until 1.28)
1.25 and later    kubescheduler.config.k8s.io/v1
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from aliquot.dialects import gpushare, hami, kai, qgpu, rules, t9k
from aliquot.dialects.wire.objects import PodObject
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.refusal import Invalid

API_GROUP = "kubescheduler.config.k8s.io"
SCHEDULER_NAME = "aliquot-scheduler"
SERVER_NAME = "aliquot-scheduler"  # in the certificate of the extender, for all its addresses
T9K_SCHEDULER_NAME = "t9k-scheduler"
DEFAULT_SCHEDULER_NAME = "default-scheduler"
_OWN_NAMES = {
    t9k.DIALECT: T9K_SCHEDULER_NAME,
    hami.DIALECT: hami.SCHEDULER_NAME,
    kai.DIALECT: kai.SCHEDULER_NAME,
}
# Not the name of our own Lease, which elects the extender that binds.
SECOND_LEASE = "aliquot-kube-scheduler"

DIALECTS = {
    qgpu.DIALECT: qgpu.RESOURCES,
    t9k.DIALECT: t9k.RESOURCES,
    gpushare.DIALECT: gpushare.RESOURCES,
    hami.DIALECT: hami.RESOURCES,
    kai.DIALECT: kai.RESOURCES,
}
# Those that are ours on every node: HAMi's may be another plugin's.
RESOURCES = frozenset(name for dialect, names in DIALECTS.items() if dialect != hami.DIALECT for name in names)

_VERSION = re.compile(r"v?(\d{1,3})\.(\d{1,4})(?:[.+-].*)?\Z", re.ASCII)
_OLDEST = (1, 11)  # the first with managedResources for extenders
OLDEST_NODES = (1, 28)  # the oldest kubelet that `make e2e-versions` runs the agent on
_POLICY_UNTIL = (1, 22)
_APIS = (((1, 25), "v1"), ((1, 23), "v1beta3"), ((1, 22), "v1beta2"), ((1, 19), "v1beta1"))

_TIMEOUT_SECONDS = 5
_WEIGHT = 1
# Of a kube-scheduler for GPU Pods only, where what outvotes what can be said for certain: a point of the plugins that
# know preferences counts a million at least; of our ranks, up to 999, each 10 times this weight; the rest 200 in all.
_OWN_WEIGHT = 100
_PREFERENCES = {
    "TaintToleration": 3_000_000,
    "NodeAffinity": 2_000_000,
    "PodTopologySpread": 2_000_000,
    "InterPodAffinity": 2_000_000,
    "ImageLocality": 1_000_000,
}


@dataclass(frozen=True, slots=True)
class KubeSchedulerSettings:
    """`version` of kube-scheduler, `url` of our extender.

    `second`: a kube-scheduler in addition to the cluster's own, for control planes that cannot be changed. `percentage`
    of the nodes are scored for each Pod; 0 or None: kube-scheduler's default. `tls_folder`: where kube-scheduler finds
    its client certificate and our authority, for a `url` with https.
    """

    version: tuple[int, int]
    url: str
    dialects: tuple[str, ...] = rules.DIALECTS
    second: bool = False
    percentage: int | None = None
    kubeconfig: str | None = None
    lease_namespace: str = "kube-system"  # of the second kube-scheduler
    tls_folder: str | None = None

    @property
    def scheduler_names(self) -> tuple[str, ...]:
        """The schedulerNames to serve; the manifests of T9k, HAMi and KAI use their own."""
        first = SCHEDULER_NAME if self.second else DEFAULT_SCHEDULER_NAME
        return (first, *(name for dialect, name in _OWN_NAMES.items() if dialect in self.dialects))

    @property
    def own(self) -> bool:
        """Whether the profiles are ours alone, and their plugins' weights can be set (v1)."""
        return self.second and config_api(self.version) == "v1"

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources whose Pods kube-scheduler sends to us."""
        return tuple(name for dialect in self.dialects for name in DIALECTS[dialect])


def known_schedulers(served: frozenset[str]) -> tuple[str, ...]:
    """The schedulerNames of our configurations, in place or second, where these dialects are served."""
    own = (name for dialect, name in _OWN_NAMES.items() if dialect in served)
    return (DEFAULT_SCHEDULER_NAME, SCHEDULER_NAME, *own)


def is_managed(pod: PodObject, served: frozenset[str]) -> bool:
    """Whether kube-scheduler asks an extender with our `managedResources` about the Pod: it names one, even with 0."""
    managed = frozenset(name for dialect in served for name in DIALECTS[dialect])
    containers = [*(pod.spec.containers or ()), *(pod.spec.init_containers or ())]
    named = (
        amounts
        for resources in (container.resources for container in containers)
        if resources is not None
        for amounts in (resources.requests, resources.limits)
        if amounts
    )
    return any(not managed.isdisjoint(amounts) for amounts in named)


def dialects_of(mode: str) -> tuple[str, ...]:
    """The dialects of a mode (all, one of them, or all and others, such as all+hami), in a fixed order."""
    named = mode.split("+")
    return tuple(name for name in DIALECTS if name in named or (rules.ALL in named and name in rules.DIALECTS))


def parse_version(text: str) -> tuple[int, int] | Invalid:
    """Major and minor of 1.36, v1.36.4, or 1.27.3-vendor.1."""
    found = _VERSION.match(text.strip())
    version = (int(found[1]), int(found[2])) if found else None
    if version is None or version[0] != 1:
        return Invalid("version of Kubernetes", text, 'major.minor, for example "1.36"')
    if version < _OLDEST:
        return Invalid("version of Kubernetes", text, f"{_OLDEST[0]}.{_OLDEST[1]} or later")
    return version


def reads_policy(version: tuple[int, int]) -> bool:
    """Whether its kube-scheduler still reads Policy."""
    return version <= _POLICY_UNTIL


def config_api(version: tuple[int, int]) -> str | None:
    """Its version of KubeSchedulerConfiguration; None if it has none yet."""
    return next((api for since, api in _APIS if version >= since), None)


def render_config(settings: KubeSchedulerSettings) -> JsonObject:
    """The KubeSchedulerConfiguration. Only for versions that have one."""
    return {
        "apiVersion": f"{API_GROUP}/{config_api(settings.version)}",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            **({"kubeconfig": settings.kubeconfig} if settings.kubeconfig else {}),
            "qps": 200,
            "burst": 400,
        },
        "leaderElection": {
            "leaderElect": True,
            **(
                {"resourceName": SECOND_LEASE, "resourceNamespace": settings.lease_namespace} if settings.second else {}
            ),
        },
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
        **({"percentageOfNodesToScore": settings.percentage} if settings.percentage else {}),
        "profiles": [{"schedulerName": name, **_plugins(settings)} for name in settings.scheduler_names],
        "extenders": [
            {
                **_extender(settings, own=settings.own),
                "enableHTTPS": settings.tls_folder is not None,
                **_tls(settings),
                "httpTimeout": f"{_TIMEOUT_SECONDS}s",
                **_which_pods(settings),
            }
        ],
    }


def render_policy(settings: KubeSchedulerSettings) -> JsonObject:
    """The Policy, without predicates and priorities, which keep their defaults."""
    return {
        "kind": "Policy",
        "apiVersion": "v1",
        "extenders": [
            {
                **_extender(settings),
                "enableHttps": settings.tls_folder is not None,  # spelled enableHTTPS in its successor
                **_tls(settings),
                "httpTimeout": _TIMEOUT_SECONDS * 1_000_000_000,  # nanoseconds
                **_which_pods(settings),
            }
        ],
    }


def _plugins(settings: KubeSchedulerSettings) -> JsonObject:
    if not settings.own:
        return {}
    return {"plugins": {"score": {"enabled": [{"name": name, "weight": of} for name, of in _PREFERENCES.items()]}}}


def _extender(settings: KubeSchedulerSettings, *, own: bool = False) -> JsonObject:
    return {
        "urlPrefix": settings.url,
        "filterVerb": "filter",
        "prioritizeVerb": "rank" if own else "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": _OWN_WEIGHT if own else _WEIGHT,
        "nodeCacheCapable": True,
    }


def _tls(settings: KubeSchedulerSettings) -> JsonObject:
    if settings.tls_folder is None:
        return {}
    folder = settings.tls_folder.rstrip("/")
    files = {"certFile": "client.crt", "keyFile": "client.key", "caFile": "ca.crt"}
    return {"tlsConfig": {"serverName": SERVER_NAME, **{key: f"{folder}/{name}" for key, name in files.items()}}}


def _which_pods(settings: KubeSchedulerSettings) -> JsonObject:
    return {
        "ignorable": False,
        "managedResources": [
            {"name": name, "ignoredByScheduler": name in hami.RESOURCES} for name in settings.resources
        ],
    }
