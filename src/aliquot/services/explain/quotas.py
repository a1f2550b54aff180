"""The ResourceQuotas of namespaces: whether the API server would let a new Pod in, and how much it would count.

Quotas with scopes are left out: they count some Pods only, by conditions of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction

from aliquot.dialects import hami, native, registry
from aliquot.dialects.kube.shapes import mapping
from aliquot.dialects.pods import Container, Pod, read_pod, total_request
from aliquot.dialects.rules import Rules
from aliquot.model.claim import Claim
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.numbers.quantity import QuantityError, parse_quantity
from aliquot.model.refusal import Invalid

KIND = "ResourceQuota"
_PODS = ("pods", "count/pods")
_REQUESTS, _LIMITS = "requests.", "limits.nvidia.com/"
_PLAIN = ("cpu", "memory")  # which a quota may name without the prefix
_OF_LIMITS = "limits."
# What each container must say in a namespace with a quota for it, unless the Pod itself does.
_DEMANDED = frozenset(prefix + name for name in _PLAIN for prefix in ("", _REQUESTS, _OF_LIMITS))
_SCALE = 1000  # parts of a CPU that are counted


@dataclass(slots=True)
class _Quota:
    name: str
    hard: dict[str, Fraction]
    used: dict[str, Fraction]


@dataclass(slots=True)
class Quotas:
    """The quotas by namespace. What `admit` lets in counts from then on."""

    _of: dict[str, list[_Quota]] = field(default_factory=dict)

    def add(self, manifest: JsonObject) -> str | None:
        """One ResourceQuota. Returns why it, or some of it, is not heeded, or None."""
        metadata, spec = mapping(manifest.get("metadata")), mapping(manifest.get("spec"))
        if spec.get("scopes") or spec.get("scopeSelector"):
            return "is ignored: it has scopes, and counts some Pods only"
        try:
            hard = _amounts(spec.get("hard"))
            used = _amounts(mapping(manifest.get("status")).get("used"))
        except QuantityError as error:
            return f"is ignored: a value of spec.hard: {error} is wanted"
        namespace = metadata.get("namespace") or "default"
        self._of.setdefault(str(namespace), []).append(_Quota(str(metadata.get("name")), hard, used))
        return _without_effect(hard)

    def admit(self, manifest: JsonObject, claim: Claim, rules: Rules, *, keep: bool = True) -> tuple[Invalid, ...]:
        """What the API server would say about a new Pod with this claim; nothing: it lets the Pod in, and with
        `keep` it counts."""
        namespace = claim.key.partition("/")[0]
        quotas, pod = self._of.get(namespace, ()), read_pod(manifest)
        if not quotas or pod is None:
            return ()
        wanted = [(quota, {name: _wanted(pod, claim, rules, name) for name in quota.hard}) for quota in quotas]
        over = tuple(
            _refused(pod, quota, name, amount, namespace)
            for quota, amounts in wanted
            for name, amount in amounts.items()
            if amount and quota.used.get(name, 0) + amount > quota.hard[name]
        )
        for quota, amounts in wanted if keep and not over else ():
            for name, amount in amounts.items():
                quota.used[name] = quota.used.get(name, Fraction(0)) + amount
        return over

    def unsaid(self, manifest: JsonObject, claim: Claim) -> str | None:
        """What a new Pod does not say about CPU and memory, and the API server refuses it for; None: nothing. A
        LimitRange, which is not read, may still say it."""
        pod = read_pod(manifest)
        lacking = {quota.name: _unsaid(pod, quota) for quota in self._of.get(claim.namespace, ())} if pod else {}
        names = " and ".join(sorted(set().union(*lacking.values())))
        quotas = ", ".join(name for name, unsaid in lacking.items() if unsaid)
        refused = f"ResourceQuota {quotas} of namespace {claim.namespace} refuses the Pod"
        return f"only if a LimitRange sets {names}: without it {refused}" if names else None

    def release(self, manifest: JsonObject, claim: Claim, rules: Rules) -> None:
        """A Pod of the cluster with this claim goes, and no longer counts."""
        pod = read_pod(manifest)
        if pod is None:
            return
        for quota in self._of.get(claim.namespace, ()):
            for name, used in quota.used.items():
                quota.used[name] = max(used - _wanted(pod, claim, rules, name), Fraction(0))


def _amounts(value: object) -> dict[str, Fraction]:
    return {str(name): parse_quantity(amount) for name, amount in mapping(value).items()}


def _without_effect(hard: Iterable[str]) -> str | None:
    """HAMi's scheduler counts limits of its resources; the API server counts requests only."""
    instead = counted_by_hami_alone(hard)
    return f"{', '.join(instead)} limits nothing: write {', '.join(instead.values())}" if instead else None


