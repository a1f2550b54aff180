"""Reads YAML as Kubernetes does, into plain values without loops.

PyYAML's constructor recurses (deep nesting crashes the process), makes loops from aliases, and raises arbitrary Python
errors on `!!bool maybe`. This one builds values from the parser's events: no recursion, no loops, line and column in
every error, and in half the time.

As in Kubernetes, scalars follow YAML 1.1 (`on` is true), except that dates and keys are strings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

_DEEPEST = 200  # levels; the deepest schemas of Kubernetes have about sixty
_MOST_REPEATED = 100_000  # values repeated by aliases; a few lines of aliases can expand to more than fits into memory

_TAB = "a tab in the indentation: YAML is indented with spaces"
_TAG = "tag:yaml.org,2002:"
_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser if available

Position = tuple[int, int]


class ValuesError(ValueError):
    """The text is not YAML, or uses unsupported YAML."""

    def __init__(self, message: str, position: Position) -> None:
        super().__init__(message)
        self.position = position


@dataclass(slots=True)
class Document:
    """One document, and the positions of the mappings of its first levels."""

    value: Any
    position: Position = (1, 1)
    positions: dict[int, Position] = field(default_factory=dict)  # by id() of the mapping

    def position_of(self, value: object) -> Position:
        """Line and column of a mapping; of the document if unknown."""
        return self.positions.get(id(value), self.position)


def parse_yaml(raw: bytes) -> Iterator[Document]:
    """The documents that are not empty. Raises ValuesError."""
    try:
        parser = _Parser(raw)
        try:
            yield from _documents(parser)
        finally:
            parser.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = _position(mark) if mark else (1, 1)
        # Without a final newline, the parser reports the end on a line that does not exist.
        end = raw.count(b"\n") + 1, len(raw) - raw.rfind(b"\n")
        position = min(position, end)
        tab = _tab_in_indentation(raw, position[0])
        problem = _TAB if tab else error.problem or error.context
        raise ValuesError(f"not valid YAML: {problem}", tab or position) from error
    except yaml.reader.ReaderError as error:
        before = raw[: error.position]
        position = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
        raise ValuesError(f"not valid YAML: {error.reason}", position) from error


def _tab_in_indentation(raw: bytes, number: int) -> Position | None:
    """Where the indentation of that line, or of the line before it, has a tab."""
    lines = raw.split(b"\n")
    for candidate in (number, number - 1):
        line = lines[candidate - 1] if 0 < candidate <= len(lines) else b""
        indentation = line[: len(line) - len(line.lstrip())]
        if line.strip() and b"\t" in indentation:
            return candidate, indentation.index(b"\t") + 1
    return None


def _documents(parser: Any) -> Iterator[Document]:
    while parser.check_event():
        event = parser.get_event()
        if isinstance(event, yaml.DocumentStartEvent):
            document = _Builder(parser).build()
            if document.value is not None:
                yield document


def _position(mark: Any) -> Position:
    return mark.line + 1, mark.column + 1


@dataclass(slots=True)
class _Open:
    """A mapping or list under construction."""

    value: Any
    anchor: str | None
    began: int  # number of values before it
    position: Position
    key: str | None = None
    merging: bool = False  # the key is the merge key <<, not a quoted "<<"
    merged: list[dict[str, Any]] = field(default_factory=list)


class _Builder:
    """Builds one document from its events."""

    def __init__(self, parser: Any) -> None:
        self.parser = parser
        self.open: list[_Open] = []
        self.anchors: dict[str, tuple[Any, int] | None] = {}  # None: under construction
        self.count = self.repeated = 0
        self.document = Document(None)
        self.plain: dict[str, Any] = {}  # cache: scalars repeat a lot

    def build(self) -> Document:
        first = True
        while True:
            event = self.parser.get_event()
            if isinstance(event, yaml.DocumentEndEvent):
                return self.document
            if first:
                self.document.position, first = _position(event.start_mark), False
            if isinstance(event, yaml.ScalarEvent):
                value = self._scalar(event)
                if event.anchor:
                    self.anchors[event.anchor] = (value, 1)
                self._put(value, event)
            elif isinstance(event, yaml.AliasEvent):
                self._put(self._alias(event), event)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._begin(event)
            else:
                self._end(event)

    def _begin(self, event: Any) -> None:
        if len(self.open) >= _DEEPEST:
            raise ValuesError(f"nested deeper than {_DEEPEST} levels", _position(event.start_mark))
        kind = "map" if isinstance(event, yaml.MappingStartEvent) else "seq"
        value: Any = {} if kind == "map" else []
        if event.tag not in (None, "!", _TAG + kind):
            raise ValuesError(f"tag {event.tag} is not supported", _position(event.start_mark))
        if event.anchor:
            self.anchors[event.anchor] = None
        position = _position(event.start_mark)
        if kind == "map" and len(self.open) <= 4:  # the depth of the items of a List of Lists
            self.document.positions[id(value)] = position
        self.open.append(_Open(value, event.anchor, self.count, position))

    def _end(self, event: Any) -> None:
        done = self.open.pop()
        for mapping in done.merged:
            for key, value in mapping.items():
                done.value.setdefault(key, value)
        if done.anchor:
            self.anchors[done.anchor] = (done.value, self.count - done.began + 1)
        self._put(done.value, event, done.position)

    def _put(self, value: Any, event: Any, position: Position | None = None) -> None:
        self.count += 1
        if not self.open:
            self.document.value = value
            return
        top = self.open[-1]
        if isinstance(top.value, list):
            top.value.append(value)
        elif top.key is None:
            top.key = self._key(value, event, top, position)
        else:
            if top.merging:
                self._merge(value, event, top)
            else:
                top.value[top.key] = value
            top.key, top.merging = None, False

    def _key(self, value: Any, event: Any, top: _Open, position: Position | None) -> str:
        if isinstance(value, (dict, list)):
            raise ValuesError("a key is not a string", position or _position(event.start_mark))
        key = event.value if isinstance(event, yaml.ScalarEvent) else str(value)
        top.merging = key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]
        if key in top.value:
            raise ValuesError(f'duplicate key "{key}"', _position(event.start_mark))
        return str(key)

    def _merge(self, value: Any, event: Any, top: _Open) -> None:
        mappings = value if isinstance(value, list) else [value]
        if not all(isinstance(mapping, dict) for mapping in mappings):
            raise ValuesError("the value of << is not a mapping", _position(event.start_mark))
        top.merged += mappings

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self.anchors:
            raise ValuesError(f'not valid YAML: unknown anchor "{event.anchor}"', _position(event.start_mark))
        known = self.anchors[event.anchor]
        if known is None:
            raise ValuesError(f'alias "{event.anchor}" refers to itself', _position(event.start_mark))
        value, size = known
        self.count += size - 1
        self.repeated += size
        if self.repeated > _MOST_REPEATED:
            raise ValuesError(f"aliases repeat more than {_MOST_REPEATED} values", _position(event.start_mark))
        return value

    def _scalar(self, event: Any) -> Any:
        tag, text = event.tag, event.value
        if tag is None:
            if not event.implicit[0]:
                return text
            if text not in self.plain:
                self.plain[text] = _resolve(text)
            value = self.plain[text]
        elif tag in ("!", _TAG + "str", _TAG + "timestamp", _TAG + "binary"):
            return text
        elif tag.removeprefix(_TAG) in ("bool", "int", "float", "null"):
            value = _resolve(text)
        else:
            raise ValuesError(f"tag {tag} is not supported", _position(event.start_mark))
        if value is _UNREADABLE:
            raise ValuesError("a number has too many digits", _position(event.start_mark))
        return value


_UNREADABLE = object()


def _base(base: int) -> Callable[[str], int]:
    return lambda text: int(text.replace("_", ""), base)


def _octal(text: str) -> int:
    return int(text.replace("_", "").replace("o", ""), 8)


_WORDS: dict[str, Any] = {"": None, "~": None}
for _value, _words in ((None, ["null"]), (True, ["true", "yes", "on"]), (False, ["false", "no", "off"])):
    _WORDS |= {form: _value for word in _words for form in (word, word.capitalize(), word.upper())}

_NUMBERS: tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...] = (
    (re.compile(r"[-+]?(?:0|[1-9][0-9_]*)", re.ASCII), _base(10)),
    (re.compile(r"[-+]?0x[0-9a-fA-F]+", re.ASCII), _base(16)),
    (re.compile(r"[-+]?0b[01]+", re.ASCII), _base(2)),
    (re.compile(r"[-+]?0o?[0-7]+", re.ASCII), _octal),
    (re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII), float),
    (re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"), lambda text: float(text.replace(".", ""))),
)


def _resolve(text: str) -> Any:
    """The value of an unquoted scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] in "0123456789+-.":
        for form, read in _NUMBERS:
            if form.fullmatch(text):
                try:
                    return read(text)
                except ValueError:  # int() refuses thousands of digits
                    return _UNREADABLE
    return text
