"""How a process has ended is known although somebody else has reaped it, where the kernel tells."""

from __future__ import annotations

import subprocess
import sys

import pytest

from supervisor.adapters.kernel.exit_info import exit_info
from supervisor.host import tree
from tests.exit_info import KERNEL_TELLS_EXITS


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGTERM)", -15),
    ],
)
def test_the_exit_code_is_known_once_it_was_reaped(last: str, code: int) -> None:
    text = f"import os, signal, sys; sys.stdin.read(); {last}"
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE) as process:
        seen = tree.stat(process.pid)
        assert seen is not None
        info = exit_info(process.pid, seen)
        assert info is not None
        assert info.code() is None, "it lives"
        process.communicate()
        assert info.code() == (code if KERNEL_TELLS_EXITS else None)
        info.close()


def test_a_later_process_with_this_pid_is_not_looked_at() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        seen = tree.stat(process.pid)
        assert seen is not None
        earlier = tree.Stat(seen.state, seen.parent, seen.session, seen.started - 1)
        assert exit_info(process.pid, earlier) is None
        process.communicate(b"\n")
