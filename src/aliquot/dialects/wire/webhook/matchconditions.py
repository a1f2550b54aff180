"""Which objects the API server sends to the webhook: CEL expressions, which it evaluates itself.

Nearly all Pods and workloads of a cluster do not concern us, and cost no call.
"""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.dialects import gpushare, kai, lookalikes, native
from aliquot.dialects.wire import schedulerconfig
from aliquot.dialects.wire.webhook.admission import ENV_PREFIX, GRANT_ANNOTATIONS

_SPEC = "object.spec"
# `Job` and the other workloads have the template at the same place; a ReplicationController may have none.
_TEMPLATE_SPEC = (
    "(request.kind.kind == 'CronJob' ? object.spec.jobTemplate.spec.template.spec : object.spec.template.spec)"
)
_TEMPLATE = _TEMPLATE_SPEC.replace(".template.spec", ".template")
_HAS_TEMPLATE = "(request.kind.kind == 'CronJob' || has(object.spec.template))"
_USER = "request.userInfo.username"
# Requesters whose warnings no person reads.
_CONTROLLER = f"{_USER}.startsWith('system:serviceaccount:kube-system:') || {_USER} == 'system:kube-controller-manager'"


def asks_for_gpu(served: frozenset[str]) -> str:
    """Selects the Pods of these dialects, as `first_mention` of each does, and those with misspelled names under the
    same prefixes."""
    return " || ".join((_any_container(_SPEC, _names_one(served)), *_marked("object.metadata", served)))


def _names_one(served: frozenset[str]) -> str:
    """Whether container c names a resource under a prefix of these dialects. Kubernetes takes capitals after the slash,
    and such a name is refused with the right one."""
    begins = " || ".join(f"r.lowerAscii().startsWith('{prefix}')" for prefix in lookalikes.prefixes(served))
    others = lookalikes.others(served)
    ours = f"({begins}) && !(r in {_listed(others)})" if others else begins
    side = "(has(c.resources.{0}) && c.resources.{0}.exists(r, " + ours + "))"
    return f"has(c.resources) && ({side.format('limits')} || {side.format('requests')})"


def _marked(metadata: str, served: frozenset[str]) -> tuple[str, ...]:
    """Conditions of the labels and annotations that ask for cards by themselves."""
    mark = "(has({0}.{1}) && '" + gpushare.COUNT + "' in {0}.{1})"
    marks: tuple[str, ...] = ()
    if gpushare.DIALECT in served:
        marks = (mark.format(metadata, "labels"), mark.format(metadata, "annotations"))
    if kai.DIALECT in served:
        # Those of KAI begin with "gpu", and so do most that are misspelled.
        named = f"k.startsWith('gpu') || k.startsWith('{kai.PREFIX}')"
        marks += (f"(has({metadata}.annotations) && {metadata}.annotations.exists(k, {named}))",)
    return marks


def asks_for_gpu_unreviewed(served: frozenset[str]) -> str:
    """The same without Pods that an earlier attempt has reviewed.

    A user may write the mark too: the first attempt ignores it, and it does not help a Pod that brings a grant along.
    """
    key = "object.metadata.annotations"
    marked = f"has({key}) && '{native.REVIEWED}' in {key}"
    grant = f"{key}.exists(k, k in {_listed(GRANT_ANNOTATIONS)} || k.startsWith('{ENV_PREFIX}'))"
    return f"(!({marked}) || {grant}) && ({asks_for_gpu(served)})"


def lacks_limits(served: frozenset[str]) -> str:
    """Selects the workloads whose template requests our resources and has no limit, or another one."""
    limited = "has(c.resources.limits) && r in c.resources.limits && c.resources.limits[r] == c.resources.requests[r]"
    lacking = f"c.resources.requests.exists(r, r in {_listed(_resources(served))} && !({limited}))"
    asks = f"has(c.resources) && has(c.resources.requests) && {lacking}"
    return f"{_HAS_TEMPLATE} && ({_any_container(_TEMPLATE_SPEC, asks)})"


def may_mislead(served: frozenset[str]) -> str:
    """Selects the workloads of users whose Pods ask for cards, or that have an annotation for it themselves."""
    of_template = " || ".join(_marked(f"{_TEMPLATE}.metadata", served))
    own = f"k in {_listed(lookalikes.marks(served))} || k.startsWith('{kai.PREFIX}')"
    chosen = (
        _any_container(_TEMPLATE_SPEC, _names_one(served)),
        *((f"(has({_TEMPLATE}.metadata) && ({of_template}))",) if of_template else ()),
        f"(has(object.metadata.annotations) && object.metadata.annotations.exists(k, {own}))",
    )
    return f"!({_CONTROLLER}) && {_HAS_TEMPLATE} && ({' || '.join(chosen)})"


def _any_container(spec: str, condition: str) -> str:
    init = f"(has({spec}.initContainers) && {spec}.initContainers.exists(c, {condition}))"
    return f"{spec}.containers.exists(c, {condition}) || {init}"


def _resources(served: frozenset[str]) -> Iterable[str]:
    return (name for dialect, names in schedulerconfig.DIALECTS.items() if dialect in served for name in names)


def _listed(words: Iterable[str]) -> str:
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"
