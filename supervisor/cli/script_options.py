"""Reads the options that a script declares, and the paths that it makes of them, from its source.

Pure. A path counts only if all of it is known: literals, and options whose values are given on the
command line or as defaults. An option that the script itself changes is not known.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_ASSIGNED = re.compile(r"-{0,2}([\w.-]+)=(.+)", re.DOTALL)
_DECLARE = frozenset({"DEFINE_string", "add_argument", "option"})
"""The calls that declare an option: of absl, argparse and click."""
_SUBCOMMANDS = frozenset({"add_subparsers", "group"})
_WRAP_A_PATH = frozenset({"Path", "PurePath", "abspath", "fspath", "str", "expanduser"})
_KEEP_A_PATH = frozenset({"resolve", "absolute", "expanduser"})
"""Methods of a path that return the same place."""
_DEEPEST = 12
"""The most parts within parts, and variables of variables, that are followed."""

NUMBER = "\0"
"""Stands for a value in a name."""
_SAVE = frozenset({"save", "save_file", "savez", "savez_compressed", "save_weights", "save_model"})
"""Functions that get the path that they save to."""
_FILL_IN = frozenset({"ModelCheckpoint"})
"""Functions that get a template of that path, and put the step into it themselves."""
_FIELD = re.compile(r"\{[^{}]*\}")
_OPEN = frozenset({"open", "File"})
"""Functions that do so if they get a mode for writing."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option that a script declares."""

    names: tuple[str, ...]
    """As they are typed: `-o`, `--out`."""
    default: str | None
    is_required: bool


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the values in a script."""

    options: Mapping[str, str]
    variables: Mapping[str, ast.expr]
    """Those that are assigned once, with what is assigned."""


def known_values(tree: ast.Module, words: Sequence[str]) -> Known:
    """Returns what is known in a script that runs with the arguments `words`."""
    changed = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    values = option_values(tree, words)
    kept = {name: value for name, value in values.items() if name not in changed}
    return Known(kept, dict(_assigned_once(tree)))


def option_values(tree: ast.Module | None, words: Sequence[str]) -> dict[str, str]:
    """Returns the values of options by name: those in `words`, else the defaults of the script."""
    given = options_in(words)
    for option in _declared(tree) if tree is not None else ():
        keys = [key(name) for name in option.names]
        value = next((given[each] for each in keys if each in given), option.default)
        if value is not None:
            given.update(dict.fromkeys(keys, value))
    return given


def options_in(words: Sequence[str]) -> dict[str, str]:
    """Returns the options in `words` by name: `--a-dir x`, `--a_dir=x`, `cfg.a_dir=x`, `a_dir=x`.
    Of a dotted name, the last part counts."""
    found = {}
    for word, following in pairwise([*words, "-"]):
        match = _ASSIGNED.fullmatch(word)
        if match is not None:
            found[key(match[1])] = match[2]
        elif word.startswith("-") and not following.startswith("-"):
            found[key(word)] = following
    return found


def missing_options(tree: ast.Module, words: Sequence[str]) -> list[str]:
    """Returns the options that the script requires and `words` does not have, also not shortened.
    A script with subcommands requires only some of its options: then none is returned."""
    if any(name_of(call.func) in _SUBCOMMANDS for call in calls(tree)):
        return []
    typed = [word.partition("=")[0] for word in words if word.startswith("-")]
    return [
        next((name for name in reversed(option.names) if name.startswith("-")), option.names[0])
        for option in _declared(tree)
        if option.is_required
        and not any(_is_typed(name, word) for name in option.names for word in typed)
    ]


def _is_typed(name: str, word: str) -> bool:
    """Whether `word` is the option `name`, shortened (`--conf`) or with its value (`-cx`)."""
    return (len(word) > 2 and name.startswith(word)) or (len(name) == 2 and word.startswith(name))


def path_of(node: ast.expr, known: Known, deepest: int = _DEEPEST) -> str | None:
    """Returns the path that an expression makes; None: a part of it is not known."""
    if not deepest:
        return None
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Attribute(value=ast.Name(), attr=name):
            return known.options.get(name)
        case ast.Name(id=name) if name in known.variables:
            return path_of(known.variables[name], known, deepest - 1)
    parts = [path_of(each, known, deepest - 1) for each in _parts(node)]
    texts = [part for part in parts if part is not None]
    return posixpath.join(*texts) if texts and len(texts) == len(parts) else None


def joined_paths(tree: ast.Module, known: Known) -> Iterator[str]:
    """Yields the paths that the script joins of its options and of literals."""
    literals = Known({}, known.variables)
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.Call) and len(_parts(node)) > 1:
            path = path_of(node, known)
            if path is not None and path_of(node, literals) is None:
                yield path


def saved_names(tree: ast.Module, known: Known) -> Iterator[str]:
    """Yields the paths that the script gives to functions that save, where a number is put into the
    name: with `NUMBER` for each value that is (`out/model_NUMBER.pt`)."""
    for call in calls(tree):
        function = name_of(call.func)
        modes = [each.value for each in call.args[1:] if isinstance(each, ast.Constant)]
        is_opened = function in _OPEN and any(str(mode).startswith(("w", "x")) for mode in modes)
        if function not in _SAVE | _FILL_IN and not is_opened:
            continue
        for given in (*call.args, *(each.value for each in call.keywords)):
            if isinstance(given, ast.Name):
                given = known.variables.get(given.id, given)
            *folders, name = _parts(given) or (given,)
            above = [path_of(each, known) for each in folders]
            text = _numbered_name(name, known, is_template=function in _FILL_IN)
            if text is not None and None not in above:
                yield posixpath.join(*(each for each in above if each is not None), text)


def _numbered_name(name: ast.expr, known: Known, *, is_template: bool) -> str | None:
    """Returns a name with `NUMBER` for each value in it that is not known; None: it has no
    values."""
    match name:
        case ast.JoinedStr(values=parts):
            return "".join(_text_in(part, known) for part in parts)
        case ast.Constant(value=str() as text) if is_template:
            return _FIELD.sub(NUMBER, text)
    return None


def _text_in(part: ast.expr, known: Known) -> str:
    value = part.value if isinstance(part, ast.FormattedValue) else part
    return path_of(value, known) or NUMBER


def _parts(node: ast.expr) -> Sequence[ast.expr]:
    """Returns the parts of an expression that makes a path of paths; none: it does not."""
    match node:
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return (left, right)
        case ast.Call(func=ast.Attribute(value=base, attr="joinpath"), args=given, keywords=[]):
            return (base, *given)
        case ast.Call(func=ast.Attribute(value=base, attr=name), args=[], keywords=[]):
            return (base,) if name in _KEEP_A_PATH else ()
        case ast.Call(func=ast.Attribute(value=base, attr="join"), args=given, keywords=[]):
            return given if name_of(base) in ("path", "osp") else ()
        case ast.Call(func=function, args=given, keywords=[]):
            return given if name_of(function) in _WRAP_A_PATH else ()
    return ()


def _declared(tree: ast.Module) -> Iterator[Option]:
    """Yields the options that the script declares."""
    nothing = Known({}, {})
    for call in calls(tree):
        if (function := name_of(call.func)) not in _DECLARE:
            continue
        texts = [path_of(each, nothing) for each in call.args]
        named = {each.arg: each.value for each in call.keywords}
        default = path_of(named["default"], nothing) if "default" in named else None
        if function == "DEFINE_string":
            names = [f"--{name}" for name in texts[:1] if name is not None]
            default = default if len(texts) < 2 else texts[1]
        else:
            names = [name for name in texts if name is not None]
        required = named.get("required")
        is_required = isinstance(required, ast.Constant) and required.value is True
        if names:
            yield Option(tuple(names), default, is_required)


def _assigned_once(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    bound = Counter(
        node.arg if isinstance(node, ast.arg) else node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.arg)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    )
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if bound[name] == 1:
                yield name, value


def calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Yields all calls in the script."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def name_of(function: ast.expr) -> str:
    """Returns the last part of a dotted name; empty: the expression is none."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def key(option: str) -> str:
    """Returns the name under which programs keep an option: `ckpt_dir` for `--cfg.ckpt-dir`."""
    return option.lstrip("-").replace("-", "_").rpartition(".")[2]
