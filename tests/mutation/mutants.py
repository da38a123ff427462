"""The mutants of a module: small changes to its logic, each of which gives another program.

Only logic is changed. Texts for people, docstrings, annotations and decorators stay as they are.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Change = Callable[[], None]

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
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
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_ENUMS = {
    "Status": ("STARTING", "RUNNING", "STOPPING", "BACKOFF", "SUCCEEDED", "FAILED", "DRAINED"),
    "ExitCode": ("SUCCEEDED", "FAILED", "DRAINED", "BUDGET_SPENT", "STOPPED"),
    "Charge": ("RESTARTS", "PREEMPTIONS", "NOTHING"),
    "Verdict": ("RESTART", "FATAL"),
    "StopSource": ("SIGTERM", "PERSON"),
    "Stage": ("STARTING", "TRAINING", "EVALUATING", "SAVING"),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: `what` it is, and in which line and function."""

    number: int
    line: int
    function: str
    what: str


def mutants(source: str) -> list[Mutant]:
    """Return all mutants of a module, numbered."""
    return [
        Mutant(number, line, function, what)
        for number, (line, function, what, _) in enumerate(_changes(ast.parse(source)))
    ]


def mutated(source: str, number: int) -> ast.Module:
    """Return the module with the change `number` made."""
    tree = ast.parse(source)
    for found, (*_, change) in enumerate(_changes(tree)):
        if found == number:
            change()
            return ast.fix_missing_locations(tree)
    raise LookupError(f"there is no mutant {number}")


def _changes(tree: ast.Module) -> Iterator[tuple[int, str, str, Change]]:
    for function in _functions(tree):
        for node in _logic(function.body):
            for what, change in _of(node):
                before = ast.unparse(node).splitlines()[0]
                text = f"{before[:70]}: {what}"
                yield node.lineno, function.name, text, change
            yield from _deletions(node, function.name)


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _logic(body: list[ast.stmt]) -> Iterator[ast.expr | ast.stmt]:
    """Yield every node that computes something; texts and types are left out."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.FunctionDef | ast.JoinedStr) or _is_text(node):
            continue
        if isinstance(node, ast.expr | ast.stmt):
            yield node
        if isinstance(node, ast.AnnAssign):
            pending += [node.value] if node.value is not None else []
        else:
            pending += ast.iter_child_nodes(node)


def _is_text(node: ast.AST) -> bool:
    """Whether the node only chooses between texts."""
    if isinstance(node, ast.IfExp):
        return _is_text(node.body) and _is_text(node.orelse)
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _of(node: ast.AST) -> Iterator[tuple[str, Change]]:
    """Yield the changes that one expression or statement allows."""
    yield from _of_conditions(node)
    yield from _of_values(node)
    yield from _of_effects(node)


def _of_conditions(node: ast.AST) -> Iterator[tuple[str, Change]]:
    match node:
        case ast.Compare(ops=[op]):
            for other in _COMPARISONS[type(op)]:
                yield other.__name__, _set(node, "ops", [other()])
        case ast.BoolOp(op=op, values=values):
            other_op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield type(other_op).__name__, _set(node, "op", other_op)
            for value in values:
                rest = [kept for kept in values if kept is not value]
                yield f"without `{ast.unparse(value)[:40]}`", _set(node, "values", rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            same = ast.BoolOp(ast.And(), [operand, operand])
            yield "without not", _become(node, same)
        case ast.If() | ast.IfExp():
            for always in (True, False):
                yield f"always {always}", _set(node, "test", ast.Constant(always))


def _of_values(node: ast.AST) -> Iterator[tuple[str, Change]]:
    match node:
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            yield _ARITHMETIC[type(op)].__name__, _set(node, "op", _ARITHMETIC[type(op)]())
        case ast.Constant(value=bool(value)):
            yield str(not value), _set(node, "value", not value)
        case ast.Constant(value=int(value) | float(value)):
            yield str(value + 1), _set(node, "value", value + 1)
        case ast.Name(id=name) if name in _NAMES:
            yield _NAMES[name], _set(node, "id", _NAMES[name])
        case ast.Attribute(value=ast.Name(id=enum), attr=name) if name in _ENUMS.get(enum, ()):
            members = _ENUMS[enum]
            other_name = members[(members.index(name) + 1) % len(members)]
            yield other_name, _set(node, "attr", other_name)


def _of_effects(node: ast.AST) -> Iterator[tuple[str, Change]]:
    match node:
        case ast.Call(keywords=[_, *_] as keywords):
            for keyword in keywords:
                rest_of_it = [kept for kept in keywords if kept is not keyword]
                yield f"without {keyword.arg}=", _set(node, "keywords", rest_of_it)
        case ast.Return(value=ast.Tuple(elts=[_, ast.Tuple(elts=[_, *_])])):
            assert isinstance(node.value, ast.Tuple)
            elements = [node.value.elts[0], ast.Tuple([], ast.Load())]
            yield "decides nothing", _set(node.value, "elts", elements)


def _deletions(node: ast.AST, function: str) -> Iterator[tuple[int, str, str, Change]]:
    """Yield the deletion of an assignment that uses the old value of the name that it assigns."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        target = node.targets[0].id
        used = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        if target in used:
            text = f"{ast.unparse(node)[:70]}: deleted"
            same = ast.Assign([copy.deepcopy(node.targets[0])], ast.Name(target, ast.Load()))
            yield node.lineno, function, text, _become(node, same)


def _set(node: ast.AST, name: str, value: object) -> Change:
    return lambda: setattr(node, name, value)


def _become(node: ast.AST, other: ast.AST) -> Change:
    def change() -> None:
        line = getattr(node, "lineno", 1)
        node.__class__ = other.__class__
        for name in other._fields:
            setattr(node, name, getattr(other, name))
        node.__dict__["lineno"] = line

    return change
