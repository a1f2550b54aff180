"""The types of kubectl for all commands: `pods`, `po`, `deploy/web`, `sts,jobs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aliquot.cli.errors import InputError

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object and its names on the command line, the plural first."""

    name: str
    group: str
    words: tuple[str, ...]

    def shown(self, name: str) -> str:
        """The name as kubectl prints it: pod/web-0, deployment.apps/web."""
        return f"{self.typed}/{name}"

    @property
    def typed(self) -> str:
        """The kind alone: pod, deployment.apps."""
        return self.name.lower() + (f".{self.group}" if self.group else "")


POD = Kind("Pod", "", ("pods", "pod", "po"))
NODE = Kind("Node", "", ("nodes", "node", "no"))
WORKLOADS = (
    Kind("Deployment", "apps", ("deployments", "deployment", "deploy")),
    Kind("StatefulSet", "apps", ("statefulsets", "statefulset", "sts")),
    Kind("ReplicaSet", "apps", ("replicasets", "replicaset", "rs")),
    Kind("DaemonSet", "apps", ("daemonsets", "daemonset", "ds")),
    Kind("Job", "batch", ("jobs", "job")),
    Kind("CronJob", "batch", ("cronjobs", "cronjob", "cj")),
    Kind("ReplicationController", "", ("replicationcontrollers", "replicationcontroller", "rc")),
)
KINDS = (POD, NODE, *WORKLOADS)
APPLIED = (POD, *WORKLOADS)  # in manifests
BY_NAME = {kind.name: kind for kind in KINDS}
_ALL = "all"
TYPES = f"{', '.join(kind.words[0] for kind in KINDS)} or {_ALL}"


@dataclass(frozen=True, slots=True)
class Target:
    """All objects of these kinds, or the one of that name."""

    kinds: tuple[Kind, ...]
    name: str | None = None
    namespace: str | None = None


def targets(words: Sequence[str], *, default: str = "pods") -> list[Target]:
    """`TYPE[,TYPE]`, `TYPE NAME...`, `TYPE NAMESPACE/NAME...` or `TYPE/NAME...`; without words, `default`."""
    first, *names = words or (default,)
    if "/" in first:
        return [_slashed(word, words) for word in words]
    kinds = parse_kinds(first)
    if not names:
        return [Target(kinds)]
    if len(kinds) > 1:
        raise InputError(f"{first} {names[0]}: give one type before a name, for example {kinds[0].words[1]} {names[0]}")
    return [_named(kinds, name) for name in names]


def parse_kinds(text: str) -> tuple[Kind, ...]:
    """Read one type or several, separated by commas."""
    if text.lower() == _ALL:
        return APPLIED
    return tuple(dict.fromkeys(_kind(word) for word in text.split(",")))


def _kind(word: str) -> Kind:
    lower = word.lower()
    for kind in KINDS:
        group = f".{kind.group}"
        if lower in kind.words or (kind.group and lower.removesuffix(group) in kind.words and lower.endswith(group)):
            return kind
    raise InputError(f"{word} is not a type: use {TYPES}; a name follows the type, for example pod {word}")


def _slashed(word: str, words: Sequence[str]) -> Target:
    kind, slash, name = word.partition("/")
    if not slash:
        raise InputError(f"{word}: give TYPE/NAME, for example {words[0]}")
    return _named((_kind(kind),), name)


def _named(kinds: tuple[Kind, ...], name: str) -> Target:
    namespace, slash, last = name.rpartition("/")
    if not last or (slash and (not namespace or "/" in namespace)):
        raise InputError(f"{name or '(empty)'} is not a name: give NAME or NAMESPACE/NAME")
    return Target(kinds, last, namespace or None)
