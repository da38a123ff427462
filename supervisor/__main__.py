"""Runs the command line: `python -m supervisor` is the same as `supervise`."""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType

from supervisor.core.exit_codes import ExitCode
from supervisor.host.startup import complete_streams, stay_behind_as_init

_STOPPED = b"supervise: stopped by SIGTERM or SIGHUP before anything was started\n"
_NOT_INTERACTIVE = (
    b"supervise: PYTHONINSPECT is ignored: it would keep Python from ending, here and in the "
    b"program; set it in trainer.command.env if the program needs it\n"
)
_INTERRUPTED = b"supervise: interrupted before anything was started\n"
_EARLY_SIGNALS = {
    signal.SIGTERM: (ExitCode.DRAINED, _STOPPED),
    signal.SIGHUP: (ExitCode.DRAINED, _STOPPED),
    signal.SIGINT: (ExitCode.STOPPED, _INTERRUPTED),
    signal.SIGQUIT: (ExitCode.STOPPED, _INTERRUPTED),
}
"""Exit code and message for each signal that may come while our modules are imported."""
_DEFAULT_HANDLERS: dict[signal.Signals, signal._HANDLER] = {
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
}
"""The handler of each signal while a command runs that installs none."""


def main() -> int:
    """Run the command line; returns the exit code.

    If we are process 1 of a container, an init of our own stays there and this runs in its child.
    """
    complete_streams()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, no child could be waited for
    _ignore_inspection()
    if os.getpid() == 1:
        stay_behind_as_init()
    for number in _EARLY_SIGNALS:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            signal.signal(number, _exit_early)
    gc.disable()  # imported modules are never garbage; collecting takes a tenth of the start time
    from supervisor.cli import main as cli  # after the fork: the init stays small

    cli.load(sys.argv[1:])
    gc.enable()
    for number, handler in _DEFAULT_HANDLERS.items():
        if signal.getsignal(number) is _exit_early:
            signal.signal(number, handler)
    return cli.main()


def _ignore_inspection() -> None:
    """If the environment asks for an interactive Python after the end, begin again without: it
    would print a traceback in place of the exit code."""
    if os.environ.get("PYTHONINSPECT"):
        os.write(2, _NOT_INTERACTIVE)
        env = {name: value for name, value in os.environ.items() if name != "PYTHONINSPECT"}
        os.execve(sys.executable, sys.orig_argv, env)


def _exit_early(number: int, frame: FrameType | None) -> None:
    code, message = _EARLY_SIGNALS[signal.Signals(number)]
    os.write(2, message)
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
