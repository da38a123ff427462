"""Runs a chat template in Jinja's sandbox, with limits on its loops and its text.

The sandbox keeps a template from files and processes, but not from loops in loops. So these count
as turns, and too many turns end the template: each item that a loop takes, each call of a macro or
block, each item that a filter, a method or a comparison is given, and each thousand characters
that they are given or make. Turns are counted, not seconds: on a busy machine the same chat has the
same end. The length of a text or list is limited, too, mostly before it is made.

The limits do not cover all that Python can be slow at: they are no protection against a template
that somebody wrote to do harm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

from jinja2 import Template, nodes, pass_context
from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.runtime import LoopContext, markup_join, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MOST_TURNS = 2_000_000
"""Turns of a template for one chat: some seconds. One of a hundred messages needs some hundreds."""
MOST_CHARACTERS = 1 << 28
"""Characters of a chat, and of any text that its template makes; items of a list that it makes."""
_CHARACTERS_A_TURN = 1000
_LARGEST_POWER = 1 << 16
"""Bits of a number that `**` may make: more take seconds, which no turn ends."""
_CALLED = (nodes.Macro, nodes.CallBlock, nodes.Block)
_QUICK = frozenset({"length", "count", "first", "last", "default", "d"})
"""Filters that take no longer for more items: a template may ask them of all messages at each."""
_PADS = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs", "indent"})
_TURN, _EACH, _GIVEN, _TEXT = "a turn", "each item", "what is given", "a text"
"""Filters that count: no template can name them, and the sandbox takes no time for a filter."""


class EndlessError(ValueError):
    """A template does not come to an end, or to one that is too long."""


class _Environment(ImmutableSandboxedEnvironment):
    """Counts the turns of its one template."""

    intercepted_binops = frozenset({"**", "*", "+", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        self.filters["tojson"] = _as_json
        for name, function in list(self.filters.items()):
            if name not in _QUICK:
                self.filters[name] = self._counted(name, function)
        self.filters[_TURN] = pass_context(lambda context, value: self._spend(1))
        self.filters[_EACH] = pass_context(lambda context, items: self._each(items))
        self.filters[_GIVEN] = pass_context(lambda context, value: self._sized(value))
        self.filters[_TEXT] = self._concatenated
        self.globals["raise_exception"] = _refuse
        self.turns = 0

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed = super()._parse(source, name, filename)
        for called in parsed.find_all(_CALLED):
            _count_in(called)
        for loop in parsed.find_all(nodes.For):
            items: Any = loop.iter
            loop.iter = _filtered(items, _EACH, loop.lineno)
            if loop.recursive:  # what `loop(...)` is given does not pass that filter
                _count_in(loop)
        for operand in parsed.find_all(nodes.Operand):
            operand.expr = _filtered(operand.expr, _GIVEN, operand.lineno)
        for block in parsed.find_all(nodes.AssignBlock):
            if block.filter is None:
                block.filter = _filtered(None, _GIVEN, block.lineno)
        _Texts().visit(parsed)
        parsed.set_environment(self)
        return parsed

    def _spend(self, turns: int) -> None:
        self.turns += turns
        if self.turns > MOST_TURNS:
            raise EndlessError(
                f"it has not come to an end after {MOST_TURNS:,} passes through its loops: mend "
                "the template, or use another one (chat_template.jinja)"
            )

    def _each(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._spend(1)
            yield item

    def _sized(self, value: Any) -> Any:
        """Return `value`, whose length counts."""
        if isinstance(value, str):
            _check_length(len(value))
            self._spend(len(value) // _CHARACTERS_A_TURN)
        elif isinstance(value, list | tuple | dict | range):
            _check_length(len(value))
            self._spend(len(value))
        return value

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        own = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)  # and whether it asks for the context
        def counted(*args: Any, **kwargs: Any) -> Any:
            given = [*args[own:], *kwargs.values()]
            for value in given:
                self._sized(value)
            if name == "format":
                _check_format(*args, **kwargs)
            elif given:
                _check_made(name, given[0], given[1:])
            return self._sized(function(*args, **kwargs))

        return counted

    @pass_context
    def _concatenated(self, context: Any, parts: tuple[Any, ...]) -> str:
        _check_length(sum(_length(part) for part in parts))
        join = markup_join if context.eval_ctx.autoescape else str_join
        text: str = self._sized(join(parts))
        return text

    def call(self, context: Any, called: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function or method, whose arguments and result count."""
        method = getattr(called, "__wrapped__", called)  # the sandbox wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        given = [*args, *kwargs.values()]
        if isinstance(owner, str | list | tuple | dict | range) or isinstance(called, LoopContext):
            for value in (owner, *given):
                self._sized(value)
        if isinstance(owner, str):
            if name in ("format", "format_map"):
                _check_format(owner, *args, **kwargs)
            else:
                _check_made(name, owner, given)
        made = super().call(context, called, *args, **kwargs)
        return made if isinstance(made, range) else self._sized(made)  # a range takes no time yet

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute an operator, but nothing so large that it takes seconds or all memory."""
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            if right > 0 and left.bit_length() * right > _LARGEST_POWER:
                raise _too_large()
        elif operator == "*":
            for times, what in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(what, str | list | tuple):
                    _check_length(times * len(what))
                elif isinstance(times, int) and times.bit_length() > _LARGEST_POWER:
                    raise _too_large()
        elif operator == "+":
            _check_length(_length(left) + _length(right))
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right)
        return self._sized(super().call_binop(context, operator, left, right))


class _Texts(NodeTransformer):
    """Makes a filter of each `~`."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 (Jinja's name)
        self.generic_visit(node)
        return _filtered(nodes.Tuple(node.nodes, "load", lineno=node.lineno), _TEXT, node.lineno)


