"""What every Pod says to Kubernetes, in any dialect: its names, its containers, what they ask for.

Reading never raises. Wrong shapes become `Pod.problems`; they count only if the Pod turns out to be ours, because a Pod
that is not ours is not ours to judge.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any

from aliquot.model.claim import Claim, ContainerClaim, Role, Slice, peak_amount
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.node import Offer
from aliquot.model.numbers.quantity import QuantityError, parse_count, parse_quantity
from aliquot.model.refusal import Invalid

# Counts are 32-bit-sized and amounts 63-bit-sized, as in Kubernetes: a "1e999" must not travel further than this door.
LARGEST_COUNT = 10**9
LARGEST_AMOUNT = 2**63 - 1
MIB = 2**20
LARGEST_USER = 2**31  # as Kubernetes has it

NVIDIA_GPU = "nvidia.com/gpu"  # of NVIDIA's plugin, unless a dialect serves it


def mapping_at(value: object, field: str, problems: list[Invalid]) -> JsonView:
    """The mapping that is there; null is an empty one, as Go writes it."""
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    problems.append(Invalid(field, value, "a mapping"))
    return {}


def list_at(value: object, field: str, problems: list[Invalid]) -> list[object]:
    """The list that is there; null is an empty one, as Go writes it."""
    if value is None:
        return []
    if isinstance(value, list):
        return value
    problems.append(Invalid(field, value, "a list"))
    return []


def text_at(value: object, field: str, problems: list[Invalid]) -> str:
    """The printable text that is there; null is empty."""
    if value is None:
        return ""
    if isinstance(value, str) and value.isprintable():
        return value
    problems.append(Invalid(field, value, "text"))
    return ""


def count_at(
    value: object, field: str, problems: list[Invalid], *, allowed: str, least: int = 1, most: int = LARGEST_COUNT
) -> int | None:
    """The whole number that is there, or None and one more problem."""
    outcome = _count(value, field, allowed=allowed, least=least, most=most)
    if isinstance(outcome, Invalid):
        problems.append(outcome)
        return None
    return outcome


def amount_at(value: object, field: str, problems: list[Invalid]) -> Fraction:
    """The quantity of CPU or bytes that is there; where it cannot be read, zero and one more problem."""
    try:
        amount = parse_quantity(value)
    except QuantityError as error:
        problems.append(Invalid(field, value, f"a Kubernetes quantity: {error}"))
        return Fraction(0)
    if not 0 <= amount <= LARGEST_AMOUNT:
        problems.append(Invalid(field, value, "a Kubernetes quantity of at least 0 and less than 2^63"))
        return Fraction(0)
    return amount


MOST_MODELS = 256  # names in an annotation: each is compared with every model in the cluster


def listed_words(pod: Pod, key: str, problems: list[Invalid]) -> set[str]:
    """The annotation's words, separated by commas, without blanks around them."""
    return {word.strip() for word in pod.text(key, problems).split(",")} - {""}


def listed_models(pod: Pod, key: str, problems: list[Invalid]) -> tuple[str, ...]:
    """The same words as parts of names of card models; none, and one more problem, for too many."""
    words = listed_words(pod, key, problems)
    if len(words) <= MOST_MODELS:
        return tuple(sorted({word.upper() for word in words}))
    allowed = f"at most {MOST_MODELS} names, separated by commas"
    problems.append(Invalid(annotation_field(key), f"{len(words)} names", allowed))
    return ()


def annotation_field(key: str) -> str:
    """Where a Pod's annotation stands."""
    return f'metadata.annotations["{key}"]'


def _is_zero(value: object) -> bool:
    """Whether it is the quantity 0; what cannot be read is not."""
    try:
        return parse_quantity(value) == 0
    except QuantityError:
        return False


def _count(value: object, field: str, *, allowed: str, least: int, most: int) -> int | Invalid:
    try:
        count = parse_count(value)
    except QuantityError as error:
        return Invalid(field, value, f"{allowed} (it must be {error})")
    if not least <= count <= most:
        return Invalid(field, value, allowed)
    return count