def counted_by_hami_alone(hard: Iterable[str]) -> dict[str, str]:
    """The names of a quota that only HAMi's scheduler counts, each with the name that the API server counts."""
    return {name: _REQUESTS + name.removeprefix("limits.") for name in hard if name.startswith(_LIMITS)}


def _resource(name: str) -> str | None:
    """The resource whose requests a quota counts under that name; None: it counts something else."""
    if name.startswith(_REQUESTS):
        return name.removeprefix(_REQUESTS)
    return name if name in _PLAIN else None


def _unsaid(pod: Pod, quota: _Quota) -> set[str]:
    own = mapping(pod.spec.get("resources"))
    if any(name in mapping(own.get(side)) for side in ("limits", "requests") for name in _PLAIN):
        return set()
    return {name for name in _DEMANDED & quota.hard.keys() for part in pod.containers if not _says(part, name)}


def _says(container: Container, name: str) -> bool:
    """A request is, unless it is given, the limit."""
    said: tuple[JsonView, ...] = (container.limits,)
    said += () if name.startswith(_OF_LIMITS) else (container.requests,)
    return any(name.rpartition(".")[2] in amounts for amounts in said)


def _wanted(pod: Pod, claim: Claim, rules: Rules, name: str) -> Fraction:
    if name in _PODS:
        return Fraction(1)
    resource = _resource(name)
    return Fraction(0) if resource is None else requested(pod, claim, rules, resource)


def requested(pod: Pod, claim: Claim, rules: Rules, resource: str) -> Fraction:
    """What the Pod requests of the resource once the webhook has seen it."""
    added = _added(pod, claim, rules, resource)
    containers = [
        replace(part, limits={**part.limits, resource: added[part.name]}) if part.name in added else part
        for part in pod.containers
    ]
    return Fraction(total_request(pod.spec, containers, resource, _SCALE, []), _SCALE)


def _added(pod: Pod, claim: Claim, rules: Rules, resource: str) -> dict[str, int]:
    """By container, what the webhook adds."""
    if resource == hami.CARDS and claim.dialect == hami.DIALECT:
        return {container.name: 1 for container in hami.without_cards(pod)}
    return registry.places(claim, rules) if resource == native.PLACE else {}


def _refused(pod: Pod, quota: _Quota, name: str, amount: Fraction, namespace: str) -> Invalid:
    hard, used = quota.hard[name], quota.used.get(name, Fraction(0))
    left = max(hard - used, Fraction(0))
    allowed = (
        f"at most {_shown(left)}: ResourceQuota {quota.name} of namespace {namespace} allows {_shown(hard)} in all, "
        f"and {_shown(used)} are used"
    )
    resource = _resource(name)
    asking = pod.asking(resource) if resource else []
    where = asking[0].field(resource) if asking and resource else "metadata.namespace"
    return Invalid(where, f"{name} {_shown(amount)}", allowed)


def _shown(amount: Fraction) -> str:
    if amount.denominator == 1:
        whole = amount.numerator
        return f"{whole // 1024**3}Gi" if whole and whole % 1024**3 == 0 else str(whole)
    return f"{float(amount):g}"


def namespaces_of(pods: Iterable[JsonView]) -> list[str]:
    """The namespaces whose quotas decide about these Pods."""
    named = (mapping(pod.get("metadata")).get("namespace") for pod in pods)
    return sorted({name if isinstance(name, str) and name else "default" for name in named})
