"""Tests read events and their keys: a sentence may change with every version.

Some cannot: their subject is a sentence or how run.log looks, standard output is flooded and may
lack lines of ours, a terminal shows pictures, or a program of the test itself waits for a line.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

SUBJECT, FLOOD, LAYOUT, INSIDE = "sentence", "flood", "layout", "program of the test"
MAY_READ_RUN_LOG = {
    "adapters/test_deliveries.py": (2, LAYOUT),
    "adapters/test_messenger.py": (1, LAYOUT),
    "adapters/test_mirror.py": (2, LAYOUT),
    "bootstrap/test_supervised.py": (1, INSIDE),
    "chaos/faults.py": (1, LAYOUT),
    "deploy/test_boot_for_real.py": (2, LAYOUT),
    "processes/test_crowds.py": (2, FLOOD),
    "processes/test_cut_secrets.py": (6, SUBJECT),
    "processes/test_lumps.py": (1, INSIDE),
    "processes/test_recognised_steps.py": (1, INSIDE),
    "processes/test_security.py": (1, FLOOD),
    "processes/test_standby.py": (1, INSIDE),
    "processes/test_stopping.py": (2, LAYOUT),
    "processes/test_terminals.py": (1, LAYOUT),
    "processes/test_workers.py": (1, INSIDE),
    "running.py": (1, LAYOUT),
    "vanishing/cloud.py": (1, LAYOUT),
}
"""How often each of them may, and why. A new one has to say why it cannot read events."""


FILE = "/run.log"


def reads(tree: ast.Module) -> Iterator[ast.expr]:
    """Where run.log is read, but to show it where an assertion fails."""
    shown = {
        id(node)
        for each in ast.walk(tree)
        if isinstance(each, ast.Assert) and each.msg is not None
        for node in ast.walk(each.msg)
    }
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if id(node) in shown | called:
            continue
        if isinstance(node, ast.Attribute) and node.attr == "log":
            yield node
        if isinstance(node, ast.Constant) and FILE in str(node.value):
            yield node


def test_the_sentences_of_run_log_are_read_by_no_more_tests() -> None:
    found: Counter[str] = Counter()
    for path in sorted(TESTS.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if ".log" in text and path != Path(__file__):
            found[path.relative_to(TESTS).as_posix()] = sum(1 for _ in reads(ast.parse(text)))
    assert +found == {name: number for name, (number, _) in MAY_READ_RUN_LOG.items()}
