"""A process of the job, which the guard has started and waits for: its signals and its end."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from signal import Signals, pidfd_send_signal

from supervisor.diagnosis.failure import WorkerExit
from supervisor.host.waiting import has_ended
from supervisor.ports import Starter


class WorkerProcess:
    """A process of the job: in a session of its own, below the guard, which it dies with."""

    def __init__(
        self,
        starter: Starter,
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
        """How it ended; None while it runs."""
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
        """Wait for its end; how it ended."""
        while (ended := self.poll(0)) is None:
            has_ended(self.pidfd, None)
        return ended

    def signal(self, number: Signals) -> None:
        """Signal this process alone: its data loaders must live until it has saved."""
        with suppress(ProcessLookupError):
            pidfd_send_signal(self.pidfd, number)

    def signal_group(self, number: Signals) -> None:
        """Signal it with all of its process group, while it lives: then the group is its own."""
        if not has_ended(self.pidfd):
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def close(self) -> None:
        """Free the descriptor; the process has ended."""
        os.close(self.pidfd)


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
