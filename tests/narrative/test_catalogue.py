"""The catalogue of events is what the code tells; docs/reference/events.md is the catalogue."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from supervisor.narrative.catalogue import BUDGET, COMMON, KEYS, kinds
from supervisor.narrative.document import page
from supervisor.protocol.messages import NoticeCode

ROOT = Path(__file__).resolve().parents[2]
TELLERS = {"job_event", "attempt_event", "tell", "Notice", "_event"}
"""The functions whose first argument is the name of an event, and whose keywords are its keys."""
SHAPE = {"text", "level", "quotes"}
PASSED_ON = {
    "**budget_keys": set(BUDGET),
    "**stage_keys": {"stage", "step"},
    "**goodput_record": {"goodput", "seconds", "not_running", "uncommitted", "parts"},
    "**keys": {"code", "verdict", "certain"},
}
"""What is given to them by `**`."""
PARTIAL = {
    "_reported": {"attempt", "rank"},
    "notice_used": {"attempt", "seconds", "notice_seconds", "ending_step", "lost_steps"},
}
"""What `tell` has beforehand, in these functions."""
BY_CODE = {*NoticeCode, "worker-notice"}
"""What a worker's notice is told as, by its code."""


def told(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """The events that a module tells: each name, with its keys."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in ast.walk(function):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name | ast.Attribute)):
                continue
            name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
            first = call.args[0] if call.args else None
            if name not in TELLERS or not isinstance(first, ast.Constant):
                continue
            keys = {"attempt"} if name == "attempt_event" else set()
            if name == "tell":
                keys |= PARTIAL.get(function.name, set())
            for keyword in call.keywords:
                given = f"**{ast.unparse(keyword.value).partition('(')[0]}"
                keys |= {keyword.arg} if keyword.arg else PASSED_ON[given]
            yield str(first.value), keys - SHAPE


def test_the_code_tells_what_the_catalogue_says_and_nothing_else() -> None:
    catalogue, seen = kinds(), set()
    for path in sorted((ROOT / "supervisor").rglob("*.py")):
        for name, keys in told(ast.parse(path.read_text())):
            if name not in catalogue and " " in name:
                continue  # a `tell` of another kind, which is given a sentence
            assert name in catalogue, f"{path} tells of {name!r}, which the catalogue lacks"
            assert keys <= set(catalogue[name].keys), f"{path}: the keys of {name}"
            seen.add(name)
    assert seen | BY_CODE == set(catalogue)


def test_every_key_is_explained() -> None:
    used = {key for kind in kinds().values() for key in kind.keys}
    assert used == KEYS.keys()
    assert not used & COMMON.keys()
    assert list(KEYS) == sorted(KEYS)


def test_the_page_is_current() -> None:
    assert (ROOT / "docs" / "reference" / "events.md").read_text() == page()


def test_structlog_brings_neither_rich_nor_asyncio_into_the_supervisor() -> None:
    program = """
import sys
import supervisor.job, supervisor.cli.run, structlog
print(sorted({"rich", "asyncio", "supervisor.narrative.catalogue"} & sys.modules.keys()))
import asyncio, rich.console
print(structlog.stdlib.asyncio.run, asyncio.run, structlog.dev.rich)
"""
    out = subprocess.check_output([sys.executable, "-c", program], text=True).splitlines()
    assert out[0] == "[]"
    run, same, console = out[1].replace("<function run at ", "").replace(">", "").split()
    assert run == same
    assert console == "None"
