"""One small wrong change to a module: what can be changed, and the changed code.

Only code inside functions is changed. A figure at the top of a module is a setting: tests use it by its name.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_TEXT = (ast.JoinedStr, ast.List, ast.Tuple)  # of these the sum has no difference: Python itself would fail


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change. `where` is its number among all changes of the module."""

    file: Path
    where: int
    line: int
    source: str  # the line, without its indentation
    change: str

    def code(self) -> CodeType:
        """The changed module, compiled."""
        tree = ast.parse(self.file.read_bytes())
        for where, (_, _, apply) in enumerate(_changes(tree)):
            if where == self.where:
                apply()
                break
        return compile(ast.fix_missing_locations(tree), self.file, "exec", dont_inherit=True)


def mutations(file: Path) -> list[Mutation]:
    """Every change that can be made to the module."""
    text = file.read_text()
    lines = text.splitlines()
    return [
        Mutation(file, where, line, lines[line - 1].strip(), change)
        for where, (line, change, _) in enumerate(_changes(ast.parse(text)))
    ]


Change = tuple[int, str, Callable[[], None]]  # its line, what it does in words, and how to do it to the tree


def _changes(tree: ast.Module) -> Iterator[Change]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                yield from _inside(statement)


def _inside(node: ast.AST) -> Iterator[Change]:
    """Changes of the node and of what is in it, in the order of the source; functions in it come by themselves."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":  # of zip: an assertion
        return
    yield from _of(node)
    for name, value in ast.iter_fields(node):
        if name == "annotation":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _inside(child)


def _of(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare():
            for at, compared in enumerate(node.ops):
                for other in _COMPARED[type(compared)]:
                    yield _changed(node, "ops", [*node.ops[:at], other(), *node.ops[at + 1 :]])
        case ast.BoolOp():
            yield _changed(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not()):
            # `not x` becomes `not not x`: still a bool
            yield _changed(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
        case ast.BinOp() | ast.AugAssign() if type(node.op) in _COMPUTED and not _is_text(node):
            yield _changed(node, "op", _COMPUTED[type(node.op)]())
        case ast.Constant(value=bool()):
            yield _changed(node, "value", not node.value)
        case ast.Constant(value=int(number)):
            yield _changed(node, "value", number + 1)
            if number:
                yield _changed(node, "value", number - 1)
        case ast.Call(func=ast.Name(id=name)) if name in _CALLED:
            yield _changed(node, "func", ast.Name(_CALLED[name], ast.Load()))
            for at in range(len(node.args) if len(node.args) > 1 else 0):  # one of them is left out
                kept = node.args[at - 1]
                yield _changed(node, "args", [*node.args[:at], kept, *node.args[at + 1 :]])
        case ast.Return(value=ast.AST()) if not _is_none(node.value):
            yield _changed(node, "value", ast.Constant(None))
        case ast.IfExp():
            yield _changed(node, "test", ast.UnaryOp(ast.Not(), node.test))


def _changed(node: ast.AST, field: str, value: object) -> Change:
    other = copy.copy(node)
    setattr(other, field, value)
    shown = [ast.unparse(ast.fix_missing_locations(shape)) for shape in (node, other)]
    before, after = [text if len(text) < 80 else f"{text[:60]}..." for text in shown]
    line: int = node.lineno  # type: ignore[attr-defined]  # of expressions and statements, which these are
    return line, f"{before}  ->  {after}", lambda: setattr(node, field, value)


def _is_text(node: ast.BinOp | ast.AugAssign) -> bool:
    sides = [node.value] if isinstance(node, ast.AugAssign) else [node.left, node.right]
    return any(
        isinstance(side, _TEXT) or (isinstance(side, ast.Constant) and isinstance(side.value, str)) for side in sides
    )


def _is_none(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