def _filtered(node: nodes.Expr | None, name: str, line: int) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=line)


def _count_in(node: Any) -> None:
    """Count a turn whenever the body of `node` begins."""
    line = node.lineno
    turn = _filtered(nodes.ContextReference(lineno=line), _TURN, line)
    node.body.insert(0, nodes.ExprStmt(turn, lineno=line))


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _check_length(length: int) -> None:
    if length > MOST_CHARACTERS:
        raise _too_long()


def _check_made(name: str, text: Any, given: list[Any]) -> None:
    """Check the length of what the method or filter `name` makes of `text`, before it does."""
    if name in _PADS:
        widths = [value for value in given if isinstance(value, int)]
        lines = text.count("\t") + text.count("\n") + 1 if isinstance(text, str) else 1
        _check_length(max(widths, default=0) * (lines if name in ("indent", "expandtabs") else 1))
    elif name == "replace" and len(given) > 1 and isinstance(text, str):
        old, new = given[:2]
        found = text.count(old) if isinstance(old, str) else 0
        _check_length(len(text) + found * _length(new))
    elif name == "join" and given:
        between, parts = (text, given[0]) if isinstance(text, str) else (_text_of(given), text)
        if isinstance(parts, list | tuple):
            _check_length(len(between) * len(parts) + sum(map(_length, parts)))


def _text_of(given: list[Any]) -> str:
    return next((value for value in given if isinstance(value, str)), "")


def _check_format(text: Any, *args: Any, **kwargs: Any) -> None:
    """Check the length of a text with fields, in `%` or braces, by its widths and arguments."""
    if not isinstance(text, str):
        return
    values: list[Any] = [*args, *kwargs.values()]
    for value in args:
        if isinstance(value, tuple | list):
            values.extend(value)
        elif isinstance(value, dict):
            values.extend(value.values())
    fields = text.count("%") + text.count("{")
    length = len(text) + fields * max(map(_length, values), default=0)
    length += sum(int(digits[:12]) for digits in re.findall(r"(?<=[%{:.<>^=+\- #])\d+", text))
    if re.search(r"%[-+ #0]*\*|%[^%a-z]*\.\*|\{[^{}]*\{", text):  # a width among the arguments
        length += max((value for value in values if isinstance(value, int)), default=0)
    _check_length(length)


def compiled_template(text: str) -> Callable[..., str]:
    """Return what renders the template `text`, with its variables by name. That raises
    EndlessError, or what the template raises.

    Raises:
        ValueError: it is no template.
    """
    environment = _Environment()
    try:
        template = environment.from_string(text)
    except (TemplateError, RecursionError) as error:
        raise ValueError(str(error)) from None

    def render(**variables: Any) -> str:
        environment.turns = 0
        return _joined(template, variables)

    return render


def _joined(template: Template, variables: dict[str, Any]) -> str:
    parts, length = list[str](), 0
    for part in template.generate(**variables):
        parts.append(part)
        length += len(part)
        _check_length(length)
    return "".join(parts)


def _too_long() -> EndlessError:
    return EndlessError(
        f"it makes a text or list of more than {MOST_CHARACTERS:,} characters or items: mend the "
        "template, or use another one (chat_template.jinja)"
    )


def _too_large() -> EndlessError:
    return EndlessError(
        f"it makes a number of more than {_LARGEST_POWER:,} bits: mend the template, or use "
        "another one (chat_template.jinja)"
    )


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _as_json(value: Any, indent: int | None = None) -> str:
    """Return JSON that a template has asked for: without escapes for HTML, which Jinja's has."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
