"""Complaints of a verb that cannot do its work: lines on standard error, and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from types import FrameType
from typing import NoReturn

from supervisor.core.exit_codes import ExitCode
from supervisor.diagnosis.redaction import Redactor
from supervisor.host.outlet import say_on_stderr


def complain(code: int, text: str) -> int:
    """Print `text` without the secrets of our environment; returns `code`."""
    return complain_of_all(code, [Redactor(os.environ).text(text)])


def complain_of_all(code: int, lines: Iterable[str]) -> int:
    """Print `lines`, which hold no secrets; returns `code`."""
    for line in lines:
        say_on_stderr(f"supervise: {line}")
    return int(code)


def exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal that comes before anything was started: exit with 75, and say why."""
    sys.exit(complain(ExitCode.DRAINED, "stopped by SIGTERM or SIGHUP before anything was started"))
