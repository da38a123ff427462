"""Starts, signals and waits for one process of the job, through the guard."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from signal import Signals, pidfd_send_signal

from supervisor.diagnosis.failure import WorkerExit
from supervisor.host.waiting import has_ended
from supervisor.ports import ProcessStarter


class WorkerProcess:
    """A process of the job. It has a session of its own, is below the guard, and dies with it."""

    def __init__(
        self,
        starter: ProcessStarter,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        output: int,
        errors: int | None = None,
        inherit: Sequence[int] = (),
    ) -> None:
        """Start `argv` with stdout and stderr on `output` (stderr on `errors`, if given), and the
        descriptors `inherit` open.

        Raises:
            OSError: it cannot be started.
        """
        self._starter = starter
        errors = output if errors is None else errors
        self._started = starter.start(argv, env, output, errors, inherit)
        self._code: int | None = None
        self.pid = self._started.pid
        self.pidfd = self._started.pidfd

    def poll(self, rank: int) -> WorkerExit | None:
        """Returns how the process ended, as the exit of `rank`; None: it runs.

        If nobody saw how it ended, the exit has neither a code nor a signal.
        """
        if self._code is None:
            try:
                self._code = self._starter.exit_code(self._started)
            except ChildProcessError:
                return WorkerExit(rank)
        if self._code is None:
            return None
        if self._code < 0:
            return WorkerExit(rank, signal=_signal_name(-self._code))
        return WorkerExit(rank, code=self._code)

    def wait(self) -> WorkerExit:
        """Wait for the end of the process; returns how it ended (with rank 0)."""
        while (ended := self.poll(0)) is None:
            has_ended(self.pidfd, None)
        return ended

    def signal(self, number: Signals) -> None:
        """Signal this process alone. Its data loaders must live until it has saved."""
        with suppress(ProcessLookupError):
            pidfd_send_signal(self.pidfd, number)

    def signal_group(self, number: Signals) -> None:
        """Signal the process and its process group, if the process lives: only then is the group
        surely its own."""
        if not has_ended(self.pidfd):
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def close(self) -> None:
        """Close the pidfd of the process, which has ended."""
        os.close(self.pidfd)


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