@dataclass(frozen=True, slots=True)
class Container:
    """One container and what it asks for. `path` is where it stands in the Pod."""

    path: str
    name: str
    index: int  # its place in its list
    role: Role
    limits: JsonView
    requests: JsonView
    run_as_user: object = None

    def asks(self, *resources: str) -> bool:
        """Whether it asks for any of the resources, however badly. An amount of 0 asks for nothing."""
        return any(
            resource in amounts and not _is_zero(amounts[resource])
            for resource in resources
            for amounts in (self.limits, self.requests)
        )

    def field(self, resource: str) -> str:
        """Where the resource is written or, when it is not, would be."""
        only_requested = resource in self.requests and resource not in self.limits
        return f'{self.path}.resources.{"requests" if only_requested else "limits"}["{resource}"]'

    def value(self, resource: str) -> object:
        """What is written there."""
        return self.limits[resource] if resource in self.limits else self.requests.get(resource)

    def claim(self, piece: Slice, count: int | None = 1) -> ContainerClaim:
        """Its claim of `count` such slices."""
        return ContainerClaim(self.name, self.index, self.role, piece, count)

    def count(
        self, resource: str, problems: list[Invalid], *, allowed: str, least: int = 1, most: int = LARGEST_COUNT
    ) -> int | None:
        """How many it asks for; None if it does not ask, or if what it asks for became one more problem.

        Extended resources cannot be overcommitted: requests equal limits, or only one of the two is given.
        """
        if not self.asks(resource):
            return None
        read: list[int] = []
        for side, amounts in (("limits", self.limits), ("requests", self.requests)):
            if resource not in amounts:
                continue
            field = f'{self.path}.resources.{side}["{resource}"]'
            outcome = _count(amounts[resource], field, allowed=allowed, least=least, most=most)
            if isinstance(outcome, Invalid):
                problems.append(outcome)
                return None
            read.append(outcome)
        if len(read) == 2 and read[0] != read[1]:
            field = f'{self.path}.resources.requests["{resource}"]'
            problems.append(
                Invalid(
                    field, self.requests[resource], f"the same as in limits ({read[0]}), or leave it out of requests"
                )
            )
            return None
        return read[0] if read else None


@dataclass(frozen=True, slots=True)
class Pod:
    """A Pod as far as a dialect may care."""

    uid: str
    namespace: str
    name: str
    owner: str | None
    labels: JsonView
    annotations: JsonView
    misplaced: JsonView  # annotations written beside metadata instead of in it
    containers: tuple[Container, ...]  # init containers and sidecars first
    spec: JsonView
    problems: tuple[Invalid, ...]
    cpu_milli: int = 0  # as `with_requests` found them
    memory_mib: int = 0

    def annotation(self, key: str) -> object:
        """The annotation, even a misplaced one, so that one slip is one problem, without its consequences."""
        return self.annotations[key] if key in self.annotations else self.misplaced.get(key)

    def text(self, key: str, problems: list[Invalid]) -> str:
        """The annotation's text without blanks around it; empty: there is none, or it became one more problem."""
        value = self.annotation(key)
        if value is None or isinstance(value, str):
            return (value or "").strip()
        problems.append(Invalid(annotation_field(key), value, "text"))
        return ""

    def claim(self, dialect: str, offer: Offer, containers: Iterable[ContainerClaim], **more: Any) -> Claim:
        """The Pod's claim, with what every dialect reads of it in the same way."""
        return Claim(
            uid=self.uid,
            namespace=self.namespace,
            name=self.name,
            dialect=dialect,
            offer=offer,
            containers=tuple(containers),
            owner=self.owner,
            cpu_milli=self.cpu_milli,
            memory_mib=self.memory_mib,
            **more,
        )

    def asking(self, *resources: str) -> list[Container]:
        """The containers that name any of the resources."""
        return [container for container in self.containers if container.asks(*resources)]

    def value_at(self, field: str) -> object:
        """What is written in a field of a resource, a label or an annotation; empty text for a null."""
        found = {f'metadata.labels["{key}"]': value for key, value in self.labels.items()}
        found |= {annotation_field(key): value for key, value in {**self.misplaced, **self.annotations}.items()}
        for container in self.containers:
            for resource in (*container.limits, *container.requests):
                found[container.field(resource)] = container.value(resource)
        value = found.get(field)
        return "" if value is None else value

    def first_mention(self, resources: Iterable[str]) -> str | None:
        """The field where one of the resources is first named; None where none is."""
        resources = tuple(resources)
        named = frozenset(resources)
        for container in self.containers:
            if named.isdisjoint(container.limits) and named.isdisjoint(container.requests):
                continue  # quickly: a Pod may have thousands of containers
            for resource in resources:
                if container.asks(resource):
                    return container.field(resource)
        return None


