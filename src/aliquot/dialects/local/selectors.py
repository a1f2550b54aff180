"""`spec.selector` of a workload, as an API server checks it: it must select the Pods of the template. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aliquot.dialects.kube.conditions import condition_text, holds
from aliquot.dialects.kube.shapes import as_text, mapping, sequence
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.refusal import Invalid

Labels = Mapping[str, object]
_FIELD = "spec.selector"
_KINDS = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"})
_DEFAULTED = frozenset({"apps/v1beta1", "extensions/v1beta1"})  # these took the labels of the template
_WITH_VALUES = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}


def selector_problem(workload: JsonView, kind: str) -> Invalid | None:
    """What an API server would refuse about the selector of a workload; its template is valid."""
    spec = mapping(workload.get("spec"))
    labels = mapping(mapping(mapping(spec.get("template")).get("metadata")).get("labels"))
    selector = spec.get("selector")
    if kind == "ReplicationController":
        if selector is not None and not isinstance(selector, dict):
            return Invalid(_FIELD, selector, "a mapping of labels, such as app: web")
        return next(_unmatched({"matchLabels": selector}, labels, _FIELD), None)
    if kind not in _KINDS:
        return None
    if selector is None:
        return None if workload.get("apiVersion") in (None, *_DEFAULTED) else Invalid(_FIELD, None, _needed(labels))
    return next(_malformed(selector, labels), None) or next(_unmatched(selector, labels, f"{_FIELD}.matchLabels"), None)


def _needed(labels: Labels) -> str:
    if not labels:
        return "matchLabels with a label that you also give to spec.template.metadata.labels, such as app: web"
    key, value = next(iter(labels.items()))
    return f"matchLabels with labels of the template, such as {key}: {as_text(value)}"


def _malformed(selector: object, labels: Labels) -> Iterator[Invalid]:
    if not isinstance(selector, dict):
        yield Invalid(_FIELD, selector, _needed(labels))
        return
    for key in sorted(selector.keys() - {"matchLabels", "matchExpressions"}):
        yield Invalid(f"{_FIELD}.{key}", selector[key], "matchLabels or matchExpressions; labels are in matchLabels")
    of_labels, expressions = selector.get("matchLabels"), selector.get("matchExpressions")
    if of_labels is not None and not isinstance(of_labels, dict):
        yield Invalid(f"{_FIELD}.matchLabels", of_labels, "a mapping of labels, such as app: web")
    for key, value in mapping(of_labels).items():
        if not isinstance(value, str):
            yield Invalid(f'{_FIELD}.matchLabels["{key}"]', value, "text: put it in quotes")
    if expressions is not None and not isinstance(expressions, list):
        yield Invalid(f"{_FIELD}.matchExpressions", expressions, "a list of expressions with key, operator and values")
    for at, expression in enumerate(sequence(expressions)):
        yield from _malformed_expression(expression, f"{_FIELD}.matchExpressions[{at}]")
    if not of_labels and not expressions:
        yield Invalid(_FIELD, selector, f"{_needed(labels)}; an empty one would select every Pod")


def _malformed_expression(expression: object, path: str) -> Iterator[Invalid]:
    if not isinstance(expression, dict):
        yield Invalid(path, expression, "an expression with key, operator and values")
        return
    operator, values = expression.get("operator"), expression.get("values")
    texts = isinstance(values, list) and all(isinstance(value, str) for value in values)
    if not isinstance(expression.get("key"), str):
        yield Invalid(f"{path}.key", expression.get("key"), "the key of a label")
    elif not isinstance(operator, str) or operator not in _WITH_VALUES:
        yield Invalid(f"{path}.operator", operator, ", ".join(_WITH_VALUES))
    elif not _WITH_VALUES[operator] and values:
        yield Invalid(f"{path}.values", values, f"none with {operator}")
    elif _WITH_VALUES[operator] and not (values and texts):
        yield Invalid(f"{path}.values", values, f"with {operator} a list of at least one text")


def _unmatched(selector: JsonView, labels: Labels, path: str) -> Iterator[Invalid]:
    """Conditions that the labels of the template do not meet."""
    wanted = mapping(selector.get("matchLabels"))
    conditions = [{"key": key, "operator": "In", "values": [value]} for key, value in wanted.items()]
    of_labels = len(conditions)
    for at, condition in enumerate([*conditions, *map(mapping, sequence(selector.get("matchExpressions")))]):
        if holds(condition, labels):
            continue
        if at < of_labels:
            key, (value,) = condition["key"], condition["values"]
            field = f'spec.template.metadata.labels["{key}"]'
            yield Invalid(field, labels.get(key), f'{as_text(value)}, as in {path}["{key}"]')
        else:
            shown = ", ".join(f"{name}={as_text(value)}" for name, value in labels.items()) or "none"
            field = f"{_FIELD}.matchExpressions[{at - of_labels}]"
            yield Invalid(field, condition_text(condition), f"what the labels of the template meet, which are {shown}")
