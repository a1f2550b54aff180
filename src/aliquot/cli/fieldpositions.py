"""Finds the line of a field of a manifest, for errors. Reads the file again: only errors pay for it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from aliquot.cli.yamlvalues import Position

_FIELD = re.compile(r"""\b(?:apiVersion|kind|metadata|spec)\b(?:\.\w+|\[\d+\]|\["[^"]*"\])*""")
_STEP = re.compile(r"""(?:^|\.)(\w+)|\[(\d+)\]|\["([^"]*)"\]""")
_TEMPLATES = ("", "spec.template.", "spec.jobTemplate.spec.template.", "spec.jobTemplate.")  # where a workload's Pod is
_LABEL = re.compile(r"\w+ [^\s:]+/[^\s:]+: ")  # the object that the message is about: its paths begin there
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def position_in(raw: bytes, at: Position, message: str) -> Position:
    """Line and column of the field that the message names, in the object that begins at `at`; `at` if there is none.

    A field that is missing has the position of the deepest mapping or list that would hold it.
    """
    named = _FIELD.search(message)
    root = _object(raw, at) if named else None
    if named is None or root is None:
        return at
    found = [_walk(root, prefix + named[0]) for prefix in (_TEMPLATES if not _LABEL.match(message) else ("",))]
    deepest = max(found, key=lambda steps: steps[0])
    return deepest[1] if deepest[0] else at


def _object(raw: bytes, at: Position) -> yaml.Node | None:
    try:
        for document in yaml.compose_all(raw, Loader=_Loader):
            for node in _nodes(document):
                if isinstance(node, yaml.MappingNode) and _position(node) == at:
                    return node
    except (yaml.YAMLError, RecursionError):
        pass
    return None


def _nodes(document: yaml.Node | None) -> Iterator[yaml.Node]:
    """The document, then the items of its lists, then of theirs: an object is one of these."""
    pending = [document] if document is not None else []
    while pending:
        node = pending.pop(0)
        yield node
        if isinstance(node, yaml.MappingNode):
            pending += [value for key, value in node.value if key.value == "items"]
        elif isinstance(node, yaml.SequenceNode):
            pending += node.value


def _walk(node: yaml.Node, path: str) -> tuple[int, Position]:
    """How many steps of the path exist, and the position of the last of them."""
    position, steps = _position(node), 0
    for name, index, quoted in _STEP.findall(path):
        if isinstance(node, yaml.MappingNode):
            pairs = [(key, value) for key, value in node.value if key.value == (name or quoted)]
            if not pairs:
                break
            key, node = pairs[-1]
            position = _position(key)
        elif isinstance(node, yaml.SequenceNode) and index and int(index) < len(node.value):
            node = node.value[int(index)]
            position = _position(node)
        else:
            break
        steps += 1
    return steps, position


def _position(node: yaml.Node) -> Position:
    return node.start_mark.line + 1, node.start_mark.column + 1