def read_pod(value: object) -> Pod | None:
    """What the Pod says; None for what is no Pod at all. Its CPU and memory are read by `with_requests`."""
    if not isinstance(value, dict):
        return None
    problems: list[Invalid] = []
    metadata = mapping_at(value.get("metadata"), "metadata", problems)
    spec = mapping_at(value.get("spec"), "spec", problems)
    namespace = text_at(metadata.get("namespace"), "metadata.namespace", problems) or "default"
    # A Pod on its way through admission may have no name yet.
    prefix = text_at(metadata.get("generateName"), "metadata.generateName", problems)
    name = text_at(metadata.get("name"), "metadata.name", problems) or prefix
    containers = tuple(_containers(spec, problems))
    return Pod(
        uid=text_at(metadata.get("uid"), "metadata.uid", problems) or f"{namespace}/{name}",
        namespace=namespace,
        name=name,
        owner=_owner(metadata, namespace, problems),
        labels=mapping_at(metadata.get("labels"), "metadata.labels", problems),
        annotations=mapping_at(metadata.get("annotations"), "metadata.annotations", problems),
        misplaced=mapping_at(value.get("annotations"), "annotations", problems),
        containers=containers,
        spec=spec,
        problems=tuple(problems),
    )


def with_requests(pod: Pod) -> Pod:
    """The Pod with its CPU and memory; apart, because most Pods of a cluster are not ours and need not be added up."""
    problems = list(pod.problems)
    cpu_milli, memory = _requests(pod.spec, pod.containers, problems)
    return replace(pod, cpu_milli=cpu_milli, memory_mib=-(-memory // MIB), problems=tuple(problems))


def _containers(spec: JsonView, problems: list[Invalid]) -> Iterable[Container]:
    for key in ("initContainers", "containers"):
        for index, item in enumerate(list_at(spec.get(key), f"spec.{key}", problems)):
            path = f"spec.{key}[{index}]"
            container = mapping_at(item, path, problems)
            resources = mapping_at(container.get("resources"), f"{path}.resources", problems)
            role = Role.MAIN
            if key == "initContainers":
                role = Role.SIDECAR if container.get("restartPolicy") == "Always" else Role.INIT
            yield Container(
                path=path,
                name=text_at(container.get("name"), f"{path}.name", problems),
                index=index,
                role=role,
                limits=mapping_at(resources.get("limits"), f"{path}.resources.limits", problems),
                requests=mapping_at(resources.get("requests"), f"{path}.resources.requests", problems),
                run_as_user=_run_as_user(container),
            )


def _run_as_user(spec: JsonView) -> object:
    """What stands there. Kubernetes has checked the shape; a wrong one has no user."""
    context = spec.get("securityContext")
    return context.get("runAsUser") if isinstance(context, dict) else None


def user_of(pod: Pod, names: Iterable[str], problems: list[Invalid]) -> int | None:
    """The one user of these containers' processes; None, and one more problem, if there is none.

    A group of Pods has one MPS server, which serves one user at a time and runs as that user on the node, outside of
    every container: so the user must be said, must be the same, and is not root.
    """
    why = "members of a group share an MPS server, which runs as their user (docs/together.md)"
    if pod.spec.get("hostUsers") is False:
        problems.append(Invalid("spec.hostUsers", False, f"true, or omit it: {why}"))
        return None
    field, found = "spec.securityContext.runAsUser", _run_as_user(pod.spec)
    said = {
        container.name: (field, found)
        if container.run_as_user is None
        else (f"{container.path}.securityContext.runAsUser", container.run_as_user)
        for container in pod.containers
    }
    users = [said.get(name, (field, found)) for name in names]
    for field, value in users:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < LARGEST_USER:
            problems.append(Invalid(field, value, f"the number of a user other than root, for example 70000: {why}"))
            return None
        if value != users[0][1]:
            problems.append(Invalid(field, value, f"the same user as {users[0][0]}, {users[0][1]}: {why}"))
            return None
    user = users[0][1] if users else None
    return user if isinstance(user, int) else None


def _owner(metadata: JsonView, namespace: str, problems: list[Invalid]) -> str | None:
    owners = list_at(metadata.get("ownerReferences"), "metadata.ownerReferences", problems)
    for index, item in enumerate(owners):
        path = f"metadata.ownerReferences[{index}]"
        owner = mapping_at(item, path, problems)
        if owner.get("controller") is True:
            kind = text_at(owner.get("kind"), f"{path}.kind", problems)
            return f"{kind}/{namespace}/{text_at(owner.get('name'), f'{path}.name', problems)}"
    return None


def _requests(spec: JsonView, containers: Iterable[Container], problems: list[Invalid]) -> tuple[int, int]:
    """Milli-CPU and bytes as kube-scheduler counts them."""
    containers = tuple(containers)
    return (
        total_request(spec, containers, "cpu", 1000, problems),
        total_request(spec, containers, "memory", 1, problems),
    )


def total_request(
    spec: JsonView, containers: Iterable[Container], resource: str, scale: int, problems: list[Invalid]
) -> int:
    """What the Pod asks for as kube-scheduler counts it, in parts of 1/`scale`.

    The Pod's own figure where it gives one, else max(init peak, sum); and the runtime's overhead on top.
    """
    own = mapping_at(spec.get("resources"), "spec.resources", problems)
    limits = mapping_at(own.get("limits"), "spec.resources.limits", problems)
    requests = mapping_at(own.get("requests"), "spec.resources.requests", problems)
    overhead = mapping_at(spec.get("overhead"), "spec.overhead", problems)
    pod = Container("spec", "", 0, Role.MAIN, limits, requests)
    parts = [pod] if resource in requests or resource in limits else containers
    peak_of_parts = peak_amount((part.role, _requested(part, resource, scale, problems)) for part in parts)
    if resource not in overhead:
        return peak_of_parts
    return peak_of_parts + ceil(amount_at(overhead[resource], f'spec.overhead["{resource}"]', problems) * scale)


def _requested(container: Container, resource: str, scale: int, problems: list[Invalid]) -> int:
    """The request or, as Kubernetes defaults it, the limit."""
    for side, amounts in (("requests", container.requests), ("limits", container.limits)):
        if resource in amounts:
            field = f'{container.path}.resources.{side}["{resource}"]'
            return ceil(amount_at(amounts[resource], field, problems) * scale)
    return 0


def unnamed(containers: Iterable[Container]) -> list[Invalid]:
    """Grants are kept by container name, so those that ask for GPU need one each, as Kubernetes demands anyway."""
    problems: list[Invalid] = []
    seen: set[str] = set()
    for container in containers:
        if not container.name:
            problems.append(Invalid(f"{container.path}.name", None, "a container that asks for GPU needs a name"))
        elif container.name in seen:
            problems.append(Invalid(f"{container.path}.name", container.name, "each container needs its own name"))
        seen.add(container.name)
    return problems


def tolerates(toleration: object, taint: JsonView) -> bool:
    """Kubernetes' rule: no key is any key, no effect is any effect, Equal unless it says Exists."""
    if not isinstance(toleration, dict):
        return False
    key, effect = toleration.get("key") or "", toleration.get("effect") or ""
    if effect and effect != taint.get("effect"):
        return False
    if key and key != taint.get("key"):
        return False
    if toleration.get("operator") in ("Exists", "Gt", "Lt"):  # kube-scheduler has compared the numbers
        return True
    same = (toleration.get("value") or "") == (taint.get("value") or "")
    return bool(key) and same and toleration.get("operator") in (None, "", "Equal")
