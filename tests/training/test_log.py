"""The trainer's event log: every event that is told has a line, and every line is told."""

from __future__ import annotations

import ast
import string
from pathlib import Path

import pytest

import trainer
from supervisor.protocol.messages import NoticeCode
from trainer.log import TEXTS, WorkerLog, log

SOURCES = sorted(Path(trainer.__path__[0]).rglob("*.py"))


def told() -> dict[str, set[str]]:
    """Each event that a call of `log` in the trainer names, with the keys that are given."""
    found = dict[str, set[str]]()
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name("log")), args=[ast.Constant(str() as name)]
                ):
                    found[name] = {word.arg for word in node.keywords if word.arg} | (
                        {"**"} if any(word.arg is None for word in node.keywords) else set()
                    )
    return found


def test_every_event_has_a_line_and_every_line_an_event() -> None:
    events = told()
    assert events.keys() == TEXTS.keys()
    for name, keys in events.items():
        wanted = {key for _, key, _, _ in string.Formatter().parse(TEXTS[name]) if key}
        assert wanted <= keys or "**" in keys, name


def test_nothing_is_printed_past_the_log() -> None:
    printing = [
        source.name
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert {*printing} == {"aot.py", "export.py", "log.py", "replay.py"}, "commands that answer"


def test_every_code_is_used() -> None:
    named = {
        node.attr
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "NoticeCode"
    }
    not_of_the_trainer = {
        NoticeCode.BOOTSTRAP_LEFT_OUT,
        NoticeCode.RESUME_DIFFERS,
        NoticeCode.SAVE_AWAITED,
        NoticeCode.SAVE_ON_SIGTERM_OFF,
    }
    assert named == {code.name for code in set(NoticeCode) - not_of_the_trainer}


def test_people_read_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    keys = {"step": 7, "loss": 1.23456, "learning_rate": 1e-3}
    log.info("step-completed", **keys)
    log.info("step-completed", **keys, steps_per_second=2.345)
    log.info("checkpoint-committed", step=7, seconds=0.4)
    WorkerLog().warn("the disk {x} is full", NoticeCode.EXECUTABLES_OFF)
    WorkerLog().obtained(0.256, "train step", "")
    WorkerLog().obtained(0.256, "train step", "the cache")
    assert capsys.readouterr().out.splitlines() == [
        "step 7  loss 1.2346  lr 1.00e-03",
        "step 7  loss 1.2346  lr 1.00e-03  2.35 steps/s",
        "step 7  checkpoint committed",
        "the disk {x} is full",
        "train step: compiled in 0.26 s",
        "train step: loaded from the cache in 0.26 s",
    ]
